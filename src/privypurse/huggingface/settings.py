"""What of Hugging Face's Trainer would break the promise, or is the plan's to decide: refused by name."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from privypurse.errors import InvalidInput, PrivyPurseWarning, Unsupported
from privypurse.plans import Plan
from privypurse.training.other_trainers import (
    CLIPPING,
    COMPILED,
    DIGEST,
    DRAWS,
    LARGER,
    SCALER,
    WHOLE,
    Sound,
    Told,
    refuse_extra_steps,
    refuse_training_data,
    refuse_values,
)

_SIZE = f"{DRAWS}, and per_device_train_batch_size is how many go through at once"
_OWN_LOSS = "one loss for each record is what is clipped; write it into loss_fn="
_WHOLE = f"{WHOLE}; use torchrun alone, one process a device"
_REPEATS = "who is drawn, noise and dropout repeat nothing; leave it out, and for tests give the Trainer itself seed="
_TELLS = "it tells what is in people's records (rule 6: sensitive outputs); leave it out"

_SOUND: Sound = {
    "num_train_epochs": ((3.0,), "how many steps there are is the plan's: pp.plan(…, steps=…); leave it out"),
    "gradient_accumulation_steps": ((1,), LARGER),
    "auto_find_batch_size": (
        (False,),
        f"it begins anew after steps that were released, by how many were drawn; {_SIZE}",
    ),
    "train_sampling_strategy": (("random",), f"records of like lengths would be chosen by each other; {_SIZE}"),
    "dataloader_drop_last": ((False,), f"every draw counts; {_SIZE}"),
    "data_seed": ((None,), _REPEATS),
    "full_determinism": ((False,), _REPEATS),
    "max_grad_norm": ((1.0, 0.0, None), CLIPPING),
    "fp16": ((False,), f"{SCALER}; use bf16=True"),
    "label_smoothing_factor": ((0.0,), _OWN_LOSS),
    "use_liger_kernel": ((False,), f"its loss is one over the whole batch; {_OWN_LOSS}"),
    "neftune_noise_alpha": ((None,), "its hook goes past what clips embeddings; leave it out"),
    "torch_empty_cache_steps": (
        (None,),
        "nothing is emptied here; for less memory lower per_device_train_batch_size",
    ),
    "torch_compile": ((False,), f"{COMPILED}; leave it out"),
    "deepspeed": ((None,), _WHOLE),
    "fsdp": ((None, "", [], False), _WHOLE),
    "parallelism_config": ((None,), _WHOLE),
    "include_num_input_tokens_seen": (("no", False), _TELLS),
    "debug": (([], ""), _TELLS),
}
"""Defaults are sound. One that is written out cannot be told from one that is left out."""

_OPTIONS = {
    "compute_loss_func": f"it divides by num_items_in_batch, which other people's records decide; {_OWN_LOSS}",
    "model_init": "each model trained spends once more, and choosing among them is a question too; give model=",
}
_ACCELERATOR = ("dispatch_batches", "split_batches")
_PUSHES_CHECKPOINTS = ("checkpoint", "all_checkpoints")
_BY_EPOCH = ("eval_strategy", "save_strategy", "logging_strategy")
_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")


def refuse_settings(args: Any, options: dict[str, Any], plan: Plan, told: Told) -> None:
    """Raise for the first setting under which what is released would not be what the plan accounts for."""
    refuse_extra_steps(plan)
    refuse_values(args, _SOUND)
    for name, why in _OPTIONS.items():
        if options.get(name) is not None:
            raise Unsupported(f"{name} is given: {why}")
    for name in _ACCELERATOR:
        if getattr(args.accelerator_config, name):
            raise Unsupported(f"accelerator_config has {name}: one process would hand out another's draws; {_SIZE}")
    if args.push_to_hub and args.hub_strategy.value in _PUSHES_CHECKPOINTS:
        raise Unsupported(f"hub_strategy is {args.hub_strategy.value!r}: {DIGEST}; use 'every_save' or 'end'")
    if any(name in str(args.optim) for name in _OPTIMIZERS):
        raise Unsupported(
            f"optim is {args.optim!r}, which steps in the backward pass or needs two modes; take another"
        )
    if args.n_gpu > 1:
        raise Unsupported(f"{args.n_gpu} GPUs in one process (DataParallel): {_WHOLE}")
    if args.max_steps not in (-1, plan.all_steps):
        raise InvalidInput(f"max_steps is {args.max_steps}, but the plan has {plan.all_steps} steps; leave it out")
    if args.warmup_steps > plan.all_steps:
        raise InvalidInput(
            f"warmup_steps is {args.warmup_steps:g}, but the plan has {plan.all_steps} steps: the learning rate "
            "would never be reached. A share of the plan's steps is a number below 1: warmup_steps=0.1"
        )
    _say_one_epoch(args)
    if args.metric_for_best_model is not None:
        told.refuse_choice("metric_for_best_model", args.metric_for_best_model)
    if args.eval_strategy != "no" and options.get("eval_dataset") is not None:
        told.say_hidden("trainer.evaluate()")


def _say_one_epoch(args: Any) -> None:
    """Warn where something is to happen after each epoch: there is one."""
    name = next((name for name in _BY_EPOCH if getattr(args, name) == "epoch"), None)
    if name is not None:
        steps = name.replace("strategy", "steps")
        warnings.warn(
            f"{name} is 'epoch', and one epoch is the whole plan: that is once, in the end. For more often "
            f"{name}='steps', {steps}=0.1 (a share of the plan's steps, or a number of them)",
            PrivyPurseWarning,
            stacklevel=4,
        )


def refuse_trainer(trainer: Any) -> None:
    """Raise for what only shows when a Trainer is made: what a launcher or accelerate sets up, and labels."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise Unsupported(f"the launcher asks for DeepSpeed or FSDP: {_WHOLE}")
    if trainer.accelerator.scaler is not None or trainer.args.gradient_accumulation_steps != 1:
        raise Unsupported(f"accelerate is set up with a GradScaler, or to add up gradients of several steps; {_SIZE}")
    if len(trainer.label_names) != 1:
        raise Unsupported(
            f"label_names are {trainer.label_names}, as the model's forward has them: loss_fn(output, labels) takes "
            'one. Name it: TrainingArguments(…, label_names=["labels"])'
        )
    measured = trainer.eval_dataset
    for each in measured.values() if isinstance(measured, dict) else [measured]:
        refuse_training_data(each, trainer.train_dataset)  # now, not when steps were taken


def refuse_scheduler(trainer: Any) -> None:
    """Raise if the learning rate is to go by figures that are hidden, or by one that nobody named."""
    scheduler, args = trainer.lr_scheduler, trainer.args
    if not goes_by_figures(scheduler):
        return
    name = type(scheduler).__name__
    trainer._told.refuse_choice("the scheduler", name)
    if args.metric_for_best_model is None and args.eval_strategy != "no":
        raise InvalidInput(
            f"the scheduler is {name!r}, which goes by a figure on evaluation data, and none is named: "
            'TrainingArguments(…, metric_for_best_model="loss")'
        )


def goes_by_figures(scheduler: Any) -> bool:
    """Whether each step of a scheduler has to be told a figure, as of ReduceLROnPlateau and GreedyLR."""
    asked = inspect.signature(scheduler.step).parameters.values() if scheduler is not None else ()
    return any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in asked)


def require_labels(batch: dict[str, Any], name: str) -> None:
    """Raise if a batch has none."""
    if name not in batch:
        raise InvalidInput(
            f"batches have {', '.join(batch)} and no {name}, which the loss is made of. Give each record an "
            f"entry {name} of numbers (words are left out of batches); for a causal language model its input_ids "
            "once more, -100 where padded"
        )

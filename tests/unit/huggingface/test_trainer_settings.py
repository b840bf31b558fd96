"""What would break the promise in Hugging Face's Trainer is refused by its name, before anything is made."""

import importlib
import importlib.util
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

import privypurse as pp
from trainer_tools import STEPS, Counting, Trainer, gpt2, planned, sentences, settings, trainer, transformers

pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]

WRONG = {
    "num_train_epochs": 5,
    "gradient_accumulation_steps": 2,
    "auto_find_batch_size": True,
    "train_sampling_strategy": "group_by_length",
    "dataloader_drop_last": True,
    "data_seed": 7,
    "full_determinism": True,
    "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "torch_compile": True,
    "torch_empty_cache_steps": 4,
    "include_num_input_tokens_seen": "all",
    "debug": "underflow_overflow",
    "max_steps": STEPS + 1,
    "warmup_steps": STEPS + 1,
}
"""What can be written down on any machine."""
SET_LATER = {
    "fp16": True,
    "use_liger_kernel": True,
    "deepspeed": {"zero_optimization": {"stage": 3}},
    "fsdp": "full_shard",
    "parallelism_config": object(),
    "optim": "lomo",
    "_n_gpu": 2,
}
"""What needs other packages or machines to be written down: as if it had been."""
ASKED_OTHERWISE = [
    "accelerator_config",
    "push_to_hub",
    "hub_strategy",
    "metric_for_best_model",
    "load_best_model_at_end",
]
"""What is refused together with something else: tests below."""
FOLLOWED = """
output_dir per_device_train_batch_size learning_rate lr_scheduler_type lr_scheduler_kwargs optim_args weight_decay
adam_beta1 adam_beta2 adam_epsilon optim_target_modules bf16 tf32 gradient_checkpointing gradient_checkpointing_kwargs
activation_checkpointing activation_checkpointing_kwargs
use_cache use_cpu seed remove_unused_columns label_names dataloader_num_workers ddp_backend ddp_timeout
torch_compile_backend torch_compile_mode liger_kernel_config length_column_name fsdp_config
"""
"""What is the Trainer's own, or is part of something that is refused."""
MOOT = """
average_tokens_across_devices ignore_data_skip logging_nan_inf_filter dataloader_pin_memory dataloader_in_order
dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context local_rank
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph
do_train do_eval do_predict resume_from_checkpoint
"""
"""What moves no weight in the first place, or is of a loader, a wrapper or a division that is not there."""
BESIDE_TRAINING = """
eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
bf16_full_eval fp16_full_eval greater_is_better save_only_model save_strategy save_steps save_on_each_node
save_total_limit enable_jit_checkpoint restore_callback_states_from_checkpoint hub_token hub_private_repo hub_model_id
hub_always_push hub_revision logging_strategy logging_steps logging_first_step log_on_each_node log_level
log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
skip_memory_metrics
"""
LOOKED_THROUGH = (5, 23)
"""The version of transformers whose settings these are."""


def test_every_setting_there_is_was_decided_about():
    decided = {*WRONG, *SET_LATER, *ASKED_OTHERWISE, *f"{FOLLOWED} {MOOT} {BESIDE_TRAINING}".split()}
    missing = [field.name for field in fields(transformers.TrainingArguments) if field.name not in decided]
    if tuple(map(int, transformers.__version__.split(".")[:2])) > LOOKED_THROUGH:
        pytest.xfail(f"settings to be looked through: {', '.join(missing) or 'no new ones'}")
    assert not missing


@pytest.mark.parametrize("name", ["eval_strategy", "save_strategy", "logging_strategy"])
def test_what_is_to_come_after_every_epoch_is_told_that_there_is_one(name, tmp_path):
    with pytest.warns(pp.PrivyPurseWarning, match=f"{name} is 'epoch', and one epoch is the whole plan"):
        trainer(tmp_path, gpt2(), eval_dataset=sentences(gpt2(), 2, seed=2), **{name: "epoch"})


@pytest.mark.slow
def test_a_warmup_is_a_share_of_the_plans_steps(tmp_path):
    """The rates of the first three of six steps rise to the one that was asked for."""
    seen = Counting()
    trainer(tmp_path, gpt2(), warmup_steps=0.5, logging_steps=1, callbacks=[seen], seed=1).train()
    rates = [log["learning_rate"] for log in seen.logs if "learning_rate" in log]
    assert rates == pytest.approx([0.0, 1e-2 / 3, 2e-2 / 3, 1e-2, 2e-2 / 3, 1e-2 / 3])


@pytest.mark.parametrize(("name", "value"), WRONG.items(), ids=WRONG)
def test_a_wrong_setting_is_refused(name, value, tmp_path):
    with pytest.raises(pp.PrivyPurseError, match=f"{name} is"):
        trainer(tmp_path, gpt2(), **{name: value})


@pytest.mark.parametrize(("name", "value"), SET_LATER.items(), ids=SET_LATER)
def test_what_needs_another_machine_is_refused(name, value, tmp_path):
    args = settings(tmp_path)
    assert args.n_gpu <= 1  # which also looks for devices, as it does only once
    setattr(args, name, value)
    with pytest.raises(pp.Unsupported, match="2 GPUs in one process" if name == "_n_gpu" else f"{name} is"):
        Trainer(gpt2(), args, plan=planned(), train_dataset=[])


@pytest.mark.parametrize("name", ["dispatch_batches", "split_batches"])
def test_accelerate_hands_out_no_batches(name, tmp_path):
    with pytest.raises(pp.Unsupported, match=name):
        trainer(tmp_path, gpt2(), accelerator_config={name: True})


def test_accelerate_never_has_the_training_data(tmp_path):
    """So its even_batches, on by default, which has records drawn twice, finds nothing to even out."""
    made = trainer(tmp_path, gpt2(), plan=planned(steps=1))
    made.train()
    assert made.args.accelerator_config.even_batches
    assert made.accelerator._dataloaders == []


@pytest.mark.parametrize("name", ["compute_loss_func", "model_init"])
def test_what_goes_past_the_loss_or_the_model_is_refused(name, tmp_path):
    with pytest.raises(pp.Unsupported, match=f"{name} is given"):
        Trainer(gpt2(), settings(tmp_path), plan=planned(), train_dataset=[], **{name: lambda *given: None})


def test_no_division_by_the_items_of_a_batch(tmp_path):
    """A loss of one's own that asks for them is told none: the loop never sees labels."""
    asked = []

    class Asking(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            asked.append(num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def training_step(self, model, inputs, num_items_in_batch=None):
            asked.append(num_items_in_batch)
            return super().training_step(model, inputs, num_items_in_batch)

    model = gpt2()
    Asking(model, settings(tmp_path), plan=planned(steps=2), train_dataset=sentences(model)).train()
    assert len(asked) >= 4
    assert set(asked) == {None}


def test_checkpoints_are_not_pushed_with_the_plans_digest(tmp_path):
    args = settings(tmp_path)
    args.push_to_hub, args.hub_strategy = True, transformers.trainer_utils.HubStrategy.ALL_CHECKPOINTS
    with pytest.raises(pp.Unsupported, match="hub_strategy is 'all_checkpoints'"):
        Trainer(gpt2(), args, plan=planned(), train_dataset=[])


def test_accumulation_by_another_name_is_refused(tmp_path):
    with pytest.raises(pp.Unsupported, match="add up gradients of several steps"):
        trainer(tmp_path, gpt2(), accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 2}})


def test_what_a_launcher_asks_for_and_labels_by_several_names():
    from privypurse.huggingface.settings import refuse_trainer

    made = {"is_deepspeed_enabled": False, "is_fsdp_enabled": False, "label_names": ["labels"]}
    made |= {"accelerator": SimpleNamespace(scaler=None), "args": SimpleNamespace(gradient_accumulation_steps=1)}
    made |= {"train_dataset": [{}], "eval_dataset": None}
    refuse_trainer(SimpleNamespace(**made))
    with pytest.raises(pp.Unsupported, match="GradScaler"):
        refuse_trainer(SimpleNamespace(**{**made, "accelerator": SimpleNamespace(scaler=object())}))
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        with pytest.raises(pp.Unsupported, match="DeepSpeed or FSDP"):
            refuse_trainer(SimpleNamespace(**{**made, name: True}))
    with pytest.raises(pp.Unsupported, match="label_names"):
        refuse_trainer(SimpleNamespace(**{**made, "label_names": ["start_positions", "end_positions"]}))
    with pytest.raises(pp.Unsupported, match=r'TrainingArguments\(…, label_names=\["labels"\]\)'):
        refuse_trainer(SimpleNamespace(**{**made, "label_names": []}))


@pytest.mark.parametrize("how", ["whole", "slice", "named"])
def test_evaluation_on_the_training_data_is_refused_before_a_step_is_taken(tmp_path, how):
    data = sentences(gpt2())
    measured = {"whole": data, "slice": data[3:5], "named": {"others": sentences(gpt2(), 2, seed=2), "own": data}}[
        how
    ]
    with pytest.raises(pp.InvalidInput, match="training data"):
        trainer(tmp_path, gpt2(), data=data, eval_dataset=measured)
    trainer(tmp_path, gpt2(), data=data, eval_dataset=sentences(gpt2()))  # the same words, of others


def test_what_is_no_plan_is_named(tmp_path):
    for plan, name in ((None, "NoneType"), ([1.0], "list")):
        with pytest.raises(pp.InvalidInput, match=rf"plan is a {name}; make one: pp\.plan"):
            Trainer(gpt2(), settings(tmp_path), plan=plan, train_dataset=[])


def test_a_plan_with_extra_steps_is_refused(tmp_path):
    with pytest.raises(pp.Unsupported, match="extra steps"):
        trainer(tmp_path, gpt2(), plan=planned(extra_steps=2))


def test_nothing_is_chosen_by_people_who_are_not_charged(tmp_path):
    kinds = ["reduce_lr_on_plateau", *({"greedy"} & {each.value for each in transformers.SchedulerType})]
    for name, value in [("load_best_model_at_end", True), *(("lr_scheduler_type", kind) for kind in kinds)]:
        options = {"eval_strategy": "steps", "save_strategy": "steps", "eval_dataset": [], name: value}
        with pytest.raises(pp.InvalidInput, match="metric_for_best_model is 'loss'"):
            trainer(tmp_path, gpt2(), **options)
        trainer(tmp_path, gpt2(), **options, measured="public")
    with pytest.raises(pp.InvalidInput, match='measured="charged" is for a function'):
        trainer(tmp_path, gpt2(), measured="charged")


def by_figures(kind, model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, kind(optimizer, **options)


@pytest.mark.parametrize("name", ["ReduceLROnPlateau", "GreedyLR"])
def test_no_learning_rate_goes_by_people_who_are_not_charged(name, tmp_path):
    """Found before a step is counted; the broken twins train, and die at the first evaluation."""
    kind = getattr(transformers.optimization, name, None)
    if kind is None:
        pytest.skip(f"this release of transformers has no {name}")
    model = gpt2()
    options = {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": sentences(model, 4, seed=2)}
    with pytest.raises(pp.InvalidInput, match=rf"the scheduler is '{name}'.* measured=\"public\""):
        trainer(tmp_path, model, **options, optimizers=by_figures(kind, model))
    made = trainer(tmp_path, model, **options)
    made.optimizer, made.lr_scheduler = by_figures(kind, model)
    with pytest.raises(pp.InvalidInput, match=f"the scheduler is '{name}'"):
        made.train()
    options["measured"] = "public"
    with pytest.raises(pp.InvalidInput, match="goes by a figure on evaluation data, and none is named"):
        trainer(tmp_path, model, **options, optimizers=by_figures(kind, model))
    assert not list(tmp_path.rglob("steps"))
    optimizer, scheduler = by_figures(kind, model, patience=0, threshold=0.9, factor=0.5)
    used = {"optimizers": (optimizer, scheduler), "metric_for_best_model": "loss"}
    trainer(tmp_path, model, **options, **used).train()
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_figures_on_the_training_data_are_refused(tmp_path):
    model = gpt2()
    data, others = sentences(model), sentences(model, 4, seed=2)
    made = trainer(tmp_path, model, data=data, eval_dataset=others)
    made.eval_dataset = {"others": others, "mine": data}  # past the look that is had when it is made
    assert "eval_others_loss" in made.evaluate({"others": others})
    part = torch.utils.data.Subset(data, [0, 1])
    for asked, on in ((made.evaluate, None), (made.evaluate, data), (made.evaluate, part), (made.predict, data)):
        with pytest.raises(pp.InvalidInput, match="training data"):
            asked(on)


def test_the_settings_that_were_given_stay_as_they_were(tmp_path):
    args = settings(tmp_path)
    Trainer(gpt2(), args, plan=planned(), train_dataset=[])
    assert (args.max_steps, args.ignore_data_skip) == (-1, False)


def test_a_collator_that_looks_at_other_records_is_refused(tmp_path):
    def centred(records):
        batch = transformers.default_data_collator(records)
        batch["input_ids"] = (batch["input_ids"] + batch["input_ids"].sum()) % 50
        return batch

    with pytest.raises(pp.InvalidInput, match="collate_fn"):
        trainer(tmp_path, gpt2(), data_collator=centred, seed=1).train()  # of two batches one has two records


def test_a_scheduler_of_steps_is_followed(tmp_path):
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    trainer(tmp_path, model, optimizers=(optimizer, scheduler)).train()
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_too_few_records_are_counted(tmp_path):
    model = gpt2()
    with pytest.raises(pp.InvalidInput, match="dataset has 5 records but the plan is for 12"):
        trainer(tmp_path, model, data=sentences(model, 5)).train()


def test_records_without_labels_are_named(tmp_path):
    model = gpt2()
    data = [{name: value for name, value in record.items() if name != "labels"} for record in sentences(model)]
    with pytest.raises(pp.InvalidInput, match=r"no labels.*input_ids once more, -100 where padded"):
        trainer(tmp_path, model, data=data).train()


def test_without_transformers_it_says_what_it_needs(monkeypatch):
    import privypurse.huggingface

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    with pytest.raises(ImportError, match=r"needs transformers: pip install '.\[huggingface\]' in a clone"):
        importlib.reload(privypurse.huggingface)


def test_no_folder_of_tests_is_taken_for_a_package_of_hugging_face():
    """Folders of tests are on the path: one called datasets, even empty, was imported as that package."""
    for name in ("datasets", "evaluate", "accelerate", "peft", "trl"):
        found = importlib.util.find_spec(name)
        assert found is None or found.origin is not None, f"{list(found.submodule_search_locations)}: remove it"

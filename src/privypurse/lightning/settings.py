"""Settings of Lightning's Trainer that would break the promise, or that the plan decides: refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ThroughputMonitor,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

from privypurse.errors import InvalidInput, Unsupported
from privypurse.lightning.discreet import EPSILON
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
    refuse_values,
)

_CLIPPING = f"it is done before the noise, where there is no gradient yet; {CLIPPING}"
_SOUND: Sound = {
    "accumulate_grad_batches": ((1,), LARGER),
    "gradient_clip_val": ((None, 0), _CLIPPING),
    "overfit_batches": ((0,), f"{DRAWS}, and never the same people again; leave it out"),
    "reload_dataloaders_every_n_epochs": ((0,), f"{DRAWS}, from the data that it began with; leave it out"),
    "_detect_anomaly": ((False,), "an error would tell of a gradient that is not finite; such ones count as zero"),
}
"""Defaults are sound."""

_TRIES = (
    "it takes steps to try something out, and chooses by the training loss, which nobody has paid for; try it out on "
    "public or made-up records, without this data module"
)
_CALLBACKS: dict[type, str] = {
    GradientAccumulationScheduler: LARGER,
    LearningRateFinder: _TRIES,
    BatchSizeFinder: _TRIES,
    SpikeDetection: "it decides by the training loss, which nobody has paid for",
    ThroughputMonitor: "it tells how many were drawn (rule 6: sensitive outputs)",
}
_PUBLIC = (None, "step", "epoch", EPSILON)
"""What a callback may follow besides figures on records."""


def refuse_settings(trainer: Any, module: LightningModule, plan: Plan) -> None:
    """Raise for the first setting under which what is released would not be what the plan accounts for."""
    refuse_values(trainer, _SOUND)
    _refuse_length(trainer, plan)
    _refuse_machines(trainer)
    _refuse_helpers(trainer)
    _refuse_module(module)


def refuse_choices(trainer: Any, told: Told) -> None:
    """Raise if a model, an end or a learning rate is to be chosen by figures that are hidden."""
    for callback in trainer.callbacks:
        if getattr(callback, "monitor", None) not in _PUBLIC:
            told.refuse_choice(f"monitor of {type(callback).__name__}", callback.monitor)
    for each in trainer.lr_scheduler_configs:
        if each.reduce_on_plateau:
            told.refuse_choice(f"monitor of {type(each.scheduler).__name__}", each.monitor)


def one_optimizer(configure_optimizers: Callable[[], Any]) -> Any:
    """What it gives, in whatever form Lightning takes it; raises unless that is one optimizer."""
    made = configure_optimizers()
    count = sum(isinstance(each, Optimizer) for each in tree_leaves(made))
    if count != 1:
        raise InvalidInput(
            f"configure_optimizers gives {count} optimizers, and a plan's noise is for one gradient a step. Give "
            'one; where learning rates differ, with groups of parameters: AdamW([{"params": …, "lr": …}, …])'
        )
    return made


def _refuse_length(trainer: Any, plan: Plan) -> None:
    """Raise if the trainer would ask for more steps than the plan has."""
    limit, epochs = trainer.limit_train_batches, trainer.fit_loop.max_epochs
    each = min(limit if isinstance(limit, int) else int(limit * plan.all_steps), plan.all_steps)
    most = float("inf") if epochs is None or epochs < 0 else epochs * each
    if trainer.max_steps >= 0:
        most = min(most, trainer.max_steps)
    if most > plan.all_steps:
        parts = min(10, plan.all_steps)
        raise InvalidInput(
            f"max_epochs is {epochs} and max_steps is {trainer.max_steps}, which is more than the {plan.all_steps:,} "
            "steps of the plan: one pass over the training data is the whole run. Write Trainer(max_epochs=1); for "
            f"{parts} parts with validation and checkpoints between them Trainer(max_epochs={parts}, "
            f"limit_train_batches={plan.all_steps // parts})"
        )


def _refuse_machines(trainer: Any) -> None:
    strategy, precision = trainer.strategy, trainer.precision_plugin
    if type(strategy) not in (SingleDeviceStrategy, DDPStrategy):
        raise Unsupported(f"strategy is {type(strategy).__name__}: {WHOLE}; use one, or strategy='ddp'")
    if strategy.launcher is not None and not isinstance(strategy.launcher, _SubprocessScriptLauncher):
        raise Unsupported(
            "strategy starts its processes by fork or spawn, and this one would not know of the steps that they "
            "take; use strategy='ddp' in a script, or torchrun"
        )
    if getattr(precision, "scaler", None) is not None:
        raise Unsupported(f"precision is {trainer.precision!r}: {SCALER}; use precision='bf16-mixed'")
    if type(precision) not in (Precision, MixedPrecision, DoublePrecision, HalfPrecision):
        raise Unsupported(
            f"precision is {trainer.precision!r} ({type(precision).__name__}), which replaces layers by its own; "
            "use '32-true', '64-true' or 'bf16-mixed'"
        )


def _refuse_helpers(trainer: Any) -> None:
    for callback in trainer.callbacks:
        why = next((why for kind, why in _CALLBACKS.items() if isinstance(callback, kind)), None)
        if why is not None:
            raise Unsupported(f"callbacks has a {type(callback).__name__}: {why}")
    for logger in trainer.loggers:
        if getattr(logger, "_log_model", False):
            raise Unsupported(
                f"{type(logger).__name__} has log_model: {DIGEST}; leave it out, and publish the model's weights"
            )


def _refuse_module(module: LightningModule) -> None:
    name = type(module).__name__
    if not module.automatic_optimization:
        raise Unsupported(
            f"{name} has automatic_optimization = False, and its steps would go past the plan's; leave it out, or "
            "write the loop with pp.make_private"
        )
    for path, part in module.named_modules():
        if isinstance(part, Metric) and any(part._persistent.values()):
            raise Unsupported(
                f"{path} is a metric that is saved with the model: what it holds of the records would be released "
                f"without clipping and noise. Call {path}.persistent(False)"
            )
    if is_overridden("configure_gradient_clipping", module):
        raise Unsupported(f"{name} has configure_gradient_clipping(): {_CLIPPING}")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise Unsupported(f"{name}.training_step takes a dataloader_iter; let it take (batch, batch_idx): {DRAWS}")
    if getattr(module, "_compiler_ctx", None) is not None:
        raise Unsupported(f"{name} was given to torch.compile: {COMPILED}; give it uncompiled")

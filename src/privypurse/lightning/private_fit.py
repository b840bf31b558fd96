"""One `trainer.fit` by a plan: steps instead of batches, and the watched module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import Dataset

from privypurse.errors import InvalidInput, PlanExhausted
from privypurse.lightning.discreet import DiscreetFit, Hidden
from privypurse.lightning.settings import one_optimizer, refuse_choices, refuse_settings
from privypurse.plans import Plan
from privypurse.training.forms import tensors
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.memory import leave_alone
from privypurse.training.isolation.saved import Saved
from privypurse.training.isolation.tracking.record_sum import FOREIGN
from privypurse.training.isolation.tracking.states import Total, plain, state_of
from privypurse.training.journal import STEPS
from privypurse.training.make_private import make_private
from privypurse.training.other_trainers import Told, refuse_begun, require_counted

leave_alone(Trainer)  # a module points back to it, and it holds everything


class Step(Hidden):
    """What Lightning and its callbacks get as a batch. The records that were drawn go to training_step alone."""

    _why = "who was drawn is told to training_step alone, in a fit with datamodule=PrivateDataModule(…) (rule 6)"


class _Unseen(torch.autograd.Function):
    """A loss whose value is not told, and whose gradient is as ever."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return torch.full_like(loss, torch.nan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class PrivateFit(DiscreetFit):
    """Makes the fit of its data module private when it starts, and leaves everything as it was in the end."""

    def __init__(
        self, dataset: Dataset[Any], plan: Plan, told: Told, folder: Path | None, options: dict[str, Any]
    ) -> None:
        """``options`` are those of `make_private`."""
        super().__init__(dataset, told)
        self.plan, self._folder, self._options, self._begun = plan, folder, options, False
        self._inside: nn.Module | None = None
        """The part of the module that is running, called by training_step."""

    # What Lightning calls.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._serves(trainer):
            refuse_settings(trainer, pl_module, self.plan)
            self._put(pl_module, "configure_optimizers", one_optimizer)
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._serves(trainer):
            return
        refuse_choices(trainer, self._told)
        self._require_folder(trainer)
        if isinstance(trainer.strategy, DDPStrategy):
            trainer.strategy.model = pl_module  # what comes back is added up by the mechanism, not by DDP
        if self._options["individual"] is not None and not is_overridden("forward", pl_module):
            raise InvalidInput(
                f"individual= measures everybody's gradient of loss_fn({type(pl_module).__name__}(x), y), and it has "
                "no forward(); write one, and let training_step call it"
            )
        journal = None if self._folder is None else self._folder / STEPS
        _, self._optimizer, self._loader = make_private(
            pl_module, trainer.optimizers[0], self._dataset, self.plan, journal=journal, **self._options
        )
        self._undo.callback(self._optimizer.close)
        self._module, self._trainer, self._run = pl_module, trainer, self._optimizer._current_batch.run
        self._require_later_than(trainer._checkpoint_connector._loaded_checkpoint)
        if self._folder is not None and not trainer._checkpoint_connector._loaded_checkpoint:
            taken, left = self._run.steps_taken, self._run.steps_left
            refuse_begun(self._folder, taken, left, "fit(…, ckpt_path=…)", "another folder=")
        self._batches: Iterator[Any] | None = None
        self._at = self._run.steps_taken
        self._undo.callback(self._leave_batches)
        trainer.strategy.optimizers = [self._optimizer]
        self._put(trainer.fit_loop.epoch_loop._results, "log", functools.partial(self._log, trainer))
        self._put(pl_module, "training_step", self._training_step)
        for name in ("_on_before_batch_transfer", "_apply_batch_transfer_handler"):
            self._put(pl_module, name, _not_of_steps)
        for part in _parts(pl_module, set(self._run.parameters.values())):
            self._put(part, "forward", functools.partial(self._forward, part))

    # How a fit begins and ends.

    def _require_folder(self, trainer: Trainer) -> None:
        """Raise where steps that were taken before would not be known of."""
        if self._folder is None and self._options["seed"] is None:
            if self._begun:
                raise InvalidInput(
                    "this data module was trained on before, and without a folder nothing knows of its steps; give "
                    "PrivateDataModule(…, folder=…), which counts them, or make a new plan"
                )
            if trainer._checkpoint_connector._loaded_checkpoint:
                raise InvalidInput(
                    "ckpt_path goes on from a checkpoint, and steps that were taken since then would be taken once "
                    "more; train with PrivateDataModule(…, folder=…) from the start, which counts every step"
                )

    def _require_later_than(self, checkpoint: dict[str, Any]) -> None:
        """Raise if a checkpoint has more steps than the folder counts: it is of another one."""
        states = checkpoint.get("optimizer_states", []) if self._run.source.secure else []
        if states:
            steps = max(state.get("private", {}).get("steps_taken", 0) for state in states)
            mend = "Give the folder= that it was made with"
            require_counted("the checkpoint", steps, self._folder, self._run.steps_taken, mend)

    def _leave_batches(self) -> None:
        self._batches = self._inside = None

    # What a step does.

    def steps(self) -> Iterator[Step]:
        """One for each step that is left; none is drawn before it is taken."""
        self._run.require_step()
        self._begun = True
        for _ in range(self._run.steps_left):
            yield Step()
        self._trainer.should_stop = True  # where steps were counted that Lightning does not know of

    def _training_step(self, original: Callable[..., Any], step: Step, *others: Any) -> Tensor:
        """The records drawn, in physical batches: all but the last go back here, that one as Lightning does it."""
        if not isinstance(step, Step):
            raise InvalidInput("training_step was given something else than a step of the private data module")
        current = self._optimizer._current_batch
        while True:
            total = self._total(self._own(original, self._next_batch(), *others))
            if self._loader.ends_step:
                return _Unseen.apply(total)  # type: ignore[no-any-return,no-untyped-call]
            with self._no_autocast():
                torch.autograd.backward(total)
                current.clip()

    def _own(self, training_step: Callable[..., Any], batch: Any, *others: Any) -> Any:
        """What the module's own training_step gives, for the batch as the module's hooks change it."""
        drawn = any(value.dim() and len(value) for value in tensors(batch))
        saved = Saved(self._module, contents=drawn and self._run.keys.due("training_step"))
        try:
            result = training_step(self._on_device(batch), *others)
        except InvalidInput as error:
            if str(error) != FOREIGN:
                raise
            raise InvalidInput(f"{error}. {_WHOLE_MODULE}") from None
        if written := saved.written():
            raise InvalidInput(
                f"training_step wrote into {written[0]}, which is saved with the model: what it holds of the records "
                "would be released without clipping and noise. Keep it in a metric, or leave it out; what follows "
                "from steps alone (an average of weights) is written in on_train_batch_end"
            )
        return result

    def spending(self) -> Spending:
        """Of each person, so far."""
        if not self._begun:
            raise InvalidInput("nothing was trained yet, so nothing is spent: call trainer.fit(…) first")
        return self._optimizer.spending()

    def _next_batch(self) -> Any:
        self._batches, self._inside = self._batches or iter(self._loader), self._module  # norms may be measured
        try:
            with self._no_autocast():
                batch, self._at = next(self._batches, None), self._run.steps_taken + 1
        finally:
            self._inside = None
        if batch is None:
            raise PlanExhausted(f"the {self.plan.all_steps:,} steps of the plan are taken")
        return batch

    def _on_device(self, batch: Any) -> Any:
        with self._no_autocast():
            batch = self._trainer.precision_plugin.convert_input(batch)
            batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
            return self._trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _no_autocast(self) -> torch.autocast:
        return torch.autocast(self._module.device.type, enabled=False)

    def _total(self, result: Any) -> Tensor:
        """Where the backward pass begins: at a mean or sum over records, or at one loss for each."""
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, Tensor):
            raise InvalidInput(
                f"training_step gave {type(loss).__name__} for a loss; every step counts, and one that is left out "
                "tells what was in it: give one loss for each record, or their mean"
            )
        self._keep(self._trainer, {"loss": loss})
        return plain(loss) if isinstance(state_of(loss), Total) else self._optimizer._current_batch.total(loss)

    def _forward(self, part: nn.Module, original: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """Of the module, and of every part that holds all that is trained: watched, whichever is called."""
        if self._inside is not None:
            whole = part is self._module and self._inside is not part  # as which the watched model is run
            return self._inside(*inputs, **options) if whole else original(*inputs, **options)
        if torch._C._current_autograd_node() is not None:  # gradient checkpointing runs it once more
            return original(*inputs, **options)
        current, self._inside = self._optimizer._current_batch, part
        try:
            if part.training and torch.is_grad_enabled():
                return current.watch(inputs, options)
            return current.evaluate(original, inputs, options)
        finally:
            self._inside = None


_WHOLE_MODULE = (
    "In Lightning: training_step may call self(…), or one attribute that holds all that is trained, once for each "
    "batch; what calls several layers one after another goes into forward()"
)


def _not_of_steps(original: Callable[..., Any], batch: Any, *others: Any, **options: Any) -> Any:
    """Batches go to a device; a step is none."""
    return batch if isinstance(batch, Step) else original(batch, *others, **options)


def _parts(module: nn.Module, trained: set[nn.Parameter]) -> Iterator[nn.Module]:
    """The module, and every part of it that holds all that is trained."""
    return (part for part in module.modules() if trained <= set(part.parameters()))

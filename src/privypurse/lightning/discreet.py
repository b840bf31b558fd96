"""By this Lightning tells loggers, bar, checkpoints and callbacks what may be told, and keeps the rest (rule 6)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from privypurse.errors import PrivyPurseWarning
from privypurse.training.isolation.tracking.states import plain
from privypurse.training.other_trainers import Told, refuse_training_data
from privypurse.training.validation import unwritten

EPSILON = "epsilon_at_most"


class Hidden:
    """What Lightning and its callbacks get in place of what is not theirs to see."""

    _why = (
        "figures on people who are not charged go to no callback (docs/soundness.md#measurement). Where the records "
        'are public or released, say so: PrivateDataModule(…, measured="public")'
    )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no {name} here: {self._why}")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(self._why)

    def __getitem__(self, place: Any) -> Any:
        raise TypeError(self._why)


class DiscreetFit(Callback):
    """Tells step, learning rate, the plan's public ε, and validation on public or released data."""

    def __init__(self, dataset: Dataset[Any], told: Told) -> None:
        self._dataset, self._told = dataset, told
        self._undo, self._said, self._telling = ExitStack(), False, False
        self._found: dict[str, Tensor] = {}
        self._at = 0  # the step that is taken, or was

    # What Lightning calls.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._serves(trainer) and self._told.hides and stage != "predict":
            loop = trainer._evaluation_loop
            self._put(loop, "run", functools.partial(self._measured, trainer, pl_module))
            self._put(loop._results, "metrics", self._unshown)
            self._put(pl_module, "test_step" if stage == "test" else "validation_step", _unheard)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._serves(trainer):
            refuse_loaders_of(self._dataset, trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)

    on_test_start = on_validation_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *of: Any) -> None:
        if self._serves(trainer) and self._told.epsilon is not None:
            self._telling = True
            try:
                pl_module.log(EPSILON, self._told.epsilon, prog_bar=True, on_step=True, on_epoch=False)
            finally:
                self._telling = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._undo.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._undo.close()

    # What is told.

    def _measured(self, trainer: Trainer, module: LightningModule, original: Callable[[], Any]) -> list[Any]:
        """Validation on people who are not charged: only who calls trainer.validate() or test() gets the figures."""
        in_fit = trainer.state.fn == "fit"
        if in_fit:
            self._told.say_hidden("trainer.validate(…, datamodule=…)")
        loggers, self._found = trainer.loggers, {}
        trainer.loggers = [DummyLogger() for _ in loggers]
        try:
            with unwritten(module):
                outputs = original()
        finally:
            trainer.loggers = loggers
        found = {name: float(value) for name, value in self._found.items()}
        if found and in_fit and not trainer.sanity_checking:
            self._keep(trainer, {}, found)
        return [found for _ in outputs[:1]]

    def _unshown(self, original: Callable[[bool], Any], on_step: bool) -> Any:
        """Of all that was logged in validation: nothing, whoever asks."""
        if not on_step:
            self._found |= original(on_step)["callback"]
        return {"callback": {}, "log": {}, "pbar": {}}

    def _log(
        self, trainer: Trainer, original: Callable[..., None], fx: str, name: str, value: Any, **how: Any
    ) -> None:
        """What is logged while training is of the records drawn (rule 6), but for what this class says."""
        if self._telling:
            original(fx, name, value, **how)
        elif self._told.internal:
            self._keep(trainer, {name: value})
        elif not self._said:
            self._said = True
            warnings.warn(
                f"{name!r} was logged in {fx}: figures of the records that train the model are theirs, and go to no "
                "logger, bar or callback; nor will others. PrivateDataModule(…, internal=True) keeps them in a local "
                "file; what is public goes to self.logger.log_metrics",
                PrivyPurseWarning,
                stacklevel=5,
            )

    def _keep(self, trainer: Trainer, logged: dict[str, Any], on_people: dict[str, float] | None = None) -> None:
        """Add figures to the internal file, if there is one."""
        if self._told.internal and trainer.is_global_zero:
            figures = {name: _number(value) for name, value in logged.items()}
            self._told.keep(self._at, trainer.optimizers[0].param_groups[0]["lr"], figures, on_people)

    # How it comes and goes.

    def _serves(self, trainer: Any) -> bool:
        """Whether what runs is on the data that this one is of."""
        return getattr(trainer.datamodule, "private_fit", None) is self

    def _put(self, thing: Any, name: str, function: Callable[..., Any]) -> None:
        """Until the fit ends, this method is ``function``, which gets the original one first."""
        original, held = getattr(thing, name), vars(thing)
        if name in held:
            self._undo.callback(held.__setitem__, name, held[name])
        else:
            self._undo.callback(held.pop, name, None)
        held[name] = functools.wraps(original)(functools.partial(function, original))


def refuse_loaders_of(trained: Any, loaders: Any) -> None:
    """Raise for loaders of the training data."""
    for loader in tree_leaves(loaders):
        refuse_training_data(getattr(loader, "dataset", None), trained)


def _unheard(original: Callable[..., Any], *given: Any, **options: Any) -> Any:
    return None if original(*given, **options) is None else Hidden()


def _number(value: Any) -> Any:
    value = value.compute() if hasattr(value, "compute") else value
    return plain(value.detach()).float().mean().item() if isinstance(value, Tensor) else value

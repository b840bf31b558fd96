"""Watching a run: when it is validated, what callbacks are told, and the history that is kept of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.training.callbacks import OTHERS, Callback, Figures, LocalLog
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.mechanism import PrivateRun
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.validation import Validation, undisturbed

_MARKS = 10  # of a run that says nothing of how often


class Watch:
    """Looks at a run between its steps, at public times, and only at what is released by then.

    Callbacks get public figures; whatever else there is goes into a `LocalLog` that asks for it. Under several
    processes the first one looks, and all have its history.
    """

    def __init__(self, validate: Any, callbacks: Iterable[Callback], records: PlannedRecords, loss_fn: Loss) -> None:
        self._validation = Validation.of(validate, records)
        self._callbacks = _checked(callbacks)
        self._records, self._loss_fn = records, loss_fn
        asked = None if self._validation is None else self._validation.every
        self._every = asked or math.ceil(records.plan.all_steps / _MARKS)
        self.history: list[Figures] = []
        others = self._validation is not None and self._validation.measured == OTHERS
        if others and not all(isinstance(one, LocalLog) and one.internal for one in self._callbacks):
            warnings.warn(_INTERNAL, PrivyPurseWarning, stacklevel=3)

    def begin(self, run: PrivateRun, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step of all: what fails is found before anybody pays."""
        self._run, self._optimizer = run, optimizer
        free = self._validation is not None and self._validation.measured != "charged"
        if free and not run.steps_taken:
            self._mark()

    def after_step(self, loss: Tensor) -> None:
        """``loss`` is internal, and asked for only where it is written down as such."""
        step = self._run.steps_taken
        if self._callbacks and self._run.processes.first:
            figures = self._now()
            wanting = [one for one in self._callbacks if isinstance(one, LocalLog) and one.wants_loss(step)]
            told = {"training_loss": float(loss)} if wanting else {}
            for one in self._callbacks:
                one.on_step(figures)
            for log in wanting:
                log.on_internal(figures, told)
        if step % self._every == 0:
            self._mark()

    def last(self) -> None:
        """With the model as it stays, unless it was looked at already."""
        if self._run.steps_taken and (not self.history or self.history[-1].step != self._run.steps_taken):
            self._mark()

    def end(self) -> None:
        """No further step follows in this call. A stopping rule may have gone back to a better model."""
        if self._run.plan.shape.stop is not None and self._run.steps_taken:
            self._mark()
        if self._run.processes.first:
            for one in self._callbacks:
                one.on_end([figures.public for figures in self.history])

    def _mark(self) -> None:
        """Validate, tell, and keep it."""
        figures = self._run.processes.same(self._validated() if self._run.processes.first else self._now())
        if self.history and self.history[-1].step == figures.step:
            self.history.pop()
        self.history.append(figures)
        if not self._run.processes.first or self._validation is None:
            return
        for one in self._callbacks:
            if figures.measured != OTHERS:
                one.on_validate(figures)
            if isinstance(one, LocalLog) and one.internal:
                one.on_internal(figures, {})

    def _now(self) -> Figures:
        plan, rate = self._run.plan, self._optimizer.param_groups[0]["lr"]
        epsilon = plan.public_epsilon if self._run.source.secure else None  # a seeded run promises nothing
        return Figures(self._run.steps_taken, plan.all_steps, epsilon, float(rate))

    def _validated(self) -> Figures:
        if self._validation is None:
            return self._now()
        model, device = self._run.recorder.model, self._run.device
        with undisturbed(model, self._optimizer, device):
            found = self._validation.found(model, device, self._records, self._loss_fn)
        return replace(self._now(), validation=found, measured=self._validation.measured)

    def state(self) -> list[dict[str, Any]]:
        """As a checkpoint keeps it: plain data."""
        return [{**asdict(figures), "validation": dict(figures.validation)} for figures in self.history]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        self.history = [Figures(**each) for each in state]


def _checked(callbacks: Iterable[Callback]) -> list[Callback]:
    if isinstance(callbacks, Callback):
        raise InvalidInput(f"callbacks is a {type(callbacks).__name__}; give a list of callbacks, of one too: [it]")
    found = list(callbacks)
    for one in found:
        if not isinstance(one, Callback):
            raise InvalidInput(f"callbacks holds {one!r}; each is an object of a class of yours, a pp.Callback")
    return found


_INTERNAL = (
    "what validate finds is not private for the people whom it looks at, so callbacks are not told; it is in "
    "Trained.history. Where records are public or released, or people are charged, say so: "
    'pp.Validation(…, measured="public")'
)

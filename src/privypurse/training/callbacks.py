"""What callbacks and loggers are told while a model trains: figures that may be shown. A local log has the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privypurse._validate import integer
from privypurse.errors import InvalidInput

OTHERS = "people"
"""Validation on people who are not charged for it (`Validation.measured`): what it finds is internal."""


@dataclass(frozen=True)
class Figures:
    """Where training is, in figures that follow from nobody's data or budget but by what was paid for."""

    step: int
    """Steps of the plan that are taken."""
    steps: int
    """Steps that the plan has."""
    epsilon: float | None
    """What the plan publicly caps everybody's ε at (`Plan.public_epsilon`), all steps together. None without such a
    cap, and in a seeded run, which is not private."""
    learning_rate: float
    """Of the optimizer's first group, in the next step."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """What validation found with the model of this step; empty where there was none."""
    measured: str | None = None
    """Whose records it looked at (`Validation.measured`). With "people" the figures are internal: they were not made
    private for those people, and only `Trained.history` and an internal `LocalLog` have them."""

    @property
    def public(self) -> Figures:
        """Without figures that are not private for whom they are of."""
        return replace(self, validation={}, measured=None) if self.measured == OTHERS else self


class Callback:
    """Told how training goes, in figures that may be shown to anybody; a subclass does something with them.

    Training loss, gradient norms and realised batches are none of these (rule 6): `LocalLog`. Nothing follows from
    what a callback returns. What it raises ends the training, which is saved first where there is a checkpoint.
    """

    def on_step(self, figures: Figures) -> None:
        """After every step."""

    def on_validate(self, figures: Figures) -> None:
        """After a validation whose figures may be shown, with what it found."""

    def on_end(self, history: Sequence[Figures]) -> None:
        """When training ends by itself, with the history so far, that of earlier calls included."""


class LocalLog(Callback):
    """Writes figures into a file on this machine, one JSON object a line, for its owner's eyes (mode 0600).

    With ``internal=True`` training loss and validation on people who are not charged are in it too, under a key that
    says so. Such a file is as sensitive as the data: keep it, as them, to yourself.
    """

    def __init__(self, path: str | Path, *, every: int = 1, internal: bool = False) -> None:
        """``every``: steps between two lines. Asking a GPU for the loss means waiting for it."""
        self._path, self._every, self._internal = Path(path), integer(every, "every"), bool(internal)
        if "://" in str(path):
            raise InvalidInput(f"path is {str(path)!r}; a local log is a file on this machine, not elsewhere")

    def wants_loss(self, step: int) -> bool:
        """Whether the training loss of this step is to be written: internal."""
        return self._internal and step % self._every == 0

    def on_step(self, figures: Figures) -> None:
        if not self._internal and figures.step % self._every == 0:
            self._write(_line(figures))

    def on_validate(self, figures: Figures) -> None:
        if not self._internal:
            self._write(_line(figures))

    def on_internal(self, figures: Figures, of_training: Mapping[str, float]) -> None:
        """The same and what is internal: figures of the records drawn, validation on whomever."""
        told: dict[str, Any] = dict(of_training)
        if figures.measured == OTHERS:
            told |= {"validation": dict(figures.validation), "measured": OTHERS}
        self._write({**_line(figures.public), "internal": told})

    @property
    def internal(self) -> bool:
        return self._internal

    def _write(self, line: dict[str, Any]) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "a", encoding="utf-8") as out:
            os.fchmod(out.fileno(), 0o600)
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def _line(figures: Figures) -> dict[str, Any]:
    found = {"step": figures.step, "epsilon_at_most": figures.epsilon, "learning_rate": figures.learning_rate}
    return (
        {**found, "validation": dict(figures.validation), "measured": figures.measured}
        if figures.validation
        else found
    )

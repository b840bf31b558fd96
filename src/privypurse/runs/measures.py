"""How good a model is on some people, as a whole and group by group, and who may see that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.datasets.targets import Classes, Number, Target, known
from privypurse.runs import scores
from privypurse.runs.objectives import losses_of
from privypurse.runs.records import Groups, Records
from privypurse.training.setup import modes_kept

MEMBERS = "members"
WHOSE = {
    "public": "Public records: anybody may see these figures.",
    "released": "Records that were released before, and paid for: anybody may see these figures.",
    "people": (
        "Other people, who took no part in training and were not charged. Nothing here is private for them: "
        "internal, as safe to keep as their data."
    ),
    MEMBERS: "People in training, whose ε did not pay for this. Sensitive: internal, as safe to keep as their data.",
}
"""Whose figures they are, by the word that `Validation` has for it."""
SHOWN = ("public", "released")


@dataclass(frozen=True, eq=False)
class Measured:
    """A model's outputs for the records that have a target, and these targets."""

    target: Target
    outputs: FloatArray
    targets: AnyArray
    losses: FloatArray
    """By which it is trained."""
    measured: str = "people"
    """Whose records they are: a key of `WHOSE`."""
    groups: Mapping[str, Groups] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return int(self.targets.shape[0])

    @property
    def internal(self) -> bool:
        """Whether nobody else may see it."""
        return self.measured not in SHOWN

    @property
    def loss(self) -> float:
        """The mean over the records."""
        return float(self.losses.mean())

    @property
    def loss_without_a_model(self) -> float:
        """The least mean loss of one answer for all: the classes' or flags' shares, or the mean of the numbers."""
        if isinstance(self.target, Classes):
            return scores.entropy(np.bincount(self.targets))
        if isinstance(self.target, Number):
            return float(self.targets.astype(np.float64).var())
        some = ~np.isnan(self.targets)
        both = zip((self.targets == 0).sum(0), (self.targets == 1).sum(0), some.mean(0), strict=True)
        return float(sum(share * scores.entropy(np.array([no, yes])) for no, yes, share in both if share))

    @property
    def accuracy(self) -> float | None:
        """Right answers as a share; None where a target is not one of several classes."""
        if not isinstance(self.target, Classes):
            return None
        return float((self.outputs.argmax(1) == self.targets).mean())

    def figures(self) -> dict[str, Any]:
        """All that is known of these predictions, as plain data."""
        without = {"loss_without_a_model": self.loss_without_a_model}
        return {"records": self.records, "loss": self.loss, **without, **self._by_target()}

    def report(self) -> dict[str, Any]:
        """The figures with whose they are, and the main ones for each group."""
        by_group = {column: self._by_group(groups) for column, groups in self.groups.items()}
        told = {"measured": self.measured, "about": WHOSE[self.measured], **self.figures()}
        return told | ({"groups": by_group} if by_group else {})

    def _by_group(self, groups: Groups) -> dict[str, Any]:
        """Without the long lists. How many there are of a group is told too: figures of few mean little."""
        found = {}
        for code, name in enumerate(groups.names):
            some = np.flatnonzero(groups.codes == code)
            if some.size:
                found[name] = _short(self._of(some).figures())
        return found

    def _of(self, some: IntArray) -> Measured:
        return replace(
            self, outputs=self.outputs[some], targets=self.targets[some], losses=self.losses[some], groups={}
        )

    def _by_target(self) -> dict[str, Any]:
        if isinstance(self.target, Classes):
            return scores.of_classes(self.outputs, self.targets, self.target.classes)
        if isinstance(self.target, Number):
            ends = self.target.range
            return scores.of_numbers(
                self.target.decode(self.outputs), self.target.decode(self.targets), ends.low, ends.high
            )
        return {
            "labels": {
                name: None if not some.any() else scores.of_flag(self.outputs[some, place], self.targets[some, place])
                for place, name in enumerate(self.target.labels)
                for some in (~np.isnan(self.targets[:, place]),)
            }
        }


def _short(figures: dict[str, Any]) -> dict[str, Any]:
    """Without confusions and calibration."""
    short = {key: each for key, each in figures.items() if key not in ("confusion", "calibration", "classes")}
    if "labels" in short:
        short["labels"] = {name: each and _short(each) for name, each in short["labels"].items()}
    return short


def measure(
    model: nn.Module, records: Records, target: Target, measured: str = "people", batch: int = 4096
) -> Measured | None:
    """A model's outputs for these records; None where no record has a target.

    It pays for nothing: who may see it follows from whose records they are (rules 6 and 16).
    """
    some = np.flatnonzero(known(records.labels))
    if not some.size:
        return None
    device = next(model.parameters()).device
    losses_fn, outputs, losses = losses_of(target), [], []
    with modes_kept(model), torch.no_grad():
        model.eval()
        for part in np.split(some, range(batch, some.size, batch)):
            out = model(torch.as_tensor(records.inputs[part], device=device))
            losses.append(losses_fn(out, torch.as_tensor(records.labels[part], device=device)).double().cpu().numpy())
            outputs.append(out.double().cpu().numpy())
    groups = {column: Groups(each.names, each.codes[some]) for column, each in records.groups.items()}
    return Measured(target, np.concatenate(outputs), records.labels[some], np.concatenate(losses), measured, groups)

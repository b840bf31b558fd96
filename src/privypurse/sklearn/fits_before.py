"""What fits without a ledger took from the same people in this process, added up.

People are known by id, or by their row where there are no ids. ε and δ of one fit and another add up: basic
composition, an upper bound. Other processes, and other uses than `fit`, are not seen: a ledger sees them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets.person_ids import ids_of, texts_of
from privypurse.plans import Plan
from privypurse.randomness import randomness
from privypurse.sklearn.said import SpentBefore

Keys = npt.NDArray[np.uint64]
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # an odd number: multiplying by it loses nothing


@dataclass
class Totals:
    """For each person that was trained on, by a hash: what all fits may have cost, and how many there were."""

    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    spent: FloatArray = field(default_factory=lambda: np.empty((3, 0)))
    """ε, δ and number of fits."""

    def add(self, keys: Keys, epsilon: FloatArray, delta: FloatArray) -> FloatArray | None:
        """Counts a fit; gives ε, δ and fits of whoever has the largest ε of those who were in one before, if any."""
        new, place = np.unique(keys, return_inverse=True)
        now = np.zeros((3, new.size))
        for row, values in enumerate((epsilon, delta)):
            np.maximum.at(now[row], place, values)  # all rows of a person say the same
        now[2] = 1
        whole, where = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        spent = np.zeros((3, whole.size))
        spent[:, where[: self.keys.size]] = self.spent
        theirs = where[self.keys.size :]
        again = spent[2, theirs] > 0
        spent[:, theirs] += now
        self.keys, self.spent = whole, spent
        if not again.any():
            return None
        twice = spent[:, theirs[again]]
        return np.asarray(twice[:, int(np.argmax(twice[0]))])


_BY_ID, _BY_ROW = Totals(), Totals()
_ROW_KEY: list[Keys] = []


def forget() -> None:
    """As in a new process: for tests."""
    for totals in (_BY_ID, _BY_ROW):
        totals.__init__()  # type: ignore[misc]


def count(plan: Plan, rows: AnyArray, ids: Any, *, stacklevel: int) -> None:
    """Count a fit by this plan before it begins, and warn if somebody was trained on before."""
    spent = plan.spent(), plan.delta
    found = _BY_ROW.add(row_keys(rows), *spent)  # with ids too: a later fit may have none
    if ids is not None:  # by which people are known better: others may have rows like theirs
        found = _BY_ID.add(id_keys(ids), *spent)
    if found is None:
        return
    epsilon, delta, fits = found
    who = "rows like some of these were" if ids is None else "some of these people were"
    warnings.warn(
        f"{who} trained on before in this process, and no ledger adds it up: with this fit, {fits:.0f} fits cost one "
        f"of them up to ε = {epsilon:.4g} at δ = {delta:.2g}. Every fit spends, each of GridSearchCV and "
        "cross_val_score too. Split each ε between them beforehand, or give ledger=pp.Ledger.open(url)",
        SpentBefore,
        stacklevel=stacklevel,
    )


def id_keys(ids: Any) -> Keys:
    """A hash of each id that only this process knows."""
    texts = texts_of(ids_of(ids))
    return np.fromiter((hash(text) for text in texts), np.int64, len(texts)).view(np.uint64)


def row_keys(rows: AnyArray) -> Keys:
    """A hash of each row of numbers: a sum of its mixed entries times secret odd numbers, modulo 2^64."""
    with np.errstate(over="ignore"):
        entries = np.asarray(rows, dtype=np.float32).astype(np.float64, order="C") + 0.0  # as trained on; -0 is 0
    if not _ROW_KEY or _ROW_KEY[0].size < entries.shape[1]:
        made = randomness(None).uniform(2 * entries.shape[1] + 64).view(np.uint64)
        _ROW_KEY[:] = [np.concatenate([*_ROW_KEY, made * _MIXED | np.uint64(1)])]
    bits = entries.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(32))) * _MIXED
    found: Keys = ((mixed ^ (mixed >> np.uint64(29))) * _ROW_KEY[0][: bits.shape[1]]).sum(axis=1, dtype=np.uint64)
    return found

"""What fits without a ledger took from the same people in this process, added up.

People are known by id, or by their row where there are no ids: by its cells as they were given, whatever a fit made
of them. ε and δ of one fit and another add up: basic composition, an upper bound. Other processes, and other uses
than `fit`, are not seen: a ledger sees them. Equal rows without ids count as people who look alike: where they are
one person's, given several times, that person spends more than is said here.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
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
_NUMBER = (Real, Decimal, np.bool_)
_MISSING = ("None", "<NA>", "NaT")


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
            np.maximum.at(now[row], place, values)  # all rows of an id say the same
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
_NAMED: list[Keys] = []
"""Of rows whose columns have names: hashes by these, in order, and by the places that columns had at first."""
_SECRETS: dict[int | str, int] = {}
"""For each column, by place or name, an odd number that only this process knows."""


def forget() -> None:
    """As in a new process: for tests."""
    for totals in (_BY_ID, _BY_ROW):
        totals.__init__()  # type: ignore[misc]
    _NAMED.clear()


def count(plan: Plan, rows: AnyArray, names: Sequence[str] | None, ids: Any, *, stacklevel: int) -> None:
    """Count a fit by this plan before it begins, and warn if somebody was trained on before.

    ``rows`` are as they were given, ``names`` those of their columns where there are any.
    """
    spent = plan.spent(), plan.delta
    found = _BY_ROW.add(known_rows(rows, names), *spent)  # with ids too: a later fit may have none
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


def known_rows(rows: AnyArray, names: Sequence[str] | None) -> Keys:
    """A hash of each row that only this process knows: the same in another order of columns that have names."""
    cells = mixed_cells(rows)
    by_place = row_keys(cells, range(cells.shape[1]))
    if names is None:
        return by_place
    by_name = row_keys(cells, names)
    before, places = _NAMED or (by_name[:0], by_place[:0])
    whole, first = np.unique(np.concatenate([before, by_name]), return_index=True)
    _NAMED[:] = whole, np.concatenate([places, by_place])[first]
    return _NAMED[1][np.searchsorted(whole, by_name)]


def row_keys(cells: Keys, columns: Sequence[int | str]) -> Keys:
    """A hash of each row of `mixed_cells`: a sum of these times its columns' secrets, modulo 2^64."""
    new = [each for each in columns if each not in _SECRETS]
    made = randomness(None).uniform(len(new)).view(np.uint64) * _MIXED | np.uint64(1)
    _SECRETS.update(zip(new, made.tolist(), strict=True))
    secrets = np.array([_SECRETS[each] for each in columns], dtype=np.uint64)
    return np.asarray((cells * secrets).sum(axis=1, dtype=np.uint64))


def mixed_cells(rows: AnyArray) -> Keys:
    """For each cell a number that is the same for equal numbers of whatever type, and for equal texts."""
    if rows.dtype.kind in "biuf":
        bits = _bits_of_numbers(rows)
    else:
        bits = np.stack([_bits_of_cells(column) for column in rows.T], axis=1)
    mixed = (bits ^ (bits >> np.uint64(32))) * _MIXED
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))


def _bits_of_numbers(numbers: AnyArray) -> Keys:
    with np.errstate(over="ignore", invalid="ignore"):
        entries = np.asarray(numbers, dtype=np.float32).astype(np.float64, order="C") + 0.0  # -0 is 0
    entries[np.isnan(entries)] = np.nan
    return entries.view(np.uint64)


def _bits_of_cells(column: AnyArray) -> Keys:
    """Those of the number where a cell is one or reads as one, else a hash of its text."""
    cells = column.tolist()
    read = [_number(cell) for cell in cells]
    bits = _bits_of_numbers(np.array([np.nan if each is None else each for each in read]))
    words = [place for place, each in enumerate(read) if each is None]
    bits[words] = np.array([hash(_text(cells[place])) for place in words], dtype=np.int64).view(np.uint64)
    return bits


def _number(cell: Any) -> float | None:
    """NaN for a missing cell, None for text."""
    try:
        if isinstance(cell, _NUMBER):
            return float(cell)
        text = _text(cell)
        return np.nan if text in _MISSING else float(text)
    except (ValueError, OverflowError):
        return None


def _text(cell: Any) -> str:
    return str(cell).strip()

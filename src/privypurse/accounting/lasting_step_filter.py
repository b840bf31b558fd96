"""The filter of sampled steps for purses that last: whole units, at the orders of all rungs at once (rules 5 and 14).

Beside `StepFilter`, which keeps one run's (ε, δ) at an order of its own, this keeps what was reserved for the run at
orders fixed for life: both have to pay for a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privypurse.arrays import AnyArray, IntArray

_MOST = 2**40  # steps that are as good as for ever
_PEOPLE = 2**16  # at a time
_LARGEST_SUM = 2**62  # what nobody holds: sums stop here

Affordable = tuple[IntArray, AnyArray]
"""For each person: so many steps at their grid norm, and the largest grid norm of one more after those."""


@dataclass(frozen=True, eq=False)
class LastingStepFilter:
    """How many more steps each person can pay for at every order, by the steps that they have taken so far.

    Guarantee: if steps are taken as `affordable` allows, and each is clipped to the grid norm that it is charged at,
    nobody's steps cost more at any order than was held for them, whatever grid norms came about. Steps that were
    taken without asking may; then nothing is allowed any more.
    """

    cost: IntArray
    """[levels, grid norms, columns]: units of one step, 0 at grid norm 0, rising with it."""
    held: IntArray
    """[people, columns]: units that a person's steps may cost in all."""
    level_of: AnyArray

    def affordable(self, counts: AnyArray, grid_norm: AnyArray) -> Affordable:
        """What each person can pay for after ``counts`` steps (a row each) at the grid norms."""
        left = np.maximum(self.held - charged(counts, self.level_of, self.cost), 0)
        found: Affordable = np.full(grid_norm.size, _MOST), grid_norm
        for column in range(self.held.shape[1]):
            found = sooner(found, self._at(column, left[:, column], grid_norm))
        return found

    def _at(self, column: int, left: IntArray, grid_norm: AnyArray) -> Affordable:
        prices = self.cost[:, :, column]
        cost = prices[self.level_of, grid_norm]
        allowed = np.where(cost > 0, left // np.maximum(cost, 1), _MOST)
        allowed = np.minimum(allowed, _MOST)
        rest = left - np.where(allowed < _MOST, allowed * cost, 0)
        last = np.array(grid_norm)
        for level, some in _by_level(self.level_of):
            last[some] = np.searchsorted(prices[level], rest[some], side="right") - 1
        return allowed, np.minimum(last, grid_norm)


def charged(counts: AnyArray, level_of: AnyArray, cost: IntArray) -> IntArray:
    """[people, columns]: what everybody's counted steps cost, each of them in units [levels, grid norms, columns].

    Whole numbers, exact up to 2^62, where sums stop.
    """
    out = np.zeros((level_of.size, cost.shape[2]), dtype=np.int64)
    for level, people in _by_level(level_of):
        for some in np.array_split(people, -(-people.size // _PEOPLE)):
            out[some] = _sums(counts[some], cost[level])
    return out


def _by_level(level_of: AnyArray) -> Iterator[tuple[int, IntArray]]:
    """Each level that somebody has, and who."""
    order = np.argsort(level_of, kind="stable")
    ends = np.flatnonzero(np.diff(level_of[order], append=-1.0)) + 1
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield int(level_of[order[begin]]), order[begin:end]


def _sums(counts: AnyArray, cost: IntArray) -> IntArray:
    used = np.flatnonzero(counts.any(axis=0))
    times, each = counts[:, used].astype(np.int64), cost[used]
    most = int(times.sum(axis=1).max(initial=1))
    huge = each > _LARGEST_SUM // max(most, 1)  # their products might not fit; nobody's purse holds them
    beyond = times @ huge.astype(np.int64) > 0
    return np.asarray(np.where(beyond, _LARGEST_SUM, times @ np.where(huge, 0, each)))


def sooner(one: Affordable, other: Affordable) -> Affordable:
    """What two purses both pay for: the steps of the one that is empty first, and what it has left then."""
    (steps, last), (steps_there, last_there) = one, other
    both = np.where(
        steps == steps_there, np.minimum(last, last_there), np.where(steps < steps_there, last, last_there)
    )
    return np.minimum(steps, steps_there), both

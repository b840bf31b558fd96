"""Many levels as few: neighbours in ε together, for figures that nobody trains by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from privypurse.arrays import FloatArray, IntArray
from privypurse.budgets.levels import Levels


@dataclass(frozen=True, eq=False)
class CoarseLevels(Levels):
    """Groups of levels. ``epsilon`` is the mean over a group's people."""

    low: FloatArray
    high: FloatArray
    """The smallest and the largest ε of each."""


def coarse(levels: Levels, most: int, alone: Collection[float] = ()) -> CoarseLevels:
    """About ``most`` groups for each δ, even in log ε, or the levels as they are where there are no more.

    An ε in ``alone`` has a group of its own, so that who is strictest, or just above a threshold, stays exact.
    """
    if levels.epsilon.size <= most:
        return CoarseLevels(levels.epsilon, levels.delta, levels.people, levels.epsilon, levels.epsilon)
    position = np.log(levels.epsilon / levels.epsilon.min())
    block = np.minimum((position / position.max() * most).astype(np.int64), most - 1)
    key = block * (2 * len(alone) + 1)
    for each in alone:  # itself one further within its block, and who is above it two: groups stay runs of neighbours
        inside = np.isin(block, block[levels.epsilon == each])
        key += inside * ((levels.epsilon >= each) * 1 + (levels.epsilon > each) * 1)
    keys = np.stack([key.astype(np.float64), levels.delta], axis=1)
    first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)[1:]
    return _merged(levels, which.reshape(-1), levels.delta[first])


def _merged(levels: Levels, which: IntArray, delta: FloatArray) -> CoarseLevels:
    people = np.bincount(which, levels.people).astype(np.int64)
    mean = np.bincount(which, levels.people * levels.epsilon) / people
    low, high = np.full(people.size, np.inf), np.zeros(people.size)
    np.minimum.at(low, which, levels.epsilon)
    np.maximum.at(high, which, levels.epsilon)
    mean = np.clip(mean, low, high)  # where rounding took the mean of equal ones a hair beyond
    order = np.lexsort((delta, mean))
    return CoarseLevels(mean[order], delta[order], people[order], low[order], high[order])

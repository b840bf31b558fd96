"""Levels: people with equal purses, once every ε is rounded down to the ladder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets import ladder


@dataclass(frozen=True, eq=False)
class Levels:
    """Groups of equal purses, ascending in ε: what planning works with. It does not look at single people."""

    epsilon: FloatArray
    delta: FloatArray
    people: IntArray
    """How many hold each of these."""

    @property
    def total(self) -> int:
        return int(self.people.sum())

    def only(self, which: AnyArray | slice) -> Levels:
        """Some of them."""
        return Levels(self.epsilon[which], self.delta[which], self.people[which])


def grouped(rung: IntArray, delta: FloatArray) -> tuple[Levels, IntArray]:
    """The levels of people with these rungs of the ladder and these δ, and for each person their level."""
    deltas, which = (
        (delta[:1], np.zeros(1, dtype=np.int64))
        if delta.min() == delta.max()
        else np.unique(delta, return_inverse=True)
    )
    lowest = int(rung.min())
    key = (rung - lowest) * deltas.size + which
    people = np.bincount(key)
    present = np.flatnonzero(people)
    place = np.zeros(people.size, dtype=np.int64)
    place[present] = np.arange(present.size)
    epsilon = ladder.rung_value(present // deltas.size + lowest)
    return Levels(epsilon, deltas[present % deltas.size], people[present].astype(np.int64)), place[key]

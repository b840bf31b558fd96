"""Settled charges of many kinds, rounded up to a public grid so that two bytes name each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from privypurse.arrays import IntArray, frozen
from privypurse.ledger.blocks import NOTHING, Values
from privypurse.ledger.lifetime import CEILING, MOST_CLASSES

_FINEST = 1800


@cache
def grid(fineness: int) -> IntArray:
    """Whole numbers from 0 to the ceiling, each at most 1/fineness above the one before; small ones are all there."""
    values, value = [0], 1
    while value < CEILING:
        values.append(value)
        value += max(1, value // fineness)
    return frozen(np.array([*values, CEILING], dtype=np.int64))


def rounded_up(cost: Sequence[IntArray], held: Sequence[IntArray]) -> tuple[list[IntArray], Values, list[int]]:
    """For each column the charges there are, everybody's place among them, and the most that rounding took.

    A charge becomes the next value of the grid, or all that was reserved if that is less: never above what was
    reserved, and 1/1800 above the charge at most (more only where all of that would be more than 65,534 values).
    """
    tables, places, lost = [], [], []
    for own, most in zip(cost, held, strict=True):
        fineness = _FINEST
        while True:
            values = grid(fineness)
            charged = np.minimum(values[np.searchsorted(values, own)], most)
            table, place = np.unique(charged, return_inverse=True)
            if table.size <= MOST_CLASSES:
                break
            fineness //= 2
        tables.append(table)
        places.append(np.where(charged == 0, NOTHING, place).astype(np.uint16))
        lost.append(int((charged - own).max(initial=0)))
    return tables, np.stack(places), lost

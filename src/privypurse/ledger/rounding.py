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


def rounded_up(cost: Sequence[IntArray], held: Sequence[IntArray]) -> tuple[list[IntArray], Values, list[IntArray]]:
    """For each column the charges there are, everybody's place among them, and what rounding took of everybody.

    A charge becomes the next value of the grid, or all that was reserved if that is less: never above what was
    reserved, and 1/1800 above the charge at most (more only where all of that would be more than 65,534 values).
    """
    tables, places, taken = [], [], []
    for own, most in zip(cost, held, strict=True):
        charged, table = _charged(own, most)
        tables.append(table)
        places.append(np.where(charged == 0, NOTHING, np.searchsorted(table, charged)).astype(np.uint16))
        taken.append(charged - own)
    return tables, np.stack(places), taken


def _charged(own: IntArray, most: IntArray) -> tuple[IntArray, IntArray]:
    """Everybody's charge, and the values above 0 that occur, at most 65,534."""
    fineness = _FINEST
    while fineness:
        values = grid(fineness)
        charged = np.minimum(values[np.searchsorted(values, own)], most)
        table = np.unique(charged)
        table = table[np.searchsorted(table, 1) :]
        if table.size <= MOST_CLASSES:
            return charged, table
        fineness //= 2
    charged = np.where(own > 0, most, 0)  # as many values as there were classes to reserve by
    return charged, np.unique(charged[charged > 0])

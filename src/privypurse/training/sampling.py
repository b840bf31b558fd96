"""Poisson sampling with exactly the plan's rates, at a cost that grows with the batch and not with the data."""

from __future__ import annotations

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.randomness import Randomness

_DIRECT = 0.25  # from this rate on a coin for everybody costs no more than skipping


class PoissonSampler:
    """Draws units (persons, or records): each independently, with its own rate, anew at every step.

    Guarantee: unit i is in a draw with probability at most rates[i], and at least rates[i] - 2^-49, whatever else was
    drawn, now or before (rule 3). A draw may be empty.

    Units are put into classes whose rates lie within a factor of two. In a class with largest rate q one skips from
    success to success of a coin with rate q (gaps are geometric: ⌊log u / log(1-q)⌋), and keeps each with probability
    rate/q. That costs about two coins for each unit drawn.
    """

    def __init__(self, rates: FloatArray) -> None:
        values = np.asarray(rates, dtype=np.float64)
        if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
            raise InvalidInput("rates must be a flat array of probabilities")
        taking_part = np.flatnonzero(values > 0)
        # log2 of a rate, rounded up: rates in (2^-(k+1), 2^-k] share class k.
        class_of = np.floor(-np.log2(values[taking_part])).astype(np.int64)
        order = np.argsort(class_of, kind="stable")
        starts = np.unique(class_of[order], return_index=True)[1]
        members = [units for units in np.split(taking_part[order], starts[1:]) if units.size]
        self._classes = [(units, values[units], float(values[units].max())) for units in members]

    def draw(self, source: Randomness) -> IntArray:
        """The units of one step, ascending."""
        parts = [units[_hit(rates, largest, source)] for units, rates, largest in self._classes]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def _hit(rates: FloatArray, largest: float, source: Randomness) -> AnyArray:
    """Which places of a class are drawn, ascending; ``largest`` is the largest of its rates."""
    if largest >= _DIRECT:
        # A uniform in (0, 1] that is a multiple of 2^-53 is at most q with probability q, rounded down to one.
        return np.flatnonzero(source.uniform(rates.size) <= rates)
    places = _skip(largest, rates.size, source)
    # Uniforms are multiples of 2^-53, so a place is hit with ``largest`` up to 2^-52; taken off again here.
    never_more = max(0.0, 1.0 - 2.0**-50 / largest)
    return places[source.uniform(places.size) * largest <= rates[places] * never_more]


def _skip(rate: float, size: int, source: Randomness) -> IntArray:
    """Where a coin with this rate falls among ``size`` places."""
    log_miss = np.log1p(-rate)
    places: list[IntArray] = []
    position = -1
    while position < size:
        expected = (size - position) * rate
        count = int(expected + 4 * np.sqrt(expected) + 8)
        gaps = np.log(source.uniform(count)) / log_miss
        # A gap beyond the end is cut before it becomes an integer, which it may not fit.
        at = position + np.cumsum(np.minimum(gaps, size).astype(np.int64) + 1)
        places.append(at[at < size])
        position = int(at[-1])
    return np.concatenate(places)

"""Ends for an encoder that nobody knows beforehand: where most numbers lie, by a histogram that people paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from privypurse._validate import float_vector, real
from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput
from privypurse.queries.answers import Answer

_BY_CHANCE = 1e-3
_EVEN, _DECADES, _ROUND = 20, 7, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def quantile_range(answer: Answer, edges: Sequence[float], tail: float = 0.01) -> tuple[float, float]:
    """Two of the edges, with about a share ``tail`` of the rows below the first and as many above the second.

    ``answer`` is that of `Analyst.histogram` on a public outer grid of ``edges``: wide enough for anything that a
    number may be. Only bins that stand out of the noise count; if none does, the whole grid is given.

    Guarantee: nothing but the released answer is looked at, so it costs nobody more than that did.
    """
    if not isinstance(answer, Answer):
        raise InvalidInput(
            f"answer is a {type(answer).__name__}; give what Analyst.histogram answered: counts that nobody paid for "
            "tell of people"
        )
    ends, counts = float_vector(edges, "edges"), np.atleast_1d(np.asarray(answer.value, dtype=np.float64))
    real(tail, "tail", least=0, below=0.5)
    if ends.size != counts.size + 1:
        raise InvalidInput(f"edges has {ends.size} entries and the answer {counts.size} bins; give the same edges")
    return ends_of(counts, answer.noise, ends, tail)


def ends_of(counts: FloatArray, noise: float, edges: FloatArray, tail: float) -> tuple[float, float]:
    """The same of released counts: two of the edges, by the bins that stand out of the noise."""
    # Of that many bins without anybody, one is above it in one case of a thousand.
    threshold = noise * -float(special.ndtri(_BY_CHANCE / counts.size))
    seen = np.where(counts > threshold, counts, 0.0)
    whole = seen.sum()
    if whole <= 0:
        return float(edges[0]), float(edges[-1])
    up_to = np.cumsum(seen)
    first = int(np.argmax(up_to > tail * whole))
    last = int(np.argmax(up_to >= (1 - tail) * whole))
    return float(edges[first]), float(edges[max(first, last) + 1])


def outer_grid(low: float, high: float) -> FloatArray:
    """Public edges between two ends that hold anything: even steps, and round numbers of every size down to 1e-6 of
    the larger end, since nobody knows how large the numbers are.
    """
    top = math.floor(math.log10(max(abs(low), abs(high))))
    sizes = np.outer(10.0 ** np.arange(top - _DECADES + 1, top + 1), _ROUND).ravel()
    rounds = np.concatenate([-sizes[::-1], [0.0], sizes])
    even = np.linspace(low, high, _EVEN + 1)
    return np.unique(np.concatenate([even, rounds[(rounds > low) & (rounds < high)]]))

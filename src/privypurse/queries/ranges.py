"""Ends for an encoder that nobody knows beforehand: where most numbers lie, by a histogram that people paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privypurse._validate import float_vector, real
from privypurse.errors import InvalidInput
from privypurse.queries.answers import Answer


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
    # The largest of that many normal numbers is hardly ever above noise · √(2 ln bins).
    threshold = answer.noise * math.sqrt(2 * math.log(max(counts.size, 2)))
    seen = np.where(counts > threshold, counts, 0.0)
    whole = seen.sum()
    if whole <= 0:
        return float(ends[0]), float(ends[-1])
    up_to = np.cumsum(seen)
    first = int(np.argmax(up_to > tail * whole))
    last = int(np.argmax(up_to >= (1 - tail) * whole))
    return float(ends[first]), float(ends[max(first, last) + 1])

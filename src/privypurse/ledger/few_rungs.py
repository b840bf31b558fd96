"""A ladder of few rungs for the people of a table, each of whom may have named an ε of their own.

Whoever is on a rung (ε', δ') with ε' ≤ ε and δ' ≤ δ has (ε, δ) too: P(O) ≤ e^ε'·Q(O) + δ' ≤ e^ε·Q(O) + δ. So rounding
down is sound, and what it costs is the part of ε that nobody uses. Which rungs there are follows from what people
granted, which is public input (rule 7), and from nothing that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privypurse.arrays import FloatArray, IntArray
from privypurse.budgets import ladder
from privypurse.errors import InvalidInput

_LARGEST = 2.0**18  # ε of a rung; whoever allows more is kept to it
_AT_ONCE = 1000  # different ε of which all pairs are looked at


def rungs_for(epsilon: FloatArray, delta: FloatArray, most: int) -> list[tuple[float, float]]:
    """At most ``most`` grants (ε, δ), rising in ε, of which everybody's own is at least one.

    Everybody's own ε where there are so few; else those at which the squares of the shares of ε that are lost to
    rounding down are least on average: large losses of a few count too. δ is the smallest of those on the rung.
    """
    each = np.minimum(epsilon, _LARGEST)
    values, counts = np.unique(each, return_counts=True)
    if values.size > most:
        if values.size > _AT_ONCE:
            values, counts = np.unique(ladder.rung_value(ladder.rung_below(each)), return_counts=True)
        values = values[_least_lost(values, counts.astype(np.float64), most)]
    which = np.searchsorted(values, each, side="right") - 1
    return [(float(value), float(delta[which == rung].min())) for rung, value in enumerate(values)]


def _least_lost(values: FloatArray, counts: FloatArray, most: int) -> list[int]:
    """Places of ``most`` rising values such that Σ counts · (1 - rung/value)² is least, each on the rung below it.

    By dynamic programming over where a rung begins: with one at v_i, values i … j-1 lose Σ counts · (1 - 2·v_i/v +
    (v_i/v)²), out of running sums.
    """
    size = values.size
    lost = np.zeros((size, size + 1))
    for power, factor in ((0, 1.0), (1, -2.0), (2, 1.0)):
        summed = np.append(0.0, np.cumsum(counts * (values[0] / values) ** power))
        lost += factor * (values[:, None] / values[0]) ** power * (summed[None, :] - summed[:size, None])
    lost[np.arange(size)[:, None] >= np.arange(size + 1)[None, :]] = np.inf  # a rung holds somebody
    least, began = lost[0], []
    for _ in range(most - 1):
        total = least[:size, None] + lost
        began.append(np.argmin(total, axis=0))
        least = total.min(axis=0)
    places, end = [], size
    for starts in reversed(began):
        end = int(starts[end])
        places.append(end)
    return [0, *reversed(places)]


def rung_within(rungs: Sequence[tuple[float, float]], epsilon: FloatArray, delta: FloatArray) -> IntArray:
    """For each (ε, δ) the highest rung that is not above it in either; -1 where there is none."""
    found = np.full(np.shape(epsilon), -1, dtype=np.int64)
    for place, (own_epsilon, own_delta) in enumerate(rungs):
        found[(own_epsilon <= epsilon) & (own_delta <= delta)] = place
    return found


def required_rung(
    rungs: Sequence[tuple[float, float]], epsilon: FloatArray, delta: FloatArray, who: Sequence[str]
) -> IntArray:
    """As `rung_within`; whoever is below all of them is named (rule 9: no silent fallback)."""
    found = rung_within(rungs, epsilon, delta)
    if (found < 0).any():
        first = int(np.argmax(found < 0))
        known = ", ".join(f"({own_epsilon:g}, {own_delta:g})" for own_epsilon, own_delta in rungs)
        raise InvalidInput(
            f"{who[first]!r} allows (ε, δ) = ({epsilon[first]:g}, {delta[first]:g}), which is below every rung of "
            f"this ledger: {known}. Leave their rows out, or make a ledger with a rung for them (`privypurse ledger "
            "init`) and name it by --ledger"
        )
    return found

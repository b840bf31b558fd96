"""Fixed ladders of round numbers, onto which budgets are rounded down.

A million people may hold a million different ε. A plan needs one rate for each *rung*, and the rungs are
the same for everybody, everywhere: they follow from no one's budget (rule 7). They are the round numbers
that people choose (1.00, 1.01 … 2.00, 2.02 … 5.00, 5.05 … 9.95, times any power of ten), so that an ε of
0.1, 0.25, 1.5 or 8 stays exactly what it is, and any other loses less than 1 %.
"""

import numpy as np

from privypurse.arrays import FloatArray, IntArray

# A decade as hundredths: 100, 101 … 199, 200, 202 … 498, 500, 505 … 995.
_DECADE = np.concatenate([np.arange(100, 200), np.arange(200, 500, 2), np.arange(500, 1000, 5)])
RUNGS_PER_DECADE = int(_DECADE.size)
LOOSEST_STEP = 0.01
"""Rounding down to the ladder loses less than this share of a budget."""


def rung_value(rung: IntArray) -> FloatArray:
    """The ε of each rung. Correctly rounded: the rung of 0.3 is the float that ``0.3`` writes."""
    decade, place = np.divmod(np.asarray(rung, dtype=np.int64), RUNGS_PER_DECADE)
    return _scaled(_DECADE[place].astype(np.float64), decade - 2)


def rung_below(epsilon: FloatArray) -> IntArray:
    """The highest rung whose value is not above ε."""
    eps = np.asarray(epsilon, dtype=np.float64)
    decade = np.floor(np.log10(eps)).astype(np.int64)
    hundredths = eps / _scaled(np.ones_like(eps), decade - 2)
    # log10 and the division may each be off by an ulp: start one rung high, then step down to the truth.
    place = np.searchsorted(_DECADE, hundredths * (1 + 1e-12), side="right").astype(np.int64)
    rung = decade * RUNGS_PER_DECADE + place
    for _ in range(3):
        rung = np.where(rung_value(rung) > eps, rung - 1, rung)
    return rung


def rounded_down(epsilon: float) -> float:
    """One number on the ladder, as budgets are."""
    return float(rung_value(rung_below(np.array([epsilon])))[0])


def one_digit_floor(values: FloatArray) -> FloatArray:
    """The largest number of one significant digit that is not above each value."""
    vals = np.asarray(values, dtype=np.float64)
    decade = np.floor(np.log10(vals)).astype(np.int64)
    digit = np.floor(vals / _scaled(np.ones_like(vals), decade) * (1 + 1e-12)) + 1
    for _ in range(3):
        too_big = _scaled(np.maximum(digit, 1), decade) > vals
        below_one = too_big & (digit <= 1)
        decade = np.where(below_one, decade - 1, decade)
        digit = np.where(below_one, 9, np.where(too_big, digit - 1, digit))
    return _scaled(digit, decade)


def _scaled(whole: FloatArray, power: IntArray) -> FloatArray:
    """whole · 10^power, correctly rounded where 10^|power| is exact (|power| ≤ 22)."""
    up = np.power(10.0, np.maximum(power, 0).astype(np.float64))
    down = np.power(10.0, np.maximum(-power, 0).astype(np.float64))
    return np.asarray(np.where(power >= 0, whole * up, whole / down), dtype=np.float64)

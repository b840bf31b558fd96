"""The threshold of `Exclude` that leaves a step the most signal beside its noise."""

from __future__ import annotations

import math

import numpy as np

from privypurse.accounting import gdp
from privypurse.arrays import FloatArray, IntArray
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.method import Calibrator
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput

_TRIED = 12
"""So many thresholds are solved for real; of more, the formula says which."""
_NEAR = 0.05


def best_threshold(levels: Levels, calibrator: Calibrator) -> float:
    """The ε at which `Exclude` has the largest expected signal to noise, a function of the budgets alone.

    Those with ε ≥ t train as if all had t. A step's signal is the sum of B clipped gradients, its noise σ(t)·C, so
    the t with the largest B/σ(t) is taken, by the calibrator's accountant. Of more than a dozen levels those are
    compared that `noise_by_formula` puts within 5 % of its best.
    """
    assert calibrator.shape.noise_multiplier is None  # a given σ is the same at every threshold
    thresholds, people, delta = _left(levels)
    enough = people >= calibrator.shape.batch_size
    if not enough.any():
        raise InvalidInput(
            f"batch_size is {calibrator.shape.batch_size:,}, but there are only {levels.total:,} people to draw "
            "from; lower it"
        )
    thresholds, people, delta = thresholds[enough], people[enough], delta[enough]
    if thresholds.size > _TRIED:
        rate = calibrator.shape.batch_size / people
        thresholds = thresholds[_promising(noise_by_formula(thresholds, delta, rate, calibrator.shape.steps))]
    best, least, refused = 0.0, math.inf, None
    for threshold in thresholds.tolist():
        try:
            noise = Exclude(threshold).assign(levels, calibrator).noise_multiplier
        except InfeasibleBudget as error:
            refused = refused or error
            continue
        if noise < least:
            best, least = threshold, noise
    if not best:
        assert refused is not None
        raise refused
    return best


def noise_by_formula(epsilon: FloatArray, delta: FloatArray, rate: FloatArray, steps: int) -> FloatArray:
    """About the σ that (ε, δ) needs at these sampling rates: 1 / √(log(1 + μ²/(q²T))), with μ that of (ε, δ).

    Bu, Dong, Long & Su (2020, arXiv 1911.11607), the central limit theorem for noisy SGD with Poisson subsampling,
    μ = q·√(T(e^{1/σ²} - 1)), solved for σ. A limit for many steps: good to compare by, and no bound.
    """
    return np.asarray(1 / np.sqrt(np.log1p((gdp.mu(epsilon, delta) / rate) ** 2 / steps)))


def _left(levels: Levels) -> tuple[FloatArray, IntArray, FloatArray]:
    """Every ε that somebody holds, ascending; how many hold as much or more, and the smallest δ among those."""
    thresholds, first = np.unique(levels.epsilon, return_index=True)
    people = np.cumsum(levels.people[::-1])[::-1]
    delta = np.minimum.accumulate(levels.delta[::-1])[::-1]
    return thresholds, people[first], delta[first]


def _promising(noise: FloatArray) -> IntArray:
    """The places of the least noise and, spread evenly, of others that are nearly as good."""
    near = np.flatnonzero(noise <= noise.min() * (1 + _NEAR))
    some = near[np.linspace(0, near.size - 1, min(near.size, _TRIED)).round().astype(np.int64)]
    return np.unique(np.append(some, np.argmin(noise)))

"""The papers' simulated budgets: how people might choose their ε. For experiments, not for people.

Each returns one ε for each of ``n`` records and draws from the generator that it is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from privypurse.arrays import FloatArray
from privypurse.budgets.budgets import epsilon_of_levels
from privypurse.errors import InvalidInput

THREE_LEVELS = (0.1, 1.0, 5.0)
THREE_SHARES = (0.7, 0.2, 0.1)


def levels(n: int, epsilon: Sequence[float], shares: Sequence[float], rng: np.random.Generator) -> FloatArray:
    """Exactly ``shares`` of the records (to the nearest record) at each ε, assigned at random."""
    if len(epsilon) != len(shares):
        raise InvalidInput(f"epsilon has {len(epsilon)} levels but shares has {len(shares)}; give one share a level")
    weights = np.asarray(shares, dtype=np.float64)
    if not np.isclose(weights.sum(), 1.0) or (weights < 0).any():
        raise InvalidInput(f"shares are {list(shares)}; they must be non-negative and sum to 1")
    return rng.permutation(np.repeat(np.asarray(epsilon, dtype=np.float64), _apportioned(n, weights)))


def three_levels(n: int, rng: np.random.Generator) -> FloatArray:
    """ThreeLevels of Liu et al. (2024, arXiv 2401.16251), §7: ε 0.1 / 1 / 5 for 70 / 20 / 10 % of the records."""
    return levels(n, THREE_LEVELS, THREE_SHARES, rng)


def bounded_pareto(
    n: int, rng: np.random.Generator, *, shape: float = 1.0, low: float = 0.1, high: float = 10.0
) -> FloatArray:
    """BoundedPareto of Liu et al. (2024), §7: a Pareto law conditioned on [low, high], by inverting its CDF."""
    _check_size(n)
    within = 1.0 - (low / high) ** shape
    return np.asarray(low * (1.0 - within * rng.random(n)) ** (-1.0 / shape), dtype=np.float64).clip(low, high)


def bounded_gaussian_mixture(
    n: int,
    rng: np.random.Generator,
    *,
    means: Sequence[float] = THREE_LEVELS,
    deviations: Sequence[float] = (0.01, 0.05, 0.5),
    shares: Sequence[float] = THREE_SHARES,
    low: float = 0.1,
    high: float = 10.0,
) -> FloatArray:
    """BoundedMixGauss of Liu et al. (2024), §7: three normal laws, each conditioned on [low, high].

    The paper does not say how the bound is kept; conditioning, unlike clipping, keeps the law continuous.
    """
    if len(means) != len(deviations):
        raise InvalidInput(f"means has {len(means)} entries but deviations has {len(deviations)}; give one each")
    component = levels(n, range(len(means)), shares, rng).astype(np.int64)
    mean = np.asarray(means, dtype=np.float64)[component]
    deviation = np.asarray(deviations, dtype=np.float64)[component]
    bottom = special.ndtr((low - mean) / deviation)
    top = special.ndtr((high - mean) / deviation)
    draws = mean + deviation * special.ndtri(bottom + (top - bottom) * rng.random(n))
    return np.asarray(draws, dtype=np.float64).clip(low, high)


# Heo et al. (2023), C.1: Count(ε) = n (c1·e^{kε} + c2). With these constants the 20 counts sum to 1.83 n
# (k = ±0.2), so they are shares only once divided by their sum.
_SKEW_CONSTANTS = {-0.2: (2.098, -1.715), 0.0: (0.0, 1.0), 0.2: (1.554, -1.715)}
SKEWED_GROUPS = 20


def skewed_groups(n: int, skew: float, rng: np.random.Generator) -> FloatArray:
    """20 groups with ε evenly in [0.5, 1] and exponentially skewed sizes (Heo et al. 2023, arXiv 2305.15165, C.1).

    ``skew`` is the paper's k: -0.2 (most people strict), 0 (even) or 0.2 (most people relaxed).
    """
    if skew not in _SKEW_CONSTANTS:
        raise InvalidInput(f"skew is {skew}; the paper prints constants for -0.2, 0.0 and 0.2 only")
    scale, shift = _SKEW_CONSTANTS[skew]
    epsilon = np.linspace(0.5, 1.0, SKEWED_GROUPS)
    counts = scale * np.exp(skew * epsilon) + shift
    return levels(n, epsilon.tolist(), (counts / counts.sum()).tolist(), rng)


def by_label(labels: Any, epsilon: Mapping[Any, float]) -> FloatArray:
    """The ε of each record's class label (Boenisch et al. 2023, D.2). Draws nothing."""
    return epsilon_of_levels(labels, epsilon)


def _check_size(n: int) -> None:
    if n < 1:
        raise InvalidInput(f"n is {n}; simulate at least one record")


def _apportioned(n: int, weights: FloatArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Whole counts that sum to n and differ from n·weights by less than one (largest remainders)."""
    _check_size(n)
    exact = n * weights
    counts = np.floor(exact + 1e-9).astype(np.int64)
    short = n - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts

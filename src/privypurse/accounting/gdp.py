"""Gaussian DP and zero-concentrated DP: unsampled Gaussian steps, with the exact ε(δ)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from privypurse.accounting.accountant import Progress, deltas_for, leaves
from privypurse.accounting.releases import Composed, Gaussian, Release, SampledGaussian
from privypurse.arrays import FloatArray

_ROUND_UP = 1 + 1e-12
_HALVINGS = 200


def delta(mu: FloatArray | float, epsilon: FloatArray | float) -> FloatArray:
    """The exact δ(ε) of a μ-GDP mechanism: Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ).

    Balle & Wang (2018), Theorem 8; Dong, Roth & Su (2022), Corollary 2.13.
    """
    m, e = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        first = special.log_ndtr(m / 2 - e / m)
        second = e + special.log_ndtr(-m / 2 - e / m)
        # A difference of two numbers that may be nearly equal, taken in logarithms.
        value = np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return np.asarray(np.where(m == 0, 0.0, value), dtype=np.float64)


def _margin(mu: FloatArray) -> FloatArray:
    """δ(ε) is a difference of logarithms; for small μ it loses about 1/μ units in the last place."""
    return np.asarray(1 - np.minimum(1e-9 + 1e-13 / np.maximum(mu, 1e-300), 0.5), dtype=np.float64)


def epsilon(mu: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """The smallest ε with δ(ε) ≤ δ, by bisection that keeps its upper end: never below the true ε."""
    m, d = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    low = np.zeros(m.shape)
    # At ε = μ²/2 + μ·√(2 log 1/δ) the first term of δ(ε) alone is at most δ.
    high = m**2 / 2 + m * np.sqrt(2 * np.log(1 / d))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = delta(m, middle) <= d * _margin(m)
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
    return np.asarray(np.where(delta(m, 0.0) <= d * _margin(m), 0.0, high), dtype=np.float64)


def mu(epsilon_: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """The largest μ whose δ(ε) is at most δ, rounded down: what a purse (ε, δ) holds in μ² for Gaussian steps."""
    e, d = np.broadcast_arrays(np.asarray(epsilon_, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    low, high = np.zeros(e.shape), np.sqrt(2 * e) + 20.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = delta(middle, e) <= d * _margin(middle)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(low, dtype=np.float64)


def epsilon_from_zcdp(rho: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """(ε, δ) of any ρ-zCDP mechanism, at the best real order.

    Canonne, Kamath & Steinke (2020), Proposition 12 with the curve αρ, minimised over a fine grid of orders:
    each of them is a valid bound.
    """
    r, d = np.broadcast_arrays(np.asarray(rho, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    log_d = np.log(d)[..., None]
    with np.errstate(divide="ignore"):
        centre = np.minimum(np.sqrt(-log_d / np.maximum(r[..., None], 1e-300)), 1e12)
    orders = 1 + centre * np.geomspace(1e-2, 1e2, 4001)
    bound = orders * r[..., None] + np.log1p(-1 / orders) - (log_d + np.log(orders)) / (orders - 1)
    return np.asarray(np.maximum(bound.min(axis=-1), 0.0) * _ROUND_UP, dtype=np.float64)


@dataclass(frozen=True)
class GDP:
    """Exact accounting of unsampled Gaussian steps: n steps of multiplier σ are √n/σ-GDP, no more and no less."""

    name: str = "gdp"
    smallest_delta: float = 1e-300

    def supports(self, release: Release) -> bool:
        match release:
            case Gaussian():
                return True
            case SampledGaussian(rate, _, _):
                return rate in (0.0, 1.0)
            case Composed(releases):
                return all(self.supports(part) for part in releases)
            case _:
                return False

    def epsilons(
        self, releases: Sequence[Release], delta: FloatArray | float, progress: Progress | None = None
    ) -> FloatArray:
        each = deltas_for(self, releases, delta)
        if progress:
            progress(len(releases), len(releases))
        return epsilon(np.array([gdp_mu(release) for release in releases]), each) * _ROUND_UP


def gdp_mu(release: Release) -> float:
    """μ of unsampled Gaussian steps: μ² adds up (Dong et al. 2022, Corollary 3.3)."""
    squares = 0.0
    for part in leaves(release):
        if isinstance(part, Gaussian) or (isinstance(part, SampledGaussian) and part.rate == 1):
            squares += part.count / part.noise_multiplier**2
    return math.sqrt(squares) * _ROUND_UP

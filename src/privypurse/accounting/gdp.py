"""Gaussian DP and zero-concentrated DP: unsampled Gaussian steps, with the exact ε(δ)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from privypurse.accounting.accountant import ROUND_UP, Progress, deltas_for
from privypurse.accounting.releases import Composed, Gaussian, Release, SampledGaussian
from privypurse.arrays import AnyArray, FloatArray

_HALVINGS = 200
_ULP = 2.0**-53
_LEAST = 2.0**-1074
_LOG_NDTR = 32 * _ULP  # relative error of SciPy's log_ndtr; the tests compare it with many digits


def delta(mu: FloatArray | float, epsilon: FloatArray | float) -> FloatArray:
    """The δ(ε) of a μ-GDP mechanism, Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ), never below the truth.

    Balle & Wang (2018, arXiv 1805.06530), Theorem 8; Dong, Roth & Su (2022, arXiv 1905.02383), Corollary 2.13. Two
    bounds, of which the smaller counts: the difference itself in logarithms, moved up by what their rounding may
    hide, and for small μ, where the terms are nearly equal, a bound without a difference. Together they exceed the
    truth by less than 1e-5 of it.
    """
    m, e = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        # All the digits of a and b that float64 may have lost: of μ/2, of ε/μ, and of what they leave.
        a, b, lost = m / 2 - e / m, -m / 2 - e / m, 4 * _ULP * (m / 2 + e / m)
        upper = np.fmin(_by_difference(a, b, e, lost), _by_slope(m, a, lost))
        upper = np.clip(np.where(np.isnan(upper), 1.0, upper) + 16 * _LEAST, 0.0, 1.0)  # _LEAST: for underflow
    return np.asarray(np.where(m == 0, 0.0, upper), dtype=np.float64)


def _by_difference(a: FloatArray, b: FloatArray, e: FloatArray, lost: FloatArray) -> FloatArray:
    """Φ(a) - e^ε·Φ(b) with the larger first and the smaller second logarithm that rounding allows.

    log Φ is concave with a slope of at most |x| + 1 where x < 1, and at most 1 elsewhere.
    """
    first, second = special.log_ndtr(a), special.log_ndtr(b)
    off_first = _LOG_NDTR * np.abs(first) + (np.maximum(-a, 0.0) + 1) * lost
    off_second = _LOG_NDTR * np.abs(second) + (np.maximum(-b, 0.0) + 1) * lost + 4 * _ULP * (e + np.abs(second))
    apart = np.minimum(e + second - first, 0.0) - off_first - off_second
    return np.asarray(np.exp(first + off_first) * -np.expm1(apart) * (1 + 8 * _ULP))


def _by_slope(m: FloatArray, a: FloatArray, lost: FloatArray) -> FloatArray:
    """μ·φ(a)·(1 + a·R(-a)), with Mills' ratio R(x) = (1 - Φ(x))/φ(x): the tangent at μ = 0 of a concave function.

    δ(ε) = φ(a)·(R(-a) - R(-a + μ)), since e^ε·φ(b) = φ(a), and R(x) - R(x + μ) = ∫₀^∞ e^{-t²/2 - xt}(1 - e^{-μt}) dt,
    where 1 - e^{-μt} ≤ μt. Only for |a| < 1e5: beyond it 1 + a·R has no digits left.
    """
    mills = math.sqrt(math.pi / 2) * special.erfcx(-a / math.sqrt(2))
    slope = (1 + a * mills) + 16 * _ULP * (1 + np.abs(a) * mills)
    density = np.exp(-(a**2) / 2 * (1 - 8 * _ULP) + np.abs(a) * lost) / math.sqrt(2 * math.pi)
    # d/da (a·R(-a)) = R(-a)·(1 + a²) + a, for the digits that a has lost.
    bound = m * density * (slope + 2 * lost * (mills * (1 + a**2) + np.abs(a))) * (1 + 8 * _ULP)
    return np.asarray(np.where(np.abs(a) < 1e5, bound, np.inf))


def epsilon(mu: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """The smallest ε with δ(ε) ≤ δ, by bisection that keeps its upper end: never below the true ε."""
    m, d = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    # At ε = μ²/2 + μ·√(2 log 1/δ) the first term of δ(ε) alone is at most δ.
    high = (m**2 / 2 + m * np.sqrt(-2 * np.log(d))) * ROUND_UP
    least = _bisected(high, np.zeros(m.shape), lambda middle: delta(m, middle) <= d)
    return np.asarray(np.where(delta(m, 0.0) <= d, 0.0, least), dtype=np.float64)


def mu(epsilon_: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """The largest μ whose δ(ε) is at most δ, rounded down: what a purse (ε, δ) holds in μ² for Gaussian steps."""
    e, d = np.broadcast_arrays(np.asarray(epsilon_, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    return _bisected(np.zeros(e.shape), np.sqrt(2 * e) + 20.0, lambda middle: delta(middle, e) <= d)


def _bisected(inside: FloatArray, outside: FloatArray, fits: Callable[[FloatArray], AnyArray]) -> FloatArray:
    """As near to ``outside`` as fits, coming from ``inside``, which does."""
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        within = fits(middle)
        before = inside, outside
        inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
        if np.array_equal(before, (inside, outside)):  # neighbouring floats: it stays like this
            break
    return np.asarray(inside, dtype=np.float64)


def epsilon_from_zcdp(rho: FloatArray | float, delta_: FloatArray | float) -> FloatArray:
    """(ε, δ) of any ρ-zCDP mechanism, at the best real order.

    Canonne, Kamath & Steinke (2020, arXiv 2004.00010), Proposition 12 with the curve αρ, minimised over a fine grid
    of orders: each of them is a valid bound.
    """
    r, d = np.broadcast_arrays(np.asarray(rho, dtype=np.float64), np.asarray(delta_, dtype=np.float64))
    log_d = np.log(d)[..., None]
    with np.errstate(divide="ignore"):
        centre = np.minimum(np.sqrt(-log_d / np.maximum(r[..., None], 1e-300)), 1e12)
    orders = 1 + centre * np.geomspace(1e-2, 1e2, 4001)
    bound = orders * r[..., None] + np.log1p(-1 / orders) - (log_d + np.log(orders)) / (orders - 1)
    # Numbers of size αρ and log(1/δ)/(α-1) are added: lean up by more than their rounding.
    bound += 1e-14 * (orders * r[..., None] + 1.0 + (np.abs(log_d) + np.log(orders)) / (orders - 1))
    return np.asarray(np.maximum(bound.min(axis=-1), 0.0) * ROUND_UP, dtype=np.float64)


@dataclass(frozen=True)
class GDP:
    """Exact accounting of unsampled Gaussian steps: n steps of multiplier σ are √n/σ-GDP, no more and no less."""

    name: str = "gdp"
    smallest_delta: float = 1e-300

    def supports(self, release: Release) -> bool:
        return not math.isnan(_mu_squared(release))

    def epsilons(
        self, releases: Sequence[Release], delta: FloatArray | float, progress: Progress | None = None
    ) -> FloatArray:
        each = deltas_for(self, releases, delta)
        if progress:
            progress(len(releases), len(releases))
        mu = np.sqrt([_mu_squared(release) for release in releases]) * ROUND_UP
        return epsilon(mu, each) * ROUND_UP


def _mu_squared(release: Release) -> float:
    """μ² of unsampled Gaussian steps, which adds up (Dong et al. 2022, Corollary 3.3); NaN for anything else."""
    match release:
        case Gaussian(noise_multiplier, count) | SampledGaussian(1.0, noise_multiplier, count):
            return count / noise_multiplier**2
        case SampledGaussian(0.0, _, _):
            return 0.0
        case Composed(releases):
            return sum(map(_mu_squared, releases), 0.0)
    return math.nan

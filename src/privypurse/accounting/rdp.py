"""Rényi accounting: certified curves, composed by adding, turned into (ε, δ) at the best order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from privypurse.accounting import sampled_gaussian
from privypurse.accounting.accountant import ROUND_UP, Progress, deltas_for
from privypurse.accounting.releases import (
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    Release,
    SampledGaussian,
    SampledRound,
    costs_nothing,
    leaves,
    made_of,
)
from privypurse.arrays import FloatArray, frozen
from privypurse.errors import InvalidInput

_LARGEST_SUM = 256  # orders beyond it are hardly ever the best for a round; amplification is not counted there


def default_orders() -> FloatArray:
    """Fractional orders for large ε, every integer to 32, then ever sparser to 4096 for small ε."""
    fractional = (1 + np.geomspace(0.02, 10, 40)).round(3)
    dense = np.arange(2.0, 33.0)
    sparse = np.geomspace(34, 4096, 56).round()
    return frozen(np.unique(np.concatenate([fractional, dense, sparse])))


ORDERS = default_orders()


def epsilon_from_rdp(rdp: FloatArray, orders: FloatArray, delta: FloatArray | float) -> FloatArray:
    """The best ε over all orders; ``rdp[..., k]`` is the cost at ``orders[k]``, ``delta`` broadcasts to the rest.

    Canonne, Kamath & Steinke (2020, arXiv 2004.00010), Proposition 12: ε = ρ + log((α-1)/α) - (log δ + log α)/(α-1).
    It never falls below about (log 1/δ - log α)/(α-1) at the largest order, even for ρ = 0; that keeps it
    continuous in ρ, which look-ups rely on.

    The best order may be taken because the curve is that of releases fixed beforehand. A filter may not
    (rule 5).
    """
    dlt = np.asarray(delta, dtype=np.float64)[..., None]
    epsilon = rdp + np.log1p(-1.0 / orders) - (np.log(dlt) + np.log(orders)) / (orders - 1.0)
    return np.asarray(np.maximum(epsilon.min(axis=-1), 0.0), dtype=np.float64)


def epsilon_from_rdp_mironov(rdp: FloatArray, orders: FloatArray, delta: FloatArray | float) -> FloatArray:
    """Mironov (2017, arXiv 1702.07476), Proposition 3: ε = ρ + log(1/δ)/(α-1). Looser; for comparison."""
    dlt = np.asarray(delta, dtype=np.float64)[..., None]
    return np.asarray((rdp - np.log(dlt) / (orders - 1.0)).min(axis=-1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RDP:
    """Rényi differential privacy over a fixed list of orders.

    Guarantee: `epsilons` returns upper bounds; integer orders are positive sums, fractional ones the smaller
    of a chord and a quadrature with a proven relative error (rule 4). No δ is too small for it.
    """

    orders: FloatArray = field(default_factory=lambda: ORDERS)
    convert: Callable[[FloatArray, FloatArray, FloatArray | float], FloatArray] = epsilon_from_rdp
    name: str = "rdp"
    smallest_delta: float = 1e-300

    def __post_init__(self) -> None:
        orders = np.unique(np.asarray(self.orders, dtype=np.float64))
        if orders.size == 0 or not (orders.min() > 1 and np.isfinite(orders).all()):
            raise InvalidInput(f"orders must be finite and above 1; got {self.orders}")
        object.__setattr__(self, "orders", frozen(orders))

    def supports(self, release: Release) -> bool:
        return made_of(release, SampledGaussian, Gaussian, PureDP)

    def curves(self, releases: Sequence[Release]) -> FloatArray:
        """One row for each release: its Rényi divergence at every order, rounded up.

        0 for who takes no part, and never for anybody else: what is too small for a float is rounded up to one.
        ∞ where it is too large.
        """
        pairs = sorted(
            {
                (leaf.rate, leaf.noise_multiplier)
                for release in releases
                for leaf in leaves(release)
                if isinstance(leaf, SampledGaussian)
            }
        )
        rates, noise = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        steps = dict(zip(pairs, sampled_gaussian.rdp(rates, noise, self.orders), strict=True))
        return np.array([self._curve(release, steps) for release in releases]).reshape(-1, self.orders.size)

    def _curve(self, release: Release, steps: Mapping[tuple[float, float], FloatArray]) -> FloatArray:
        if costs_nothing(release):
            return np.zeros(self.orders.size)
        with np.errstate(over="ignore"):  # ∞ is a bound too
            return np.maximum(self._composed(release, steps), sampled_gaussian.TINY)

    def _composed(self, release: Release, steps: Mapping[tuple[float, float], FloatArray]) -> FloatArray:
        match release:
            case Gaussian(noise_multiplier, count):  # as a sampled step at rate 1
                one = sampled_gaussian.rdp(np.ones(1), np.array([noise_multiplier]), self.orders)[0]
                return np.asarray(count * one * ROUND_UP)
            case SampledGaussian(rate, noise_multiplier, count):
                return count * steps[rate, noise_multiplier] * ROUND_UP
            case PureDP(epsilon, count):
                return count * randomised_response(epsilon, self.orders) * ROUND_UP
            case ClientSampled(rate, inner, count):
                return count * client_sampled(self._curve(inner, steps), self.orders, rate) * ROUND_UP
            case SampledRound(rate, inner, count):
                return count * sampled_round(self._curve(inner, steps), self.orders, rate) * ROUND_UP
            case Composed(releases):  # Mironov (2017), Proposition 1
                return np.asarray(np.sum([self._curve(part, steps) for part in releases], axis=0) * ROUND_UP)

    def epsilons(
        self, releases: Sequence[Release], delta: FloatArray | float, progress: Progress | None = None
    ) -> FloatArray:
        each = deltas_for(self, releases, delta)
        # Near 0 the conversion subtracts numbers of size 1; the absolute margin covers their rounding.
        epsilon = self.convert(self.curves(releases), self.orders, each) * ROUND_UP + 1e-14
        if progress:
            progress(len(releases), len(releases))
        # A conversion gives nothing below about log(1/δ)/α; but who takes no part at all pays nothing.
        return np.where([costs_nothing(release) for release in releases], 0.0, epsilon)


def randomised_response(epsilon: float, orders: FloatArray) -> FloatArray:
    """Mironov (2017), Proposition 5. Randomised response is the worst among ε-DP mechanisms."""
    # The moment minus 1 is 2·sinh(αε/2)·sinh((α-1)ε/2) / cosh(ε/2): a product, which keeps its digits near 0.
    half = np.minimum(orders * epsilon, 600.0) / 2
    near = np.log1p(2 * np.sinh(half) * np.sinh(half * (1 - 1 / orders)) / np.cosh(min(epsilon, 600.0) / 2))
    yes = -np.log1p(np.exp(-epsilon))
    far = np.logaddexp(orders * yes + (1 - orders) * (yes - epsilon), orders * (yes - epsilon) + (1 - orders) * yes)
    moments = np.where(orders * epsilon < 600.0, near, far)
    return np.asarray(np.minimum(moments / (orders - 1.0) * (1 + 1e-13), epsilon), dtype=np.float64)


def client_sampled(inner: FloatArray, orders: FloatArray, rate: float) -> FloatArray:
    """Liu et al. (2024, arXiv 2401.16251), Lemma 6: log(1 - λ + λ·e^{(α-1)ρ}) / (α-1)."""
    exponent = (orders - 1.0) * inner
    small = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    large = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + exponent)
    return np.asarray(np.where(exponent < 1.0, small, large) / (orders - 1.0), dtype=np.float64)


def sampled_round(inner: FloatArray, orders: FloatArray, rate: float) -> FloatArray:
    """Upper bound on the curve of a round that the record enters with probability ``rate`` = π, as a whole.

    With P the outcome of a round with the record and Q without it, the round is P' = (1-π)Q + πP. ``inner`` bounds
    both D(P‖Q) and D(Q‖P).

    Removing the record, at integer α: E_Q[(P'/Q)^α] = Σ_j C(α,j) (1-π)^{α-j} π^j E_Q[(P/Q)^j] with E_Q[(P/Q)^j] =
    e^{(j-1)ρ(j)}, and 1 for j ≤ 1; between integers a chord, since a cumulant function is convex.
    Adding it, the smaller of two bounds. log(1 - π + π·e^ℓ) is convex in ℓ = log P/Q with slope π at 0, so P'/Q ≥
    (P/Q)^π and D_α(Q‖P') ≤ π·D_a(Q‖P) with a = 1 + π(α-1). And with u = P/Q - 1 ≥ -1, whose mean under Q is 0, what
    (1 + πu)^{1-α} has beyond its tangent, divided by u², falls in u, so that E_Q[(P'/Q)^{1-α}] - 1 is at most
    ((1-π)^{1-α} - 1 - (α-1)π)·E_Q[u²], where E_Q[u²] = e^{ρ(2)} - 1: the better one for small π.
    """
    if rate in (0.0, 1.0):
        return inner * rate
    nodes, moments = np.append(1.0, orders), np.append(0.0, (orders - 1.0) * inner)
    unsampled = moments[1:]  # E_Q[X^α] is convex in π, so a round never costs more than one without the coin
    largest = min(float(orders.max()), _LARGEST_SUM)
    alpha = np.arange(2, int(largest) + 1)
    if not alpha.size:
        return inner
    j = np.arange(2, alpha[-1] + 1)
    excess = np.interp(j, nodes, moments)  # chords between certified orders lie above
    log_weight = (
        special.gammaln(alpha[:, None] + 1.0)
        - special.gammaln(j + 1.0)
        - special.gammaln(np.maximum(alpha[:, None] - j, 0) + 1.0)
        + (alpha[:, None] - j) * np.log1p(-rate)
        + j * np.log(rate)
    )
    # The binomial weights sum to 1, so A - 1 is the sum with e^{…} - 1: positive terms, no cancellation near 1.
    with np.errstate(divide="ignore"):
        growth = np.where(excess < 700.0, np.log(np.expm1(np.minimum(excess, 700.0))), excess)
    terms = np.where(j <= alpha[:, None], log_weight + growth, -np.inf)
    sums = special.logsumexp(terms, axis=1)
    rounding = 64 * np.finfo(np.float64).eps * (alpha * (10 + np.abs(np.log(rate)) - np.log1p(-rate)) + excess)
    removing = np.interp(orders, np.append(1, alpha), np.append(0.0, np.logaddexp(0.0, sums + rounding)))
    by_tangent = np.interp(1.0 + rate * (orders - 1.0), nodes, moments)  # (α-1)·π·ρ(a) is (a-1)·ρ(a)
    # Beyond it the other bound is the smaller anyway.
    spread = np.minimum(orders - 1.0, 700.0 / max(-np.log1p(-rate), 1e-300))
    whole = np.expm1(-spread * np.log1p(-rate))
    beyond = whole * (1 + 16 * np.finfo(np.float64).eps) - spread * rate
    with np.errstate(over="ignore"):  # ∞ is a bound too
        by_square = np.where(spread == orders - 1.0, np.log1p(beyond * np.expm1(min(excess[0], 300.0))), np.inf)
    adding = np.minimum(by_tangent, by_square if excess[0] < 300.0 else np.inf)
    amplified = np.where(orders <= alpha[-1], np.maximum(removing, adding), unsampled)
    return np.asarray(np.minimum(amplified, unsampled) / (orders - 1.0) * ROUND_UP, dtype=np.float64)

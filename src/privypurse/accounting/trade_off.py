"""Trade-off curves: how well any test can tell that somebody was there, whatever it looks at.

With P the outcome with a person and Q the one without them, a release is (ε, δ(ε))-DP for every ε, so that for every
event A in either direction P(A) ≤ e^ε·Q(A) + δ(ε). The least of these lines is the curve 1 - f of f-DP (Dong, Roth &
Su 2022, arXiv 1905.02383, Proposition 2.12), and any choice of them lies above it: a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privypurse.accounting import gdp
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.pld import PLD, discretisation, distributions
from privypurse.accounting.releases import Release
from privypurse.arrays import FloatArray, IntArray, frozen
from privypurse.errors import Unsupported

_LINES = 2000  # ε at which the curve is known; more of them make it tighter, none makes it wrong
_TINY = 1e-12  # δ below which a line at a larger ε says nothing more
_ROUNDING = 1e-14  # more than a δ here loses to arithmetic


@dataclass(frozen=True, eq=False)
class TradeOff:
    """For every event P(A) ≤ e^ε·Q(A) + δ, at each of these pairs, with and without the person either way round."""

    epsilon: FloatArray
    delta: FloatArray

    @classmethod
    def of_release(cls, release: Release) -> TradeOff:
        """By privacy loss distributions: an upper bound, for adding and for removing the person."""
        epsilon, removing, adding = _lines(release)
        return cls(epsilon, np.maximum(removing, adding))

    @classmethod
    def of_guesses(cls, release: Release) -> TradeOff:
        """The same for guesses, *in* at some outcomes and *out* at others, about somebody who is in by a fair coin.

        A right *in* is bounded by removing, a right *out* by adding: for events A and B ½P(A) + ½Q(B) is at most
        e^ε·(½Q(A) + ½P(B)) plus the mean of both δ(ε), where the larger one holds for either direction alone.
        """
        epsilon, removing, adding = _lines(release)
        return cls(epsilon, (removing + adding) / 2)

    @classmethod
    def gaussian(cls, mu: float) -> TradeOff:
        """G_μ: telling N(μ, 1) from N(0, 1) (Dong, Roth & Su 2022, arXiv 1905.02383, Corollary 2.13)."""
        ahead = np.linspace(0.0, mu * (7.5 + mu / 2), _LINES // 2)
        forward = np.asarray(gdp.delta(mu, ahead))
        back = 1 - (1 - forward) * np.exp(-ahead) + _ROUNDING  # the same pair, said of the opposite event
        return cls(np.append(-ahead[::-1], ahead), np.append(back[::-1], forward))

    @classmethod
    def approximate(cls, epsilon: float, delta: float) -> TradeOff:
        """All that (ε, δ)-DP says (arXiv 1905.02383, Proposition 2.5): lines of an event and of its opposite."""
        back = 1 - (1 - delta) * math.exp(-epsilon)
        return cls(np.array([epsilon, -epsilon]), np.array([delta, back]))

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, frozen(np.asarray(getattr(self, name), dtype=np.float64)))
        object.__setattr__(self, "_slope", frozen(np.exp(-self.epsilon)))
        object.__setattr__(self, "_at_zero", frozen(-self.delta * np.exp(-self.epsilon)))

    def most(self, other: float) -> float:
        """The largest P(A) of an event with Q(A) = ``other``: a test's power at this false positive rate."""
        return min(1.0, float(np.min(np.exp(self.epsilon) * other + self.delta)))

    def least(self, mass: float) -> float:
        """The smallest Q(A) of an event with P(A) = ``mass``; the inverse of `most`."""
        return max(0.0, float(np.max(self._slope * mass + self._at_zero)))  # type: ignore[attr-defined]


def _lines(release: Release) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ε, and δ(ε) for removing and for adding the person."""
    if not PLD().supports(release):
        raise Unsupported(f"the pld accountant has no proven curve for {release}")
    step = discretisation(release)
    both = distributions(release, step)
    most = max(_reach(one) for one in both)
    stride = max(1, math.ceil(2 * most / _LINES))
    grid = np.arange(-stride * math.ceil(most / stride), most + stride, stride, dtype=np.int64)
    return np.asarray(grid * step, dtype=np.float64), _deltas(both[0], grid), _deltas(both[-1], grid)


def _deltas(losses: LossDistribution, grid: IntArray) -> FloatArray:
    """δ(ε) = Σ_{ℓ > ε} mass·(1 - e^{ε-ℓ}) at ε = grid · step, never too small."""
    size = losses.mass.size
    loss = (losses.lower + np.arange(size)) * losses.step
    above = np.append(np.cumsum(losses.mass[::-1])[::-1], 0.0)
    counterpart = np.append(np.cumsum((losses.mass * np.exp(-np.clip(loss, -300.0, None)))[::-1])[::-1], 0.0)
    place = np.clip(grid + 1 - losses.lower, 0, size)  # the first loss above ε
    found = above[place] - np.exp(np.minimum(grid * losses.step, 300.0)) * counterpart[place]
    return np.asarray(np.clip(found, 0.0, 1.0) + losses.infinity + losses.slop + _ROUNDING)


def _reach(losses: LossDistribution) -> int:
    """Beyond so many grid points either way hardly any loss lies."""
    above = np.cumsum(losses.mass[::-1])[::-1]
    last = losses.lower + int(np.searchsorted(-above, -_TINY))
    return max(1, abs(last), abs(losses.lower + int(np.searchsorted(np.cumsum(losses.mass), _TINY))))

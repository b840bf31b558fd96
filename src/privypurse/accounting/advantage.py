"""How well the best attacker can tell whether a person's data was used, from (ε, δ) or from the whole curve.

An attacker sees what was released with the person's data or without it, each as likely as the other, and says which
it was. Their advantage is how often they are right beyond a coin's half, doubled: the total variation between both.
"""

from __future__ import annotations

import math

import numpy as np

from privypurse._validate import real
from privypurse.accounting.accountant import ROUND_UP
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.pld import discretisation, distributions
from privypurse.accounting.releases import Release


def best_accuracy(epsilon: float, delta: float) -> float:
    """How often an attacker can be right at most: (e^ε + δ)/(e^ε + 1), for any (ε, δ)-DP release; rounded up.

    From the two lines that bound false alarms and misses, e^ε·α + β ≥ 1 - δ and α + e^ε·β ≥ 1 - δ (Kairouz, Oh &
    Viswanath 2015, arXiv 1311.0776, Theorem 2.1): they meet where α = β = (1 - δ)/(1 + e^ε). The mechanism that
    says nothing but "ε, with probability 1 - δ" reaches it.
    """
    epsilon = real(epsilon, "epsilon", least=0.0)
    delta = real(delta, "delta", least=0.0, most=1.0)
    wrong = (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))
    return min(1.0, (1.0 - wrong) * ROUND_UP)


def advantage(epsilon: float, delta: float) -> float:
    """The most that any (ε, δ)-DP release lets total variation be: (e^ε - 1 + 2δ)/(e^ε + 1), rounded up."""
    return max(0.0, min(1.0, 2.0 * best_accuracy(epsilon, delta) - 1.0))


def total_variation(release: Release) -> float:
    """At most this much of the release tells with from without: δ(0) of its privacy loss distribution.

    Tighter than what one point (ε, δ) of the curve says, and different for releases that share such a point. It is
    the same in both directions, and either bound holds, so the smaller one counts.
    """
    found = distributions(release, discretisation(release))
    return min(1.0, min(map(_at_zero, found)) * ROUND_UP)


def _at_zero(losses: LossDistribution) -> float:
    """δ(0) = Σ_{ℓ > 0} mass·(1 - e^-ℓ), never below the truth."""
    loss = (losses.lower + np.arange(losses.mass.size)) * losses.step
    told = losses.mass * -np.expm1(-np.maximum(loss, 0.0))
    return float(told.sum()) + losses.infinity + losses.slop

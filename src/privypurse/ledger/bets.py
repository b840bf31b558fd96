"""What (ε, δ) means as a bet: how often somebody guesses right whether a person's data were used."""

from __future__ import annotations

import math

GUESSES = 1000
"""Risks are told as frequencies, of so many guesses: people judge them better than percentages or ε
(Boenisch et al. 2023, arXiv 2303.17046, Appendix A)."""
COIN = GUESSES // 2


def right_guesses(epsilon: float, delta: float) -> int:
    """Of `GUESSES` guesses, how many are right at most, of somebody who begins at even odds and sees every release.

    Whoever tells "with" a person from "without" by what an (ε, δ)-differentially private process releases errs with
    probabilities a and b where a + e^ε·b ≥ 1 - δ and e^ε·a + b ≥ 1 - δ (Kairouz, Oh & Viswanath 2015, arXiv
    1311.0776, Theorem 2.1). At even odds they are right with probability 1 - (a + b)/2 ≤ 1 - (1 - δ)/(1 + e^ε).
    Rounded up.
    """
    wrong = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return min(GUESSES, math.ceil(GUESSES * (1 - wrong) * (1 + 1e-12)))

"""Readings: what ε the scores of canaries prove, at a stated confidence. Each is a function of scores alone.

Two are lower bounds, whatever the scores are: `guesses` and `f_dp`. The third, `gaussian_scores`, is an estimate that
supposes normal scores; where they are not it may lie far above the truth (randomised response at ε = 1 reads 4.6).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from privypurse._validate import real
from privypurse.accounting import gdp
from privypurse.accounting.trade_off import TradeOff
from privypurse.arrays import FloatArray
from privypurse.audit.families import PLACES, Family
from privypurse.audit.guessing import Guesses, checked, guesses_of

_CLOSE = 1e-4  # how near to the largest refuted ε a bound comes, from below


def guesses(scores_in: FloatArray, scores_out: FloatArray, delta: float, confidence: float = 0.95) -> float:
    """The largest ε at which (ε, δ)-DP is refuted by how many guesses are right.

    Steinke, Nasr & Jagielski 2023 (arXiv 2305.08846), Theorem 5.2.
    """
    made = guesses_of(*checked(scores_in, scores_out, confidence))
    real(delta, "delta", above=0, below=1)
    return _largest(lambda epsilon: chance(made, epsilon, delta) < 1 - confidence)


def chance(made: Guesses, epsilon: float, delta: float) -> float:
    """At most the probability of so many right guesses or more under (ε, δ)-DP.

    With F(v) = P[Binomial(r, e^ε/(e^ε + 1)) ≥ v] of r guesses on m canaries it is F(v) + 2mδ·max_i (F(v-i) - F(v))/i
    (arXiv 2305.08846, Theorem 5.2).
    """
    less = np.arange(1, made.correct + 1)
    right = float(special.expit(epsilon))
    at_least = stats.binom.sf(made.correct - 1, made.made, right)
    more = stats.binom.sf(made.correct - less - 1, made.made, right) - at_least
    return min(1.0, float(at_least + 2 * made.canaries * delta * np.max(more / less, initial=0.0)))


def f_dp(
    scores_in: FloatArray,
    scores_out: FloatArray,
    family: Family,
    confidence: float = 0.95,
    share: float | None = None,
) -> float:
    """The ε of the least private curve of the family that is refuted by how many guesses are right; 0 for none.

    A bound for runs whose curve is of the family. Mahloujifar, Melis & Chaudhuri 2025 (arXiv 2410.22235). ``share``
    of the canaries is guessed at either end; it has to be fixed before scores are seen.
    """
    made = guesses_of(*checked(scores_in, scores_out, confidence), share)

    def stands(place: int) -> bool:
        found = family.at(place)
        return found is None or not refuted(found[0], made, confidence)

    first = bisect_left(range(PLACES), True, key=stands)  # curves rise: those that are refuted come before all others
    last = family.at(first - 1) if first else None
    return 0.0 if last is None else last[1]


def refuted(curve: TradeOff, made: Guesses, confidence: float) -> bool:
    """Whether so many right guesses, or more, have a smaller chance than 1 - confidence under this curve.

    Let p_c be the probability of c right guesses of r on m canaries. Whoever is guessed rightly, with c right in all,
    is guessed wrongly with c - 1 right once their coin falls the other way. So for every set I of counts

        Σ_{c ∈ I} c·p_c / m  ≤  F(Σ_{c ∈ I} (r - c + 1)·p_{c-1} / m),   F(x) = 1 - f(x),

    by concavity of F, the curve of guesses (arXiv 2410.22235, with one curve for both directions; here it is that of
    `TradeOff.of_guesses`). Take I = {i + 1, …, r}: with R_i the sum of c·p_c/m over c ≥ i and W_i that of
    (r - c)·p_c/m it says W_i ≥ F⁻¹(R_{i+1}), and R_i - R_{i+1} is i/(r - i) times W_i - W_{i+1}. Suppose P[right ≥ v]
    is 1 - confidence. R_i and W_i are least if all of it is at v and each W_i is as small as it may be; if R_0 + W_0
    exceeds r/m even so, which it equals, that cannot be.
    """
    tail, of = 1 - confidence, made.canaries
    right, wrong = tail * made.correct / of, tail * (made.made - made.correct) / of
    for count in range(made.correct - 1, -1, -1):
        needed = curve.least(right)
        if needed <= wrong:  # nothing below changes any more
            break
        right += count / (made.made - count) * (needed - wrong)
        wrong = needed
        if right + wrong > made.made / of:
            return True
    return False


def gaussian_scores(scores_in: FloatArray, scores_out: FloatArray, delta: float, confidence: float = 0.95) -> float:
    """The ε of Gaussian DP at the lower end of μ, if scores were normal with one deviation: an estimate, no bound.

    μ is the distance of the means in deviations of the scores (as in Nasr et al. 2023, arXiv 2302.07956, who read
    it off false positives and negatives), less its standard error √(1/n_in + 1/n_out + μ²/2n) times the normal
    quantile; the last term is for the deviation, which is estimated too (Hedges & Olkin 1985, Statistical Methods for
    Meta-Analysis, p. 86). ∞ where neither side scatters at all: there is no noise.
    """
    first, second = checked(scores_in, scores_out, confidence)
    real(delta, "delta", above=0, below=1)
    inner = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    degrees = first.size + second.size - 2
    spread = math.sqrt(float(inner) / degrees)
    apart = float(first.mean() - second.mean())
    if not spread > 0:
        return math.inf if apart > 0 else 0.0
    error = math.sqrt(1 / first.size + 1 / second.size + (apart / spread) ** 2 / (2 * degrees))
    mu = apart / spread - float(special.ndtri(confidence)) * error
    return float(gdp.epsilon(mu, delta)) if mu > 0 else 0.0


def _largest(refuted_at: Callable[[float], bool]) -> float:
    """The largest ε that is refuted, from below, where smaller ones are refuted too; 0 for none."""
    if not refuted_at(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted_at(high) and high < 2**10:
        low, high = high, 2 * high
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted_at(middle) else (low, middle)
    return low

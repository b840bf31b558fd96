"""A filter for one purse (ε, δ) and pure steps (δ = 0) whose ε is chosen as one goes along.

Feldman & Zrnic (2021), Theorem 4.8: ε_t-DP steps are ε_t²/2-zCDP, and zCDP may be added up adaptively (their Remark
4.4); so going on while ½·Σ ε_t² ≤ B* is sound for every B* such that B*-zCDP implies (ε, δ). Beside it, for
comparison, their example of a B* and the filter of Rogers et al. (2016).
"""

import math
from collections.abc import Sequence

import numpy as np

from privypurse.accounting.filters import Filter
from privypurse.errors import InvalidInput, PrivyPurseError


class PureDPFilter:
    """One purse for adaptively chosen pure steps.

    Guarantee: all steps that `charge` let through are (ε, δ)-DP together, whatever each of them, its ε and whether
    there was a next one were made of earlier outputs. B* is the largest that the conversion of Canonne, Kamath &
    Steinke (2020) proves, more than the example that Theorem 4.8 gives.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self._filter = Filter(np.array([epsilon]), np.array([delta]), "zcdp")

    @property
    def total(self) -> float:
        """B*, in ρ of zCDP."""
        return float(self._filter.total[0])

    @property
    def left(self) -> float:
        """What is left of B*."""
        return float(self._filter.left[0])

    def continues(self, next_epsilon: float) -> bool:
        """Whether a step of this ε may follow."""
        return bool(self._filter.affords(self._cost(next_epsilon))[0])

    def charge(self, next_epsilon: float) -> None:
        """Pay for a step of this ε before it is made, or raise and pay nothing."""
        with self._filter.lock:
            if not self.continues(next_epsilon):
                raise PrivyPurseError(
                    f"a step of ε = {next_epsilon:g} would overdraw the purse, which holds steps up to "
                    f"ε = {math.sqrt(2 * self.left):.4g}; ask continues() first"
                )
            self._filter.charge(self._cost(next_epsilon))

    def _cost(self, epsilon: float) -> np.ndarray:
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise InvalidInput(f"a step's ε must be a number from 0 on; got {epsilon}")
        return self._filter.currency.pure(epsilon)


def published_budget(epsilon: float, delta: float) -> float:
    """The example of a B* in Feldman & Zrnic (2021), Theorem 4.8: (√(log 1/δ + ε) - √(log 1/δ))²."""
    log_inverse = math.log(1 / delta)
    return (math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)) ** 2


def rogers_continues(epsilons: Sequence[float], epsilon: float, delta: float, original: bool = False) -> bool:
    """Whether the filter of Rogers et al. (2016), Theorem 5.1, lets all these pure steps through.

    Feldman & Zrnic (2021), §4.3, print it for equal steps with log(1/δ) after the square root; in the theorem the
    logarithm stands under the root, as it has to (the term is a deviation, √(2·variance·log(1/δ))). The theorem also
    has log(2/δ), since half of δ is kept for approximate steps; for pure ones nothing need be kept, so log(1/δ) is
    used here unless the ``original`` is asked for. That favours Rogers et al. in a comparison. Their δ is below 1/e.
    """
    steps = np.asarray(epsilons, dtype=np.float64)
    squares = float((steps**2).sum())
    offset = epsilon**2 / (28.04 * math.log(1 / delta))
    mean = float((steps * np.expm1(steps)).sum()) / 2
    variance = (squares + offset) * (1 + 0.5 * math.log1p(squares / offset))
    return mean + math.sqrt(2 * variance * math.log((2 if original else 1) / delta)) <= epsilon


def equal_steps(step_epsilon: float, epsilon: float, delta: float) -> dict[str, int]:
    """How many steps of the same ε each filter lets through: ours, the paper's example, Rogers et al."""

    def rogers(count: int) -> bool:
        return rogers_continues([step_epsilon] * count, epsilon, delta)

    low, high = 0, 1
    while rogers(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rogers(middle) else (low, middle)
    each = step_epsilon**2 / 2 * (1 + 1e-12)
    return {
        "ours": math.floor(PureDPFilter(epsilon, delta).total / each),
        "Feldman & Zrnic, example": math.floor(published_budget(epsilon, delta) / each),
        "Rogers et al.": low,
    }

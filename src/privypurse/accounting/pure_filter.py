"""A filter for one purse (ε, δ) and pure steps (δ = 0) whose ε is chosen as one goes along.

Feldman & Zrnic (2021, arXiv 2008.11193), Theorem 4.8: ε_t-DP steps are ε_t²/2-zCDP, and zCDP may be added up
adaptively (their Remark 4.4); so going on while ½·Σ ε_t² ≤ B* is sound for every B* such that B*-zCDP implies (ε, δ).
"""

import math

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

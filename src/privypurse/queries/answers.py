"""What an analyst is given: the noisy answer and public facts about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privypurse.accounting import gdp
from privypurse.arrays import FloatArray
from privypurse.budgets import DEFAULT_DELTA

SYMBOLS = {"gdp": "μ²", "zcdp": "ρ"}


@dataclass(frozen=True)
class Cost:
    """What a release costs a person at most: the worst case, known before it is made, the same for everybody."""

    amount: float
    """μ² (currency "gdp") or ρ ("zcdp"); amounts of several releases add up."""
    currency: str
    delta: float = DEFAULT_DELTA
    """At which `epsilon` is told."""

    @property
    def epsilon(self) -> float:
        """The ε of this release by itself."""
        return float(epsilon_of(self.amount, self.delta, self.currency))

    def __str__(self) -> str:
        symbol = SYMBOLS[self.currency]
        return (
            f"at most {symbol} = {self.amount:.3g} a person, by itself ε = {self.epsilon:.3g} at δ = {self.delta:g}"
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """A noisy answer. Nothing in it depends on who paid but the value itself."""

    value: float | FloatArray
    noise: float
    """Standard deviation of the normal noise on each number of ``released``."""
    cost: Cost
    released: FloatArray
    """The noisy sums themselves, of which ``value`` was made."""
    error: float | None = None
    """About the standard deviation of ``value`` itself where that is not ``noise``; from released numbers alone."""
    note: str = ""
    """What has to be known about the value, from public and released numbers alone."""

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        shown = f"{self.value:.6g}" if isinstance(self.value, float) else np.array2string(self.value, precision=6)
        if self.error is not None:
            shown += f" ± about {in_short(self.error)}"
        elif not self.note:
            shown += f" (noise of standard deviation {self.noise:g})"
        return f"{shown}{self.note and f' ({self.note})'}; cost {self.cost}"


def in_short(number: float) -> str:
    """Two digits that mean something: 330, not 3.3e+02."""
    return f"{float(f'{number:.2g}'):g}"


def epsilon_of(amount: FloatArray | float, delta: FloatArray | float, currency: str) -> FloatArray:
    """The ε at δ of costs that add up to this amount, rounded up."""
    if currency == "gdp":
        return gdp.epsilon(np.sqrt(amount) * (1 + 1e-12), delta)
    return gdp.epsilon_from_zcdp(amount, delta)

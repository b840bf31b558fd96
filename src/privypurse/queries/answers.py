"""What an analyst is given: the noisy answer and public facts about it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from privypurse import _notebooks
from privypurse.accounting import gdp
from privypurse.arrays import FloatArray
from privypurse.budgets.budgets import DEFAULT_DELTA

SYMBOLS = {"gdp": "μ²", "zcdp": "ρ"}
VERSION = 2
"""Of answers as JSON. Earlier ones state none, and their note may hold what is an internal note now."""


@dataclass(frozen=True)
class Cost:
    """What a release costs a person at most: the worst case, known before it is made, the same for everybody."""

    amount: float
    """μ² (currency "gdp") or ρ ("zcdp"); amounts of several releases add up."""
    currency: str
    delta: float = DEFAULT_DELTA
    """At which `epsilon` is told: a number that whoever asks has named, never one of the people's own."""

    @property
    def epsilon(self) -> float:
        """The ε of this release by itself."""
        return float(epsilon_of(self.amount, self.delta, self.currency))

    def __str__(self) -> str:
        return f"at most {self.in_words()}"

    def in_words(self) -> str:
        """ε is rounded up to three digits."""
        return f"ε = {rounded_up(self.epsilon)} at δ = {_plain(self.delta)} by itself"


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
    internal_note: str = ""
    """What else has to be known, where it follows from what people granted: for who asks in person, by ``print``; in
    no file, on no page and not in a notebook's view, which is kept with the notebook."""
    alike: bool = False
    """Whether everybody who is counted pays the same; else ``cost`` is the most that somebody may pay."""

    @property
    def says(self) -> str:
        """Whom the answer is about: those who could pay for it, and nobody is told how many could not."""
        if self.alike:
            return f"costs {self.cost.in_words()}; whoever has less left is not counted"
        return f"costs {self.cost}; whoever has less left than their own part costs is not counted"

    def noted(self, note: str) -> Answer:
        """The same with one more thing to be known about it."""
        return replace(self, note="; ".join(filter(None, (note, self.note))))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain numbers and text, but for the internal note."""
        return {
            "version": VERSION,
            "value": np.asarray(self.value).tolist(),
            "noise": self.noise,
            "error": self.error,
            "note": self.note,
            "released": self.released.tolist(),
            "cost": {"epsilon": self.cost.epsilon, **asdict(self.cost)},
            "says": self.says,
        }

    def _repr_html_(self) -> str:
        """In a notebook: the value, what has to be known about it, and what it costs."""
        values = [(f"{place:,}", f"{value:.6g}") for place, value in enumerate(np.ravel(self.value).tolist())]
        many = np.ndim(self.value) > 0
        title = f"Answer, {len(values):,} numbers" if many else f"Answer: {values[0][1]}"
        about = "" if self.error is None else f"± about {in_short(self.error)}"
        noise = f"normal noise of standard deviation {self.noise:g} on each number that was released"
        return _notebooks.shown(
            title,
            _notebooks.lines((about, self.note, noise, self.says)),
            _notebooks.table(("place", "value"), values if many else ()),
        )

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        shown = f"{self.value:.6g}" if isinstance(self.value, float) else np.array2string(self.value, precision=6)
        if self.error is not None:
            shown += f" ± about {in_short(self.error)}"
        elif np.array_equal(np.ravel(self.value), self.released):  # else the noise is on other numbers than these
            shown += f" (noise of standard deviation {self.noise:g})"
        notes = "; ".join(filter(None, (self.note, self.internal_note)))
        return f"{shown}{notes and f' ({notes})'}; {self.says}"


def in_short(number: float) -> str:
    """Two digits that mean something: 330, not 3.3e+02."""
    return f"{float(f'{number:.2g}'):g}"


def rounded_up(number: float) -> str:
    """Three digits, rounded up: what is told is not less than what it costs."""
    if not 0 < number < math.inf:
        return f"{number:g}"
    digit = 10.0 ** (math.floor(math.log10(number)) - 2)
    shown = math.ceil(number / digit * (1 - 1e-12)) * digit
    return _plain(shown)


def _plain(number: float) -> str:
    """1e-5, not 1e-05."""
    mantissa, e, exponent = f"{number:.3g}".partition("e")
    return mantissa + (f"e{int(exponent)}" if e else "")


def epsilon_of(amount: FloatArray | float, delta: FloatArray | float, currency: str) -> FloatArray:
    """The ε at δ of costs that add up to this amount, rounded up."""
    if currency == "gdp":
        return gdp.epsilon(np.sqrt(amount) * (1 + 1e-12), delta)
    return gdp.epsilon_from_zcdp(amount, delta)

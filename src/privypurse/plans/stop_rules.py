"""When to end a filtered run: private measurements, planned and paid for before training begins."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from privypurse._validate import integer, real
from privypurse.accounting import Gaussian, PureDP, Release
from privypurse.accounting.filters import CURRENCIES


@dataclass(frozen=True)
class StopAtPlateau:
    """Ask every few steps how many people the model gets right, stop when that no longer rises, keep the best model.

    Each of at most ``most`` questions is a count with Gaussian noise of deviation ``noise`` (in people), the first
    when the filter takes over. Training ends after ``patience`` questions in a row whose answer did not exceed the
    best one before, and leaves the model that had the best answer: all of them were released, so choosing is free.
    Everyone who takes part in training answers, also those whose purse is empty by then: the plan has paid for it.
    """

    noise: float
    every: int = 5
    most: int = 10
    patience: int = 2

    def __post_init__(self) -> None:
        real(self.noise, "noise", above=0)
        for name in ("every", "most", "patience"):
            integer(getattr(self, name), name)

    @property
    def release(self) -> Release:
        """All its questions, as one person faces them."""
        return Gaussian(self.noise, self.most)

    @property
    def gaussian(self) -> Release:
        """The same, as a filter in Gaussian DP pays for it."""
        return self.release


@dataclass(frozen=True)
class StopWhenFew:
    """Stop when fewer than about ``below`` people still contribute: the sparse vector technique.

    One comparison every few steps, all of them together for one price: the first time that the noisy number falls
    below the noisy threshold is ``epsilon``-DP, however often was asked (Dwork & Roth 2014, Theorem 3.23).
    """

    below: int
    epsilon: float
    every: int = 10

    def __post_init__(self) -> None:
        real(self.epsilon, "epsilon", above=0)
        for name in ("below", "every"):
            integer(getattr(self, name), name)

    @property
    def release(self) -> Release:
        """All its comparisons, as one person faces them."""
        return PureDP(self.epsilon)

    @property
    def gaussian(self) -> Release:
        """The same, as a filter in Gaussian DP pays for it: a little more than the comparisons cost."""
        return Gaussian(1.0 / math.sqrt(float(CURRENCIES["gdp"].pure(self.epsilon))))


Stop = StopAtPlateau | StopWhenFew
KINDS: dict[str, type[Stop]] = {"plateau": StopAtPlateau, "few": StopWhenFew}
"""By the names that files use."""


def to_json(stop: Stop) -> dict[str, Any]:
    """As plain data."""
    kind = next(name for name, each in KINDS.items() if isinstance(stop, each))
    return {"kind": kind, **asdict(stop)}


def from_json(content: dict[str, Any]) -> Stop:
    """What `to_json` gave."""
    fields = dict(content)
    return KINDS[fields.pop("kind")](**fields)

"""Releases: what is made public about the data, as plain frozen data.

A release says what *one record* faces; accountants (`rdp`, `pld`, `gdp`) say what it costs. Each is checked
when it is made, so that no accountant meets a rate of 1.2 or a noise of zero. Neighbours are "the record
contributes" and "the record contributes nothing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privypurse.errors import InvalidInput


@dataclass(frozen=True)
class Gaussian:
    """``count`` adaptive steps, each a sum with Gaussian noise: ‖contribution‖ ≤ noise std / noise_multiplier."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _positive(self, "noise_multiplier")
        _whole(self, "count")


@dataclass(frozen=True)
class SampledGaussian:
    """``count`` adaptive Gaussian steps that the record enters with probability ``rate``, unseen, each anew.

    The cost is a function of the rate, never of whether the record was drawn (rule 1). A rate of 0 is a
    record that takes no part.
    """

    rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _probability(self, "rate", zero=True)
        _positive(self, "noise_multiplier")
        _whole(self, "count")


@dataclass(frozen=True)
class PureDP:
    """``count`` adaptive steps that are each ``epsilon``-DP with δ = 0."""

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        _positive(self, "epsilon")
        _whole(self, "count")


@dataclass(frozen=True)
class ClientSampled:
    """``count`` rounds; in each the record's client joins with probability ``rate`` and then makes ``release``.

    For those who cannot see who joined (rule 8); whoever sees it charges ``release`` for each joined round.
    Every round is charged, joined or not. Liu et al. (2024), Lemma 6.
    """

    rate: float
    release: Release
    count: int = 1

    def __post_init__(self) -> None:
        _probability(self, "rate", zero=False)
        _whole(self, "count")
        if not isinstance(self.release, Release):
            raise InvalidInput(f"release must be a release, not {type(self.release).__name__}")


@dataclass(frozen=True)
class SampledRound:
    """``count`` rounds; the record is drawn into each with probability ``rate``, unseen, and then makes ``release``.

    A record that is not drawn contributes nothing to the whole round (in `ClientSampled` its client's other records
    stay away with it). Everybody pays for every round, drawn or not (rule 1).
    """

    rate: float
    release: Release
    count: int = 1

    def __post_init__(self) -> None:
        _probability(self, "rate", zero=True)
        _whole(self, "count")
        if not isinstance(self.release, Release):
            raise InvalidInput(f"release must be a release, not {type(self.release).__name__}")


@dataclass(frozen=True)
class Composed:
    """Several releases about the same record, one after another, all fixed beforehand."""

    releases: tuple[Release, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "releases", tuple(self.releases))
        for part in self.releases:
            if not isinstance(part, Release):
                raise InvalidInput(f"releases must hold releases, not {type(part).__name__}")


Release = Gaussian | SampledGaussian | PureDP | ClientSampled | SampledRound | Composed


def _number(owner: object, name: str) -> float:
    """The field as a float. An int σ changes results in libraries that look at the type, so none stays int."""
    value = getattr(owner, name)
    if isinstance(value, bool) or (not isinstance(value, int | float) and not hasattr(value, "__float__")):
        raise InvalidInput(f"{type(owner).__name__}.{name} is {value!r}, not a number")
    number = float(value)
    object.__setattr__(owner, name, number)
    return number


def _positive(owner: object, name: str) -> None:
    value = _number(owner, name)
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{type(owner).__name__}.{name} is {value}; it must be finite and positive")


def _probability(owner: object, name: str, *, zero: bool) -> None:
    value = _number(owner, name)
    if not (0 <= value <= 1) or (value == 0 and not zero):
        span = "[0, 1]" if zero else "(0, 1]"
        raise InvalidInput(f"{type(owner).__name__}.{name} is {value}; a probability must lie in {span}")


def _whole(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
        raise InvalidInput(f"{type(owner).__name__}.{name} is {value!r}; it must be a whole number, 0 or more")
    object.__setattr__(owner, name, value.__index__())

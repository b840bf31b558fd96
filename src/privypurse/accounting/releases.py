"""Releases: what is made public about the data, as plain frozen data.

A release says what *one record* faces; accountants (`rdp`, `pld`, `gdp`) say what it costs. Each is checked
when it is made, so that no accountant meets a rate of 1.2 or a noise of zero. Neighbours are "the record
contributes" and "the record contributes nothing".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privypurse._validate import integer, real
from privypurse.errors import InvalidInput

_POSITIVE, _PROBABILITY = {"above": 0.0}, {"least": 0.0, "most": 1.0}


@dataclass(frozen=True)
class Gaussian:
    """``count`` adaptive steps, each a sum with Gaussian noise: ‖contribution‖ ≤ noise std / noise_multiplier."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self, noise_multiplier=_POSITIVE)


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
        _check(self, rate=_PROBABILITY, noise_multiplier=_POSITIVE)


@dataclass(frozen=True)
class PureDP:
    """``count`` adaptive steps that are each ``epsilon``-DP with δ = 0."""

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self, epsilon=_POSITIVE)


@dataclass(frozen=True)
class ClientSampled:
    """``count`` rounds; in each the record's client joins with probability ``rate`` and then makes ``release``.

    For those who cannot see who joined (rule 8); whoever sees it charges ``release`` for each joined round.
    Every round is charged, joined or not. Liu et al. (2024, arXiv 2401.16251), Lemma 6.
    """

    rate: float
    release: Release
    count: int = 1

    def __post_init__(self) -> None:
        _check(self, rate={"above": 0.0, "most": 1.0})


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
        _check(self, rate=_PROBABILITY)


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


def _check(release: Release, **limits: dict[str, Any]) -> None:
    """Each of these fields as a float within its limits, and the count as a whole number from 0 on, or an error.

    An int σ changes results in libraries that look at the type, so none stays int.
    """
    kind = type(release).__name__
    for name, span in limits.items():
        object.__setattr__(release, name, real(getattr(release, name), f"{kind}.{name}", **span))
    object.__setattr__(release, "count", integer(getattr(release, "count"), f"{kind}.count", least=0))  # noqa: B009
    if not isinstance(inner := getattr(release, "release", release), Release):
        raise InvalidInput(f"{kind}.release must be a release, not {type(inner).__name__}")

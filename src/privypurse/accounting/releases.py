"""Releases: what is made public about the data, as plain frozen data.

A release says what *one record* faces; accountants (`rdp`, `pld`, `gdp`) say what it costs. Each is checked
when it is made, so that no accountant meets a rate of 1.2 or a noise of zero. Neighbours are "the record
contributes" and "the record contributes nothing".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from privypurse._validate import integer, real
from privypurse.errors import InvalidInput

_LIMITS: dict[str, dict[str, Any]] = {
    "noise_multiplier": {"above": 0.0},
    "epsilon": {"above": 0.0},
    "rate": {"least": 0.0, "most": 1.0},
    "ClientSampled.rate": {"above": 0.0, "most": 1.0},
}


class _Checked:
    """Fields that are floats within their limits, a whole number of times and a release inside, or an error.

    An int σ changes results in libraries that look at the type, so none stays int.
    """

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name, value in vars(self).items():
            place = f"{kind}.{name}"
            if name == "count":
                object.__setattr__(self, name, integer(value, place, least=0))
            elif name != "release":
                object.__setattr__(self, name, real(value, place, **_LIMITS.get(place, _LIMITS[name])))
            elif not isinstance(value, Release):
                raise InvalidInput(f"{place} must be a release, not {type(value).__name__}")


@dataclass(frozen=True)
class Gaussian(_Checked):
    """``count`` adaptive steps, each a sum with Gaussian noise: ‖contribution‖ ≤ noise std / noise_multiplier."""

    noise_multiplier: float
    count: int = 1


@dataclass(frozen=True)
class SampledGaussian(_Checked):
    """``count`` adaptive Gaussian steps that the record enters with probability ``rate``, unseen, each anew.

    The cost is a function of the rate, never of whether the record was drawn (rule 1). A rate of 0 is a
    record that takes no part.
    """

    rate: float
    noise_multiplier: float
    count: int = 1


@dataclass(frozen=True)
class PureDP(_Checked):
    """``count`` adaptive steps that are each ``epsilon``-DP with δ = 0."""

    epsilon: float
    count: int = 1


@dataclass(frozen=True)
class ClientSampled(_Checked):
    """``count`` rounds; in each the record's client joins with probability ``rate`` and then makes ``release``.

    For those who cannot see who joined (rule 8); whoever sees it charges ``release`` for each joined round.
    Every round is charged, joined or not. Liu et al. (2024, arXiv 2401.16251), Lemma 6.
    """

    rate: float
    release: Release
    count: int = 1


@dataclass(frozen=True)
class SampledRound(_Checked):
    """``count`` rounds; the record is drawn into each with probability ``rate``, unseen, and then makes ``release``.

    A record that is not drawn contributes nothing to the whole round (in `ClientSampled` its client's other records
    stay away with it). Everybody pays for every round, drawn or not (rule 1).
    """

    rate: float
    release: Release
    count: int = 1


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


def leaves(release: Release) -> Iterator[Release]:
    """The releases that a release is made of, taken apart."""
    if isinstance(release, Composed):
        for part in release.releases:
            yield from leaves(part)
    elif isinstance(release, ClientSampled | SampledRound):
        yield from leaves(release.release)
    else:
        yield release


def made_of(release: Release, *kinds: type) -> bool:
    """Whether a release, taken apart, has leaves of these kinds only."""
    return all(isinstance(leaf, kinds) for leaf in leaves(release))


def costs_nothing(release: Release) -> bool:
    """Whether the record takes no part: decided by what the release is, not by a number that rounded to 0."""
    match release:
        case SampledGaussian(rate, _, count):
            return rate == 0 or count == 0
        case ClientSampled(rate, inner, count) | SampledRound(rate, inner, count):
            return rate == 0 or count == 0 or costs_nothing(inner)
        case Composed(releases):
            return all(costs_nothing(part) for part in releases)
        case Gaussian(_, count) | PureDP(_, count):
            return count == 0

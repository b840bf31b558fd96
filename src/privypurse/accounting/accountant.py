"""What every accountant does: say which releases it can bound, and bound them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from privypurse.accounting.releases import (
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    Release,
    SampledGaussian,
    SampledRound,
)
from privypurse.arrays import FloatArray
from privypurse.errors import Unsupported

Progress = Callable[[int, int], None]
"""Called with how many of how many evaluations are done."""


class Accountant(Protocol):
    """Turns releases into ε. Every ε is an upper bound at its δ, for releases fixed beforehand."""

    @property
    def name(self) -> str: ...

    @property
    def smallest_delta(self) -> float:
        """Below this δ the accountant's arithmetic proves nothing."""
        ...

    def supports(self, release: Release) -> bool:
        """Whether `epsilons` has a proven bound for this release."""
        ...

    def epsilons(
        self, releases: Sequence[Release], delta: FloatArray | float, progress: Progress | None = None
    ) -> FloatArray:
        """The ε of each release at its δ (one for all, or one each)."""
        ...


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


def deltas_for(accountant: Accountant, releases: Sequence[Release], delta: FloatArray | float) -> FloatArray:
    """One δ for each release, after checking that the accountant can answer at all."""
    for release in releases:
        if not accountant.supports(release):
            raise Unsupported(f"the {accountant.name} accountant has no proven bound for {release}")
    each = np.broadcast_to(np.asarray(delta, dtype=np.float64), len(releases))
    if each.size and not (each.min() >= accountant.smallest_delta and each.max() < 1):
        raise Unsupported(
            f"δ = {each.min():g} is outside [{accountant.smallest_delta:g}, 1) where the {accountant.name} "
            'accountant holds in double precision; choose a larger δ, or accountant="rdp"'
        )
    return each

"""What every accountant does: say which releases it can bound, and bound them."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from privypurse.accounting.releases import Release
from privypurse.arrays import FloatArray
from privypurse.errors import Unsupported

ROUND_UP = 1 + 1e-12
"""More than the rounding of the few operations that follow a certified kernel."""
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


def deltas_for(accountant: Accountant, releases: Sequence[Release], delta: FloatArray | float) -> FloatArray:
    """One δ for each release, after checking that the accountant can answer at all."""
    for release in releases:
        if not accountant.supports(release):
            raise Unsupported(f"the {accountant.name} accountant has no proven bound for {release}")
    return checked_deltas(accountant, delta, len(releases))


def checked_deltas(accountant: Accountant, delta: FloatArray | float, size: int) -> FloatArray:
    """One δ each for so many, none below what the accountant can answer for."""
    each = np.broadcast_to(np.asarray(delta, dtype=np.float64), size)
    if each.size and not (each.min() >= accountant.smallest_delta and each.max() < 1):
        raise Unsupported(
            f"δ = {each.min():g} is outside [{accountant.smallest_delta:g}, 1) where the {accountant.name} "
            'accountant holds in double precision; choose a larger δ, or the accountant "rdp"'
        )
    return each

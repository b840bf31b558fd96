"""Purses that last: what a person's (ε, δ) holds for life, and what releases take out of it (rule 14).

What is released next may depend on everything released before, over years, so the guarantee is a filter: Rényi
divergence at one order, fixed when the ledger is made by a public function of (ε, δ) (Feldman & Zrnic 2021, arXiv
2008.11193, Theorem 4.3). Grants lie on a ladder of a few *rungs*, each with an order and a limit of its own, and
every release is charged at the orders of all of them from the first one on, whichever rung a person is on. So a raise
finds its sum already kept.

Sums are whole numbers of a unit of 2^-40 nats. Charges are rounded up, limits down, and nothing is added in floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from privypurse._validate import real
from privypurse.accounting import gdp
from privypurse.accounting.filters import renyi_purse
from privypurse.accounting.rdp import ORDERS, RDP
from privypurse.accounting.releases import ClientSampled, Composed, Release, SampledRound, costs_nothing
from privypurse.arrays import FloatArray, IntArray, frozen
from privypurse.errors import InvalidInput

UNIT = 2.0**-40
"""Nats of Rényi divergence, and of ε in the part set apart."""
DELTA_UNIT = 2.0**-60
CEILING = 2**61
"""Sums and charges stop here: above every limit, and three of them still fit into 64 bits."""
MOST_RUNGS = 8
MOST_CLASSES = 65_534
_LARGEST_EPSILON = 2.0**18
_GOOD_ENOUGH = 0.97  # of the best purse for Gaussian releases; a lower order is worth more to sparse sampling
_SOLVED = 1 + 1e-6  # a release that was solved for at_most to six digits stays within the cap


@dataclass(frozen=True)
class ApproximateDP:
    """A release of which nothing is known but (ε, δ); paid from the part set apart, by basic composition."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real(self.epsilon, "ApproximateDP.epsilon", least=0))
        object.__setattr__(self, "delta", real(self.delta, "ApproximateDP.delta", least=0, below=1))


@dataclass(frozen=True)
class Rung:
    """One grant that a person may choose: the promise (ε, δ), the order it is kept at, its limit in units."""

    epsilon: float
    delta: float
    order: float
    limit: int


def lifetime_order(epsilon: float, delta: float) -> float:
    """The order for life of a grant (ε, δ): the lowest at which it pays for 97 % of the most Gaussian divergence.

    A function of the grant alone. The lowest rather than the best one, because the cost of sparse sampling rises
    faster with the order than that of Gaussian steps: 1.5 % more noise there at most, 5 to 8 % less here.
    """
    worth = renyi_purse(ORDERS, np.asarray(epsilon), np.asarray(delta)) / ORDERS
    if worth.max() <= 0:
        raise InvalidInput(
            f"a rung is (ε, δ) = ({epsilon:g}, {delta:g}), which holds nothing at any Rényi order; choose a larger ε "
            "or δ"
        )
    return float(ORDERS[np.argmax(worth >= _GOOD_ENOUGH * worth.max())])


def units_up(divergence: Any) -> IntArray:
    """In units, rounded up: whatever is above 0 is at least 1. ∞, NaN and negative numbers are refused."""
    value = np.asarray(divergence, dtype=np.float64)
    if not (np.isfinite(value) & (value >= 0)).all():
        raise InvalidInput("a charge must be a finite divergence from 0 on; it is negative, infinite or not a number")
    with np.errstate(over="ignore"):  # ∞ is above the ceiling too
        return np.asarray(np.minimum(np.ceil(np.ldexp(value, 40)), float(CEILING)), dtype=np.int64)


def never_lost(charges: IntArray, releases: Sequence[Release]) -> IntArray:
    """A unit at least for whoever takes part, also where the divergence was too small for a float."""
    free = np.array([costs_nothing(release) for release in releases])[:, None]
    return np.asarray(np.where(free, 0, np.maximum(charges, 1)))


def added(sums: IntArray, charges: IntArray) -> IntArray:
    """Exact up to the ceiling, which lies above every limit."""
    return np.asarray(np.minimum(sums + charges, CEILING))


@dataclass(frozen=True)
class Lifetime:
    """The ladder of a ledger, fixed when it is made: which grants there are, and what each holds.

    Charges have one column for the order of each rung and, where a share is set apart for releases known only as
    (ε, δ), two more: ε in units of 2^-40, δ in units of 2^-60.

    Guarantee: a person on rung j pays at the orders of all rungs from j on, and takes part only while each of those
    sums stays within its limit. The promise of rung k is about everything that happens to a person who is never above
    k, on whichever rung below, so one's own order alone would not do: limits may fall as ε rises.
    """

    rungs: tuple[Rung, ...]
    set_apart: float = 0.0

    @classmethod
    def of(cls, grants: Any, set_apart: float = 0.0) -> Lifetime:
        """From pairs (ε, δ), rising in ε; ``set_apart`` is the share of each for releases known only as (ε, δ)."""
        share = real(set_apart, "set_apart", least=0, below=1)
        pairs = _checked_grants(grants)
        rungs = []
        for epsilon, delta in pairs:
            # renyi_purse leans down by more than the rounding of these products.
            left = epsilon * (1 - share), delta * (1 - share)
            order = lifetime_order(*left)
            held = float(renyi_purse(*map(np.asarray, (order, *left))))
            rungs.append(Rung(epsilon, delta, order, math.floor(math.ldexp(held, 40))))
        if wrong := [rung for rung in rungs if rung.limit < 1]:
            raise InvalidInput(f"rung ε = {wrong[0].epsilon:g} holds less than one unit; choose a larger ε or δ")
        return cls(tuple(rungs), share)

    @property
    def columns(self) -> int:
        return len(self.rungs) + (2 if self.set_apart else 0)

    @cached_property
    def limits(self) -> IntArray:
        """[rung, column]: what the sums of a person on that rung may reach; the ceiling where nothing limits."""
        count = len(self.rungs)
        limits = np.full((count, self.columns), CEILING, dtype=np.int64)
        for j, rung in enumerate(self.rungs):
            limits[j, j:count] = [above.limit for above in self.rungs[j:]]
            if self.set_apart:  # exact: as fractions. All rungs from j on, as above
                share = Fraction(self.set_apart)
                limits[j, count] = math.floor(share * Fraction(rung.epsilon) / Fraction(UNIT))
                least = min(above.delta for above in self.rungs[j:])
                limits[j, count + 1] = math.floor(share * Fraction(least) / Fraction(DELTA_UNIT))
        return frozen(limits)

    def rung_of(self, epsilon: Any) -> IntArray:
        """The rung of each ε, which has to be one of the ladder's."""
        values = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        ladder = np.array([rung.epsilon for rung in self.rungs])
        found = np.minimum(np.searchsorted(ladder, values), ladder.size - 1)
        wrong = ~(ladder[found] == values)
        if wrong.any():
            known = ", ".join(f"{value:g}" for value in ladder)
            raise InvalidInput(
                f"epsilon is {values[int(np.argmax(wrong))]:g}, which is no rung of this ledger; choose one of "
                f"{known}"
            )
        return found.astype(np.int64)

    def charges_of(self, releases: Sequence[Release | ApproximateDP]) -> IntArray:
        """What each release costs, in units, at every column: int64 [releases, columns]."""
        out = np.zeros((len(releases), self.columns), dtype=np.int64)
        plain = [place for place, one in enumerate(releases) if not isinstance(one, ApproximateDP)]
        if plain:
            out[plain, : len(self.rungs)] = self._renyi_charges([releases[place] for place in plain])  # type: ignore[misc]
        for place, release in enumerate(releases):
            if isinstance(release, ApproximateDP):
                if not self.set_apart:
                    raise InvalidInput(
                        f"{release} is known only as (ε, δ), and this ledger has no part set apart for such "
                        "releases; it has to be given when a ledger is made (set_apart=)"
                    )
                out[place, -2] = min(math.ceil(Fraction(release.epsilon) / Fraction(UNIT)), CEILING)
                out[place, -1] = math.ceil(Fraction(release.delta) / Fraction(DELTA_UNIT))
        return out

    def _renyi_charges(self, releases: Sequence[Release]) -> IntArray:
        accountant = RDP()
        for release in releases:
            if not accountant.supports(release):
                raise InvalidInput(f"there is no Rényi bound for {release}, so it cannot be charged for life")
        orders = np.array([rung.order for rung in self.rungs])
        # A round's bound takes chords between the orders given: few orders would make it loose.
        all_orders = ORDERS if any(holds(release, SampledRound) for release in releases) else np.empty(0)
        accountant = RDP(orders=np.unique(np.concatenate([orders, all_orders])))
        curves: FloatArray = accountant.curves(releases)[:, np.searchsorted(accountant.orders, orders)]
        return never_lost(units_up(np.minimum(curves, float(CEILING))), releases)  # ∞ is above every limit too

    def caps(self, charges: IntArray, at_most: float | None) -> IntArray:
        """[rung, column]: the public cap of a run with this public table of charges.

        At one's own order: what a Gaussian release that is by itself (at_most, δ)-DP costs there, α·μ²/2 (Mironov
        2017, arXiv 1702.07476, Proposition 7; μ by Balle & Wang 2018, arXiv 1805.06530, Theorem 8), or the whole
        limit where ``at_most`` is None. At the other columns: the most that a row within it costs.
        """
        caps = np.zeros((len(self.rungs), self.columns), dtype=np.int64)
        for k, own in enumerate(_own_caps(self.rungs, at_most)):
            fits = charges[charges[:, k] <= own]
            if fits.size:
                caps[k] = fits.max(axis=0)
            caps[k, k] = own
        return caps


@lru_cache(maxsize=256)
def _own_caps(rungs: tuple[Rung, ...], at_most: float | None) -> tuple[int, ...]:
    """The cap of each rung at its own order."""
    limits = [rung.limit for rung in rungs]
    if at_most is None:
        return tuple(limits)
    epsilon = real(at_most, "at_most", above=0, most=1e9, hint="an ε at the person's δ, or None for all that is left")
    mu = gdp.mu(epsilon, np.array([rung.delta for rung in rungs]))
    units = units_up(np.array([rung.order for rung in rungs]) * mu**2 / 2 * _SOLVED)
    return tuple(np.minimum(limits, units).tolist())


def checked_charges(charges: Any, columns: int) -> IntArray:
    """A table of charges in units: whole numbers from 0 on, a row for each class; the ceiling is the most."""
    table = np.asarray(charges)
    if table.ndim != 2 or table.shape[1] != columns or table.dtype.kind not in "iu":
        raise InvalidInput(
            f"charges must be whole numbers of units with {columns} columns, a row for each class (charges_of gives "
            f"them); they are {table.dtype} of shape {table.shape}"
        )
    if table.size and table.min() < 0:
        raise InvalidInput(f"charges must not be negative; the least is {table.min()}. What is spent stays spent")
    return np.asarray(np.minimum(table, CEILING), dtype=np.int64)


def _checked_grants(grants: Any) -> list[tuple[float, float]]:
    try:
        pairs = [(epsilon, delta) for epsilon, delta in grants]
    except (TypeError, ValueError):
        raise InvalidInput(f"rungs must be pairs (ε, δ), such as [(0.5, 1e-5), (1, 1e-5)]; got {grants!r}") from None
    if not 1 <= len(pairs) <= MOST_RUNGS:
        raise InvalidInput(f"rungs has {len(pairs)} entries; a ledger has 1 to {MOST_RUNGS} rungs")
    checked = [
        (
            real(epsilon, "a rung's ε", least=1e-9, most=_LARGEST_EPSILON),
            real(delta, "a rung's δ", least=1e-300, below=1, hint="1e-5 is usual"),
        )
        for epsilon, delta in pairs
    ]
    epsilons = [epsilon for epsilon, _ in checked]
    if sorted(set(epsilons)) != epsilons:
        raise InvalidInput(f"the ε of rungs must rise; they are {', '.join(f'{value:g}' for value in epsilons)}")
    return checked


def holds(release: Release, kind: type) -> bool:
    """Whether a release is of this kind, or has one in it."""
    match release:
        case SampledRound(_, inner, _) | ClientSampled(_, inner, _):
            return isinstance(release, kind) or holds(inner, kind)
        case Composed(releases):
            return any(holds(part, kind) for part in releases)
        case _:
            return isinstance(release, kind)

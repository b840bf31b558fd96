"""Plans under a ledger: everybody's rate or clip norm within what they allow now, and within what they have left.

What is one for all (noise, divisor, steps, and the one rate where there is one) is given or solved from public
balances; what a person has of their own follows from their own balance by a public list, and who has nothing left
gets rate 0, silently (rule 15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.accounting.inverse import Inverse
from privypurse.arrays import AnyArray, FloatArray, IntArray, distinct
from privypurse.assignment import ledger_notes
from privypurse.assignment.method import Assignment, Calibrator, Method
from privypurse.assignment.sample import BatchTooLarge
from privypurse.budgets import Budgets
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.plans.price_list import PriceList
from privypurse.plans.reserved_shares import ReservedShares
from privypurse.plans.training_shape import TrainingShape
from privypurse.plans.under_ledger import Own, PlannedUnderLedger

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members

_COARSE = 14  # one in so many releases is enough to solve by: in between prices are interpolated


def require_ledger(
    ledger: Any, budgets: Budgets, method: Method, shape: TrainingShape, at_most: float | None
) -> None:
    """Raise unless such a plan can be made under this ledger."""
    from privypurse.ledger.ledger import Ledger

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    budgets.people_ids()  # raises where there are none
    _own(method)
    if shape.extra_steps and at_most is None:
        raise InvalidInput(
            f"extra_steps is {shape.extra_steps:,} and at_most is not given; a filter lets people go on within what "
            "is reserved, so say how much that is: at_most=, an ε"
        )
    if shape.stop is not None:
        raise InvalidInput(
            f"stop is {shape.stop}, for plans without a ledger; with one, give extra_steps and at_most alone: all of "
            "them are taken, by whoever can pay"
        )


def _own(method: Method) -> Own:
    """What of a person follows from what they have left, as the method says."""
    own = getattr(method, "own", None)
    if not isinstance(own, Own):
        raise InvalidInput(
            f"method is {method.name!r}, which does not say what of a person may follow from their own balance; with "
            "ledger= a method has to: own = Own.RATE, Own.CLIP_NORM or Own.PRESENCE (privypurse.plans.under_ledger)"
        )
    return own


@dataclass(frozen=True, eq=False)
class Assigned:
    """What a method assigns within everybody's purse."""

    decided: Assignment
    levels: Levels
    level_of: IntArray
    """For each person their level."""
    under: PlannedUnderLedger


Decide = Callable[[Method, Levels, Calibrator, bool], Assignment]
"""What a method assigns these levels, with a share of δ kept for a filter; the last says whether people are drawn."""


def assigned(
    method: Method,
    budgets: Budgets,
    calibrator: Calibrator,
    ledger: Ledger,
    at_most: float | None,
    decide: Decide,
) -> Assigned:
    """What the method assigns within everybody's purse.

    Guarantee: noise, divisor, steps and a rate for all follow from budgets, grants and public caps; each rate or clip
    norm costs at most what its person has left, at every order that counts for them, and at most the public cap.
    """
    members = ledger.members(budgets.people_ids())
    levels, level_of = budgets.levels(at_most)
    purses = _Purses(
        ledger, ledger.public_room(members), members.rung.astype(np.int64), at_most, calibrator.shape.extra_steps > 0
    )
    decided, rate = _one_for_all(method, levels, level_of, calibrator, purses, decide)
    under = PlannedUnderLedger(ledger.id, at_most, members.numbers, _own(method), rate)
    shape = calibrator.shape.with_noise(decided.noise_multiplier)
    prices, allowed = PriceList.of(ledger, shape, under.own, rate), decided.rate
    if under.own is Own.CLIP_NORM:
        allowed = decided.clip_norm / (shape.clip_norm * decided.noise_multiplier)
    payable = replace(purses, room=ledger.room(members)).payable(prices)
    place = np.minimum(prices.affordable(payable), prices.at_most(allowed)[level_of])
    (level, row), of_person = distinct(level_of, place)
    rates, norms = prices.table(row, shape)
    said = ledger_notes.notes_on(ledger, members, budgets, at_most)
    notes = (*decided.notes, *said, *_public_note(ledger, members, under.own))
    made = replace(decided, rate=rates, clip_norm=norms, capped=decided.capped[level], from_budgets=True, notes=notes)
    people = np.bincount(of_person).astype(np.int64)
    return Assigned(made, Levels(levels.epsilon[level], levels.delta[level], people), of_person, under)


def _one_for_all(
    method: Method, levels: Levels, level_of: IntArray, calibrator: Calibrator, purses: _Purses, decide: Decide
) -> tuple[Assignment, float | None]:
    """What each level may have by its ε, with noise solved within public balances; and the one rate, where it is one.

    Of a person's own rate or clip norm public balances do not say anything; of one for all they do.
    """
    alone, drawn = _own(method) is Own.PRESENCE, _own(method) is Own.RATE
    if calibrator.shape.noise_multiplier is None or alone:
        (level, *_), group_of = distinct(level_of, purses.rung, *purses.room.T)
        _, first = np.unique(group_of, return_index=True)
        public = Levels(levels.epsilon[level], levels.delta[level], np.bincount(group_of).astype(np.int64))
        within = _WithinPurses(**vars(calibrator), purses=purses.only(first))
        try:
            decided = decide(method, public, within, drawn)
        except BatchTooLarge:
            if (said := ledger_notes.too_little_left(purses.ledger)) is None:
                raise
            raise InfeasibleBudget(said) from None
        if alone:
            each = np.searchsorted(level, np.arange(levels.epsilon.size))  # groups are sorted by level
            rate, norm, capped = decided.rate[each], decided.clip_norm[each], decided.capped[each]
            return replace(decided, rate=rate, clip_norm=norm, capped=capped), float(rate.max())
        calibrator = replace(calibrator, shape=calibrator.shape.with_noise(decided.noise_multiplier))
    decided = decide(method, levels, calibrator, drawn)
    return decided, None if drawn else float(decided.rate.max())


def _public_note(ledger: Ledger, members: Members, own: Own) -> tuple[str, ...]:
    """Said where people have nothing left by grants and public caps: of real balances it knows nothing (rule 15)."""
    empty = int(np.count_nonzero(ledger.public_balances(members) == 0))
    if not empty or (empty < len(members) and own is not Own.PRESENCE):
        return ()
    if empty < len(members):
        return (
            f"{empty:,} people have withdrawn, or have nothing left by public caps: noise and rate are what the "
            "others pay for. Who of them takes part follows from what each one really has left, and is not shown",
        )
    return (
        f"by public caps nobody listed has anything left: those of the runs so far ({len(ledger.runs()):,} in this "
        "ledger) add up to all that was granted. Who still takes part follows from what each one really has left, "
        "and is not shown; it may be nobody. Give runs a smaller at_most",
    )


@dataclass(frozen=True, eq=False)
class _Purses:
    """What people, or groups of them, have left, by public account or really, and what a run may take of it."""

    ledger: Ledger
    room: IntArray
    rung: IntArray
    at_most: float | None
    in_shares: bool
    """Whether it reserves shares of the cap, for a filter to let people go on within."""

    def only(self, which: AnyArray) -> _Purses:
        return replace(self, room=self.room[which], rung=self.rung[which])

    def about(self, prices: PriceList) -> FloatArray:
        """About the rate or contribution that each group can pay for."""
        most = prices.about(self.payable(prices))
        if not most.any():
            raise InfeasibleBudget(
                "the public balance of everybody is used up: the caps of earlier runs (at_most=) add up to what was "
                "granted. Give noise_multiplier=, or leave those people out"
            )
        return most

    def for_all(self, prices: PriceList) -> float:
        """The largest of the list that every group can pay for which has anything left."""
        room = self.payable(prices)
        has = (room[:, prices.charges[-1] > 0] > 0).all(axis=1)
        place = int(prices.affordable(room[has]).min(initial=prices.value.size - 1))
        if place < 0 or not has.any():
            raise InfeasibleBudget(
                "the public balance of everybody is used up, or that of somebody all but, so no noise and no rate "
                "serves for all: the caps of earlier runs (at_most=) add up to what was granted. Leave those people "
                'out, or give noise_multiplier= with the method "sample", by which everybody has a rate of their own'
            )
        return float(prices.value[place])

    def payable(self, prices: PriceList) -> IntArray:
        """[people, columns]: what a run with this list of prices may take of each."""
        if self.in_shares and self.at_most is not None:
            shares = ReservedShares.of(self.ledger, prices, self.at_most)
            return shares.held(shares.largest(self.room, self.rung))
        own = np.arange(self.rung.size), self.rung  # a cap is one at the own order; what fits it fits at the others
        room = self.room.copy()
        room[own] = np.minimum(room[own], self.ledger.caps(prices.charges, self.at_most)[self.rung, self.rung])
        return room


class _Within(Inverse):
    """What an ε buys, at most what its group's purse pays for."""

    purses: _Purses
    prices: Callable[[int], PriceList]
    """One in so many releases."""

    @cached_property
    def _most(self) -> FloatArray:
        return self.purses.about(self.prices(_COARSE))

    def guess(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        return np.minimum(super().guess(epsilon, delta), self._most)

    def certified(self, epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
        found, spent = super().certified(epsilon, delta)
        return np.minimum(found, self._most), spent

    def for_all(self, epsilon: FloatArray, delta: FloatArray) -> tuple[float, float]:
        found, spent = super().certified(epsilon.min(keepdims=True), delta.min(keepdims=True))
        return min(float(found[0]), self.purses.for_all(self.prices(1))), float(spent[0])


@dataclass(frozen=True)
class _WithinPurses(Calibrator):
    """Solves noise for what people allow now and have left by public account."""

    purses: _Purses | None = None

    def only(self, which: AnyArray) -> Calibrator:
        assert self.purses is not None
        return replace(self, purses=self.purses.only(which))

    def rates(self, noise_multiplier: float) -> Inverse:
        inverse = super().rates(noise_multiplier)
        return self._within(inverse, PriceList.of_rates, noise_multiplier)

    def inverse_noise(self, rate: float) -> Inverse:
        return self._within(super().inverse_noise(rate), PriceList.of_contributions, rate)

    def inverse(self, release_at: Any, axis: Any) -> Inverse:
        return _Within(self.accountant, release_at, axis, self.progress)

    def _within(self, inverse: Inverse, listed: Callable[..., PriceList], at: float) -> Inverse:
        assert isinstance(inverse, _Within)
        assert self.purses is not None
        ledger, steps = self.purses.ledger, self.shape.steps
        inverse.purses, inverse.prices = self.purses, lambda every: listed(ledger, at, steps, every)
        return inverse

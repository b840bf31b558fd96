"""Plans under a ledger: everybody's rate or clip norm within what they allow now, and within what they have left.

What is one for all (noise, divisor, steps) is given or solved from public balances; a person's own rate or clip norm
follows from their own balance, and who has nothing left gets rate 0, silently (rule 15).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.accounting.inverse import Inverse
from privypurse.arrays import FloatArray, IntArray, distinct
from privypurse.assignment.method import Assignment, Calibrator, Method
from privypurse.assignment.sample import Sample
from privypurse.assignment.scale import Scale
from privypurse.budgets import Budgets
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.plans.price_list import PriceList
from privypurse.plans.training_shape import TrainingShape

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members

_NO_IDS = (
    "a ledger knows people by id, and these budgets have none; name the column of ids (--person in a command), or "
    "give Budgets(…, person=ids)"
)
_COARSE = 14  # one in so many releases is enough to solve by: in between prices are interpolated


def require_ledger(ledger: Any, budgets: Budgets, method: Method, shape: TrainingShape) -> None:
    """Raise unless such a plan can be made under this ledger."""
    from privypurse.ledger.ledger import Ledger

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    if budgets.person is None:
        raise InvalidInput(_NO_IDS)
    if not isinstance(method, Sample | Scale):
        raise InvalidInput(
            f'method is {method.name!r}; with ledger= it is "sample" or "scale", whose rates or clip norms can '
            "follow each person's own balance"
        )
    if shape.extra_steps:
        raise InvalidInput(
            "extra_steps is for plans without a ledger: their filter has an order for one run, and under a ledger "
            "all is charged at orders for life; leave extra_steps out"
        )


def assigned(
    method: Method,
    budgets: Budgets,
    calibrator: Calibrator,
    ledger: Ledger,
    at_most: float | None,
) -> tuple[Assignment, Levels, IntArray]:
    """What the method assigns within everybody's purse, its levels, and for each person their level.

    Guarantee: noise, divisor and steps follow from budgets, grants and public caps; each rate or clip norm costs at
    most what its person has left, at every order that counts for them, and at most the run's public cap.
    """
    assert budgets.person is not None
    members = ledger.members(budgets.person[budgets.first_record])
    rung, (levels, level_of) = members.rung.astype(np.int64), budgets.levels(at_most)
    if calibrator.shape.noise_multiplier is None:
        groups, group_of = distinct(level_of, rung, *ledger.public_room(members).T)
        public = Levels(levels.epsilon[groups[0]], levels.delta[groups[0]], np.bincount(group_of).astype(np.int64))
        purses = _PublicPurses(ledger, np.stack(groups[2:], axis=1), groups[1], at_most)
        sigma = method.assign(public, _WithinPurses(**vars(calibrator), purses=purses)).noise_multiplier
        calibrator = replace(calibrator, shape=calibrator.shape.with_noise(sigma))
    decided, shape = method.assign(levels, calibrator), calibrator.shape
    rate = None if isinstance(method, Sample) else float(decided.rate[0])
    prices, proved = _prices(ledger, shape, rate), decided.rate
    if rate is not None:
        proved = decided.clip_norm / (shape.clip_norm * decided.noise_multiplier)
    room = np.minimum(ledger.room(members), ledger.caps(prices.charges, at_most)[rung])
    place = np.minimum(prices.affordable(room), prices.at_most(proved)[level_of])
    (level, row), of_person = distinct(level_of, place)
    rates, norms = prices.table(row, shape, rate)
    people = np.bincount(of_person).astype(np.int64)
    made = replace(decided, rate=rates, clip_norm=norms, capped=decided.capped[level], from_budgets=True)
    made = replace(made, notes=(*made.notes, *_public_note(ledger, members)))
    return made, Levels(levels.epsilon[level], levels.delta[level], people), of_person


def _public_note(ledger: Ledger, members: Members) -> tuple[str, ...]:
    """Said where nobody has anything left by grants and public caps: of real balances it knows nothing (rule 15)."""
    if (ledger.public_balances(members) > 0).any():
        return ()
    return (
        f"by public caps nobody listed has anything left: those of the runs so far ({len(ledger.runs()):,} in this "
        "ledger) add up to all that was granted. Who still takes part follows from what each one really has left, "
        "and is not shown; it may be nobody. Give runs a smaller at_most",
    )


def _prices(ledger: Ledger, shape: TrainingShape, rate: float | None) -> PriceList:
    assert shape.noise_multiplier is not None
    if rate is None:
        return PriceList.of_rates(ledger, shape.noise_multiplier, shape.steps)
    return PriceList.of_contributions(ledger, rate, shape.steps)


@dataclass(frozen=True, eq=False)
class _PublicPurses:
    """Public balances of groups of people, and the cap of the run to be planned."""

    ledger: Ledger
    room: IntArray
    rung: IntArray
    at_most: float | None

    def most(self, prices: PriceList) -> FloatArray:
        """About the rate or contribution that each group can pay for."""
        own = np.arange(self.rung.size), self.rung  # a cap is one at the own order; what fits it fits at the others
        room = self.room.copy()
        room[own] = np.minimum(room[own], self.ledger.caps(prices.charges, self.at_most)[self.rung, self.rung])
        return prices.about(room)


class _Within(Inverse):
    """What an ε buys, at most what its group's purse pays for."""

    most: FloatArray

    def guess(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        return self._least(super().guess(epsilon, delta))

    def certified(self, epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
        found, spent = super().certified(epsilon, delta)
        return self._least(found), spent

    def _least(self, found: FloatArray) -> FloatArray:
        if not self.most.any() or (found.size != self.most.size and not self.most.all()):
            raise InfeasibleBudget(
                "the public balance of everybody, or for full batches of somebody, is used up: the caps of earlier "
                "runs (at_most=) add up to what was granted. Give noise_multiplier=, or leave those people out"
            )
        # One for all: what the least purse pays for.
        return np.minimum(found, self.most if found.size == self.most.size else self.most.min())


@dataclass(frozen=True)
class _WithinPurses(Calibrator):
    """Solves noise for what people allow now and have left by public account."""

    purses: _PublicPurses | None = None

    def rates(self, noise_multiplier: float) -> Inverse:
        prices = PriceList.of_rates(self._ledger, noise_multiplier, self.shape.steps, _COARSE)
        return self._within(super().rates(noise_multiplier), prices)

    def inverse_noise(self, rate: float) -> Inverse:
        prices = PriceList.of_contributions(self._ledger, rate, self.shape.steps, _COARSE)
        return self._within(super().inverse_noise(rate), prices)

    @property
    def _ledger(self) -> Ledger:
        assert self.purses is not None
        return self.purses.ledger

    def inverse(self, release_at: Any, axis: Any) -> Inverse:
        return _Within(self.accountant, release_at, axis, self.progress)

    def _within(self, inverse: Inverse, prices: PriceList) -> Inverse:
        assert isinstance(inverse, _Within)
        assert self.purses is not None
        inverse.most = self.purses.most(prices)
        return inverse

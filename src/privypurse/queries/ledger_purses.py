"""Questions under a ledger: everybody pays for life, out of the purse that their trainings and rounds use too."""

from __future__ import annotations

import math
import threading
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.accounting import gdp
from privypurse.accounting.filters import CURRENCIES, Currency
from privypurse.accounting.releases import Gaussian
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.budgets.budgets import Budgets
from privypurse.budgets.person_ids import applied, named, texts_of
from privypurse.errors import InvalidInput
from privypurse.queries.answers import rounded_up

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.lifetime import Lifetime

_FINEST, _COARSEST, _OCTAVES = 512, 8, 33  # classes in the uppermost octave of norms and in the lowest; octaves
_NEXT_TO_NOTHING, _BEYOND_ALL = 1e-100, 1e4  # norms over noise: less than a unit, more than any rung holds
_SMALLEST, _LARGEST = 1e-9, 1e9  # ε of a public cap
_A_LITTLE_MORE = 1 + 1e-6  # than what whole units round off


def _shares() -> FloatArray:
    """Norms that are told apart, as shares of the largest one: rising to 1, the finer the more they cost.

    A public grid: which classes there are follows from the question, never from who is in the data. Rounding up costs
    at most 0.3 % of a question's worst case.
    """
    octaves = []
    for octave in range(_OCTAVES):
        steps = max(_FINEST >> octave, _COARSEST)
        octaves.append(np.exp2(-octave - np.arange(steps) / steps))
    return frozen(np.concatenate(octaves)[::-1])


SHARES = _shares()


class LedgerPurses:
    """The purses of the people in some data, as a ledger keeps them.

    Guarantee: `pay` returns once the charges are in the ledger. Whoever contributes r standard deviations of the
    noise is charged α·r²/2 at the order α of every rung (Mironov 2017, arXiv 1702.07476, Proposition 7), r rounded up
    to a public grid. The public cap is the question's worst case. Who could not pay is told to the caller alone, and
    must contribute nothing (rule 15).
    """

    def __init__(self, ledger: Ledger, budgets: Budgets, purpose: str = "") -> None:
        from privypurse.ledger.ledger import Ledger  # here, not above: who has no ledger needs no database

        if not isinstance(ledger, Ledger):
            raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
        if not isinstance(purpose, str):
            raise InvalidInput(f"purpose must be text, not {purpose!r}")
        self._members = ledger.members(budgets.people_ids())
        self._ledger, self._purpose, self._keyed_ids = ledger, purpose, budgets.keyed_ids()
        _refuse_smaller_budgets(ledger, budgets, self._members.rung)
        self.currency: Currency = CURRENCIES["gdp"]
        """In which the cost of a question by itself is told, and solved for."""
        self.lock = threading.RLock()
        held = np.array([2 * np.ldexp(float(rung.limit), -40) / rung.order for rung in ledger.rungs])
        self.total = frozen(held[self._members.rung.astype(np.int64)])
        """What everybody's purse holds when full, in μ²: a function of grants, which are public."""
        self.rungs_are_public = ledger.rungs_are_public

    def places(self, person: Any, records: int) -> IntArray:
        """For each record, by its owner's id, the place of their purse; raise where somebody has two records."""
        ids, place = applied(self._keyed_ids, person, "list of purses", records)
        doubled = np.bincount(place, minlength=self.total.size)[place] > 1
        if doubled.any():
            raise InvalidInput(
                f"person names {named(texts_of(ids), doubled)} more than once, and each would pay for one record "
                "only; give one record for each person"
            )
        return place

    def pay(self, ratio: FloatArray, most: float, *, alike: bool = False) -> AnyArray:
        """Charge everybody for a contribution of ``ratio`` deviations of the noise; for each whether they take part.

        ``most`` is the largest ratio there can be, a public number. ``alike``: whoever contributes, contributes that.
        """
        levels = _levels(most, alike=alike)
        charges, at_most = _public_table(self._ledger.lifetime, most, alike)
        place = np.searchsorted(levels, ratio)
        class_of = np.where((ratio > 0) & (place < levels.size), place, -1)
        paid = self._ledger.charge(
            f"question-{uuid.uuid4()}",
            self._members,
            charges,
            class_of,
            at_most=at_most,
            what="question",
            purpose=self._purpose,
        )
        return paid.admitted

    def say_who_cannot(self, clip: float, noise: float, least: float) -> str:
        """Of a question whose contributions have norms from ``least`` to ``clip``: which grants do not pay for it.

        Raise where none does. From the ladder of the ledger alone, which is public if `rungs_are_public`.
        """
        if least:
            refuse_unpayable(self._ledger.lifetime, least, noise)
        pays = noise * _largest_ratios(self._ledger.lifetime)
        names = [f"{rung.epsilon:g}" for rung, most in zip(self._ledger.rungs, pays, strict=True) if most < least]
        if names:
            return f"whoever allows ε = {' or '.join(names)} cannot pay for this, even with a full purse"
        if pays.max() < clip:
            return f"nobody can pay for more than {pays.max():.3g} with this noise, even with a full purse"
        return ""

    def affords(self, amount: Any) -> AnyArray:
        """For each person whether a cost of this many μ² could still be charged. Sensitive."""
        charge = charges_of_ratios(
            self._ledger.lifetime, np.sqrt(np.atleast_1d(np.asarray(amount, dtype=np.float64)))
        )
        return np.asarray((self._ledger.room(self._members) >= charge).all(axis=1))


def charges_of_ratios(lifetime: Lifetime, ratio: FloatArray) -> IntArray:
    """At every order, of contributions that are so many deviations of the noise."""
    within = np.clip(ratio, _NEXT_TO_NOTHING, _BEYOND_ALL)
    return lifetime.charges_of([Gaussian(noise) for noise in (1.0 / within).tolist()])


def _largest_ratios(lifetime: Lifetime) -> FloatArray:
    """For each rung about how many deviations of the noise a full purse pays for at once."""
    held = np.ldexp(lifetime.limits[:, : len(lifetime.rungs)].astype(np.float64), -40)
    orders = np.array([rung.order for rung in lifetime.rungs])
    return np.asarray(np.sqrt(2 * held / orders).min(axis=1))


def refuse_unpayable(lifetime: Lifetime, least: float, noise: float) -> None:
    """Raise where not even a contribution of norm ``least`` can be paid for by any grant for life.

    Nobody could take part, and noise alone would be told as an answer. Asked of the ladder of all grants that a
    ledger knows, which is public, not of who is in the data or of what they have left.
    """
    [charge] = charges_of_ratios(lifetime, np.array([least / noise]))
    if (charge <= lifetime.limits).all(axis=1).any():
        return
    paid = float((lifetime.limits / np.maximum(charge, 1)).min(axis=1).max())
    enough = max(noise, least / _BEYOND_ALL) / math.sqrt(paid) * _A_LITTLE_MORE
    raise InvalidInput(
        "this question costs everybody whom it touches more than the largest grant in the ledger holds for life, so "
        f"that noise alone would be told; take a noise= of {rounded_up(enough)} or more, or a smaller cost="
    )


@lru_cache(maxsize=32)
def _public_table(lifetime: Lifetime, most: float, alike: bool) -> tuple[IntArray, float]:
    """What each class is charged, and the ε whose cap holds the largest of them on every rung."""
    charges = frozen(charges_of_ratios(lifetime, _levels(most, alike=alike)))
    deltas, limits = {rung.delta for rung in lifetime.rungs}, np.array([rung.limit for rung in lifetime.rungs])
    largest = max(float(gdp.epsilon(min(most, _BEYOND_ALL), delta)) for delta in deltas)
    at_most, more = min(max(largest, _SMALLEST), _LARGEST), 1e-9
    wanted = np.minimum(charges[-1, : limits.size], limits)
    while (lifetime.caps(charges, at_most).diagonal() < wanted).any():
        at_most, more = at_most * (1 + more), 2 * more
    return charges, at_most


def _levels(most: float, *, alike: bool) -> FloatArray:
    return np.array([most]) if alike else most * SHARES


def _refuse_smaller_budgets(ledger: Ledger, budgets: Budgets, rung: AnyArray) -> None:
    """The ledger's grant is the purse: budgets that promise less could not be kept. Grants are public."""
    first = budgets.first_record
    granted = np.array([[one.epsilon, one.delta] for one in ledger.rungs])[rung.astype(np.int64)]
    for place, (name, given) in enumerate((("ε", budgets.epsilon), ("δ", budgets.delta))):
        wrong = given[first] < granted[:, place]
        if wrong.any():
            one = int(np.argmax(wrong))
            [who] = texts_of(budgets.people_ids()[[one]])
            raise InvalidInput(
                f"budgets give {who!r} {name} = {given[first[one]]:g}, but the ledger holds {granted[one, place]:g} "
                "for them, and that is what is kept; lower it there with ledger.change, or give the budgets that "
                "people granted"
            )

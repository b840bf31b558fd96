"""A client's account in a ledger: all rounds reserved before the first one, settled at those it joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.federated.terms import Offer

if TYPE_CHECKING:
    from privypurse.ledger.history import Run
    from privypurse.ledger.ledger import Ledger


class LedgerAccount:
    """What a client's people have reserved for a federation, for life.

    Guarantee: everybody's whole cost under the terms is reserved before the first round: against the server as many
    rounds in full as may be joined, against the public all rounds, joined or not (rule 8). Nobody is drawn more often
    than their balance pays for; who cannot pay at all, or has withdrawn, is not drawn. Settling gives back what was
    never begun, and against the public nothing: rounds that were not joined are no reason (rule 1). Rates are
    internal: they follow from what people have left (rule 15).
    """

    def __init__(
        self,
        ledger: Ledger,
        offer: Offer,
        budgets: Budgets,
        wanted: FloatArray,
        *,
        run_id: str,
        joined: int = 0,
        at_most: float | None = None,
        purpose: str = "",
    ) -> None:
        """``wanted`` is the rate that each person's budget buys; ``at_most`` the public cap, an ε (None: all).

        ``joined`` is how many rounds the client's book has counted.
        """
        assert budgets.person is not None
        self._ledger, self._terms = ledger, offer.terms
        # A public list: what anybody may be drawn with.
        self._rates = np.unique(np.minimum(offer.table.parameter, 1.0))
        members = ledger.members(budgets.person[budgets.first_record])
        self._run_id = run_id
        if self._run() is None:
            if joined:
                raise InvalidInput(
                    f"the client's book has counted {joined:,} rounds of run {run_id!r}, which the ledger does not "
                    "know: it is an older copy of the one they were reserved in. Put the newer one back"
                )
            charges = self._charges(offer.terms.cap)
            caps = ledger.caps(charges, at_most)[members.rung.astype(np.int64)]
            row = _affordable(charges, np.minimum(ledger.room(members), caps))
            row = np.minimum(row, np.searchsorted(self._rates, wanted, side="right") - 1)
            ledger.reserve(run_id, members, charges, row, at_most=at_most, what="federated", purpose=purpose)
        self._reservation = ledger.reservation(run_id)
        reserved = self._reservation.reserved
        self._place = np.searchsorted(reserved.numbers, members.numbers)
        row = np.where(reserved.admitted, reserved.values, self._rates.size)[self._place]
        self.rates: FloatArray = np.append(self._rates, 0.0)[row]
        """For each person the rate that is reserved for them; 0 for who takes no part."""

    def _run(self) -> Run | None:
        return {run.run_id: run for run in self._ledger.runs()}.get(self._run_id)

    @property
    def settled(self) -> bool:
        """Whether the client has left for good, as the ledger says now: another process may have settled."""
        run = self._run()
        return run is None or run.settled is not None

    def takes_part(self) -> AnyArray:
        """For each person whether they take part in a round that begins now."""
        return self._reservation.standing()[self._place]

    def settle(self, joined: int) -> None:
        """Charge the rounds that were begun, everybody at their rate; against the public all of them."""
        if self._terms.adversary == "public":
            self._reservation.settle()
        else:
            charges = np.minimum(self._charges(joined), self._charges(self._terms.cap))
            reserved = self._reservation.reserved
            self._reservation.settle(charges, np.where(reserved.admitted, reserved.values.astype(np.int64), -1))

    def _charges(self, joined: int) -> IntArray:
        """[rates, columns]: what so many rounds in full cost; against the public, all rounds if that is less."""
        terms, rates = self._terms, self._rates.tolist()
        charges = self._ledger.charges_of([terms.joined(rate, joined) for rate in rates])
        if terms.adversary == "public":
            hidden = self._ledger.charges_of([terms.seen(rate, terms.rounds) for rate in rates])
            charges = np.minimum(charges, hidden)
        # What a larger rate is charged covers a smaller one.
        return np.asarray(np.maximum.accumulate(charges, axis=0))


def require_ledger(ledger: Any, offer: Offer, budgets: Budgets) -> None:
    """Raise unless this client's people can be charged there."""
    from privypurse.ledger.ledger import Ledger  # here, not above: who has no ledger needs no database

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    if budgets.person is None:
        raise InvalidInput("a ledger knows people by id, and budgets have none; give Budgets(…, person=ids)")
    ledger.require_terms(adversary=offer.terms.adversary)


def _affordable(charges: IntArray, room: IntArray) -> IntArray:
    """For each person the last row that fits at every column; -1 where none does."""
    columns = zip(charges.T, room.T, strict=True)
    fits = [np.searchsorted(charge, left, side="right") for charge, left in columns]
    return np.asarray(np.min(fits, axis=0) - 1)

"""A client's account in a ledger: all rounds reserved before the first one, settled at those it joined."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse._validate import real
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.federated.book import Book
from privypurse.federated.terms import Offer, Terms

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_log = logging.getLogger("privypurse.federated")


class LedgerAccount:
    """What a client's people have reserved for a federation, for life.

    Guarantee: everybody's whole cost under the terms is reserved before the first round: against the server as many
    rounds in full as may be joined, against the public all rounds, joined or not (rule 8). Nobody is drawn more often
    than their balance pays for; who cannot pay at all, has withdrawn, or was not in the ledger then, is not drawn:
    a client that failed would tell the server. Settling gives back what was
    never begun, and against the public nothing: rounds that were not joined are no reason (rule 1). Rates are
    internal: they follow from what people have left (rule 15).

    Each round is handed out by the ledger before it is begun, to one holder of the run at a time (`ledger.begun`): of
    two copies of a book one goes on, and an older copy of book or ledger is refused.
    """

    def __init__(
        self,
        ledger: Ledger,
        offer: Offer,
        budgets: Budgets,
        wanted: FloatArray,
        *,
        book: Book,
        at_most: float | None = None,
        purpose: str = "",
    ) -> None:
        """``wanted`` is the rate that each person's budget buys; ``at_most`` the public cap, an ε (None: all).

        ``book`` is the client's, held: it names the run, and who was handed its rounds.
        """
        self._ledger, self._terms, self._book = ledger, offer.terms, book
        self._holder: str | None = None
        # A public list: what anybody may be drawn with.
        self._rates = np.unique(np.minimum(offer.table.parameter, 1.0))
        ids = budgets.people_ids()
        self._known = ledger.known(ids)
        members = ledger.members(ids[self._known] if self._known.any() else ids)  # an error where that is nobody
        if not self._known.all():
            _log.warning("%d people of the budgets are not in the ledger, and sit out", np.sum(~self._known))
        self._run_id = run_id = book.account(ledger.id)
        self._require_latest()
        if ledger.run(run_id) is None:
            charges = self._charges(self._terms.cap)
            caps = ledger.caps(charges, at_most)[members.rung.astype(np.int64)]
            row = _affordable(charges, np.minimum(ledger.room(members), caps))
            row = np.minimum(row, np.searchsorted(self._rates, wanted[self._known], side="right") - 1)
            ledger.reserve(run_id, members, charges, row, at_most=at_most, what="federated", purpose=purpose)
        self._reservation = ledger.reservation(run_id)
        reserved = self._reservation.reserved
        place = np.searchsorted(reserved.numbers, members.numbers)
        place = np.minimum(place, reserved.numbers.size - 1)
        there = reserved.numbers[place] == members.numbers  # who joined the ledger since has nothing reserved
        self._known[self._known] = there
        self._place = place[there]
        row = np.where(reserved.admitted, reserved.values, self._rates.size)[self._place]
        self.rates: FloatArray = np.zeros(ids.size)
        """For each person the rate that is reserved for them; 0 for who takes no part."""
        self.rates[self._known] = np.append(self._rates, 0.0)[row]

    def _require_latest(self) -> None:
        """Raise if the ledger is older than what the client's folder knows of it."""
        if not self._book.joined:
            return
        from privypurse.ledger import anchors  # here: who has no ledger needs no database

        anchors.read(self._book.folder)  # one that is lost is refused
        self._ledger.require_latest(self._book.folder)
        begun = self._ledger.begun(self._run_id)
        if begun is None or begun.count < self._book.joined:
            raise InvalidInput(
                f"the client's book has counted {self._book.joined:,} rounds of run {self._run_id!r}, more than the "
                "ledger has handed out: it is an older copy. Put the newer one back"
            )

    @property
    def settled(self) -> bool:
        """Whether the client has left for good, as the ledger says now: another process may have settled."""
        run = self._ledger.run(self._run_id)
        return run is None or run.settled is not None

    def takes_part(self) -> AnyArray:
        """For each person whether they take part in a round that begins now."""
        standing = np.zeros(self._known.size, dtype=np.bool_)
        standing[self._known] = self._reservation.standing()[self._place]
        return standing

    def begun(self) -> int:
        """How many rounds have begun, from whatever copy of the book; this client takes the run over to know it.

        Not by the book alone: a copy of it has not counted what was begun from the other one.
        """
        return max(self._held()[1], self._book.joined)

    def begin_round(self) -> None:
        """Have one more round handed out, before the book counts it, and keep the ledger's anchor beside the book.

        A crash in between has paid for a round that nobody was given.
        """
        self._ledger.begin(self._run_id, self._held()[0], self.begun() + 1)
        self._ledger.write_anchor(self._book.folder / "anchor.json")

    def _held(self) -> tuple[str, int]:
        """This client as the holder of the run, and how many rounds have begun by the ledger.

        The new name is in the book before the ledger has it, and the old one stays until then: a crash locks nobody
        out.
        """
        if self._holder is None:
            known, new = self._book.holders, str(uuid.uuid4())
            self._book.keep_holders([*known, new])
            self._ledger.take_over(self._run_id, new, [*known, new])
            self._book.keep_holders([new])
            self._holder = new
        begun = self._ledger.begun(self._run_id)
        assert begun is not None
        return self._holder, begun.count

    def let_go(self) -> None:
        """The book was closed meanwhile: another process may have gone on with it."""
        self._holder = None
        self._require_latest()

    def settle(self) -> None:
        """Charge the rounds that were begun, everybody at their rate; against the public all of them."""
        if self.settled:
            return
        holder = self._held()[0]
        if self._terms.adversary == "public":
            self._reservation.settle(holder=holder)
        else:
            charges = np.minimum(self._charges(self.begun()), self._charges(self._terms.cap))
            reserved = self._reservation.reserved
            own = np.where(reserved.admitted, reserved.values.astype(np.int64), -1)
            self._reservation.settle(charges, own, holder=holder)

    def _charges(self, joined: int) -> IntArray:
        return charges_of_rounds(self._ledger, self._terms, self._rates, joined)


def charges_of_rounds(ledger: Ledger, terms: Terms, rates: FloatArray, joined: int) -> IntArray:
    """[rates, columns]: what so many rounds in full cost; against the public, all rounds if that is less.

    ``rates`` rise. What a larger one is charged covers a smaller one.
    """
    each = rates.tolist()
    charges = ledger.charges_of([terms.joined(rate, joined) for rate in each])
    if terms.adversary == "public":
        charges = np.minimum(charges, ledger.charges_of([terms.seen(rate, terms.rounds) for rate in each]))
    return np.asarray(np.maximum.accumulate(charges, axis=0))


def require_ledger(ledger: Any, offer: Offer, budgets: Budgets, at_most: float | None = None) -> None:
    """Raise unless this client's people can be charged there."""
    from privypurse.ledger.ledger import Ledger  # here, not above: who has no ledger needs no database

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    budgets.people_ids()  # raises where there are none
    ledger.require_terms(adversary=offer.terms.adversary)
    if at_most is not None:
        real(at_most, "at_most", above=0, most=1e9, hint="an ε at the person's δ, or None for all that is left")


def _affordable(charges: IntArray, room: IntArray) -> IntArray:
    """For each person the last row that fits at every column; -1 where none does."""
    columns = zip(charges.T, room.T, strict=True)
    fits = [np.searchsorted(charge, left, side="right") for charge, left in columns]
    return np.asarray(np.min(fits, axis=0) - 1)

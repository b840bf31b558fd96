"""Rounds that a client joined without a ledger, charged to one afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from privypurse._validate import first_where
from privypurse.arrays import AnyArray, IntArray
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.federated.book import Book
from privypurse.federated.ledger_account import charges_of_rounds
from privypurse.federated.rows import whose_records
from privypurse.federated.terms import Offer

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members


def import_book(
    folder: str | Path,
    dataset: Dataset[Any],
    budgets: Budgets,
    ledger: Ledger,
    *,
    person: Any = None,
    purpose: str = "",
) -> int:
    """Charge the rounds of the book in ``folder`` to people of the ledger; how many they were. Twice charges once.

    ``dataset`` and ``budgets`` are those that the book was begun with. Where budgets have no ids, ``person`` names
    the owner of each record, one record each: the cost of two records of one person is not known by record.

    Guarantee: everybody is charged at least what was released, at the rate that the offer's table gives their ε
    (nobody was ever drawn more often): against the server every round that was begun, against the public all of
    them, joined or not. Who does not hold that much is left with nothing: their ε was kept by the terms' accountant,
    and they take part in nothing more. The book joins no more rounds, from before anything is charged.
    """
    home = Path(folder)
    offer = Offer.load(home / "offer.json")
    ids = _owners(budgets, person)
    ledger.require_terms(adversary=offer.terms.adversary)
    members = ledger.members(ids)
    book = Book(home, offer.digest, whose_records(dataset, budgets))
    try:
        held = book.joined if _by_round(offer) else max(book.seen, book.joined)  # who stayed out pays as well
        if not held:
            raise InvalidInput(f"no round was begun in {home}, so there is nothing to charge; go on with ledger=")
        rates = np.unique(np.append(np.minimum(offer.table.parameter, 1.0), 0.0))
        charges = charges_of_rounds(ledger, offer.terms, rates, held if _by_round(offer) else offer.terms.cap)
        drawn = np.minimum(offer.table.within(budgets.promised), 1.0)
        strict = budgets.delta[budgets.first_record] < offer.terms.delta
        row = np.where(strict | (drawn == 0), -1, np.searchsorted(rates, drawn))
        _refuse_broken_promises(ledger, members, budgets, offer, charges, row)
        run = book.leave_to(ledger.id)
        ledger.charge_past(run, members, charges, row, what="federated, before the ledger", purpose=purpose)
    finally:
        book.close()
    return held


def _refuse_broken_promises(
    ledger: Ledger, members: Members, budgets: Budgets, offer: Offer, charges: IntArray, row: IntArray
) -> None:
    """Raise if somebody's rounds are more than the ledger promises them, by its orders and by the terms' accountant.

    It follows from grants and budgets alone.
    """
    rung = members.rung.astype(np.int64)
    cost = np.append(charges, np.zeros_like(charges[:1]), axis=0)[row]
    beyond = (cost > ledger.lifetime.limits[rung]).any(axis=1)
    granted, delta = (np.array([getattr(one, name) for one in ledger.rungs])[rung] for name in ("epsilon", "delta"))
    wrong = first_where(beyond & ((budgets.promised > granted) | (offer.terms.delta > delta)))
    if wrong is not None:
        raise InvalidInput(
            f"person {wrong:,} of the budgets had (ε, δ) = ({budgets.promised[wrong]:g}, {offer.terms.delta:g}) for "
            f"these rounds, and the ledger promises them ({granted[wrong]:g}, {delta[wrong]:g}), which the rounds "
            "exceed; let them join on a rung that is no lower"
        )


def _by_round(offer: Offer) -> bool:
    return offer.terms.adversary == "server"


def _owners(budgets: Budgets, person: Any) -> AnyArray:
    """For each person of the budgets their id."""
    if budgets.person is not None:
        if person is not None:
            raise InvalidInput("budgets have ids, so person= is not needed; leave it out")
        return budgets.people_ids()
    ids = np.asarray(person)
    if person is None or ids.shape != (len(budgets),):
        raise InvalidInput(
            f"budgets have no ids; give person=, the id of the owner of each of the {len(budgets):,} records"
        )
    return ids

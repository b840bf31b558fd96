"""What was released without the ledger, charged afterwards: whole, also beyond what a purse holds.

It cannot be taken back, so nothing asks whether somebody could pay for it, has left since, or owes more than
``at_most``: caps and errors follow from the public table, grants and lists of people alone (rule 15). Whoever owes
more than they hold is where somebody is who lowered their limit below what was used: they take no further part.
"""

from __future__ import annotations

import numpy as np
from sqlalchemy.engine import Connection

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.ledger import blocks, entries, runs
from privypurse.ledger.blocks import NOTHING
from privypurse.ledger.entries import Entry
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.runs import Request


def charge(connection: Connection, lifetime: Lifetime, request: Request) -> bool:
    """Charge everybody their class; False where this run is in the ledger already. In the caller's transaction."""
    if written := entries.of_run(connection, request.run):
        _require_of_the_same(connection, written.get("charge"), request)
        return False
    _refuse_open_runs(connection, request.members.numbers)
    values = np.where(request.class_of >= 0, request.class_of, NOTHING).astype(np.uint16)
    caps = _caps(lifetime, request.charges, request.at_most)
    runs.write(connection, "charge", request, caps, values, past=True)
    return True


def _caps(lifetime: Lifetime, charges: IntArray, at_most: float | None) -> IntArray:
    """As of any run, but where the cap is the whole limit, rows beyond it count too: they are charged."""
    caps = lifetime.caps(charges, at_most)
    for k, rung in enumerate(lifetime.rungs):
        if caps[k, k] == rung.limit and len(charges):
            caps[k] = charges.max(axis=0)
            caps[k, k] = rung.limit
    return caps


def _require_of_the_same(connection: Connection, before: Entry | None, request: Request) -> None:
    """Raise for another use, or other people, under a name that there is: they would be charged nothing, silently."""
    same = before is not None and before.meta.get("past") and before.classes == runs.packed(request.charges)
    if before is not None and same:
        listed, _ = blocks.people(entries.rows_of(connection, before.seq))
        same = np.isin(request.members.numbers, listed).all()
    if not same:
        raise InvalidInput(
            f"run_id is {request.run!r}, which the ledger has for another use or without some of these members, so "
            "nothing was charged; give every use an id of its own"
        )


def _refuse_open_runs(connection: Connection, numbers: IntArray) -> None:
    """Whoever turns out to have nothing left would go on in a run that has reserved for them."""
    for entry in entries.open_runs(connection):
        listed, _ = blocks.people(entries.rows_of(connection, entry.seq))
        if np.isin(numbers, listed).any():
            raise InvalidInput(
                f"run {entry.run!r} is open and lists some of the members, so what was released about them before "
                "cannot be charged yet, and nothing was; settle it first (`privypurse ledger recover`, for one that "
                "died)"
            )

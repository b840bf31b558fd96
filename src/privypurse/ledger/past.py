"""What was released without the ledger, charged afterwards: to the last unit that a purse holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.ledger import entries, runs, standing
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import MOST_CLASSES, Lifetime
from privypurse.ledger.runs import Request


def charge(connection: Connection, lifetime: Lifetime, request: Request, key: Key | None) -> bool:
    """Charge everybody their class, or all that they have left where that is less; in the caller's transaction.

    False where this run is in the ledger already. The releases cannot be taken back, so nobody may be passed over:
    if somebody cannot be charged, nothing is.
    """
    if entries.of_run(connection, request.run):
        return False
    stand = standing.load(connection, lifetime, request.members.blocks, key)
    places = stand.places(request.members.numbers)
    owing = request.class_of >= 0
    _refuse(owing & ~stand.active(entries.time_now(connection))[places], "have left, or their consent has ended")
    room = standing.room(stand, places, public=False)
    within = _within(request, room)
    cut = within.class_of != request.class_of
    _refuse(cut & stand.reserved[:, places].any(axis=0), "owe more than they have left, and part of that is reserved")
    written = runs.reserve(connection, lifetime, within, key, "charge")
    _refuse((within.class_of >= 0) & ~written.admitted, f"spent more than at_most = {request.at_most}")
    return True


def _within(request: Request, room: IntArray) -> Request:
    """The same charges, cut at each column to what is left there.

    At every column either all is charged, or nothing is left. A charge takes a unit at least everywhere, so whoever
    is cut takes no further part while that column limits them. That holds for good only if nothing is reserved: what
    an open run gives back would be theirs again.
    """
    cost = np.append(request.charges, np.zeros_like(request.charges[:1]), axis=0)[request.class_of]
    over = (cost > room).any(axis=1)
    rest, which = np.unique(np.minimum(cost, room)[over], axis=0, return_inverse=True)
    class_of = request.class_of.copy()
    something = np.asarray(rest.any(axis=1))
    class_of[over] = np.where(something[which.reshape(-1)], len(request.charges) + which.reshape(-1), -1)
    charges = np.concatenate([request.charges, rest])
    if len(charges) > MOST_CLASSES:
        raise InvalidInput(
            f"charges has {len(charges):,} different rows once they are cut to what people have left, and one entry "
            f"holds {MOST_CLASSES:,}; charge the past of fewer people at once"
        )
    return replace(request, charges=charges, class_of=class_of)


def _refuse(wrong: AnyArray, why: str) -> None:
    if wrong.any():
        raise InvalidInput(
            f"{int(wrong.sum()):,} of the members (the first is number {int(np.argmax(wrong)):,}) {why}, so what was "
            "released about them before could not be charged, and nothing was. Charge the past before people leave, "
            "or let them come back first; settle runs that are open; and name an at_most that holds for everybody, "
            "or none"
        )

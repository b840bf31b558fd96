"""Runs: reserve the whole cost beforehand, settle what was really taken (rules 14 and 15).

Reserving decides who can pay, by real balances, and says so to the run alone: it raises for nobody's balance, and
takes the same steps whoever is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.engine import Connection

from privypurse._storage import digest_of_arrays
from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.ledger import entries, standing
from privypurse.ledger.blocks import NOTHING, Values, encoded, people
from privypurse.ledger.entries import Entry
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import MOST_CLASSES, Lifetime, added, checked_charges
from privypurse.ledger.people import Members
from privypurse.ledger.rounding import rounded_up

_LONGEST = 200  # characters of a run id
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # in one database or the other


@dataclass(frozen=True, eq=False)
class Request:
    """What a run asks to be reserved, checked."""

    run: str
    members: Members
    charges: IntArray
    class_of: IntArray
    at_most: float | None
    said: dict[str, str]

    @classmethod
    def of(
        cls,
        run: Any,
        members: Any,
        charges: Any,
        class_of: Any,
        at_most: float | None,
        columns: int,
        said: dict[str, str],
    ) -> Request:
        if not isinstance(run, str) or not 0 < len(run) <= _LONGEST or _UNWRITABLE.search(run):
            raise InvalidInput(f"run_id is {run!r}; give a text of 1 to {_LONGEST} characters, another for every use")
        if not isinstance(members, Members) or not len(members):
            raise InvalidInput("members must be people of the ledger, at least one: ledger.members(ids)")
        table = checked_charges(charges, columns)
        if len(table) > MOST_CLASSES:
            raise InvalidInput(
                f"charges has {len(table):,} rows; reserve by a public table of at most {MOST_CLASSES:,} of them"
            )
        return cls(run, members, table, checked_classes(class_of, len(members), len(table)), at_most, dict(said))

    @property
    def digest(self) -> str:
        arrays = digest_of_arrays(self.members.numbers, self.charges, self.class_of)
        return f"{arrays} {self.at_most!r} {self.said.get('what', '')}"


def checked_classes(class_of: Any, people: int, classes: int) -> IntArray:
    """For each person the row of charges that is theirs; -1 for who takes no part."""
    each = np.asarray(class_of)
    if each.shape != (people,) or each.dtype.kind not in "iu":
        raise InvalidInput(
            f"class_of must be a whole number for each of the {people:,} members (a row of charges, or -1 for who "
            f"takes no part); it is {each.dtype} of shape {each.shape}"
        )
    if each.size and not (each.min() >= -1 and each.max() < classes):
        raise InvalidInput(f"class_of goes from {each.min()} to {each.max()}; charges has rows 0 to {classes - 1}")
    return each.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Reserved:
    """A reservation as it was written, in the order of the members."""

    entry: Entry
    numbers: IntArray
    values: Values
    repeated: bool

    @property
    def admitted(self) -> AnyArray:
        return np.asarray(self.values != NOTHING)


def reserve(connection: Connection, lifetime: Lifetime, request: Request, key: Key | None, kind: str) -> Reserved:
    """Take the charges of whoever can pay out of their purses; the others take no part.

    ``kind`` is "reserve", or "charge" where nothing is to be settled any more. In the caller's transaction.
    """
    numbers = request.members.numbers
    written = entries.of_run(connection, request.run)
    if written:
        return _repeated(connection, written, request, kind)
    caps = lifetime.caps(request.charges, request.at_most)
    stand = standing.load(connection, lifetime, request.members.blocks, key)
    if key is not None and stand.rows_since_snapshot >= standing.SNAPSHOT_EVERY:
        standing.write_snapshots(connection, stand, key)
    places, time = stand.places(numbers), entries.time_now(connection)
    admitted = (request.class_of >= 0) & stand.active(time)[places]
    rung = stand.rung[places]
    for column in range(lifetime.columns):
        cost = np.append(request.charges[:, column], 0)[request.class_of]
        before = added(stand.spent[column, places], stand.reserved[column, places])
        admitted &= added(before, cost) <= stand.limits(column)[places]
        admitted &= cost <= np.append(caps[:, column], 0).take(rung, mode="clip")
    values = np.where(admitted, request.class_of, NOTHING).astype(np.uint16)
    entry = write(connection, kind, request, caps, values, time)
    return Reserved(entry, numbers, values, repeated=False)


def write(
    connection: Connection,
    kind: str,
    request: Request,
    caps: IntArray,
    values: Values,
    time: int | None = None,
    *,
    past: bool = False,
) -> Entry:
    """The entry of a request: everybody in it, each with the row that they pay, or NOTHING."""
    numbers = request.members.numbers
    order = np.argsort(numbers, kind="stable")
    said = {**request.said, "past": True} if past else request.said
    return entries.append(
        connection,
        kind,
        {**said, "at_most": request.at_most, "caps": caps.tolist(), "request": request.digest},
        encoded(numbers[order], values[order][None]),
        run=request.run,
        classes=packed(request.charges),
        time=time,
    )


def packed(charges: IntArray) -> bytes:
    """A table of charges as an entry holds it."""
    return charges.astype("<i8").tobytes()


def _repeated(connection: Connection, written: dict[str, Entry], request: Request, kind: str) -> Reserved:
    entry = written.get(kind)
    if entry is None or entry.meta["request"] != request.digest:
        raise InvalidInput(
            f"run_id is {request.run!r}, which the ledger has with other members, charges or caps; give every use an "
            "id of its own"
        )
    if "settle" in written:
        raise InvalidInput(
            f"run {request.run!r} is settled, so nothing more may be released on its account; give a new use an id "
            "of its own"
        )
    numbers, values = people(entries.rows_of(connection, entry.seq))
    return Reserved(
        entry, request.members.numbers, values[0][np.searchsorted(numbers, request.members.numbers)], repeated=True
    )


def reservation(connection: Connection, run: str) -> Reserved:
    """What was reserved for a run, its people by rising number."""
    entry = entries.of_run(connection, run).get("reserve")
    if entry is None:
        raise InvalidInput(
            f"run_id is {run!r}, for which nothing was reserved here; `privypurse ledger runs` or Ledger.runs() "
            "lists what there is"
        )
    numbers, values = people(entries.rows_of(connection, entry.seq))
    return Reserved(entry, numbers, values[0], repeated=True)


@dataclass(frozen=True)
class Settled:
    """What settling wrote. ``rounding`` is the largest share of anybody's purse that rounding up took."""

    repeated: bool
    rounding: float


def settle(
    connection: Connection, lifetime: Lifetime, reserved: Reserved, charges: Any, class_of: Any, said: dict[str, Any]
) -> Settled:
    """Replace a reservation by what was really taken, nobody's more than was reserved.

    ``charges`` None: all that was reserved. In the caller's transaction.
    """
    run = reserved.entry.run
    assert run is not None
    table, values, request = _asked(lifetime, reserved, charges, class_of)
    there = entries.of_run(connection, run)
    if "reserve" not in there or there["reserve"].hash != reserved.entry.hash:
        raise PrivyPurseError(f"run {run!r} was reserved in another ledger or copy of it; settle it there")
    before = there.get("settle")
    if before is not None:
        if before.meta["request"] != request:
            raise PrivyPurseError(f"run {run!r} is settled already, and otherwise; what is spent stays spent")
        return Settled(True, float(before.meta["rounding"]))
    held = reserved.entry.charged(reserved.values[None], lifetime.columns)
    cost = [np.append(column, 0).take(values, mode="clip") for column in table.T]
    for own, most in zip(cost, held, strict=True):
        if (own > most).any():
            raise PrivyPurseError(
                f"settling run {run!r} would charge more than was reserved, so nothing was written; what is released "
                "has to be reserved before, and who was not admitted contributes nothing"
            )
    order, meta = np.argsort(reserved.numbers, kind="stable"), {**said, "request": request, "rounding": 0.0}
    written, classes = values[None].astype(np.uint16), table.astype("<i8").tobytes()
    if len(table) > MOST_CLASSES:
        parts, written, taken = rounded_up(cost, held)
        classes = np.concatenate(parts).astype("<i8").tobytes()
        meta |= {"lengths": [part.size for part in parts]}
        # At the order of a rung below their own people may have paid more than that rung holds: it limits them not.
        shares = [
            float(lost[most <= rung.limit].max(initial=0)) / rung.limit
            for rung, lost, most in zip(lifetime.rungs, taken, held, strict=False)
        ]
        meta["rounding"] = max(shares)
    entries.append(
        connection,
        "settle",
        meta,
        encoded(reserved.numbers[order], written[:, order]),
        run=run,
        classes=classes,
    )
    return Settled(False, meta["rounding"])


def _asked(lifetime: Lifetime, reserved: Reserved, charges: Any, class_of: Any) -> tuple[IntArray, AnyArray, str]:
    """The table of charges, everybody's row of it, and a digest of both."""
    if charges is None:
        if class_of is not None:
            raise InvalidInput(
                "class_of is given without charges; give both, or neither to charge all that is reserved"
            )
        content = np.frombuffer(reserved.entry.classes or b"", dtype="<i8").astype(np.int64)
        return content.reshape(-1, lifetime.columns), reserved.values.astype(np.int64), "reserved"
    table = checked_charges(charges, lifetime.columns)
    each = checked_classes(class_of, reserved.numbers.size, len(table))
    order = np.argsort(reserved.numbers, kind="stable")
    digest = digest_of_arrays(reserved.numbers[order], table, each[order])
    return table, np.where(each < 0, max(NOTHING, len(table)), each), digest

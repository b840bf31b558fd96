"""Where people stand: what they granted and what was taken, out of the entries since the latest snapshot.

A snapshot is a cache of the sums of one block, marked under the ledger's key; one that does not bear its mark, or is
of another chain, is passed over. `verify` derives everything anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
from privypurse.ledger import entries, schema
from privypurse.ledger.blocks import SIZE, UNLISTED, Values, decoded, places
from privypurse.ledger.entries import Entry
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import CEILING, Lifetime, added

NOBODY = 255
"""The rung of a place that nobody has."""
WITHDRAWN, FORGOTTEN, FROZEN = 1, 2, 4
_STATUS = {"withdraw": WITHDRAWN, "forget": FORGOTTEN, "freeze": FROZEN}
NEVER = 2**63 - 1
SNAPSHOT_EVERY = 8
"""Rows of a block after which its sums are written down."""
_CHUNK = 64  # blocks read at once

_WANTED: sa.BindParameter[Any] = sa.bindparam("numbers", expanding=True)
_ROWS_SINCE = sa.select(schema.block.c.entry, schema.block.c.number, schema.block.c.payload).where(
    schema.block.c.number.in_(_WANTED), schema.block.c.entry > sa.bindparam("least")
)
_ROWS_OF = sa.select(schema.block.c.number, schema.block.c.payload).where(
    schema.block.c.number.in_(_WANTED), schema.block.c.entry == sa.bindparam("entry")
)
_SNAPSHOTS = (
    sa.select(schema.snapshot, schema.entry.c.hash)
    .join(schema.entry, schema.entry.c.seq == schema.snapshot.c.entry)
    .where(schema.snapshot.c.number.in_(_WANTED))
)


class Standing:
    """Everybody in some blocks, after the latest entry: one place for each, block after block."""

    def __init__(self, blocks: IntArray, lifetime: Lifetime) -> None:
        self.blocks, self.lifetime = blocks, lifetime
        places = blocks.size * SIZE
        self.rung: npt.NDArray[np.uint8] = np.full(places, NOBODY, dtype=np.uint8)
        self.status: npt.NDArray[np.uint8] = np.zeros(places, dtype=np.uint8)
        self.until: IntArray = np.full(places, NEVER, dtype=np.int64)
        self.spent: IntArray = np.zeros((lifetime.columns, places), dtype=np.int64)
        self.capped: IntArray = np.zeros((lifetime.columns, places), dtype=np.int64)
        self.reserved: IntArray = np.zeros((lifetime.columns, places), dtype=np.int64)
        self.rows_since_snapshot = 0

    def places(self, numbers: IntArray) -> IntArray:
        """Where people of these numbers stand in the arrays."""
        return places(self.blocks, numbers)

    def active(self, time: int) -> AnyArray:
        """Who has granted, and may be charged at this time."""
        return np.asarray((self.status == 0) & (self.rung != NOBODY) & (self.until > time))

    def limits(self, column: int) -> IntArray:
        """What the sum of each person at this column may reach."""
        return np.append(self.lifetime.limits[:, column], 0).take(self.rung, mode="clip")

    def apply(self, entry: Entry, rows: Sequence[tuple[int, bytes]]) -> None:
        """Go on by what an entry did to these blocks."""
        for at, values in decoded(rows, self.blocks):
            self._apply(entry, at, values)

    def _apply(self, entry: Entry, at: IntArray | slice, values: Values) -> None:
        match entry.kind:
            case "join" | "consent":
                self._grant(at, values[0], int(entry.meta.get("valid_until", NEVER)))
            case "withdraw" | "forget" | "freeze":
                listed = values[0] != UNLISTED
                self.status[at] |= np.where(listed, _STATUS[entry.kind], 0).astype(np.uint8)
            case "reserve":
                self._cap(entry, at, values)
            case "settle":
                self._charge(self.spent, entry, at, values)
            case "charge":
                self._cap(entry, at, values)
                self._charge(self.spent, entry, at, values)

    def _grant(self, at: IntArray | slice, values: Values, until: int) -> None:
        listed = values != UNLISTED
        self.rung[at] = np.where(listed, values.astype(np.uint8), self.rung[at])
        self.status[at] = np.where(listed, self.status[at] & FROZEN, self.status[at])
        self.until[at] = np.where(listed, until, self.until[at])

    def _cap(self, entry: Entry, at: IntArray | slice, values: Values) -> None:
        listed, rung = values[0] != UNLISTED, self.rung[at]
        for column, caps in enumerate(np.asarray(entry.meta["caps"], dtype=np.int64).T):
            each = np.append(caps, 0).take(rung, mode="clip")
            self.capped[column, at] = added(self.capped[column, at], np.where(listed, each, 0))

    def _charge(self, sums: IntArray, entry: Entry, at: IntArray | slice, values: Values) -> None:
        for column, charged in enumerate(entry.charged(values, self.lifetime.columns)):
            sums[column, at] = added(sums[column, at], charged)

    def reserve(self, entry: Entry, rows: Sequence[tuple[int, bytes]]) -> None:
        """Count a reservation that is open."""
        for at, values in decoded(rows, self.blocks):
            self._charge(self.reserved, entry, at, values)

    def packed(self, position: int) -> bytes:
        """The sums of one block, for a snapshot."""
        at = slice(position * SIZE, (position + 1) * SIZE)
        numbers = np.concatenate([self.until[None, at], self.spent[:, at], self.capped[:, at]])
        return self.rung[at].tobytes() + self.status[at].tobytes() + numbers.astype("<i8").tobytes()

    def unpack(self, position: int, content: bytes) -> None:
        at, columns = slice(position * SIZE, (position + 1) * SIZE), self.lifetime.columns
        self.rung[at] = np.frombuffer(content, np.uint8, SIZE)
        self.status[at] = np.frombuffer(content, np.uint8, SIZE, SIZE)
        numbers = np.frombuffer(content, "<i8", offset=2 * SIZE).reshape(1 + 2 * columns, SIZE)
        self.until[at], self.spent[:, at], self.capped[:, at] = (
            numbers[0],
            numbers[1 : 1 + columns],
            numbers[1 + columns :],
        )


def load(connection: Connection, lifetime: Lifetime, blocks: IntArray, key: Key | None) -> Standing:
    """The people of these blocks (rising numbers), as they stand after the latest entry."""
    whole = Standing(blocks, lifetime)
    known: dict[int, Entry] = {}
    opened = entries.open_runs(connection)
    for begin in range(0, blocks.size, _CHUNK):
        part = _chunk(connection, whole, blocks[begin : begin + _CHUNK], key, known, opened)
        at = slice(begin * SIZE, (begin + part.blocks.size) * SIZE)
        whole.rung[at], whole.status[at], whole.until[at] = part.rung, part.status, part.until
        whole.spent[:, at], whole.capped[:, at], whole.reserved[:, at] = part.spent, part.capped, part.reserved
        whole.rows_since_snapshot = max(whole.rows_since_snapshot, part.rows_since_snapshot)
    return whole


def _chunk(
    connection: Connection,
    whole: Standing,
    blocks: IntArray,
    key: Key | None,
    known: dict[int, Entry],
    opened: Sequence[Entry],
) -> Standing:
    part = Standing(blocks, whole.lifetime)
    seen = _from_snapshots(connection, part, key) if key else {}
    numbers = blocks.tolist()
    least = min(seen.get(number, 0) for number in numbers)
    rows = connection.execute(_ROWS_SINCE, {"numbers": numbers, "least": least}).all()
    fresh = [(seq, number, bytes(payload)) for seq, number, payload in rows if seq > seen.get(number, 0)]
    fresh.sort(key=itemgetter(0, 1))
    missing = {seq for seq, _, _ in fresh} - known.keys()
    known.update(entries.numbered(connection, missing))
    since = 0
    for seq, group in groupby(fresh, key=itemgetter(0)):
        part.apply(known[seq], [(number, payload) for _, number, payload in group])
        since += 1
    part.rows_since_snapshot = since
    for entry in opened:
        found = connection.execute(_ROWS_OF, {"numbers": numbers, "entry": entry.seq})
        content = sorted((number, bytes(payload)) for number, payload in found)
        if content:
            part.reserve(entry, content)
    return part


def _mark(key: Key, number: int, seq: int, hashed: bytes, payload: bytes) -> bytes:
    return key.mark(b"%d %d " % (number, seq) + hashed + payload)


def _from_snapshots(connection: Connection, part: Standing, key: Key) -> dict[int, int]:
    """Take the sums that are there; for each block so found the entry they go up to."""
    found = connection.execute(_SNAPSHOTS, {"numbers": part.blocks.tolist()}).all()
    seen = {}
    for row in found:
        payload = bytes(row.payload)
        if _mark(key, row.number, row.entry, bytes(row.hash), payload) == bytes(row.mark):
            part.unpack(int(np.searchsorted(part.blocks, row.number)), payload)
            seen[row.number] = row.entry
    return seen


def write_snapshots(connection: Connection, standing: Standing, key: Key) -> None:
    """Write down the sums of these blocks as of the latest entry."""
    head = entries.last(connection)
    assert head is not None
    numbers = standing.blocks.tolist()
    connection.execute(schema.snapshot.delete().where(schema.snapshot.c.number.in_(numbers)))
    content = []
    for position, number in enumerate(numbers):
        payload = standing.packed(position)
        mark = _mark(key, number, head.seq, head.hash, payload)
        content.append({"number": number, "entry": head.seq, "payload": payload, "mark": mark})
    connection.execute(schema.snapshot.insert(), content)


def room(standing: Standing, places: IntArray, *, public: bool) -> IntArray:
    """[people, columns]: how much each may still be charged; the ceiling where nothing limits."""
    taken = standing.capped if public else added(standing.spent, standing.reserved)
    left = np.empty((places.size, standing.lifetime.columns), dtype=np.int64)
    for column in range(standing.lifetime.columns):
        limit = standing.limits(column)[places]
        left[:, column] = np.where(limit == CEILING, CEILING, np.maximum(limit - taken[column, places], 0))
    return left

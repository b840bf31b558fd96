"""What was written, entry by entry: appended under the writer's lock, never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.ledger import schema
from privypurse.ledger.blocks import Row
from privypurse.ledger.chain import FIRST, canonical, entry_hash

CONSENT = ("join", "consent", "withdraw", "forget", "freeze")
"""Kinds of entries that say who may be charged."""
TODAY = "PRIVYPURSE_LEDGER_TODAY"
"""The environment variable by which somebody confirms what day it is, in UTC, for a ledger that was left for long."""
_A_DAY = 86_400 * 10**6  # microseconds
_LONG = 400 * _A_DAY
_AT_ONCE = 500  # parameters of one statement

_COLUMNS = (
    schema.entry.c.seq,
    schema.entry.c.time,
    schema.entry.c.kind,
    schema.entry.c.run,
    schema.entry.c.meta,
    schema.entry.c.classes,
    schema.entry.c.hash,
)


def now() -> int:
    """Microseconds since 1970, by this machine's clock."""
    return time_ns() // 1000


def moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Entry:
    seq: int
    time: int
    kind: str
    run: str | None
    meta: dict[str, Any]
    classes: bytes | None
    hash: bytes

    def charged(self, values: AnyArray, columns: int) -> list[IntArray]:
        """What people with these values are charged at each column.

        Values are either a row, everybody's class, which stands for a charge at every column, or a row for each
        column. Who pays nothing has a value beyond the table.
        """
        content: IntArray = np.frombuffer(self.classes or b"", dtype="<i8").astype(np.int64, copy=False)
        if "lengths" in self.meta:
            tables = np.split(content, np.cumsum(self.meta["lengths"])[:-1])
        else:
            tables = list(content.reshape(-1, columns).T)
        each = np.broadcast_to(values, (columns, values.shape[1]))
        return [_looked_up(table, value) for table, value in zip(tables, each, strict=True)]


def _looked_up(table: IntArray, classes: AnyArray) -> IntArray:
    """The charge of each class; 0 beyond the table."""
    if table.size > 0 and classes.size < table.size:  # then a copy of the table would take longer
        return np.asarray(np.where(classes < table.size, table.take(classes, mode="clip"), 0))
    return np.append(table, 0).take(classes, mode="clip")


def _entry(row: Any) -> Entry:
    seq, when, kind, run, meta, classes, hashed = row
    return Entry(seq, when, kind, run, json.loads(meta), None if classes is None else bytes(classes), bytes(hashed))


@dataclass(frozen=True)
class Head:
    """How far the chain has come."""

    seq: int
    time: int
    hash: bytes


# Statements are made once: to put them together takes longer than to run them.
_LAST = (
    sa.select(schema.entry.c.seq, schema.entry.c.time, schema.entry.c.hash)
    .order_by(schema.entry.c.seq.desc())
    .limit(1)
)


def last(connection: Connection) -> Head | None:
    row = connection.execute(_LAST).first()
    return None if row is None else Head(row.seq, row.time, bytes(row.hash))


def of_run(connection: Connection, run: str) -> dict[str, Entry]:
    """What was written about a run, by kind."""
    found = connection.execute(sa.select(*_COLUMNS).where(schema.entry.c.run == run))
    return {row.kind: _entry(row) for row in found}


def of_kinds(connection: Connection, *kinds: str) -> list[Entry]:
    found = connection.execute(
        sa.select(*_COLUMNS).where(schema.entry.c.kind.in_(kinds)).order_by(schema.entry.c.seq)
    )
    return [_entry(row) for row in found]


_NUMBERED = sa.select(*_COLUMNS).where(schema.entry.c.seq.in_(sa.bindparam("seqs", expanding=True)))


def numbered(connection: Connection, seqs: Iterable[int]) -> dict[int, Entry]:
    """The entries of these numbers."""
    wanted = sorted(set(seqs))
    out: dict[int, Entry] = {}
    for begin in range(0, len(wanted), _AT_ONCE):
        for row in connection.execute(_NUMBERED, {"seqs": wanted[begin : begin + _AT_ONCE]}):
            out[row.seq] = _entry(row)
    return out


_SETTLED = schema.entry.alias()
_OPEN = sa.select(*_COLUMNS).where(
    schema.entry.c.kind == "reserve",
    ~sa.exists().where(_SETTLED.c.run == schema.entry.c.run, _SETTLED.c.kind == "settle"),
)


def open_runs(connection: Connection) -> list[Entry]:
    """Reservations that are not settled."""
    return sorted(map(_entry, connection.execute(_OPEN)), key=lambda entry: entry.seq)


def consent_counter(connection: Connection) -> int:
    """Rises whenever somebody's consent changes."""
    latest = sa.select(sa.func.max(schema.entry.c.seq)).where(schema.entry.c.kind.in_(CONSENT))
    return int(connection.execute(latest).scalar() or 0)


def rows_of(connection: Connection, seq: int) -> list[Row]:
    found = connection.execute(
        sa.select(schema.block.c.number, schema.block.c.payload)
        .where(schema.block.c.entry == seq)
        .order_by(schema.block.c.number)
    )
    return [(number, bytes(payload)) for number, payload in found]


def time_now(connection: Connection) -> int:
    """Never earlier than the latest entry, wherever a clock has gone."""
    head = last(connection)
    return not_before(0 if head is None else head.time)


def not_before(latest: int) -> int:
    return max(now(), latest)


def _refuse_wrong_clock(latest: int, when: int) -> None:
    """No entry long after the latest one, unless its day is confirmed: no later entry can have an earlier time."""
    if when - latest <= _LONG:
        return
    today = moment(when).date().isoformat()
    if os.environ.get(TODAY) != today:
        raise InvalidInput(
            f"by this machine's clock it is {today}, {(when - latest) // _A_DAY:,} days after the ledger's latest "
            f"entry ({moment(latest).date()}), and an entry by a wrong clock would end dated consents for good. "
            "Nothing was written. Set the clock right; if it is, confirm the day by the environment variable "
            f"{TODAY}={today}"
        )


def append(
    connection: Connection,
    kind: str,
    meta: dict[str, Any],
    rows: Sequence[Row] = (),
    *,
    run: str | None = None,
    classes: bytes | None = None,
    after: int = 0,
    time: int | None = None,
) -> Entry:
    """Write the next entry; its number is larger than ``after``. The caller holds the writer's lock.

    ``time`` is when it was decided (see `time_now`), if anything hung on that.
    """
    before = last(connection)
    previous = FIRST if before is None else before.hash
    seq = max(after, 0 if before is None else before.seq) + 1
    when = not_before(0 if before is None else before.time) if time is None else time
    if before is not None:
        _refuse_wrong_clock(before.time, when)
    text = canonical(meta)
    hashed = entry_hash(previous, seq, when, kind, run, text, classes, rows)
    connection.execute(
        schema.entry.insert().values(
            seq=seq, time=when, kind=kind, run=run, meta=text, classes=classes, previous=previous, hash=hashed
        )
    )
    if rows:
        content = [{"number": number, "entry": seq, "payload": payload} for number, payload in rows]
        connection.execute(schema.block.insert(), content)
    return Entry(seq, when, kind, run, meta, classes, hashed)


def contains(connection: Connection, seq: int, hashed: bytes) -> bool:
    """Whether the chain has this entry."""
    found = connection.execute(sa.select(schema.entry.c.hash).where(schema.entry.c.seq == seq)).scalar()
    return found is not None and bytes(found) == hashed

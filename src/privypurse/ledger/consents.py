"""What is recorded beside a grant: its purpose, when it ends, who wrote it down; and what of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.ledger import entries, schema
from privypurse.ledger.blocks import SIZE, people, places
from privypurse.ledger.standing import NEVER

UNTIL_WITHDRAWN = "until withdrawn"
"""As ``valid_until``: without an end, also if there was one."""
BY_TABLE = "read from the table"
"""Who recorded a change of a grant where a table's own ledger follows the table."""
BEYOND_ALL = 1 << 32
"""More than the number of any rung, and of any person."""
_GRANTS = ("join", "consent")
_AT_ONCE = 64  # blocks

_ROWS = (
    sa.select(schema.block.c.entry, schema.block.c.number, schema.block.c.payload)
    .join(schema.entry, schema.entry.c.seq == schema.block.c.entry)
    .where(schema.entry.c.kind.in_(_GRANTS), schema.block.c.number.in_(sa.bindparam("numbers", expanding=True)))
    .order_by(schema.block.c.entry)
)


@dataclass(frozen=True)
class Consent:
    """What is said beside a grant. None: as it was recorded before; of somebody who joins: nothing, and no end."""

    purpose: str | None = None
    valid_until: int | None = None
    """Microseconds since 1970; NEVER where it does not end by itself."""
    recorded_by: str = ""
    from_table: bool = False
    """Whether a table of many people's consents said so, and not somebody for this person alone."""

    @classmethod
    def of(cls, purpose: Any, valid_until: Any, recorded_by: Any) -> Consent:
        for name, text in (("purpose", purpose), ("recorded_by", recorded_by)):
            if not isinstance(text, str | None) or (text is None and name != "purpose"):
                raise InvalidInput(f"{name} must be text, not {text!r}")
        return cls(purpose, microseconds(valid_until), recorded_by)

    def after(self, before: Consent) -> Consent:
        """Complete: what is not said is as before."""
        purpose = before.purpose if self.purpose is None else self.purpose
        until = before.valid_until if self.valid_until is None else self.valid_until
        return replace(self, purpose=purpose, valid_until=until)

    def meta(self) -> dict[str, Any]:
        """As an entry holds it: only what there is."""
        until = None if self.valid_until == NEVER else self.valid_until
        said = {"purpose": self.purpose, "recorded_by": self.recorded_by, "valid_until": until}
        said["table"] = self.from_table or None
        return {name: value for name, value in said.items() if value not in (None, "")}  # 0 is a moment, in 1970


NEW = Consent("", NEVER)
"""What is recorded for who has just joined and said nothing."""


def microseconds(moment: Any) -> int | None:
    """A time as the ledger keeps it: of a date the end of that day, in UTC as a time without a zone; None stays."""
    match moment:
        case None:
            return None
        case "" | "until withdrawn":
            return NEVER
        case str():
            try:
                moment = _end_of_day(moment.strip()) or datetime.fromisoformat(moment.strip())
            except ValueError:
                said = f"write a date as 2030-12-31, or {UNTIL_WITHDRAWN!r} for none"
                raise InvalidInput(f"valid_until is {moment!r}; {said}") from None
        case datetime():
            pass
        case date():
            moment = _end_of_day(moment.isoformat())
        case _:
            raise InvalidInput(f"valid_until is {moment!r}; give a date, a datetime or None")
    whole: datetime = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _end_of_day(text: str) -> datetime | None:
    """The last moment of a date; None for what is no date, or has a time."""
    try:
        return datetime.combine(date.fromisoformat(text), time.max)
    except ValueError:
        return None


def refuse_past(consent: Consent, now: int) -> None:
    """Raise for a grant that has ended before it is given."""
    if consent.valid_until is not None and consent.valid_until <= now:
        ended, today = map(entries.moment, (consent.valid_until, now))
        raise InvalidInput(
            f"valid_until is {ended:%Y-%m-%d %H:%M} UTC, which is past (it is {today:%Y-%m-%d %H:%M} UTC): nothing "
            f"would be allowed; name a later day, or {UNTIL_WITHDRAWN!r}"
        )


def recorded(connection: Connection, numbers: IntArray) -> tuple[list[Consent], AnyArray]:
    """What is recorded beside the latest grants of these people: the different ones, and for each person which."""
    found, which = _latest(connection, numbers)
    each = [_read(entry.meta) for entry in found]
    place = {one: number for number, one in enumerate(dict.fromkeys(each))}
    return list(place), np.array([place[one] for one in each], dtype=np.int64)[which]


def said_otherwise(connection: Connection, numbers: IntArray, recorders: AnyArray) -> IntArray:
    """For each of these people the rung that they said last by another way than a table of this recorder: alone, or
    by a table that somebody else recorded. BEYOND_ALL where they said nothing so, or nothing since they joined.
    """
    blocks = np.unique(numbers // SIZE)
    ours, said = np.empty(blocks.size * SIZE, dtype=object), np.full(blocks.size * SIZE, BEYOND_ALL, dtype=np.int64)
    ours[places(blocks, numbers)] = recorders
    beside = {entry.seq: entry.meta for entry in entries.of_kinds(connection, *_GRANTS)}
    for seq, listed, rungs in _granted(connection, blocks):
        meta, where = beside[seq], places(blocks, listed)
        otherwise = listed < meta.get("new", {}).get("first", BEYOND_ALL)  # whoever stands behind has just joined
        recorder = meta.get("recorded_by", "")
        if "table" in meta or recorder == BY_TABLE:  # the mark is younger than BY_TABLE
            otherwise &= np.not_equal(ours[where], recorder).astype(bool)
        said[where[otherwise]] = rungs[otherwise]
    return np.asarray(said[places(blocks, numbers)])


def _latest(connection: Connection, numbers: IntArray) -> tuple[list[entries.Entry], AnyArray]:
    """The latest grants of these people: the different entries, and for each person which."""
    blocks = np.unique(numbers // SIZE)
    latest = np.zeros(blocks.size * SIZE, dtype=np.int64)
    for seq, listed, _ in _granted(connection, blocks):
        latest[places(blocks, listed)] = seq
    seqs, which = np.unique(latest[places(blocks, numbers)], return_inverse=True)
    found = entries.numbered(connection, seqs.tolist())
    return [found[seq] for seq in seqs.tolist()], which


def _granted(connection: Connection, blocks: IntArray) -> Iterator[tuple[int, IntArray, AnyArray]]:
    """What was granted in these blocks, for everybody in order of time: the entry's number, people and rungs."""
    for begin in range(0, blocks.size, _AT_ONCE):
        some = blocks[begin : begin + _AT_ONCE].tolist()
        for seq, number, payload in connection.execute(_ROWS, {"numbers": some}):
            listed, values = people([(number, bytes(payload))])
            yield seq, listed, values[0]


def groups(which: AnyArray) -> Iterator[tuple[int, IntArray]]:
    """Each number in ``which``, and where it is."""
    order = np.argsort(which, kind="stable")
    numbers, first = np.unique(which[order], return_index=True)
    ends = [*first[1:].tolist(), order.size][: numbers.size]
    for number, begin, end in zip(numbers.tolist(), first.tolist(), ends, strict=True):
        yield number, order[begin:end]


def _read(meta: dict[str, Any]) -> Consent:
    return Consent(meta.get("purpose", ""), meta.get("valid_until", NEVER))

"""What happened: to one person, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.ledger import entries, schema
from privypurse.ledger.blocks import SIZE, people
from privypurse.ledger.entries import Entry, moment
from privypurse.ledger.lifetime import Lifetime

_OF_OTHERS = ("request", "new", "lengths", "rounding")
"""What an entry says of everybody together: no part of one person's history."""


@dataclass(frozen=True)
class Event:
    """One entry about one person. Of other people it says nothing."""

    entry: int
    time: datetime
    kind: str
    """join, consent, withdraw, forget, freeze, reserve, settle, or charge."""
    run: str | None
    rung: int | None
    """The rung granted, of a join or consent; of a forget, the one held last."""
    charged: tuple[int, ...] | None
    """Units at each column, of a reserve, settle or charge; of a forget, all that was charged before."""
    meta: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One use of people's data, as far as it is public."""

    run_id: str
    what: str
    purpose: str
    at_most: float | None
    reserved: datetime
    settled: datetime | None
    recovered: bool


def of_person(connection: Connection, lifetime: Lifetime, number: int) -> list[Event]:
    """What happened to somebody, oldest first; what was before they were forgotten only as a sum."""
    return _without_what_is_forgotten(_all_of_person(connection, lifetime, number), lifetime.columns)


def _all_of_person(connection: Connection, lifetime: Lifetime, number: int) -> list[Event]:
    found = connection.execute(
        sa.select(schema.block.c.entry, schema.block.c.payload).where(schema.block.c.number == number // SIZE)
    ).all()
    about = {}
    for seq, payload in found:
        numbers, values = people([(number // SIZE, bytes(payload))])
        place = int(np.searchsorted(numbers, number))
        if place < numbers.size and numbers[place] == number:
            about[seq] = values[:, place : place + 1]
    events = []
    for seq, entry in sorted(entries.numbered(connection, about).items()):
        grants = entry.kind in ("join", "consent")
        pays = entry.kind in ("reserve", "settle", "charge")
        charged = entry.charged(about[seq], lifetime.columns) if pays else ()
        events.append(
            Event(
                entry=seq,
                time=moment(entry.time),
                kind=entry.kind,
                run=entry.run,
                rung=int(about[seq][0, 0]) if grants else None,
                charged=tuple(int(column[0]) for column in charged) if pays else None,
                meta={name: value for name, value in entry.meta.items() if name not in _OF_OTHERS},
            )
        )
    return events


def _without_what_is_forgotten(events: list[Event], columns: int) -> list[Event]:
    """All up to where somebody was forgotten last as one event, with what was spent and the rungs it is held to.

    So are runs that began before and are settled later, and those that listed them while they were out.
    """
    forgotten = [place for place, event in enumerate(events) if event.kind == "forget"]
    if not forgotten:
        return events
    back = [place for place, event in enumerate(events) if event.rung is not None and place > forgotten[-1]]
    until = back[0] if back else len(events)
    old_runs = {event.run for event in events[:until] if event.run is not None}
    old = [event for place, event in enumerate(events) if place < until or event.run in old_runs]
    charged = {event.run: event.charged for event in old if event.charged is not None}
    rungs = [event.rung for event in old if event.rung is not None]
    ended = {event.run for event in old if event.kind in ("settle", "charge")}
    stump = replace(
        events[forgotten[-1]],
        rung=rungs[-1],
        charged=tuple(sum(units[column] for units in charged.values()) for column in range(columns)),
        meta={
            "highest": max(rungs),
            "frozen": any(event.kind == "freeze" for event in old),
            "settled": ended >= old_runs,
        },
    )
    return [stump, *(event for event in events[until:] if event.run not in old_runs)]


def was_frozen(events: Sequence[Event]) -> bool:
    """Whether somebody with this history is frozen, for good: also from before they were forgotten."""
    return any(event.kind == "freeze" or event.meta.get("frozen") for event in events)


def runs(connection: Connection) -> list[Run]:
    found = entries.of_kinds(connection, "reserve", "settle", "charge")
    settled = {entry.run: entry for entry in found if entry.kind == "settle"}
    return [_run(entry, settled.get(entry.run)) for entry in found if entry.kind != "settle"]


def run(connection: Connection, run_id: str) -> Run | None:
    """One of them; None where there is no such run."""
    found = entries.of_run(connection, run_id)
    begun = found.get("reserve") or found.get("charge")
    return None if begun is None else _run(begun, found.get("settle"))


def _run(entry: Entry, settled: Entry | None) -> Run:
    end = entry if entry.kind == "charge" else settled
    return Run(
        run_id=str(entry.run),
        what=entry.meta["what"],
        purpose=entry.meta["purpose"],
        at_most=entry.meta["at_most"],
        reserved=moment(entry.time),
        settled=None if end is None else moment(end.time),
        recovered=bool(end is not None and end.meta.get("recovered")),
    )

"""How far a run has come, in the ledger itself: its steps, or rounds, are handed out there, each once.

A count in a folder goes back with an older copy of the folder. So whoever works on a run is a *holder* with a name
of their own, and before step k is released the ledger says that k or more have begun. Nothing is released twice,
whatever becomes of folders: counts rise, a holder releases only steps between the count that it found and the one
that it wrote, and every holder begins where the latest one ended, since writers come one after another. A crash
between an entry and its steps loses those steps and nothing else. A holder that stops in good order, and releases
nothing more, gives back what it did not take.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.errors import InvalidInput
from privypurse.ledger import entries, schema

_KIND = "begin"


@dataclass(frozen=True)
class Begun:
    """How many steps of a run have begun, or may have, and who was handed the latest: those after ``since``."""

    count: int
    holder: str
    since: int


_LATEST = (
    sa.select(schema.entry.c.meta)
    .where(schema.entry.c.kind == _KIND, schema.entry.c.seq > sa.bindparam("reserved"))
    .order_by(schema.entry.c.seq.desc())
)


def of(connection: Connection, run: str) -> Begun | None:
    """As the latest entry says; None where nobody has taken the run over."""
    reserved = entries.of_run(connection, run).get("reserve")
    if reserved is None:
        return None
    with connection.execute(_LATEST, {"reserved": reserved.seq}) as found:
        for (text,) in found:
            meta = json.loads(text)
            if meta["run"] == run:
                return Begun(int(meta["count"]), str(meta["holder"]), int(meta["since"]))
    return None


def take_over(connection: Connection, run: str, holder: str, known: Sequence[str]) -> int:
    """From now on ``holder`` is handed the run's steps, and nobody else; how many have begun.

    ``known`` are the holders that the caller's folder has had. If the latest is none of them the run went on from
    another copy of the folder, and is refused: sound it would be, but the folder's model is not the run's.
    """
    _require_open(connection, run)
    latest = of(connection, run)
    if latest is not None and latest.holder not in known:
        raise InvalidInput(
            f"run {run!r} went on elsewhere, from another copy of this folder: {latest.count:,} steps or rounds of "
            "it have begun. Go on with that copy"
        )
    count = 0 if latest is None else latest.count
    _write(connection, run, Begun(count, holder, count))
    return count


def begin(connection: Connection, run: str, holder: str, count: int) -> None:
    """Hand out the steps up to ``count``, or take back those beyond it, which will not be released."""
    _require_open(connection, run)
    since = require_holder(connection, run, holder).since
    if count < since:
        raise InvalidInput(f"count is {count}, and {since} of run {run!r} had begun before; they stay so")
    _write(connection, run, Begun(int(count), holder, since))


def require_holder(connection: Connection, run: str, holder: str) -> Begun:
    """What was handed to the holder; raise if somebody else has taken the run over."""
    latest = of(connection, run)
    if latest is None or latest.holder != holder:
        raise InvalidInput(
            f"run {run!r} went on elsewhere, from a copy of its folder, while it was under way here; nothing more is "
            "released here. Go on there"
        )
    return latest


def _require_open(connection: Connection, run: str) -> None:
    written = entries.of_run(connection, run)
    if "reserve" not in written:
        raise InvalidInput(f"run_id is {run!r}, for which nothing was reserved here; reserve before anything begins")
    if "settle" in written:
        raise InvalidInput(
            f"run {run!r} is settled in its ledger, so nothing more may be released on its account; give a new use "
            "an id of its own"
        )


def _write(connection: Connection, run: str, begun: Begun) -> None:
    entries.append(connection, _KIND, {"run": run, **vars(begun)})

"""Copies of a ledger: backups, exports, and going on from an old copy without giving anything back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from privypurse.ledger import anchors, entries, people, schema
from privypurse.ledger.blocks import Row
from privypurse.ledger.chain import Anchor, canonical, entry_hash
from privypurse.ledger.database import Database

_AT_ONCE = 1000  # rows
_FIELDS = ("seq", "time", "kind", "run", "meta")


@dataclass(frozen=True)
class Loss:
    """What going on with an old copy costs."""

    entries: int
    """That the copy lacks, and no export proves; at least 1 where anything is lost. Of a copy that was written on by
    itself it is not known how many."""
    frozen: int
    """People to whom nothing more is charged: everybody in the copy if entries are lost, else nobody."""
    people: bool
    """Whether new people were among the lost entries, or may have been: then nobody new can join."""


def backup(connection: Connection, path: str | Path) -> None:
    """Every row into a new SQLite file, with its triggers; snapshots are derived again."""
    target = Database(f"sqlite:///{Path(path).resolve()}")
    target.make_file()
    try:
        with target.writer() as copy:
            target.migrate(copy)
            for table in (schema.ledger, schema.person, schema.entry, schema.block):
                rows = connection.execution_options(yield_per=_AT_ONCE).execute(sa.select(table))
                for some in rows.mappings().partitions():
                    copy.execute(table.insert(), [dict(row) for row in some])
    except BaseException:
        target.remove_file()
        raise


def export(connection: Connection, path: str | Path) -> None:
    """The ledger's terms and then each entry, a JSON object a line; bytes in hexadecimal or Base64."""

    def fill(file: BinaryIO) -> None:
        row = connection.execute(sa.select(schema.ledger)).mappings().one()
        terms = {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
        file.write(canonical({"ledger": terms}).encode("ascii") + b"\n")
        seqs = connection.execute(sa.select(schema.entry.c.seq).order_by(schema.entry.c.seq)).scalars().all()
        for seq in seqs:
            file.write(canonical(_exported(connection, seq)).encode("ascii") + b"\n")

    replace_file(path, fill)


def _exported(connection: Connection, seq: int) -> dict[str, Any]:
    row = connection.execute(sa.select(schema.entry).where(schema.entry.c.seq == seq)).mappings().one()
    content: dict[str, Any] = {name: row[name] for name in _FIELDS}
    content |= {"previous": bytes(row["previous"]).hex(), "hash": bytes(row["hash"]).hex()}
    content["classes"] = None if row["classes"] is None else base64.b64encode(row["classes"]).decode("ascii")
    blocks = entries.rows_of(connection, seq)
    content["blocks"] = [[number, base64.b64encode(payload).decode("ascii")] for number, payload in blocks]
    if new := json.loads(row["meta"]).get("new"):
        among = schema.person.c.number.between(new["first"], new["first"] + new["count"] - 1)
        found = connection.execute(sa.select(schema.person.c.keyed).where(among).order_by(schema.person.c.number))
        content["keyed"] = [bytes(one).hex() for one in found.scalars()]
    return content


def anchor(connection: Connection) -> Anchor:
    """How far the chain has come, and where the latest new people joined it."""
    head = entries.last(connection)
    name = connection.execute(sa.select(schema.ledger.c.id)).scalar_one()
    assert head is not None
    joined = connection.execute(
        sa.select(schema.entry.c.seq, schema.entry.c.hash)
        .where(schema.entry.c.kind == "join")
        .order_by(schema.entry.c.seq.desc())
        .limit(1)
    ).first()
    latest = (0, "") if joined is None else (int(joined.seq), bytes(joined.hash).hex())
    return Anchor(name, head.seq, head.hash.hex(), *latest)


def recover(connection: Connection, kept: Anchor, export_path: str | Path | None, *, latest: bool) -> Loss:
    """Take in what an export proves; freeze everybody if that does not reach the anchor.

    ``latest`` says that the anchor followed every change. After that of a run's end anybody may have joined.
    """
    anchors.require_same_ledger(connection, kept)
    if anchors.contains(connection, kept.entry, kept.hash):
        raise InvalidInput("the ledger has the entry that its anchor names, so nothing is lost; open it")
    if export_path is not None:
        for content in _later_entries(connection, Path(export_path)):
            _take_in(connection, content)
    if anchors.contains(connection, kept.entry, kept.hash):
        return Loss(0, 0, False)
    head = entries.last(connection)
    assert head is not None
    lost = not latest or (kept.joined > 0 and not anchors.contains(connection, kept.joined, kept.joined_hash))
    entries.append(connection, "recover", {"anchor": kept.hash, "people_lost": lost}, after=kept.entry)
    people.freeze_everybody(connection)
    return Loss(max(1, kept.entry - head.seq), people.count(connection), lost)


def _later_entries(connection: Connection, path: Path) -> Iterator[dict[str, Any]]:
    """The entries of an export that follow the latest one here, checked."""
    head = entries.last(connection)
    assert head is not None
    previous = head.hash
    try:
        with path.open(encoding="ascii") as file:
            for line in file:
                content = json.loads(line)
                if "seq" not in content or content["seq"] <= head.seq:
                    continue
                blocks = _blocks(content)
                classes = None if content["classes"] is None else base64.b64decode(content["classes"])
                seq, time, kind, run, meta = (content[name] for name in _FIELDS)
                hashed = entry_hash(previous, seq, time, kind, run, meta, classes, blocks)
                if content["previous"] != previous.hex() or content["hash"] != hashed.hex():
                    raise InvalidInput(
                        f"entry {content['seq']} of {path} does not follow in the chain of this ledger; nothing was "
                        "taken from it. Leave the export out, or name a right one"
                    )
                previous = hashed
                yield content
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is no export of a ledger: {error}") from None


def _blocks(content: dict[str, Any]) -> list[Row]:
    return [(number, base64.b64decode(payload)) for number, payload in content["blocks"]]


def _take_in(connection: Connection, content: dict[str, Any]) -> None:
    row = {name: content[name] for name in _FIELDS}
    row |= {name: bytes.fromhex(content[name]) for name in ("previous", "hash")}
    row["classes"] = None if content["classes"] is None else base64.b64decode(content["classes"])
    connection.execute(schema.entry.insert().values(**row))
    if blocks := _blocks(content):
        rows = [{"number": number, "entry": row["seq"], "payload": payload} for number, payload in blocks]
        connection.execute(schema.block.insert(), rows)
    if new := json.loads(row["meta"]).get("new"):
        keyed = [bytes.fromhex(one) for one in content["keyed"]]
        if people.add(connection, new["first"], keyed) != new:
            raise InvalidInput(f"entry {row['seq']} of the export names other people than it had; name a right one")

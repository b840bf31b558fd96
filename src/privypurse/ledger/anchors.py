"""Anchors: kept outside of a ledger's database, they tell an old copy from the ledger.

A ledger has one file of its own, which follows every change; and every folder of a run has one that stays as it was
when the run ended. A file that is lost is not made again in silence: losing it is what somebody would do who wants to
put an old copy, with fuller purses, in the ledger's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.errors import InvalidInput
from privypurse.ledger import entries, schema
from privypurse.ledger.chain import Anchor

IN_RUNS = "anchor.json"
"""The anchor in the folder of a run."""


def file_of(path: str | Path) -> Path:
    """The file itself, where the folder of a run is named."""
    return Path(path) / IN_RUNS if Path(path).is_dir() else Path(path)


def follows(path: str | Path | None) -> Path | None:
    """The file that is to follow every change; that of a run stays as it is."""
    return None if path is None or Path(path).is_dir() else Path(path)


def beside(database: Path | None) -> Path | None:
    """The anchor that lies beside a ledger's file, as a private ledger has one: FILE.anchor, or purses.anchor."""
    if database is None:
        return None
    names = (f"{database.name}.anchor", database.with_suffix(".anchor").name)
    return next((path for name in names if (path := database.with_name(name)).is_file()), None)


def read(path: str | Path) -> Anchor:
    """What is kept in this file, or in the folder of a run."""
    file = file_of(path)
    if not file.exists():
        raise InvalidInput(
            f"the anchor {file} is not there. If it was lost, look for it: without it an old copy of the ledger "
            "cannot be told, and would fill purses again. The folder of any run under this ledger has one too, and "
            "can be named instead. A first one is made together with the ledger, or later, where this is the latest "
            "copy for certain, by Ledger.open(…, new_anchor=True) or `privypurse ledger verify --new-anchor`"
        )
    return Anchor.read(file)


def refuse_there_already(path: str | Path) -> None:
    """Raise where a new anchor would take the place of one."""
    if Path(path).is_dir() or Path(path).exists():
        raise InvalidInput(f"{path} is there already, so no new anchor can be made of it; name another file")


def begin(path: str | Path, anchor: Anchor) -> None:
    """Write a first anchor, which takes no one's place."""
    refuse_there_already(path)
    try:
        anchor.write(path)
    except OSError as error:
        raise InvalidInput(
            f"the anchor {path} cannot be written: {error.strerror or error}; name a file in a folder that exists"
        ) from None


def contains(connection: Connection, seq: int, hashed: str) -> bool:
    return entries.contains(connection, seq, bytes.fromhex(hashed))


def require(connection: Connection, kept: Anchor, path: str | Path) -> None:
    """Raise if this is another ledger, an older copy, or one that was written on beside the anchor's."""
    require_same_ledger(connection, kept)
    if contains(connection, kept.entry, kept.hash) or _was_recovered(connection, kept):
        return
    raise InvalidInput(
        f"this is an old or forked copy of the ledger: its anchor {file_of(path)} names entry {kept.entry:,}, which "
        "is not in it. Whatever was charged since would be given back. Restore the latest copy. If another copy was "
        "recovered by this anchor since, that one is the ledger now: go on with it, and put this one away. Else go "
        "on with this one by `privypurse ledger recover --anchor` (Ledger.recover_copy), which freezes everybody "
        "whom later entries do not prove"
    )


def require_same_ledger(connection: Connection, kept: Anchor) -> None:
    name = connection.execute(sa.select(schema.ledger.c.id)).scalar()
    if name != kept.ledger:
        raise InvalidInput(f"the anchor is of the ledger {kept.ledger}, and this one is {name}; name its own anchor")


def _was_recovered(connection: Connection, kept: Anchor) -> bool:
    """Whether the anchor's entry was lost with others, for which everybody was frozen since.

    A recovery leaves the numbers of the lost entries out. Whoever joined in them must have been counted as lost.
    """
    for entry in entries.of_kinds(connection, "recover"):
        if entry.meta["anchor"] == kept.hash:
            return True
        before = sa.select(sa.func.max(schema.entry.c.seq)).where(schema.entry.c.seq < entry.seq)
        among_lost = int(connection.execute(before).scalar_one()) < kept.entry < entry.seq
        known = kept.joined == 0 or contains(connection, kept.joined, kept.joined_hash)
        if among_lost and (known or entry.meta["people_lost"]):
            return True
    return False


def of_runs(folder: Path) -> Iterator[tuple[Path, Anchor]]:
    """The anchors in the folder of a run and in those beside it. What is no anchor is passed over."""
    for file in sorted({folder / IN_RUNS, *folder.resolve().parent.glob(f"*/{IN_RUNS}")}):
        try:
            yield file, Anchor.read(file)
        except InvalidInput:
            continue

"""Entries as a chain: each holds the hash of the one before, so that nothing is changed or left out unseen.

What cannot be seen from inside is that the *end* of the chain is missing: an old copy of the database is a sound
chain. So an *anchor*, the number and hash of the latest entry, is kept outside of it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privypurse._storage import replace_text
from privypurse.errors import InvalidInput

FIRST = bytes(32)


def canonical(content: Any) -> str:
    """JSON in the one way that is hashed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def entry_hash(
    previous: bytes,
    seq: int,
    time: int,
    kind: str,
    run: str | None,
    meta: str,
    classes: bytes | None,
    rows: Sequence[tuple[int, bytes]],
) -> bytes:
    """SHA-256 over the hash before, the fields, the charges of the classes and the blocks in order."""
    blocks = hashlib.sha256()
    for number, payload in rows:
        blocks.update(struct.pack(">qq", number, len(payload)))
        blocks.update(payload)
    whole = hashlib.sha256(previous)
    whole.update(hashlib.sha256(canonical([seq, time, kind, run, meta]).encode("ascii")).digest())
    whole.update(hashlib.sha256(classes or b"").digest())
    whole.update(blocks.digest())
    return whole.digest()


@dataclass(frozen=True)
class Anchor:
    """How far a ledger had come: kept elsewhere, it tells an old copy from the ledger."""

    ledger: str
    entry: int
    hash: str
    joined: int
    """The latest entry with which new people came; 0 where there is none."""
    joined_hash: str

    def write(self, path: str | Path) -> None:
        replace_text(path, canonical(vars(self)) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Anchor:
        try:
            said = json.loads(Path(path).read_text("utf-8"))
            anchor = cls(
                str(said["ledger"]),
                int(said["entry"]),
                str(said["hash"]),
                int(said["joined"]),
                str(said["joined_hash"]),
            )
            bytes.fromhex(anchor.hash), bytes.fromhex(anchor.joined_hash)
        except OSError as error:
            raise InvalidInput(
                f"the anchor {path} cannot be read: {error.strerror or error}; name the file"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(f"{path} is no anchor of a ledger; name the file that was written as one") from None
        return anchor

"""Which table a run was trained on: a keyed fingerprint, which proves it to whoever is given the key.

A plain digest of a small table can be guessed row by row. Under a key that stays in the house the fingerprint tells
nothing, and may be given to an auditor when the run ends; with key and table they can see later that it was this one.
Both files are internal: the public edition has no digest of data.
"""

from __future__ import annotations

import json
from pathlib import Path

from privypurse.budgets.person_ids import Seal
from privypurse.errors import InvalidInput
from privypurse.runs.folder import RunFolder

FINGERPRINT, KEY = "fingerprint.json", "fingerprint.key"
_ABOUT = (
    f"BLAKE2b of the table of people, byte for byte, under the key in {KEY}. The key stays in the house: with it the "
    "fingerprint can be compared with any table, and so can a guess of what the table says."
)


def add_fingerprint(folder: RunFolder, sealed: Seal) -> None:
    """Write both files, of the table as it was read."""
    folder.add_json(FINGERPRINT, {"about": _ABOUT, "table": sealed.digest.hex()})
    folder.add(KEY, sealed.key.hex() + "\n")


def fits(folder: RunFolder, table: Path) -> bool | None:
    """Whether this is the table, byte for byte; None where the folder has no fingerprint, or no key of it."""
    if FINGERPRINT not in folder.files or KEY not in folder.files:
        return None
    try:
        digest = bytes.fromhex(json.loads((folder.path / FINGERPRINT).read_text("utf-8"))["table"])
        key = bytes.fromhex((folder.path / KEY).read_text("ascii").strip())
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"the fingerprint in {folder.path} cannot be read: {error!r}") from None
    return Seal(key, digest).fits(table)

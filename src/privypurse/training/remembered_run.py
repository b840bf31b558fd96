"""Beside the journal of a run with a ledger: which run it is, who worked on it, and how far the ledger had come."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from privypurse._storage import make_folder, replace_text
from privypurse.errors import InvalidInput

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


@dataclass(frozen=True)
class RememberedRun:
    """A run of a ledger, by what its folder knows. Internal."""

    ledger: str
    run: str
    plan: str
    """The plan's fingerprint."""
    steps: int
    holders: tuple[str, ...] = ()
    """To whom the ledger handed its steps: the latest one here, and who was about to be when a process died."""
    whole: bool = False
    """Whether its steps have no price of their own: those of a schedule, and those that a filter decides about."""

    @classmethod
    def read(cls, journal: Path) -> RememberedRun | None:
        """None where nothing is remembered."""
        file = _beside(journal, "ledger")
        if not file.is_file():
            return None
        try:
            said = json.loads(file.read_text("utf-8"))
            ledger, run, plan = (str(said[name]) for name in ("ledger", "run", "plan"))
            return cls(ledger, run, plan, int(said["steps"]), tuple(map(str, said["holders"])), bool(said["whole"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{file} is damaged, so which run of the ledger this is is not known: {error!r}"
            ) from None

    @classmethod
    def of(cls, journal: Path | None, ledger: Ledger, plan: str, steps: int, *, whole: bool = False) -> RememberedRun:
        """The run that a journal counts, or a new one, written there before anything is reserved by it."""
        found = None if journal is None else cls.read(journal)
        if found is None:
            found = cls(ledger.id, f"train-{uuid.uuid4()}", plan, steps, whole=whole)
            if journal is not None:
                make_folder(journal.parent)
                found.write(journal)
        elif (found.ledger, found.plan) != (ledger.id, plan):
            raise InvalidInput(
                f"{journal} is of a run with another plan or ledger; give each run a folder of its own"
            )
        elif journal is not None and (anchor := anchor_of(journal)).is_file():
            ledger.require_anchor(anchor)
        return found

    def write(self, journal: Path) -> None:
        replace_text(_beside(journal, "ledger"), json.dumps(asdict(self)) + "\n")

    def held_by(self, *holders: str) -> RememberedRun:
        return replace(self, holders=holders)


def anchor_of(journal: Path) -> Path:
    """How far the ledger had come when this run last wrote to it."""
    return _beside(journal, "anchor")


def _beside(journal: Path, ending: str) -> Path:
    return journal.with_name(f"{journal.name}.{ending}")

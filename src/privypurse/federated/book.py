"""A client's book: which rounds it joined, what it answered. On disk, written before anything is sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput
from privypurse.pursefile import synchronise_folder

Update = dict[str, AnyArray]
_FILE = "joined.json"


class Book:
    """Counts the rounds that a client joined, and keeps each answer.

    Guarantee: a round is counted on disk before its first step, and the count never goes back; a second request for
    an answered round gets the same answer, bit for bit, or none at all if it comes with other parameters. A round
    that was begun and never answered (a crash) stays paid for; answering it anew is paid for again.
    """

    def __init__(self, folder: Path, terms: str, records: str) -> None:
        """``terms`` and ``records`` are fingerprints: a book belongs to one set of terms and one data set."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            synchronise_folder(folder.parent)
            self._lock: int | None = self._locked()
            self._process = os.getpid()
        except OSError as error:
            raise InvalidInput(f"{folder} cannot hold a book: {error}") from None
        try:
            self._content = self._opened(terms, records)
        except BaseException:
            self.close()
            raise

    def _opened(self, terms: str, records: str) -> dict[str, Any]:
        path = self.folder / _FILE
        if not path.exists():
            if any(self.folder.glob("answer-*")):
                raise InvalidInput(f"{path} is missing beside answers; what was spent is not known any more")
            fresh: dict[str, Any] = {"terms": terms, "records": records, "begun": [], "seen": 0, "from": {}}
            self.write(_FILE, fresh)
            return fresh
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            kept = {name: content[name] for name in ("terms", "records", "begun", "seen", "from")}
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path} is damaged ({error!r}); what was spent is not known any more") from None
        for name, wanted in (("terms", terms), ("records", records)):
            if kept[name] != wanted:
                what = name if name == "terms" else "records or budgets"
                mind = ", and mind that everybody's ε is spent again" if kept["begun"] else ""
                raise InvalidInput(f"{path} was begun with other {what}; take another folder{mind}")
        return kept

    def _locked(self) -> int:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # pragma: no cover - not on this system
            pass
        except OSError:
            os.close(handle)
            raise InvalidInput(f"{self.folder} is in use by another client; give each its own folder") from None
        return handle

    @property
    def joined(self) -> int:
        """How often a round was begun: what is paid for against the server."""
        return len(self._content["begun"])

    @property
    def seen(self) -> int:
        """How many rounds the server has held as far as is known, joined or not."""
        return int(self._content["seen"])

    def answer(self, number: int, state: str) -> Update | None:
        """What was answered in that round, if it was; ``state`` is a fingerprint of the parameters sent with it."""
        self._require_open()
        path = self._answer(number)
        if not path.exists():
            return None
        if self._content["from"].get(str(number)) != state:
            raise InvalidInput(
                f"round {number} was answered before, from other parameters; a server that begins anew needs new "
                "terms"
            )
        with np.load(path) as saved:
            return {name: saved[name] for name in saved.files}

    def begin(self, number: int, state: str) -> None:
        """Count a round, before anything is done for it."""
        self._require_open()
        self._content["begun"].append(number)
        self._content["from"][str(number)] = state
        self.note(number)

    def note(self, number: int) -> None:
        """The server has come to that round, whoever joins it."""
        self._require_open()
        self._content["seen"] = max(self.seen, number)
        self.write(_FILE, self._content)

    def keep(self, number: int, update: Update) -> None:
        """Keep an answer before it is sent."""
        self._require_open()
        fresh = self.folder / "answer.new"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **update)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._answer(number))
        synchronise_folder(self.folder)

    def _answer(self, number: int) -> Path:
        return self.folder / f"answer-{number}.npz"

    def read(self, name: str) -> Any:
        """A file of the folder that `write` wrote; None if there is none that can be read."""
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def write(self, name: str, content: Any) -> None:
        """Write a file of the folder as JSON, whole or not at all."""
        fresh = self.folder / f"{name}.new"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.folder / name)
        synchronise_folder(self.folder)

    def _require_open(self) -> None:
        if self._lock is None:
            raise InvalidInput("this client was closed; make another on the same folder")
        if self._process != os.getpid():
            # A fork inherits lock and count, and would count on its own.
            raise InvalidInput("this client belongs to the process that made it; make another after the fork")

    def close(self) -> None:
        """Let go of the folder. Twice does no harm."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

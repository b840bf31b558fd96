"""A client's book: which rounds it joined, what it answered. On disk, written before anything is sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from privypurse._storage import HeldFile, make_folder, replace_file, replace_text
from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

Update = dict[str, AnyArray]
_FILE = "book"


class Book:
    """Counts the rounds that a client joined, and keeps each answer.

    Guarantee: a round is counted on disk before its first step, and the count never goes back; a second request for
    an answered round gets the same answer, bit for bit, or none at all if it comes with other parameters. A round
    that was begun and never answered (a crash) stays paid for; answering it anew is paid for again. One client holds
    it at a time: the lock lies on the book itself (see `HeldFile`).
    """

    def __init__(self, folder: Path, terms: str, records: str) -> None:
        """``terms`` and ``records`` are fingerprints: a book belongs to one set of terms and one data set."""
        self.folder = folder
        try:
            make_folder(folder)
            self._refuse_remains()
            fresh: dict[str, Any] = {"terms": terms, "records": records, "begun": [], "seen": 0, "from": {}}
            busy = f"{folder} is in use by another client; give each its own folder"
            self._file = HeldFile(folder / _FILE, "book", _bytes(fresh), busy)
        except OSError as error:
            raise InvalidInput(f"{folder} cannot hold a book: {error}") from None
        self._process, self._closed = os.getpid(), False
        try:
            self._content: dict[str, Any] = json.loads(self._file.content)
            self._refuse_another(terms, records)
        except BaseException:
            self.close()
            raise

    def _refuse_remains(self) -> None:
        """What a book leaves behind if it is taken away; it is written first, so without it there is nothing."""
        if self.folder.is_dir() and not (self.folder / _FILE).exists():
            remains = [*self.folder.glob("answer-*"), *self.folder.glob("offer.json")]
            if remains:
                raise InvalidInput(
                    f"{self.folder / _FILE} is missing beside {remains[0].name}; what was spent is not known any "
                    "more. Put it back, or take another folder and mind that everybody's ε is spent again"
                )

    def _refuse_another(self, terms: str, records: str) -> None:
        for name, wanted in (("terms", terms), ("records", records)):
            if self._content[name] != wanted:
                what = name if name == "terms" else "records or budgets"
                mind = ", and mind that everybody's ε is spent again" if self._content["begun"] else ""
                raise InvalidInput(f"{self.folder / _FILE} was begun with other {what}; take another folder{mind}")

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
        self._write()

    @property
    def rates(self) -> Any:
        """What was kept by `keep_rates`; None if nothing was. It belongs to what the book belongs to."""
        return self._content.get("rates")

    def keep_rates(self, rates: Any) -> None:
        """Keep what was certified, since a client may be made for each message."""
        self._require_open()
        self._content["rates"] = rates
        self._write()

    def keep(self, number: int, update: Update) -> None:
        """Keep an answer before it is sent."""
        self._require_open()
        replace_file(self._answer(number), lambda file: np.savez(file, **update))  # type: ignore[arg-type]

    def keep_offer(self, offer: Any) -> None:
        """Write the offer beside the book, so that the account can be read later."""
        replace_text(self.folder / "offer.json", json.dumps(offer))

    def _answer(self, number: int) -> Path:
        return self.folder / f"answer-{number}.npz"

    def _write(self) -> None:
        self._file.write(_bytes(self._content))

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidInput("this client was closed; make another on the same folder")
        if self._process != os.getpid():
            # A fork inherits lock and count, and would count on its own.
            raise InvalidInput("this client belongs to the process that made it; make another after the fork")

    def close(self) -> None:
        """Let go of the folder. Twice does no harm."""
        self._closed = True
        self._file.close()


def _bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode("ascii")

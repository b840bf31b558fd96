"""A client's book: which rounds it joined, what it answered. On disk, written before anything is sent."""

from __future__ import annotations

import json
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from privypurse._storage import HeldFile, make_folder, replace_file, replace_text
from privypurse.errors import InvalidInput
from privypurse.federated.parameters import Update

_FILE = "book"


class Book:
    """Counts the rounds that a client joined, and keeps each answer.

    Guarantee: a round is counted on disk before its first step, and the count never goes back; a second request for
    an answered round gets the same answer, bit for bit, or none at all if it comes with other parameters. A round
    that was begun and never answered (a crash) stays paid for; answering it anew is paid for again. Which rounds a
    client's own coins keep it out of is written once, for all of them. One client holds it at a time: the lock lies
    on the book itself (see `HeldFile`).
    """

    def __init__(self, folder: Path, terms: str, records: str) -> None:
        """``terms`` and ``records`` are fingerprints: a book belongs to one set of terms and one data set."""
        self.folder = folder
        self._content: dict[str, Any] = {"terms": terms, "records": records, "begun": [], "seen": 0, "from": {}}
        self.open()

    def open(self) -> None:
        """Hold the book, as it is on disk now: between `close` and this another process may have gone on with it.

        A book that knows of fewer rounds than were counted in it before was put back from a copy, and is refused.
        """
        try:
            make_folder(self.folder)
            self._refuse_remains()
            file = HeldFile(
                self.folder / _FILE,
                "book",
                _bytes(self._content),
                busy=f"{self.folder} is in use by another client; give each its own folder",
                again="make another client on the same folder",
            )
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot hold a book: {error}") from None
        try:
            content = json.loads(file.content)
            self._refuse_another(content)
            self._refuse_uncounted(content["begun"])
        except BaseException:
            file.close()
            raise
        self._file, self._content = file, content

    def _refuse_remains(self) -> None:
        """What a book leaves behind if it is taken away; it is written first, so without it there is nothing."""
        if self.folder.is_dir() and not (self.folder / _FILE).exists():
            remains = [*self.folder.glob("answer-*"), *self.folder.glob("offer.json")]
            if remains:
                raise InvalidInput(
                    f"{self.folder / _FILE} is missing beside {remains[0].name}; what was spent is not known any "
                    "more. Put it back, or take another folder and mind that everybody's ε is spent again"
                )

    def _refuse_another(self, found: dict[str, Any]) -> None:
        for name, what in (("terms", "terms"), ("records", "records or budgets")):
            if found[name] != self._content[name]:
                mind = ", and mind that everybody's ε is spent again" if found["begun"] or found.get("out") else ""
                raise InvalidInput(f"{self.folder / _FILE} was begun with other {what}; take another folder{mind}")
        known, out = self._content["begun"], self._content.get("out")
        if found["begun"][: len(known)] != known:
            raise InvalidInput(
                f"{self.folder / _FILE} has counted fewer rounds than before: it is an old copy. Put the newest back"
            )
        if out is not None and found.get("out") != out:
            raise InvalidInput(
                f"{self.folder / _FILE} has forgotten which rounds its client stays out of: it is an old copy. Put "
                "the newest back"
            )

    def _refuse_uncounted(self, begun: Sequence[int]) -> None:
        """A round is counted before it is answered, so an answer beside a book that does not count it is newer."""
        names = (path.stem.removeprefix("answer-") for path in self.folder.glob("answer-*.npz"))
        if uncounted := sorted({int(name) for name in names if name.isdecimal()} - set(begun)):
            raise InvalidInput(
                f"{self.folder / _FILE} does not count round {uncounted[0]}, which was answered: it is an old copy. "
                "Put the newest back, or take another folder and mind that everybody's ε is spent again"
            )

    @property
    def joined(self) -> int:
        """How often a round was begun: what is paid for against the server."""
        return len(self._content["begun"])

    @property
    def seen(self) -> int:
        """How many rounds the server has held as far as is known, joined or not."""
        return int(self._content["seen"])

    @property
    def rates(self) -> Any:
        """What was kept by `keep_rates`; None if nothing was. It belongs to what the book belongs to."""
        return self._content.get("rates")

    def account(self, ledger: str | None) -> str:
        """The run in a ledger that the rounds of this book are charged to; kept before anything is reserved by it.

        A book begun with a ledger goes on with that one, a book begun without goes on without.
        """
        kept = self._content.get("account")
        if kept is None and ledger is not None and not self.joined:
            kept = {"ledger": ledger, "run": f"federated-{uuid.uuid4()}"}
            self._write({"account": kept})
        if (None if kept is None else kept["ledger"]) != ledger:
            theirs, ours = (
                "no ledger" if one is None else f"ledger {one}" for one in (kept and kept["ledger"], ledger)
            )
            raise InvalidInput(
                f"{self.folder / _FILE} was begun with {theirs}, and this client has {ours}; go on with what it was "
                "begun with"
            )
        if kept is not None and kept.get("imported"):
            raise InvalidInput(
                f"the rounds of {self.folder / _FILE} are charged to ledger {ledger} as those of an earlier use, and "
                "no more are joined; take another folder"
            )
        return "" if kept is None else str(kept["run"])

    def leave_to(self, ledger: str) -> str:
        """The run by which a ledger is charged for this book, begun without one; from now on it joins no more rounds.

        The same again if it was left to this ledger before.
        """
        kept = self._content.get("account")
        if kept is None:
            kept = {"ledger": ledger, "run": f"federated-{uuid.uuid4()}", "imported": True}
            self._write({"account": kept})
        if kept["ledger"] != ledger or not kept.get("imported"):
            raise InvalidInput(
                f"{self.folder / _FILE} is charged to the ledger {kept['ledger']} already; there is nothing to import"
            )
        return str(kept["run"])

    @property
    def holders(self) -> tuple[str, ...]:
        """By what names the rounds of the run were taken over in the ledger from this book."""
        return tuple(self._content.get("holders", ()))

    def keep_holders(self, holders: Sequence[str]) -> None:
        """Keep the names of holders, before the ledger hears of a new one."""
        self._write({"holders": list(holders)})

    def answer(self, number: int, state: str) -> Update | None:
        """What was answered in that round, if it was; ``state`` is a fingerprint of the parameters sent with it."""
        self._file.require_open()
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

    @property
    def out(self) -> Sequence[int] | None:
        """The rounds that the client's own coins keep it out of; None as long as they were not flipped."""
        kept: list[int] | None = self._content.get("out")
        return kept

    def keep_out(self, rounds: Iterable[int]) -> None:
        """Keep how the coins of all rounds fell, once and before anything follows from it.

        Rounds that were held before stay as they are: with the client where they were begun, and else without.
        """
        out = {*rounds, *range(1, self.seen + 1)} - set(self._content["begun"])
        self._write({"out": sorted(out)})

    def begin(self, number: int, state: str) -> None:
        """Count a round, before anything is done for it."""
        begun, sent = [*self._content["begun"], number], {**self._content["from"], str(number): state}
        self._write({"begun": begun, "from": sent, "seen": max(self.seen, number)})

    def note(self, number: int) -> None:
        """The server has come to that round, whoever joins it."""
        self._write({"seen": max(self.seen, number)})

    def keep_rates(self, rates: Any) -> None:
        """Keep what was certified, for the next client on this folder."""
        self._write({"rates": rates})

    def keep(self, number: int, update: Update) -> None:
        """Keep an answer before it is sent."""
        self._file.require_open()
        replace_file(self._answer(number), lambda file: _save(file, update))

    def keep_offer(self, offer: Any) -> None:
        """Write the offer beside the book, so that the account can be read later."""
        replace_text(self.folder / "offer.json", json.dumps(offer))

    def _answer(self, number: int) -> Path:
        return self.folder / f"answer-{number}.npz"

    def _write(self, changed: dict[str, Any]) -> None:
        """On disk first: what could not be written did not happen."""
        content = {**self._content, **changed}
        self._file.write(_bytes(content))
        self._content = content

    def close(self) -> None:
        """Let go of the folder. Twice does no harm."""
        self._file.close()


def _bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode("ascii")


def _save(file: BinaryIO, update: Update) -> None:
    """As `np.savez` does, for which no parameter may be called "file"."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, value in update.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, value, allow_pickle=False)

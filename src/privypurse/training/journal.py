"""The journal: how many steps a run has taken, on disk before they are released, never rolled back (rule 10)."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import warnings
from pathlib import Path

from privypurse._storage import HeldFile, make_folder, resolved
from privypurse.errors import InvalidInput, PrivyPurseWarning

STEPS = "steps"
"""The journal in a checkpoint folder."""
_SPAN = 0.5  # seconds of steps that one entry covers
_MOST = 4096


class Ahead:
    """How many steps one entry covers: about a span of seconds at the speed of late, at most twice the last ones."""

    def __init__(self, span: float, most: int) -> None:
        self._span, self._most, self._steps, self._time = span, most, 1, time.monotonic()

    def next(self) -> int:
        now = time.monotonic()
        passed, self._time = max(now - self._time, 1e-6), now
        self._steps = max(1, min(self._most, round(self._steps * self._span / passed), 2 * self._steps))
        return self._steps


def counted_in(folder: Path) -> tuple[str, int]:
    """The fingerprint of the plan whose steps the journal in a checkpoint folder counts, and how many they are."""
    path = folder / STEPS
    if not path.is_file():
        raise InvalidInput(f"{folder} holds no journal; name the folder that [training] checkpoint named")
    file = HeldFile(path, "journal", b"", busy=f"a run holds the journal {path}; wait for its end")
    file.close()
    whose, counted, *_ = file.content.decode("ascii").split(" ")
    return whose, int(counted)


class Journal:
    """Counts steps in a file that one process holds at a time (`HeldFile`).

    Guarantee: when ``count(k)`` returns, at least k steps stand on disk (synchronised, so that a power failure does
    not undo it), and no later reader finds fewer than were counted. To be quick an entry reserves the steps of about
    half a second at once, so a run that is killed may have counted a few steps that it did not take; it never took
    one that is not counted. A run that ends in good order writes down the exact number.
    """

    def __init__(self, path: str | Path, plan: str, steps: int) -> None:
        """``plan`` is the fingerprint of the plan whose ``steps`` steps are counted."""
        self._plan, self._steps, self._thread = plan, steps, threading.RLock()
        self.run = secrets.token_hex(16)
        """A name for the run that it counts, made with the file: by it saved states are known as its own."""
        busy = (
            f"another run holds the journal {path}; wait for it, or stop it. If it is an earlier one of "
            "this process, optimizer.close() lets go of it"
        )
        try:
            make_folder(resolved(path).parent)
        except OSError as error:
            raise InvalidInput(f"the journal {path} cannot be opened: {error.strerror}") from None
        self._file = HeldFile(path, "journal", self._entry(0), busy=busy, again="make the run anew")
        whose, counted, *name = self._file.content.decode("ascii").split(" ")
        self.run = name[0] if name else self.run  # files of earlier versions have none
        if whose != plan:
            self._file.close()
            raise InvalidInput(
                f"the journal {path} counts the steps of another plan; give each plan a journal of its own (train: "
                "another checkpoint=; the Trainers: another output_dir, another folder=)"
            )
        self.counted = self._reserved = self._found = int(counted)
        self._ahead, self._process = Ahead(_SPAN, _MOST), os.getpid()
        self._closed = False
        atexit.register(self.close)

    def _entry(self, steps: int) -> bytes:
        return f"{self._plan} {steps} {self.run}".encode("ascii")

    def count(self, steps: int) -> None:
        """Make sure that ``steps`` steps are on disk."""
        with self._thread:
            if steps > self._reserved:
                reserved = min(steps - 1 + self._ahead.next(), max(self._steps, steps))
                self._file.write(self._entry(reserved))
                self._reserved = reserved
            self.counted = max(self.counted, steps)

    def close(self) -> None:
        """Write down the exact number of steps, and let others in; says so if it is not there any more."""
        if os.getpid() != self._process:
            return
        with self._thread:
            atexit.unregister(self.close)
            if not self._closed:
                self._closed = True
                self._write_down()

    def _write_down(self) -> None:
        try:
            if self.counted != self._found:  # a run that took no step leaves the file as it was
                self._file.write(self._entry(self.counted))
        except InvalidInput as error:  # steps cannot be taken back, so this is said and the run ends as it is
            warnings.warn(
                f"{error}. This run took steps up to number {self.counted:,}: a journal that counts fewer would let "
                "another run take them once more; do not go on with it",
                PrivyPurseWarning,
                stacklevel=3,
            )
        finally:
            self._reserved = self.counted
            self._file.close()

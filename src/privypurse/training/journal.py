"""The journal: how many steps a run has taken, on disk before they are released, never rolled back (rule 10)."""

from __future__ import annotations

import atexit
import os
import threading
import time
from pathlib import Path

from privypurse._storage import is_named, make_folder, open_held, resolved, synchronise_folder
from privypurse.errors import InvalidInput

_FIRST = "privypurse-steps 1 plan "
_SPAN = 0.5  # seconds of steps that one entry covers
_MOST = 4096


class Journal:
    """Counts steps in a file that is only ever appended to.

    Guarantee: when ``count(k)`` returns, at least k steps stand on disk (synchronised, so that a power failure does
    not undo it), and no later reader finds fewer than were counted. To be quick an entry reserves the steps of about
    half a second at once, so a run that is killed may have counted a few steps that it did not take; it never took
    one that is not counted. A run that ends in good order writes down the exact number. One process holds it at a
    time.
    """

    def __init__(self, path: str | Path, plan: str, steps: int) -> None:
        """``plan`` is the fingerprint of the plan whose ``steps`` steps are counted."""
        self._path, self._steps, self._thread = resolved(path), steps, threading.RLock()
        busy = (
            f"another run holds the journal {path}; wait for it, or stop it. If it is an earlier one of "
            "this process, optimizer.close() lets go of it"
        )
        try:
            make_folder(self._path.parent)
            self._file = open_held(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, busy)
        except OSError as error:
            raise InvalidInput(f"the journal {path} cannot be opened: {error.strerror}") from None
        try:
            self.counted = self._read(plan)
        except BaseException:
            os.close(self._file)
            raise
        self._reserved, self._ahead, self._entry_time = self.counted, 1, time.monotonic()
        self._process = os.getpid()
        atexit.register(self.close)

    def _read(self, plan: str) -> int:
        whole = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if whole and not whole.startswith(_FIRST[: len(whole)].encode("ascii")):
            raise InvalidInput(f"{self._path} exists and is no journal; name another file")
        # An entry without its line end was never relied on.
        whole = whole[: whole.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(whole))
        lines = whole.decode("ascii", "replace").splitlines()
        if not lines:
            self._write(_FIRST + plan)
            synchronise_folder(self._path.parent)
            return 0
        if lines[0] != _FIRST + plan:
            raise InvalidInput(
                f"the journal {self._path} counts the steps of another plan; give each plan a journal of its own"
            )
        entries = [line.partition(" ") for line in lines[1:]]
        if not all(word in ("reserved", "stopped") and number.isdecimal() for word, _, number in entries):
            raise InvalidInput(f"the journal {self._path} is damaged, so how many steps were taken is not known")
        return int(entries[-1][2]) if entries else 0

    def count(self, steps: int) -> None:
        """Make sure that ``steps`` steps are on disk."""
        with self._thread:
            if steps > self._reserved:
                now = time.monotonic()
                passed = max(now - self._entry_time, 1e-6)
                self._ahead = max(1, min(_MOST, round(self._ahead * _SPAN / passed), 2 * self._ahead))
                self._entry_time = now
                reserved = min(steps - 1 + self._ahead, max(self._steps, steps))
                self._write(f"reserved {reserved}")
                self._reserved = reserved
            self.counted = max(self.counted, steps)

    def close(self) -> None:
        """Write down the exact number of steps, and let others in."""
        if self._file < 0 or os.getpid() != self._process:
            return
        with self._thread:
            atexit.unregister(self.close)
            # A journal that was taken away keeps what it says: more than was taken.
            if self._reserved > self.counted and is_named(self._file, self._path):
                self._write(f"stopped {self.counted}")
            os.close(self._file)
            self._file = -1

    def _write(self, line: str) -> None:
        if self._file < 0 or not is_named(self._file, self._path):
            raise InvalidInput(
                f"the journal {self._path} was closed, removed or replaced since it was opened, so the step was not "
                "taken; put it back where it was"
            )
        entry = f"{line}\n".encode("ascii")
        if os.write(self._file, entry) != len(entry):
            raise OSError("the journal could not be written in full; the step was not taken")
        os.fsync(self._file)

"""The steps that one process may take of a run: its ledger hands them out, each once, whatever becomes of folders."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.training.journal import Ahead
from privypurse.training.remembered_run import RememberedRun, anchor_of

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_SPAN = 15.0  # seconds of steps that one entry covers: what a run that is killed may lose


class BegunSteps:
    """Counts a run's steps in its ledger, some ahead.

    Guarantee: when ``count(k)`` returns, the ledger says that step k has begun, and no other process was handed it or
    will be. What a killed run was handed and did not take is lost; one that ends in good order gives it back.
    """

    def __init__(self, ledger: Ledger, remembered: RememberedRun, journal: Path, steps: int) -> None:
        """Take over the run: from its first step on, or from where the ledger says that others have come to."""
        self._ledger, self._run, self._journal, self._steps = ledger, remembered.run, journal, steps
        self.holder = secrets.token_hex(16)
        # Written before the ledger knows it: a crash in between leaves a folder that knows both.
        remembered.held_by(*remembered.holders, self.holder).write(journal)
        self.before = ledger.take_over(self._run, self.holder, remembered.holders)
        remembered.held_by(self.holder).write(journal)
        self._counted = self._handed = self.before
        self._ahead, self._process, self._closed = Ahead(_SPAN, steps), os.getpid(), False
        self._one_at_a_time = threading.RLock()
        self._anchor()
        atexit.register(self.close)

    def count(self, step: int, most: int | None = None) -> None:
        """Make sure that the ledger says of step ``step`` that it has begun; of none beyond ``most``."""
        with self._one_at_a_time:
            if step > self._handed and not self._closed:
                until = min(step - 1 + self._ahead.next(), max(self._steps if most is None else most, step))
                self._ledger.begin(self._run, self.holder, until)
                self._anchor()
                self._handed = until
            self._counted = max(self._counted, step)
            if self._closed:  # asked last: a signal handler may have closed it meanwhile, and given this step back
                raise InvalidInput(f"run {self._run!r} was closed here, and its steps were given back; open it again")

    def _anchor(self) -> None:
        self._ledger.write_anchor(anchor_of(self._journal))

    def settled(self) -> None:
        """There is nothing to give back any more."""
        with self._one_at_a_time:
            self._closed = True
            atexit.unregister(self.close)
            self._anchor()

    def close(self) -> None:
        """Give back what was not taken; no step is counted after that. Twice does no harm."""
        if os.getpid() != self._process:
            return
        with self._one_at_a_time:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            if self._handed > self._counted:
                try:
                    self._ledger.begin(self._run, self.holder, self._counted)
                    self._anchor()
                except (PrivyPurseError, OSError):  # overtaken, settled, or out of reach: then they stay begun
                    return

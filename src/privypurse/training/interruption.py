"""Ctrl-C between steps: a step that is counted is also applied, and saved, before the run ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def undivided() -> Iterator[None]:
    """What is inside is done whole: an interrupt that comes meanwhile comes at its end.

    A step that was counted and broken off would be paid for and lost. Other threads are never interrupted; a process
    that ignores interrupts goes on ignoring them.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(signal.SIGINT, waiting[0])

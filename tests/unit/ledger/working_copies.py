"""Processes that work on one run from copies of its folder, and die at any time: what they release."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy as np

import privypurse as pp

STEPS = 60


class Killed(Exception):
    pass


class Folder:
    """What is copied: the holders known, and how many steps are counted here."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.counted = 0


class Worker:
    """A process that works on the run from a folder, and may die after each thing it does."""

    def __init__(self, ledger: pp.Ledger, folder: Folder, name: str, dies: Callable[[], bool]) -> None:
        self.ledger, self.folder, self.name, self.dies = ledger, folder, name, dies
        folder.known = [*folder.known, name]
        self._may_die()
        self.until = self.done = ledger.take_over("run", name, folder.known)
        folder.known = [name]
        self._may_die()

    def _may_die(self) -> None:
        if self.dies():
            raise Killed

    def work(self, steps: int, ahead: int, released: list[int]) -> None:
        for _ in range(min(steps, STEPS - self.done)):
            if self.done + 1 > self.until:
                until = min(self.done + ahead, STEPS)
                self.ledger.begin("run", self.name, until)
                self.until = until
                self._may_die()
            self.done += 1
            self.folder.counted = max(self.folder.counted, self.done)
            released.append(self.done)
            self._may_die()

    def stop(self) -> None:
        self.ledger.begin("run", self.name, self.done)


def history(ledger: pp.Ledger, seed: int) -> list[int]:
    """What is released by workers that begin, work, stop and die on folders that are copied at any time."""
    rng = random.Random(seed)
    ledger.join(["ada"], 1.0)
    ledger.reserve("run", ledger.members(["ada"]), np.full((1, 3), 600), [0])
    folders, workers, released = [Folder()], [], []
    for number in range(80):
        place = rng.randrange(-2, 0)
        try:
            match rng.choice(["begin", "work", "work", "copy", "stop"]):
                case "begin":
                    folder = folders[max(place, -len(folders))]
                    workers.append(Worker(ledger, folder, f"{number}", lambda: rng.random() < 0.1))
                case "copy":
                    folders.append(copy.deepcopy(folders[-1]))
                case "work" if len(workers) >= -place:
                    worker = workers.pop(place)
                    worker.work(rng.randint(1, 6), rng.randint(1, 4), released)
                    workers.append(worker)
                case "stop" if len(workers) >= -place:
                    workers.pop(place).stop()
        except Killed:
            pass
        except pp.InvalidInput as error:
            if "went on elsewhere" not in str(error):
                raise
    return released

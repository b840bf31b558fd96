"""The ledger hands out a run's steps: none is released twice, from however many copies of a folder it goes on."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import begun

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


@pytest.mark.parametrize("seed", range(25))
def test_no_step_is_released_twice(ledger, seed):
    released = history(ledger, seed)
    assert max(Counter(released).values(), default=1) == 1
    assert not ledger.verify().problems
    counted = ledger.begun("run")
    assert max(released, default=0) <= (0 if counted is None else counted.count) <= STEPS


def test_the_twin_that_goes_on_from_the_folder_is_seen(fresh, monkeypatch):
    """A name that is kept in the folder alone tells nothing of steps released since it was copied."""
    take_over = Worker.__init__

    def by_folder(self: Worker, ledger: pp.Ledger, folder: Folder, name: str, dies: Callable[[], bool]) -> None:
        take_over(self, ledger, folder, name, dies)
        self.done = min(self.done, folder.counted)

    monkeypatch.setattr(Worker, "__init__", by_folder)
    assert any(max(Counter(history(fresh(f"{seed}.db"), seed)).values(), default=1) > 1 for seed in range(8))


def test_the_twin_without_holders_is_seen(fresh, monkeypatch):
    monkeypatch.setattr(begun, "require_holder", lambda connection, run, holder: begun.of(connection, run))
    assert any(max(Counter(history(fresh(f"{seed}.db"), seed)).values(), default=1) > 1 for seed in range(8))


@pytest.fixture
def reserved(ledger):
    ledger.join(["ada"], 1.0)
    return ledger.reserve("run", ledger.members(["ada"]), np.full((1, 3), 600), [0])


def test_another_copy_is_refused_and_who_was_overtaken_neither_begins_nor_settles(ledger, reserved):
    assert ledger.begun("run") is None
    assert ledger.take_over("run", "a") == 0
    ledger.begin("run", "a", 5)
    assert ledger.take_over("run", "b", ["a"]) == 5
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        ledger.begin("run", "a", 6)
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        ledger.take_over("run", "c", ["a"])
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        reserved.settle(np.full((1, 3), 10), [0], holder="a")
    with pytest.raises(pp.InvalidInput, match="5 of run 'run' had begun before"):
        ledger.begin("run", "b", 4)
    reserved.settle(np.full((1, 3), 60), [0], holder="b")
    with pytest.raises(pp.InvalidInput, match="is settled"):
        ledger.begin("run", "b", 6)
    with pytest.raises(pp.InvalidInput, match="is settled"):
        ledger.take_over("run", "d", ["b"])


def test_runs_count_for_themselves(ledger, reserved):
    ledger.reserve("other", ledger.members(["ada"]), np.full((1, 3), 600), [0])
    for run, count in (("run", 3), ("other", 7)):
        ledger.take_over(run, run)
        ledger.begin(run, run, count)
    assert [ledger.begun(run).count for run in ("run", "other")] == [3, 7]
    assert ledger.begun("never") is None
    with pytest.raises(pp.InvalidInput, match="nothing was reserved"):
        ledger.take_over("never", "a")


def test_people_by_number_and_whose_consent_is_in_force(ledger):
    ledger.join(["ada", "bea", "cid"], [0.5, 1.0, 4.0])
    ledger.withdraw(["bea"])
    members = ledger.members(["cid", "ada", "bea"])
    again = ledger.numbered(members.numbers)
    assert (again.numbers == members.numbers).all()
    assert (again.rung == members.rung).all()
    assert ledger.consenting(again).tolist() == [True, True, False]
    for wrong in ([], [3], [-1], [1, 1]):
        with pytest.raises(pp.InvalidInput, match="not those of people in this ledger"):
            ledger.numbered(wrong)

"""The ledger hands out a run's steps: none is released twice, from however many copies of a folder it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from working_copies import STEPS, Folder, Worker, history

import privypurse as pp
from privypurse.ledger import begun


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

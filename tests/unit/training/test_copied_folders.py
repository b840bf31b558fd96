"""Checkpoint folders and ledgers that are copied, put back and gone on with twice: no step is released twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, copied, new_ledger, step_cost
from privypurse.training import begun_steps
from privypurse.training.ledger_account import Account, recover
from privypurse.training.mechanism import PrivateRun
from training_tools import LOSS

N, STEPS, NOISE = 12, 8, 4.0
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]


class Stopped(Exception):
    pass


class World:
    """One run of a few people, worked on in folders."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger = path, new_ledger(path)
        self.ledger.join(IDS, GRANTED)
        budgets = pp.Budgets(GRANTED, delta=DELTA, person=IDS)
        shape = {"steps": STEPS, "batch_size": 4, "noise_multiplier": NOISE, "accountant": "rdp"}
        self.plan = pp.plan(budgets, ledger=self.ledger, at_most=0.1, **shape)
        self.released: list[int] = []

    def go_on(self, folder: str, until: int = STEPS, act: Callable[[int], None] | None = None) -> None:
        """Train in that folder up to a step; ``act`` is called after each with its number."""
        release = PrivateRun.release

        def released(run: PrivateRun) -> None:
            release(run)
            self.released.append(run.steps_taken)
            if act is not None:
                act(run.steps_taken)
            if run.steps_taken == until < STEPS:
                raise Stopped

        torch.manual_seed(0)
        data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options: dict[str, Any] = {"person": IDS, "ledger": self.ledger, "checkpoint": self.path / folder}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PrivateRun, "release", released)
            pp.train(model, optimizer, data, self.plan, LOSS, **options)

    def stop_at(self, folder: str, step: int, act: Callable[[int], None] | None = None) -> None:
        with pytest.raises(Stopped):
            self.go_on(folder, step, act)

    def copy(self, folder: str, to: str) -> None:
        shutil.copytree(self.path / folder, self.path / to)

    def paid_for(self, steps: int) -> bool:
        """Whether everybody has paid for so many steps, by the plain sum."""
        orders = [rung.order for rung in self.ledger.rungs]
        one = np.array([[step_cost(rate, NOISE, order) for order in orders] for rate in self.plan.rates])
        have, want = charged(self.ledger, IDS), steps * one
        return bool((have >= want * (1 - 1e-9)).all() and (have <= want * (1 + 1e-6) + 1e-9).all())

    @property
    def twice(self) -> bool:
        return len(set(self.released)) < len(self.released)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_copy_is_refused_after_the_folder_went_on(world):
    world.stop_at("run", 3)
    world.copy("run", "copy")
    world.stop_at("run", 5)
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        world.go_on("copy")
    world.go_on("run")
    assert world.released == list(range(1, STEPS + 1))
    assert world.paid_for(STEPS)
    assert not world.ledger.verify().problems


def test_a_copy_made_while_a_run_was_under_way_goes_on_after_all_that_it_released(world):
    world.stop_at("run", 5, lambda done: world.copy("run", "copy") if done == 2 else None)
    world.go_on("copy")
    assert world.released == list(range(1, STEPS + 1))
    with pytest.raises(pp.InvalidInput, match=r"is settled|went on elsewhere"):
        world.go_on("run")
    assert world.paid_for(STEPS)


def test_who_is_overtaken_in_mid_run_releases_nothing_more(world):
    release = PrivateRun.release

    def overtake(done: int) -> None:
        if done == 4 and not (world.path / "copy").exists():
            world.copy("run", "copy")
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(PrivateRun, "release", release)
                world.go_on("copy")

    with pytest.raises(pp.InvalidInput, match=r"is settled|went on elsewhere"):
        world.go_on("run", act=overtake)
    assert not world.twice
    assert world.paid_for(STEPS)
    assert not world.ledger.verify().problems


def test_the_twin_that_counts_in_folders_alone_is_seen(world, monkeypatch):
    """As it was: the journal of a copy tells nothing of what was released after it was made."""
    init = Account.__init__

    def without(self: Account, *arguments: Any) -> None:
        init(self, *arguments[:-1], None)

    monkeypatch.setattr(Account, "__init__", without)
    world.stop_at("run", 5, lambda done: world.copy("run", "copy") if done == 2 else None)
    world.go_on("copy")
    assert world.twice


@pytest.mark.parametrize("written", [False, True], ids=["before the ledger", "after the ledger"])
def test_who_dies_while_taking_over_can_go_on(world, monkeypatch, written):
    world.stop_at("run", 3)
    take_over = pp.Ledger.take_over

    def dying(self: pp.Ledger, *arguments: Any) -> int:
        if written:
            take_over(self, *arguments)
        raise Stopped

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(pp.Ledger, "take_over", dying)
            with pytest.raises(Stopped):
                world.go_on("run")
    world.go_on("run")
    assert world.released == list(range(1, STEPS + 1))


def test_what_a_killed_run_was_handed_is_lost_and_nothing_else(world, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(begun_steps.BegunSteps, "close", lambda self: None)  # a killed process closes nothing
        world.stop_at("run", 4)
    (run,) = world.ledger.runs()
    begun = world.ledger.begun(run.run_id).count
    assert 4 <= begun < STEPS
    world.go_on("run")
    assert world.released == [*range(1, 5), *range(begun + 1, STEPS + 1)]
    assert world.paid_for(STEPS)


def test_recovering_by_an_older_copy_charges_what_was_released_since(world):
    world.stop_at("run", 3)
    world.copy("run", "copy")
    world.stop_at("run", 6)
    assert recover(world.path / "copy", world.ledger) == 6
    assert world.paid_for(6)


def test_the_twin_that_recovers_by_the_journal_alone_is_seen(world, monkeypatch):
    world.stop_at("run", 3)
    world.copy("run", "copy")
    world.stop_at("run", 6)
    monkeypatch.setattr(pp.Ledger, "begun", lambda self, run: None)
    recover(world.path / "copy", world.ledger)
    assert not world.paid_for(max(world.released))


def test_an_older_copy_of_the_ledger_is_refused(world):
    world.stop_at("run", 3)
    world.ledger, newer = copied(world.ledger, world.path / "old.db"), world.ledger
    older, world.ledger = world.ledger, newer
    world.stop_at("run", 5)
    world.ledger = older
    with pytest.raises(pp.InvalidInput, match="old or forked copy of the ledger"):
        world.go_on("run")
    world.ledger = newer
    world.go_on("run")
    assert not world.twice
    newer.require_anchor(world.path / "run" / "steps.anchor")
    with pytest.raises(pp.InvalidInput, match="old or forked copy"):
        older.require_anchor(world.path / "run" / "steps.anchor")


def test_of_a_run_that_nobody_counted_everything_is_charged(world, monkeypatch):
    monkeypatch.setattr(pp.Ledger, "begun", lambda self, run: None)
    world.stop_at("run", 3)
    (world.path / "run" / "steps").unlink()
    assert recover(world.path / "run", world.ledger) == STEPS
    assert world.paid_for(STEPS)


def test_the_ordinary_loop_is_handed_its_steps_too(world):
    data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
    (world.path / "own").mkdir()

    def loop(steps: int) -> int:
        inner = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        options: dict[str, Any] = {"person": IDS, "ledger": world.ledger, "journal": world.path / "own" / "journal"}
        model, optimizer, loader = pp.make_private(inner, optimizer, data, world.plan, **options)
        first = optimizer.steps_taken
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.steps_taken == steps:
                break
        if optimizer.steps_taken < STEPS:
            optimizer.close()
        return first

    assert loop(3) == 0
    (run,) = world.ledger.runs()
    assert world.ledger.begun(run.run_id).count == 3
    world.copy("own", "copy")
    assert loop(5) == 3
    shutil.rmtree(world.path / "own")
    world.copy("copy", "own")
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        loop(STEPS)


def test_a_ledger_from_before_steps_were_handed_out_is_refused(world, monkeypatch):
    """The anchor beside the journal is as of the last steps that were handed out, whoever was killed after that."""
    older: list[pp.Ledger] = []

    def copy_at_first(done: int) -> None:
        if done == 1:
            older.append(copied(world.ledger, world.path / "older.db"))

    with monkeypatch.context() as patched:
        patched.setattr(begun_steps.BegunSteps, "close", lambda self: None)
        world.stop_at("run", 4, copy_at_first)
    (run,) = older[0].runs()
    assert older[0].begun(run.run_id).count < 4 <= world.ledger.begun(run.run_id).count
    world.ledger = older[0]
    with pytest.raises(pp.InvalidInput, match="old or forked copy"):
        world.go_on("run")
    assert world.released == [1, 2, 3, 4]

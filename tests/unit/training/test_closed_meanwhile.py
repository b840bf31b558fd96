"""A run that is closed, interrupted or forked in the middle of a step: nothing is released that is not paid for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, new_ledger, step_cost
from privypurse.training.begun_steps import BegunSteps
from privypurse.training.grid_noise import GridNoise
from privypurse.training.ledger_account import Account, recover
from privypurse.training.mechanism import PrivateRun
from training_tools import LOSS

torch.set_num_threads(1)
N, STEPS, NOISE, AT = 12, 8, 4.0, 4
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
INDIVIDUAL = pp.Individual(every=4)
PLACES = [(Account, "count"), (Account, "poll"), (GridNoise, "to_grid")]
"""Before the step is counted and after it; and what comes before each step."""


class World:
    """One run of a few people in the ordinary loop, and how many of its steps reached the optimizer."""

    def __init__(self, path: Path, journal: bool, individual: bool) -> None:
        self.ledger, self.released = new_ledger(path), 0
        self.ledger.join(IDS, GRANTED)
        shape = {"steps": STEPS, "batch_size": 4, "noise_multiplier": NOISE, "accountant": "rdp", "at_most": 0.1}
        self.plan = pp.plan(pp.Budgets(GRANTED, delta=DELTA, person=IDS), ledger=self.ledger, **shape)
        self.options: dict[str, Any] = {"journal": path / "steps"} if journal else {}
        if individual:
            self.options.update(individual=INDIVIDUAL, loss_fn=LOSS)

    def go_on(self, act: Callable[[Any], None] = lambda optimizer: None) -> Any:
        """Train to the end; ``act`` gets the optimizer before the first step."""
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
        model = nn.Linear(3, 2)
        plain = torch.optim.SGD(model.parameters(), lr=1e-9)
        parts = (model, plain, data, self.plan)
        model, optimizer, loader = pp.make_private(*parts, person=IDS, ledger=self.ledger, **self.options)
        act(optimizer)
        try:
            for x, y in loader:
                optimizer.zero_grad()
                LOSS(model(x), y).mean().backward()
                optimizer.step()
                self.released += 1
        finally:
            optimizer.close()

    def pays_at_least(self, steps: int) -> bool:
        """Whether everybody is charged for so many steps, by the plain sum."""
        orders = [rung.order for rung in self.ledger.rungs]
        one = np.array([[step_cost(rate, NOISE, order) for order in orders] for rate in self.plan.rates])
        return bool((charged(self.ledger, IDS) >= steps * one * (1 - 1e-9)).all())


@pytest.fixture(params=["no journal", "journal"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, journal=request.param == "journal", individual=False)


def at_step(monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], act: Callable[[], None]) -> None:
    """Have something happen once, in the middle of the step with number `AT`."""
    owner, name = place
    real, calls = getattr(owner, name), [0]

    def disturbed(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == AT:
            act()
        return real(*arguments)

    monkeypatch.setattr(owner, name, disturbed)


@pytest.fixture
def terminated() -> Iterator[list[Callable[[], None]]]:
    """What SIGTERM does in this test."""
    actions: list[Callable[[], None]] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: [act() for act in actions] and None)
    yield actions
    signal.signal(signal.SIGTERM, before)


@pytest.mark.each_value_once
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
@pytest.mark.parametrize("how", ["signal", "thread"])
def test_who_closes_in_the_middle_of_a_step_pays_for_it(world, terminated, monkeypatch, place, how):
    threads: list[threading.Thread] = []

    def beside(optimizer: Any) -> None:
        threads.append(threading.Thread(target=optimizer.close))
        threads[0].start()
        threads[0].join(0.2)  # it may well wait for the step's end

    def close(optimizer: Any) -> None:
        terminated.append(optimizer.close)
        if how == "signal":
            at_step(monkeypatch, place, lambda: os.kill(os.getpid(), signal.SIGTERM))
        else:
            at_step(monkeypatch, place, lambda: beside(optimizer))

    with pytest.raises(pp.InvalidInput, match="closed"):
        world.go_on(close)
    for thread in threads:
        thread.join()
    assert AT - 1 <= world.released <= AT
    (run,) = world.ledger.runs()
    if not world.options:
        assert world.pays_at_least(world.released)
        assert run.settled is not None
        return
    assert world.ledger.begun(run.run_id).count >= world.released
    world.go_on()
    assert world.released <= STEPS
    assert world.pays_at_least(STEPS)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_an_interrupt_in_the_middle_of_a_step_releases_nothing_unpaid(world, monkeypatch, place):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.go_on(lambda optimizer: at_step(monkeypatch, place, interrupt))
    assert world.released == AT - 1
    if not world.options:
        assert world.pays_at_least(world.released)
        return
    (run,) = world.ledger.runs()
    assert world.ledger.begun(run.run_id).count >= world.released
    world.go_on()
    assert world.released <= STEPS


def test_what_each_person_spent_holds_the_step_that_was_under_way(tmp_path, terminated, monkeypatch):
    """The charge by one's own norms is read when the run is closed: with the step below it, never without."""
    charges = []
    for name in ("after it", "in its middle"):
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, journal=False, individual=True)

        def stop(optimizer: Any, world: World = world, name: str = name) -> None:
            if name == "in its middle":
                terminated.append(optimizer.close)
                at_step(monkeypatch, (GridNoise, "to_grid"), lambda: os.kill(os.getpid(), signal.SIGTERM))
                return
            real = PrivateRun.release

            def released(run: PrivateRun) -> None:
                real(run)
                if run.steps_taken == AT:
                    run.close()

            monkeypatch.setattr(PrivateRun, "release", released)

        with pytest.raises(pp.InvalidInput, match="closed"):
            world.go_on(stop)
        monkeypatch.undo()
        assert world.released == AT
        charges.append(charged(world.ledger, IDS))
    assert (charges[1] >= charges[0] * (1 - 1e-9)).all()


def test_a_fork_that_closes_the_run_does_not_settle_it(world):
    def fork(optimizer: Any) -> None:
        child = os.fork()
        if child == 0:
            try:
                optimizer.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    world.go_on(fork)
    assert world.released == STEPS
    assert world.pays_at_least(STEPS)


def test_a_settled_account_counts_no_further_step(world):
    runs = []
    world.go_on(lambda optimizer: runs.append(optimizer._current_batch.run))
    with pytest.raises(pp.InvalidInput, match="settled"):
        runs[0].account.count(STEPS)


def test_steps_that_were_given_back_are_counted_no_more(tmp_path):
    world = World(tmp_path, journal=True, individual=False)
    seen: list[BegunSteps] = []
    world.go_on(lambda optimizer: seen.append(optimizer._current_batch.run.account._begun_steps))
    with pytest.raises(pp.InvalidInput, match="given back"):
        seen[0].count(1)


def test_a_run_that_is_refused_lets_go_of_its_journal(tmp_path, monkeypatch):
    """Nobody has an optimizer to close, and the command that settles it needs the journal."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    world = World(tmp_path, journal=True, individual=False)
    with pytest.raises(KeyboardInterrupt):
        world.go_on(lambda optimizer: at_step(monkeypatch, (Account, "poll"), interrupt))
    monkeypatch.undo()
    (tmp_path / "steps.anchor").unlink()
    with pytest.raises(pp.InvalidInput, match="is gone"):
        world.go_on()
    assert recover(tmp_path / "steps", world.ledger) >= world.released
    with pytest.raises(pp.InvalidInput, match=r"is settled|is gone"):
        world.go_on()
    assert recover(tmp_path / "steps", world.ledger) >= world.released

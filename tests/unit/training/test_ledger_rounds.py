"""Rounds under a ledger: everybody pays for every round that has begun, whole, drawn or not."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, new_ledger, step_cost
from privypurse.accounting import Composed, SampledRound
from privypurse.assignment.round_planner import PdpSgd, Sampling
from privypurse.plans.under_ledger import UnderLedger
from privypurse.training.begun_steps import BegunSteps
from privypurse.training.ledger_account import Account, recover
from privypurse.training.mechanism import PrivateRun
from privypurse.training.rounds_account import RoundsAccount
from training_tools import LOSS

N = 40
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
ALLOWED = np.array([0.15, 0.3])[np.arange(N) % 2]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


@pytest.fixture(scope="module")
def made() -> pp.rounds.Schedule:
    budgets = pp.Budgets(ALLOWED, delta=DELTA, person=IDS)
    two = pp.rounds.schedule(budgets, PdpSgd(rounds=3), epochs=6, batch_size=10, accountant="rdp")
    first, second = two.rounds
    return replace(two, rounds=(replace(first, steps=5), replace(first, steps=4), replace(second, steps=3)))


def under(ledger: pp.Ledger, schedule: pp.rounds.Schedule, at_most: float | None = 0.6) -> pp.rounds.Schedule:
    """The same as if it was made with this ledger; making it takes longer than all else here."""
    return replace(schedule, ledger=UnderLedger(ledger.id, at_most, ledger.members(IDS).numbers))


@pytest.fixture
def schedule(ledger: pp.Ledger, made: pp.rounds.Schedule) -> pp.rounds.Schedule:
    return under(ledger, made)


class Stopped(Exception):
    pass


def trained(ledger: pp.Ledger, schedule: pp.rounds.Schedule, act: Any = None, **options: Any) -> list[int]:
    """How many steps were taken; ``act`` is called before each with their number."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
    taken = [0]

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            taken[0] += 1
            if act is not None:
                act(taken[0])
            super().step()

    def optimizer(model: nn.Module) -> Counting:
        return Counting(model.parameters(), lr=0.1)

    options = {"person": IDS, "ledger": ledger, **options}
    pp.rounds.train(lambda: nn.Linear(3, 2), optimizer, data, schedule, LOSS, **options)
    return taken


@cache
def removing(chance: float, rate: float, noise: float, steps: int, order: int) -> float:
    """The divergence of a round from removing a person, at a whole order: the binomial sum."""
    weights = [math.comb(order, j) * (1 - chance) ** (order - j) * chance**j for j in range(order + 1)]
    moment = math.fsum(
        weights[j] * math.expm1((j - 1) * steps * step_cost(rate, noise, j)) for j in range(2, order + 1)
    )
    return math.log1p(moment) / (order - 1)


def least(ledger: pp.Ledger, schedule: pp.rounds.Schedule, rounds: int) -> np.ndarray:
    """[people, rungs] in nats: what the first rounds cost at least."""
    by_level = np.array(
        [
            [
                sum(
                    removing(float(one.chance[level]), one.rate, one.noise_multiplier, one.steps, int(rung.order))
                    for one in schedule.rounds[:rounds]
                )
                for rung in ledger.rungs
            ]
            for level in range(schedule.epsilon_by_level.size)
        ]
    )
    return by_level[schedule.level_of]


def most(ledger: pp.Ledger, schedule: pp.rounds.Schedule, rounds: int) -> np.ndarray:
    """The same as the accountant bounds it."""
    faced = [
        Composed(tuple(SampledRound(float(one.chance[level]), one.release) for one in schedule.rounds[:rounds]))
        for level in range(schedule.epsilon_by_level.size)
    ]
    return ledger.charges_of(faced)[schedule.level_of] * 2.0**-40


def paid_for(ledger: pp.Ledger, schedule: pp.rounds.Schedule, rounds: int) -> bool:
    have = charged(ledger, IDS)
    below, above = least(ledger, schedule, rounds), most(ledger, schedule, rounds)
    return bool((have >= below * (1 - 1e-9)).all() and (have <= above * (1 + 1e-6) + 1e-9).all())


def test_everybody_pays_for_every_round(ledger, schedule):
    assert len(schedule.rounds) == 3
    trained(ledger, schedule, purpose="bus lines")
    assert paid_for(ledger, schedule, len(schedule.rounds))
    (run,) = ledger.runs()
    assert run.settled is not None
    assert not ledger.verify().problems


def test_rounds_that_never_began_come_back_and_one_that_began_is_charged_whole(ledger, schedule):
    def stop(step: int) -> None:
        if step == schedule.rounds[0].steps + 1:  # the first step of the second round
            raise Stopped

    with pytest.raises(Stopped):
        trained(ledger, schedule, stop)
    assert paid_for(ledger, schedule, 2)
    assert not paid_for(ledger, schedule, 1)


def test_the_twin_that_gives_back_the_rest_of_a_begun_round_is_seen(ledger, schedule, monkeypatch):
    begin = RoundsAccount.begin

    def late(self: RoundsAccount, number: int, **options: Any) -> bool:
        draws = begin(self, number, **options)
        self._rounds_begun = number
        return draws

    monkeypatch.setattr(RoundsAccount, "begin", late)
    trained(ledger, schedule)
    assert not paid_for(ledger, schedule, len(schedule.rounds))


class Rounds:
    """Rounds that are worked on in folders: every step that was released, as (round, step)."""

    def __init__(self, path: Path, ledger: pp.Ledger, schedule: pp.rounds.Schedule) -> None:
        self.path, self.ledger, self.schedule = path, ledger, schedule
        self.released: list[tuple[int, int]] = []
        self.every = [(k, step) for k, one in enumerate(schedule.rounds) for step in range(1, one.steps + 1)]

    def go_on(self, folder: str, until: tuple[int, int] | None = None, act: Any = None) -> None:
        """Train in that folder, up to a step; ``act`` is called after each."""
        release = PrivateRun.release

        def released(run: PrivateRun) -> None:
            release(run)
            now = int(run.plan.method.rpartition(" ")[2]) - 1, run.steps_taken
            self.released.append(now)
            if act is not None:
                act(now)
            if now == until:
                raise Stopped

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PrivateRun, "release", released)
            trained(self.ledger, self.schedule, checkpoint=self.path / folder)

    def stop_at(self, folder: str, until: tuple[int, int], act: Any = None) -> None:
        with pytest.raises(Stopped):
            self.go_on(folder, until, act)

    def copy(self, folder: str, to: str) -> None:
        shutil.copytree(self.path / folder, self.path / to)


@pytest.fixture
def rounds(tmp_path: Path, ledger: pp.Ledger, schedule: pp.rounds.Schedule) -> Rounds:
    return Rounds(tmp_path, ledger, schedule)


@pytest.mark.slow
def test_rounds_that_were_broken_off_go_on(rounds):
    rounds.stop_at("run", (1, 2))
    (run,) = rounds.ledger.runs()
    assert run.settled is None
    rounds.go_on("run")
    assert rounds.released == rounds.every
    assert [one.run_id for one in rounds.ledger.runs()] == [run.run_id]
    assert paid_for(rounds.ledger, rounds.schedule, len(rounds.schedule.rounds))
    assert not rounds.ledger.verify().problems
    rounds.go_on("run")  # nothing is left to do, and nothing is charged
    assert rounds.released == rounds.every


def test_rounds_that_died_are_charged_whole_when_they_do_not_go_on(rounds):
    rounds.stop_at("run", (1, 2))
    recover(rounds.path / "run", rounds.ledger)
    assert paid_for(rounds.ledger, rounds.schedule, len(rounds.schedule.rounds))
    with pytest.raises(pp.InvalidInput, match="is settled"):
        rounds.go_on("run")


def test_no_step_of_a_round_is_released_twice_from_copies(rounds):
    rounds.stop_at("run", (1, 3), lambda now: rounds.copy("run", "copy") if now == (1, 1) else None)
    rounds.copy("run", "late")
    rounds.go_on("copy")
    assert rounds.released == rounds.every
    for folder in ("run", "late"):
        with pytest.raises(pp.InvalidInput, match=r"is settled|went on elsewhere"):
            rounds.go_on(folder)


def test_a_round_whose_draw_is_elsewhere_takes_no_further_step(rounds):
    """With a draw of its own it would be released a second time."""
    rounds.stop_at("run", (1, 3), lambda now: rounds.copy("run", "copy") if now == (0, 1) else None)
    rounds.stop_at("copy", (2, 1))
    assert not (rounds.path / "copy" / "round-2" / "drawn.npz").exists()
    rounds.go_on("copy")
    left = [one for one in rounds.every if one[0] == 2]
    assert rounds.released == [*rounds.every[: rounds.every.index((1, 3)) + 1], *left]


def test_the_twin_that_draws_a_begun_round_anew_is_seen(rounds, monkeypatch):
    begin = RoundsAccount.begin
    monkeypatch.setattr(RoundsAccount, "begin", lambda self, number, **_: begin(self, number, drawn_before=True))
    rounds.stop_at("run", (1, 3), lambda now: rounds.copy("run", "copy") if now == (0, 1) else None)
    rounds.go_on("copy")
    draws = [np.load(rounds.path / folder / "round-2" / "drawn.npz")["drawn"] for folder in ("run", "copy")]
    assert (1, 4) in rounds.released
    assert not np.array_equal(*draws)


def test_who_left_while_rounds_were_broken_off_pays_for_the_one_that_had_begun(rounds):
    rounds.stop_at("run", (1, 2))
    rounds.ledger.withdraw(IDS)
    rounds.go_on("run")
    assert paid_for(rounds.ledger, rounds.schedule, 2)


def test_the_twin_that_forgets_the_begun_round_is_seen(rounds, monkeypatch):
    poll = Account.poll
    rounds.stop_at("run", (1, 2))
    rounds.ledger.withdraw(IDS)
    monkeypatch.setattr(Account, "poll", lambda self, begun: poll(self, self._number))
    rounds.go_on("run")
    assert not paid_for(rounds.ledger, rounds.schedule, 2)


def test_a_second_process_does_not_overtake_one_in_the_same_folder(rounds):
    def again(now: tuple[int, int]) -> None:
        if now == (1, 1):
            with pytest.raises(pp.InvalidInput, match="another run holds the journal"):
                trained(rounds.ledger, rounds.schedule, checkpoint=rounds.path / "run")

    rounds.go_on("run", act=again)
    assert rounds.released == rounds.every


def test_who_withdraws_pays_for_the_rounds_that_had_begun(ledger, schedule):
    trained(ledger, schedule, lambda step: ledger.withdraw(IDS) if step == 1 else None)
    assert paid_for(ledger, schedule, 1)


def test_public_balances_decide_whether_rounds_can_be_paid(ledger, schedule):
    with pytest.raises(pp.InfeasibleBudget, match="more for life than the public balance"):
        trained(ledger, under(ledger, schedule, 0.05))
    assert not ledger.runs()
    with pytest.raises(pp.InvalidInput, match="its people are charged there"):
        trained(None, schedule)


def test_a_schedule_keeps_to_the_public_cap_and_says_at_once_what_nobody_can_pay(ledger):
    """It was made for the whole of everybody's ε, whatever the cap, and refused when it was to be trained."""
    shape: dict[str, Any] = {"epochs": 6, "batch_size": 10, "accountant": "rdp", "ledger": ledger}
    capped = pp.rounds.schedule(pp.Budgets(GRANTED, delta=DELTA, person=IDS), Sampling(), at_most=0.3, **shape)
    assert capped.epsilon.max() <= 0.3
    assert capped.spent().max() > 0.2
    trained(ledger, capped)
    with pytest.raises(pp.InfeasibleBudget, match=r"people on ε = 0\.5 and 1(?: and \d)? holds\. Ask") as error:
        pp.rounds.schedule(pp.Budgets(GRANTED, delta=DELTA, person=IDS), Sampling(), **shape)
    assert str(N) not in str(error.value)  # of people no number: it would tell who has withdrawn
    share = float(str(error.value).split("less: about ")[1].split(" times")[0])
    less = pp.Budgets(share * GRANTED, delta=DELTA, person=IDS)
    trained(ledger, pp.rounds.schedule(less, Sampling(), **shape))
    assert not ledger.verify().problems


@pytest.mark.parametrize("between", [False, True])
def test_rounds_that_are_closed_in_the_middle_of_a_step_release_it_once(
    ledger, schedule, tmp_path, monkeypatch, between
):
    """As another thread might: before the ledger has counted the step, or between it and the journal."""
    released: list[int] = []
    release, real = PrivateRun.release, BegunSteps.count
    accounts: list[RoundsAccount] = []
    begin = RoundsAccount.begin

    def begun(self: RoundsAccount, number: int, **options: Any) -> bool:
        accounts.append(self)
        return begin(self, number, **options)

    def counting(self: BegunSteps, step: int, most: int | None = None) -> None:
        if not between and step == 4:
            accounts[-1].close()
        real(self, step, most)
        if between and step == 4:
            accounts[-1].close()

    def noted(run: PrivateRun) -> None:
        release(run)
        released.append(accounts[-1]._number * 100 + run.steps_taken)

    monkeypatch.setattr(RoundsAccount, "begin", begun)
    monkeypatch.setattr(PrivateRun, "release", noted)
    with monkeypatch.context() as patched:
        patched.setattr(BegunSteps, "count", counting)
        with pytest.raises(pp.InvalidInput):
            trained(ledger, schedule, checkpoint=tmp_path / "run")
    assert released == [1, 2, 3]
    trained(ledger, schedule, checkpoint=tmp_path / "run")
    assert len(set(released)) == len(released)
    assert paid_for(ledger, schedule, len(schedule.rounds))
    with pytest.raises(pp.InvalidInput, match="settled"):
        accounts[-1].begin(2)

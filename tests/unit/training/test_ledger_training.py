"""Training under a ledger: reserved before, charged for what was begun, and nobody contributes who does not pay."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, KEY, charged, copied, new_ledger, step_cost
from privypurse.ledger import entries
from privypurse.training import ledger_account
from privypurse.training.ledger_account import Account, recover
from privypurse.training.sampling import PoissonSampler
from training_tools import LOSS, Keeping, quiet

N, STEPS, NOISE = 30, 8, 4.0
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


def data(scale: Any = 1.0) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(N, 4) * torch.as_tensor(scale, dtype=torch.float32), torch.randint(0, 2, (N,)))


def planned(ledger: pp.Ledger, **changes: Any) -> pp.Plan:
    shape = {"steps": STEPS, "batch_size": 10, "noise_multiplier": NOISE, "accountant": "rdp", **changes}
    return pp.plan(pp.Budgets(GRANTED, delta=DELTA, person=IDS), ledger=ledger, **{"at_most": 0.1, **shape})


def trained(ledger: pp.Ledger | None, plan: pp.Plan, dataset: TensorDataset | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=1e-9)
    if isinstance(optimizer, type):
        optimizer = optimizer(model)
    options = {"person": IDS, **options}
    return pp.train(model, optimizer, dataset or data(), plan, LOSS, ledger=ledger, **options)


def due(ledger: pp.Ledger, plan: pp.Plan, steps: Any) -> np.ndarray:
    """[people, rungs] in nats: what so many steps cost at each order, by the plain sum."""
    orders = [rung.order for rung in ledger.rungs]
    one = np.array([[step_cost(rate, NOISE, order) if rate else 0.0 for order in orders] for rate in plan.rates])
    return one * np.broadcast_to(steps, N)[:, None]


def paid_for(ledger: pp.Ledger, plan: pp.Plan, steps: Any) -> bool:
    """Whether everybody is charged for these steps, and for no more."""
    have, want = charged(ledger, IDS), due(ledger, plan, steps)
    return bool((have >= want * (1 - 1e-9)).all() and (have <= want * (1 + 1e-6) + 1e-9).all())


class Stopped(Exception):
    pass


class AfterStep:
    """A scheduler that does something after each step, with its number."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act, self._steps = act, 0

    def step(self) -> None:
        self._steps += 1
        self._act(self._steps)

    def state_dict(self) -> dict[str, int]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._steps = state["steps"]


def stopping_at(step: int) -> AfterStep:
    def act(done: int) -> None:
        if done == step:
            raise Stopped

    return AfterStep(act)


@pytest.mark.parametrize("method", ["sample", "curve-fit", "uniform", "exclude"])
def test_everybody_pays_for_all_steps_at_every_order_drawn_or_not(ledger, method):
    plan = planned(ledger, method=method, at_most=0.9)
    assert (plan.rates == 0).any() == (method == "exclude")  # ε of 0.5 and twice 0.9: the mean leaves out the first
    trained(ledger, plan, purpose="churn")
    assert paid_for(ledger, plan, STEPS)
    (run,) = ledger.runs()
    assert (run.what, run.purpose, run.at_most) == ("train", "churn", 0.9)
    assert run.settled is not None
    assert not ledger.verify().problems


def test_the_twin_that_refunds_who_was_not_drawn_is_seen(ledger, monkeypatch):
    drawn = np.zeros(N, dtype=np.int64)
    draw, settle = PoissonSampler.draw, Account.settle

    def counting(self: PoissonSampler, source: Any) -> np.ndarray:
        units = draw(self, source)
        drawn[units] += 1
        return units

    def refunding(self: Account, steps_taken: int, spending: Any = None) -> None:
        self._begun = np.minimum(self._begun, drawn[np.argsort(np.argsort(IDS))])
        settle(self, steps_taken, spending)

    monkeypatch.setattr(PoissonSampler, "draw", counting)
    monkeypatch.setattr(Account, "settle", refunding)
    plan = planned(ledger)
    trained(ledger, plan)
    assert not paid_for(ledger, plan, STEPS)


def test_steps_that_were_never_begun_come_back(ledger):
    plan = planned(ledger)
    with pytest.raises(Stopped):
        trained(ledger, plan, scheduler=stopping_at(3))
    assert paid_for(ledger, plan, 3)
    trained(ledger, plan, steps=2)
    assert paid_for(ledger, plan, 5)


def test_an_interrupted_run_with_a_checkpoint_goes_on_with_its_reservation(ledger, tmp_path):
    plan, folder = planned(ledger), tmp_path / "run"
    members = ledger.members(IDS)
    with pytest.raises(Stopped):
        trained(ledger, plan, checkpoint=folder, scheduler=stopping_at(3))
    held = ledger.balances(members)
    (run,) = ledger.runs()
    assert run.settled is None
    order = np.random.default_rng(0).permutation(N)[:-1]  # rows in another order, one person gone
    some = TensorDataset(*(tensor[torch.as_tensor(order)] for tensor in data().tensors))
    done = trained(ledger, plan, some, person=IDS[order], checkpoint=folder)
    assert done.steps == STEPS
    assert [one.run_id for one in ledger.runs()] == [run.run_id]
    assert (ledger.balances(members) == held).all()  # all of it was used
    assert paid_for(ledger, plan, STEPS)
    trained(ledger, plan, checkpoint=folder)  # nothing left to do, and nothing is charged
    assert paid_for(ledger, plan, STEPS)


def test_a_settled_run_takes_no_further_step(ledger, tmp_path):
    plan, folder = planned(ledger), tmp_path / "run"
    with pytest.raises(Stopped):
        trained(ledger, plan, checkpoint=folder, scheduler=stopping_at(3))
    assert recover(folder, ledger) == 3
    assert paid_for(ledger, plan, 3)
    with pytest.raises(pp.InvalidInput, match="is settled in its ledger, with 5 steps not taken"):
        trained(ledger, plan, checkpoint=folder)


def test_a_killed_run_is_charged_what_its_journal_counts(ledger, tmp_path):
    plan, folder = planned(ledger), tmp_path / "run"
    child = os.fork()
    if not child:

        def die(done: int) -> None:
            if done == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        own = pp.Ledger.open(f"sqlite:///{tmp_path / 'purses.db'}", key=KEY)
        trained(own, plan, checkpoint=folder, scheduler=AfterStep(die))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    counted = recover(folder, ledger)
    assert 4 <= counted <= STEPS
    assert paid_for(ledger, plan, counted)
    assert not ledger.verify().problems


def test_a_run_whose_journal_is_gone_takes_no_step_and_is_charged_what_the_ledger_handed_out(ledger, tmp_path):
    plan, folder = planned(ledger), tmp_path / "run"
    with pytest.raises(Stopped):
        trained(ledger, plan, checkpoint=folder, scheduler=stopping_at(3))
    for file in folder.iterdir():
        if file.name != "steps.ledger":
            file.unlink()
    for _ in range(2):
        with pytest.raises(pp.InvalidInput, match="is gone; settle the run"):
            trained(ledger, plan, checkpoint=folder)
    assert recover(folder, ledger) == 3
    assert paid_for(ledger, plan, 3)


def test_a_ledger_that_does_not_know_the_steps_of_a_journal_is_an_older_copy(ledger, tmp_path):
    plan, folder, old = planned(ledger), tmp_path / "run", copied(ledger, tmp_path / "old.db")
    with pytest.raises(Stopped):
        trained(ledger, plan, checkpoint=folder, scheduler=stopping_at(3))
    with pytest.raises(pp.InvalidInput, match="old or forked copy of the ledger"):
        trained(old, plan, checkpoint=folder)
    (folder / "steps.anchor").unlink()
    with pytest.raises(pp.InvalidInput, match="older copy of the one it was reserved in"):
        trained(old, plan, checkpoint=folder)
    assert not old.runs()


def test_a_run_whose_anchor_is_lost_does_not_go_on(ledger, tmp_path):
    """Losing it is what somebody would do who puts an older copy of the ledger in its place."""
    plan, folder = planned(ledger), tmp_path / "run"
    with pytest.raises(Stopped):
        trained(ledger, plan, checkpoint=folder, scheduler=stopping_at(3))
    kept = (folder / "steps.anchor").read_bytes()
    (folder / "steps.anchor").unlink()
    for _ in range(2):
        with pytest.raises(pp.InvalidInput, match=r"steps\.anchor, by which an older copy .* is gone"):
            trained(ledger, plan, checkpoint=folder)
    (folder / "steps.anchor").write_bytes(kept)
    trained(ledger, plan, checkpoint=folder)
    assert paid_for(ledger, plan, STEPS)


def contributions(ledger: pp.Ledger, plan: pp.Plan, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[float]:
    """The length of each step's gradient, without noise and with everybody drawn who may be."""
    quiet(monkeypatch)
    monkeypatch.setattr("privypurse.training.sampling._DIRECT", 0.0)
    seen: list[Keeping] = []

    def keeping(model: nn.Module) -> Keeping:
        seen.append(Keeping(model))
        return seen[0]

    trained(ledger, plan, optimizer=type("", (), {"__new__": lambda cls, model: keeping(model)}), **options)
    return [float(gradient.norm()) for gradient in seen[0].seen]


def everybody_withdraws_after(ledger: pp.Ledger, step: int) -> AfterStep:
    return AfterStep(lambda done: ledger.withdraw(IDS) if done == step else None)


def test_who_withdraws_contributes_to_no_further_step_and_pays_for_none(ledger, monkeypatch):
    plan = planned(ledger)
    lengths = contributions(ledger, plan, monkeypatch, scheduler=everybody_withdraws_after(ledger, 3))
    assert len(lengths) == STEPS
    assert all(length > 0 for length in lengths[:3])
    assert all(length == 0 for length in lengths[3:])
    assert paid_for(ledger, plan, 3)


def test_the_twin_that_does_not_look_at_consent_is_seen(ledger, monkeypatch):
    monkeypatch.setattr(Account, "poll", lambda self, steps_taken: False)
    lengths = contributions(ledger, planned(ledger), monkeypatch, scheduler=everybody_withdraws_after(ledger, 3))
    assert all(length > 0 for length in lengths)


def test_coming_back_does_not_undo_a_withdrawal_in_a_run_that_is_under_way(ledger, monkeypatch):
    def act(done: int) -> None:
        if done == 3:
            ledger.withdraw(IDS)
        if done == 4:
            ledger.join(IDS, GRANTED)

    plan = planned(ledger)
    lengths = contributions(ledger, plan, monkeypatch, scheduler=AfterStep(act))
    assert all(length == 0 for length in lengths[3:])
    assert paid_for(ledger, plan, 3)


def test_consent_that_ends_in_mid_run_is_looked_at_without_a_change(tmp_path, monkeypatch):
    ledger = new_ledger(tmp_path)
    ledger.join(IDS, GRANTED, valid_until=datetime.now(UTC) + timedelta(days=100))
    plan, now = planned(ledger), entries.now

    def later(done: int) -> None:
        if done == 3:
            monkeypatch.setattr(entries, "now", lambda: now() + 200 * 86_400 * 10**6)

    monkeypatch.setattr(ledger_account, "_SECONDS", 0.0)
    lengths = contributions(ledger, plan, monkeypatch, scheduler=AfterStep(later))
    assert all(length > 0 for length in lengths[:3])
    assert all(length == 0 for length in lengths[3:])
    assert paid_for(ledger, plan, 3)


def test_whose_purse_was_emptied_meanwhile_contributes_nothing(ledger, monkeypatch):
    plan, members = planned(ledger), ledger.members(IDS)
    everything = np.array([[rung.limit for rung in ledger.rungs]])
    lowest = np.minimum.accumulate(everything[:, ::-1], axis=1)[:, ::-1]
    ledger.charge("meanwhile", members, lowest, np.zeros(N, dtype=int), at_most=None)
    before = charged(ledger, IDS)
    lengths = contributions(ledger, plan, monkeypatch)
    assert len(lengths) == STEPS
    poor = (ledger.room(members) == 0).any(axis=1)
    assert poor.any()
    assert np.array_equal(charged(ledger, IDS)[poor], before[poor])
    if poor.all():
        assert all(length == 0 for length in lengths)


def test_exact_individual_accounting_gives_back_what_was_clipped_off(ledger):
    small = np.where(np.arange(N) % 2, 1e-3, 3.0)[:, None]
    plan = planned(ledger)
    done = trained(ledger, plan, data(small), individual=pp.Individual(grid_size=10, every=2, headroom=1.0))
    counts, orders = done.spending.meter.counts, [rung.order for rung in ledger.rungs]
    want = np.zeros((N, 3))
    for unit in range(N):
        for share in np.flatnonzero(counts[unit]):
            if share:
                costs = [step_cost(plan.rates[unit], NOISE * 10 / share, order) for order in orders]
                want[unit] += counts[unit, share] * np.array(costs)
    have = charged(ledger, IDS)
    assert (have >= want * (1 - 1e-9)).all()
    assert (have <= want * (1 + 1e-6) + 1e-9).all()
    assert (have[1::2] < 0.1 * due(ledger, plan, STEPS)[1::2]).all()
    assert have[::2].mean() > 5 * have[1::2].mean()


def test_an_estimate_gives_nothing_back(ledger):
    plan = planned(ledger)
    trained(ledger, plan, data(1e-3), individual=pp.Individual(exact=False, every=2))
    assert paid_for(ledger, plan, STEPS)


def test_full_batches_are_charged_by_their_own_norms(ledger):
    plan = planned(ledger, method="scale", batch_size=N, noise_multiplier=None, at_most=None)
    assert (plan.rates == 1).all()
    small = np.where(np.arange(N) % 2, 1e-3, 3.0)[:, None]
    done = trained(ledger, plan, data(small), individual=pp.Individual())
    orders = np.array([rung.order for rung in ledger.rungs])
    want = done.spending.meter[:, None] * orders / 2
    have = charged(ledger, IDS)
    assert (have >= want).all()
    assert (have <= want * (1 + 1e-6) + 1e-11).all()
    assert have[1].max() < 0.1 * have[0].max()


def test_how_people_are_accounted_for_does_not_follow_from_what_they_have_left(ledger):
    """Somebody's smaller balance makes their rate less than 1: an estimate was then allowed, and else an error."""
    plan = planned(ledger, batch_size=N, noise_multiplier=None, at_most=None)
    assert (plan.rates == 1).all()
    done = trained(ledger, plan, individual=pp.Individual(exact=False, every=2))
    assert done.steps == STEPS


def test_noise_does_not_follow_gradients_and_own_rates_do(ledger, tmp_path):
    """Two worlds in which one person's gradients differ: the next plan's noise is the same to the last bit."""
    other = new_ledger(tmp_path, "other.db")
    other.join(IDS, GRANTED)
    plans = []
    for each, scale in ((ledger, 3.0), (other, np.where(np.arange(N) == 5, 1e-3, 3.0)[:, None])):
        trained(each, planned(each, at_most=0.5), data(scale), individual=pp.Individual(every=2))
        plans.append(planned(each, method="scale", noise_multiplier=None, at_most=2.0))
    assert plans[0].noise_multiplier == plans[1].noise_multiplier
    assert plans[0].clip_norms[5] < plans[1].clip_norms[5]
    assert np.array_equal(np.delete(plans[0].clip_norms, 5), np.delete(plans[1].clip_norms, 5))


@pytest.mark.slow
def test_the_own_loop_settles_at_its_end(ledger, tmp_path):
    plan = planned(ledger)
    for journal, taken in ((None, STEPS), (tmp_path / "steps", STEPS), (None, 2)):
        before, model = charged(ledger, IDS), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watched, optimizer, loader = pp.make_private(
            model, optimizer, data(), plan, person=IDS, ledger=ledger, journal=journal
        )
        for number, (x, y) in enumerate(loader):
            if number == taken:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(watched(x), y).backward()
            optimizer.step()
        optimizer.close()
        assert np.allclose(charged(ledger, IDS) - before, due(ledger, plan, taken), rtol=1e-6)


def test_a_plan_goes_with_its_ledger(ledger, tmp_path):
    plan = planned(ledger)
    other = pp.Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", epsilons=EPSILONS, delta=DELTA, key=KEY)
    bare = pp.plan(pp.Budgets(GRANTED, person=IDS), steps=2, batch_size=5, noise_multiplier=9.0, accountant="rdp")
    for given, against, words in (
        (plan, None, "made with the ledger .* Only seeded runs"),
        (plan, other, "this one is"),
        (bare, ledger, "made without a ledger"),
        (plan, "sqlite:///purses.db", "ledger is 'sqlite"),
    ):
        with pytest.raises(pp.InvalidInput, match=words):
            trained(against, given)
        with pytest.raises(pp.InvalidInput, match=words):
            pp.make_private(nn.Linear(4, 2), None, data(), given, person=IDS, ledger=against)
    with pytest.warns(pp.PrivyPurseWarning, match="for tests only"):
        assert trained(None, plan, seed=1).steps == STEPS
    assert not ledger.runs()


def test_another_plan_in_the_same_folder_and_an_altered_one_are_refused(ledger, tmp_path):
    trained(ledger, planned(ledger), checkpoint=tmp_path / "run", steps=1)
    (tmp_path / "run" / "steps").unlink()
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(pp.InvalidInput, match="is gone"):
        trained(ledger, planned(ledger, steps=9), checkpoint=tmp_path / "run")
    (tmp_path / "run" / "steps.ledger").write_text("{}")
    with pytest.raises(pp.InvalidInput, match=r"steps\.ledger is damaged"):
        trained(ledger, planned(ledger), checkpoint=tmp_path / "run")
    with pytest.raises(pp.InvalidInput, match="is no journal or checkpoint folder"):
        recover(tmp_path, ledger)

"""Steps beyond the fixed ones under a ledger: within what is reserved at every order, settled at what they cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, UNIT, charged, copied, new_ledger, step_cost
from privypurse.accounting.lasting_step_filter import LastingStepFilter
from privypurse.plans import file as planfile
from privypurse.training.distributed import Processes
from privypurse.training.ledger_account import Account, recover
from training_tools import LOSS, Keeping, quiet

N, STEPS, EXTRA, NOISE = 30, 6, 30, 4.0
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
GRID = pp.Individual(grid_size=10, every=2, headroom=1.0)
SELDOM = pp.Individual(grid_size=10, every=50, headroom=1.0)


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


def data(norm: Any = 1.0) -> TensorDataset:
    """Records whose gradients have these norms as long as the model says nothing, as `trained` leaves it."""
    torch.manual_seed(1)
    x = nn.functional.normalize(torch.randn(N, 4)) * torch.as_tensor(norm, dtype=torch.float32) * 2**0.5
    return TensorDataset(x, torch.randint(0, 2, (N,)))


def planned(ledger: pp.Ledger, **changes: Any) -> pp.Plan:
    shape = {"steps": STEPS, "extra_steps": EXTRA, "batch_size": 10, "noise_multiplier": NOISE, "at_most": 0.3}
    budgets = pp.Budgets(GRANTED, delta=DELTA, person=IDS)
    return pp.plan(budgets, ledger=ledger, **{"accountant": "rdp", **shape, **changes})


def trained(ledger: pp.Ledger, plan: pp.Plan, dataset: TensorDataset | None = None, **options: Any) -> Any:
    model = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = options.pop("optimizer", lambda model: torch.optim.SGD(model.parameters(), lr=1e-9))(model)
    options = {"person": IDS, "individual": GRID, **options}
    return pp.train(model, optimizer, dataset or data(), plan, LOSS, ledger=ledger, **options)


def reserved(ledger: pp.Ledger) -> np.ndarray:
    """[people, rungs] in nats: what the last run had reserved."""
    held = ledger.reservation(ledger.runs()[-1].run_id).reserved
    table = np.frombuffer(held.entry.classes, dtype="<i8").reshape(-1, 3)
    units = np.where(held.admitted[:, None], table[np.where(held.admitted, held.values, 0)], 0)
    return units[np.searchsorted(held.numbers, ledger.members(IDS).numbers)] * UNIT


def owed(ledger: pp.Ledger, plan: pp.Plan, counts: np.ndarray) -> np.ndarray:
    """[people, rungs] in nats: counts of steps by tenths of the clip norm, by the plain sum."""
    want = np.zeros((N, 3))
    for unit, share in zip(*np.nonzero(counts[:, 1:]), strict=True):
        noise = NOISE * plan.clip_norm / plan.clip_norms[unit] * 10 / (share + 1)
        costs = [step_cost(plan.rates[unit], noise, rung.order) for rung in ledger.rungs]
        want[unit] += counts[unit, share + 1] * np.array(costs)
    return want


def as_owed(have: np.ndarray, want: np.ndarray) -> bool:
    return bool((have >= want * (1 - 1e-9)).all() and (have <= want * (1 + 1e-6) + 1e-9).all())


NORMS = np.array([9.0, 0.45, 1e-3])[np.arange(N) // 3 % 3][:, None]
"""Gradients that are clipped, that fill a part of the clip norm, and next to nothing."""


@pytest.mark.parametrize("method", ["sample", "scale", "uniform"])
def test_everybody_goes_on_within_the_reservation_and_pays_what_they_took(ledger, method):
    plan = planned(ledger, method=method)
    done = trained(ledger, plan, data(NORMS))
    assert done.steps == STEPS + EXTRA
    counts = done.spending.meter.counts
    have, held = charged(ledger, IDS), reserved(ledger)
    assert as_owed(have, owed(ledger, plan, counts))
    assert (have <= held).all()
    share = np.minimum(np.ceil(NORMS[:, 0] / plan.clip_norms * 10 * (1 - 1e-6)), 10).astype(int)
    assert (counts[np.arange(N), share] >= STEPS).all()
    small, large = share == 1, share == 10
    assert (counts[small, 1] == STEPS + EXTRA).all()
    assert (counts[large, 1:].sum(axis=1) < STEPS + EXTRA).all()
    assert small.any() and large.any()  # noqa: PT018
    assert not ledger.verify().problems


def nearly_use_up(ledger: pp.Ledger) -> None:
    """A run that by itself would be allowed much more than is left: the orders for life decide."""
    limits = np.array([rung.limit for rung in ledger.rungs])
    most = np.minimum.accumulate(limits[::-1])[::-1] * 49 // 50
    ledger.charge("before", ledger.members(IDS), most[None], np.zeros(N, dtype=int), at_most=None)


def test_the_reservation_stops_people_at_the_step_that_it_does_not_pay_for(ledger):
    nearly_use_up(ledger)
    plan, before = planned(ledger, at_most=2.0, extra_steps=200), charged(ledger, IDS)
    done = trained(ledger, plan, data(0.45), individual=SELDOM)
    counts, rung = done.spending.meter.counts, ledger.members(IDS).rung
    have, held = charged(ledger, IDS) - before, reserved(ledger)
    assert (have <= held).all()
    stopped = np.flatnonzero((rung < 2) & (counts[:, 0] > 0))  # whose purse ended while the run went on
    assert stopped.size > 5
    one_more = np.zeros_like(counts)
    one_more[stopped, [np.flatnonzero(counts[unit]).max() for unit in stopped]] = 1
    after = have + owed(ledger, plan, one_more)
    assert (after[stopped] > held[stopped]).any(axis=1).all()


def test_who_cannot_pay_for_the_fixed_steps_any_more_takes_no_part(ledger):
    """A plan may be older than what was charged since: the filter asks nobody about fixed steps."""
    plan, poor = planned(ledger), np.arange(N) < N // 2
    limits = np.array([rung.limit for rung in ledger.rungs])
    most = np.minimum.accumulate(limits[::-1])[::-1] * 999 // 1000
    ledger.charge("since", ledger.members(IDS[poor]), most[None], np.zeros(poor.sum(), dtype=int), at_most=None)
    before, left = charged(ledger, IDS), ledger.room(ledger.members(IDS)) * UNIT
    fixed = np.zeros((N, 11), dtype=int)
    fixed[:, 10] = STEPS
    assert (owed(ledger, plan, fixed)[poor] > left[poor]).any(axis=1).all()
    done = trained(ledger, plan, data(9.0))
    assert not done.spending.meter.counts[poor, 1:].any()
    have = charged(ledger, IDS) - before
    assert not have[poor].any()
    assert (have[~poor] >= owed(ledger, plan, fixed)[~poor] * (1 - 1e-9)).all()


def test_reserved_is_the_cap_or_what_is_left_and_the_rest_comes_back(ledger):
    poor = np.arange(N) % 2 == 0
    limits = np.array([rung.limit for rung in ledger.rungs])
    most = np.minimum.accumulate(limits[::-1])[::-1] * 9 // 10
    ledger.charge("before", ledger.members(IDS[poor]), most[None], np.zeros(poor.sum(), dtype=int), at_most=None)
    room, rung = ledger.room(ledger.members(IDS)), ledger.members(IDS).rung
    plan, before = planned(ledger), charged(ledger, IDS)
    trained(ledger, plan, data(1e-3))
    own, held = np.arange(N), reserved(ledger)
    cap = np.diag(ledger.caps(np.zeros((1, 3), dtype=np.int64), 0.3))[rung] * UNIT
    want = np.minimum(room[own, rung] * UNIT, cap)
    assert (held[own, rung] <= want).all()
    fits = (held[own] * 1.011 <= room * UNIT).all(axis=1) | (held[own, rung] < want / 1.011)
    assert not (fits & (held[own, rung] < cap)).any()  # no larger share fits
    taken = (charged(ledger, IDS) - before)[own, rung]
    assert (taken < 0.1 * held[own, rung]).all()


def test_how_many_steps_follows_from_no_balance(ledger, tmp_path, monkeypatch):
    """Nobody can pay any more: as many steps, noise alone."""
    plan = planned(ledger)
    limits = np.array([rung.limit for rung in ledger.rungs])
    most = np.minimum.accumulate(limits[::-1])[::-1]
    ledger.charge("all", ledger.members(IDS), most[None], np.zeros(N, dtype=int), at_most=None)
    ledger.charge("rest", ledger.members(IDS[2::3]), limits[None] - most, np.zeros(N // 3, dtype=int), at_most=None)
    quiet(monkeypatch)
    seen: list[Keeping] = []

    def keeping(model: nn.Module) -> Keeping:
        seen.append(Keeping(model))
        return seen[0]

    done = trained(ledger, plan, optimizer=keeping)
    assert done.steps == len(seen[0].seen) == STEPS + EXTRA
    assert all(float(gradient.norm()) == 0 for gradient in seen[0].seen)


def test_noise_and_summary_follow_from_no_balance(ledger, tmp_path):
    other = copied(ledger, tmp_path / "other.db")
    members, caps = ledger.members(IDS), np.diag(ledger.caps(np.zeros((1, 3), dtype=np.int64), 0.3))
    table = np.stack([caps * 0, np.minimum.accumulate(caps[::-1])[::-1]])
    for each, taken in ((ledger, np.zeros(N, dtype=int)), (other, np.arange(N) % 2)):
        each.reserve("before", members, table, np.ones(N, dtype=int), at_most=0.3).settle(table, taken)
    one, two = (planned(each, method="scale", noise_multiplier=None) for each in (ledger, other))
    assert one.noise_multiplier == two.noise_multiplier
    assert (one.ledger, one.summary()) == (two.ledger, two.summary())


def test_full_batches_go_on_by_their_own_norms(ledger):
    plan = planned(ledger, method="scale", batch_size=N, noise_multiplier=None, at_most=0.4)
    assert (plan.filter, plan.ledger.rate) == ("gdp", 1.0)
    done = trained(ledger, plan, data(NORMS), individual=pp.Individual())
    have, held = charged(ledger, IDS), reserved(ledger)
    orders = np.array([rung.order for rung in ledger.rungs])
    assert as_owed(have, done.spending.meter[:, None] * orders / 2)
    assert (have <= held).all()
    small = NORMS[:, 0] < 0.1
    assert (have[small] < 1e-3 * held[small]).all()
    assert (have[~small] > 0.9 * held[~small]).any(axis=1).all()  # they stop where the purse does


def test_who_withdraws_pays_for_the_steps_until_then(ledger):
    plan = planned(ledger)

    class Leaving:
        """A scheduler: after the ninth step everybody withdraws."""

        taken = 0

        def step(self) -> None:
            self.taken += 1
            if self.taken == 9:
                ledger.withdraw(IDS)

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    done = trained(ledger, plan, data(1e-3), scheduler=Leaving())
    counts = done.spending.meter.counts
    assert done.steps == STEPS + EXTRA
    assert (counts[:, 1:].sum(axis=1) == 9).all()
    assert as_owed(charged(ledger, IDS), owed(ledger, plan, counts))


def test_a_run_that_died_is_charged_all_that_it_reserved(ledger, tmp_path):
    plan = planned(ledger)

    class Stopping:
        def step(self) -> None:
            raise KeyboardInterrupt

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        trained(ledger, plan, data(1e-3), scheduler=Stopping(), checkpoint=tmp_path / "run")
    assert recover(tmp_path / "run", ledger) >= 1
    assert np.array_equal(charged(ledger, IDS), reserved(ledger))


@pytest.mark.slow
def test_a_run_goes_on_later_within_the_same_reservation(ledger, tmp_path):
    plan, dataset = planned(ledger), data(NORMS)
    trained(ledger, plan, dataset, checkpoint=tmp_path / "run", steps=11)
    done = trained(ledger, plan, dataset, checkpoint=tmp_path / "run")
    assert done.steps == STEPS + EXTRA
    assert len(ledger.runs()) == 1
    assert as_owed(charged(ledger, IDS), owed(ledger, plan, done.spending.meter.counts))
    assert (charged(ledger, IDS) <= reserved(ledger)).all()


@pytest.mark.slow
def test_the_twin_that_lets_people_go_on_is_seen_at_settling(ledger, monkeypatch):
    """A filter that forgets what was reserved: the run's own ε lets people go on."""
    forever = np.full(N, 2**40), np.full(N, 10, dtype=np.uint16)
    monkeypatch.setattr(LastingStepFilter, "affordable", lambda self, counts, norm: forever)
    nearly_use_up(ledger)
    with pytest.raises(pp.PrivyPurseError, match="cost somebody more than was reserved"):
        trained(ledger, planned(ledger, at_most=2.0, extra_steps=200), data(0.45), individual=SELDOM)
    assert ledger.runs()[-1].settled is None


def test_without_extra_steps_nothing_changes(ledger):
    assert (
        planned(ledger, extra_steps=0).digest()
        == pp.plan(
            pp.Budgets(GRANTED, delta=DELTA, person=IDS),
            ledger=ledger,
            steps=STEPS,
            batch_size=10,
            noise_multiplier=NOISE,
            at_most=0.3,
            accountant="rdp",
        ).digest()
    )


def test_what_cannot_be_is_refused_by_name(ledger):
    with pytest.raises(pp.InvalidInput, match="extra_steps is 30 and at_most is not given"):
        planned(ledger, at_most=None)
    with pytest.raises(pp.InvalidInput, match="stop is StopWhenFew"):
        planned(ledger, stop=pp.StopWhenFew(below=5, epsilon=0.1))
    with pytest.raises(pp.InvalidInput, match="a filter needs exact accounting: leave exact= out"):
        trained(ledger, planned(ledger), individual=pp.Individual(exact=False))
    assert not ledger.runs()


def altered(plan: pp.Plan, **shape: Any) -> pp.Plan:
    """As somebody might change its file: other steps, and ten times everybody's ε so that these seem to fit."""
    levels = replace(plan.levels, epsilon=plan.levels.epsilon * 10)
    return planfile.loads(planfile.dumps(replace(plan, shape=replace(plan.shape, **shape), levels=levels)), pp.Plan)


@pytest.mark.slow
def test_steps_that_were_put_into_a_plan_are_paid_for_or_not_contributed_to(ledger):
    plan = planned(ledger, extra_steps=0, at_most=0.1)
    done = trained(ledger, altered(plan, extra_steps=100), data(9.0))
    have = charged(ledger, IDS)
    assert done.steps == STEPS + 100
    assert as_owed(have, owed(ledger, plan, done.spending.meter.counts))
    assert (have <= reserved(ledger)).all()
    assert (done.spending.meter.counts[:, 1:].sum(axis=1) < STEPS + 100).any()


def test_a_filter_that_forgets_the_reservation_is_found_when_settling(ledger, monkeypatch):
    monkeypatch.setattr(Account, "hold", lambda self, accounting: None)
    plan = altered(planned(ledger, extra_steps=0, at_most=0.1), extra_steps=100)
    with pytest.raises(pp.PrivyPurseError, match="more than was reserved"):
        trained(ledger, plan, data(9.0))


def test_extra_steps_without_a_cap_or_with_a_rule_that_stops_them_are_refused(ledger):
    plan = planned(ledger, extra_steps=0, at_most=None)
    stop = pp.StopAtPlateau(every=5, noise=10.0)
    for other in (altered(plan, extra_steps=100), altered(planned(ledger), stop=stop)):
        with pytest.raises(pp.InvalidInput, match="It was altered"):
            trained(ledger, other)
    assert not ledger.runs()


def test_no_account_counts_or_settles_more_steps_than_are_reserved(ledger):
    account = Account(ledger, planned(ledger, extra_steps=0).for_records(IDS), Processes())
    account.count(STEPS)
    with pytest.raises(pp.PrivyPurseError, match="6 steps reserved"):
        account.count(STEPS + 1)
    with pytest.raises(pp.PrivyPurseError, match="6 steps reserved"):
        account.settle(STEPS + 1)
    assert ledger.runs()[-1].settled is None

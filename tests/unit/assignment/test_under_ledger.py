"""Plans under a ledger: rates that purses pay for, and nothing public that follows from what people have left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, copied, new_ledger, step_cost
from privypurse.plans.price_list import PriceList

N = 60
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
BUDGETS = pp.Budgets(GRANTED, delta=DELTA, person=IDS)
SHAPE = {"steps": 100, "batch_size": 12, "accountant": "rdp"}


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


def used_up(ledger: pp.Ledger, share: np.ndarray, run: str = "before", at_most: float | None = 0.3) -> None:
    """A run with this public cap, of which everybody was charged some share."""
    members = ledger.members(IDS)
    caps = ledger.caps(np.zeros((1, 3), dtype=np.int64), at_most)
    whole = np.minimum.accumulate(np.diag(caps)[::-1])[::-1]  # fits every cap
    table = (np.linspace(0, 1, 11)[:, None] * whole).astype(np.int64)
    full = np.full(N, 10)
    held = ledger.reserve(run, members, table, full, at_most=at_most)
    held.settle(table, np.round(np.asarray(share) * 10).astype(int))


@pytest.mark.parametrize("at_most", [None, 0.4])
@pytest.mark.parametrize("method", ["sample", "scale"])
def test_everybody_gets_the_largest_that_their_purse_and_their_epsilon_pay_for(ledger, method, at_most):
    used_up(ledger, np.arange(N) % 11 / 10, at_most=None if at_most is None else 0.9)
    plan = pp.plan(BUDGETS, method, ledger=ledger, at_most=at_most, noise_multiplier=3.0, **SHAPE)
    members = ledger.members(IDS)
    room, rungs = ledger.room(members), ledger.rungs
    prices = PriceList.of_plan(ledger, plan)
    caps = ledger.caps(prices.charges, at_most)
    rows = prices.rows_of(plan)[plan.level_of]
    alone = pp.plan(
        pp.Budgets(np.minimum(GRANTED, at_most or 9), delta=DELTA, person=IDS), method, noise_multiplier=3.0, **SHAPE
    )
    for unit in range(N):
        rung = int(members.rung[unit])
        pays = np.minimum(room[unit], caps[rung]) * 2.0**-40

        def fits(row: int, rung: int = rung, pays: np.ndarray = pays) -> bool:
            value = prices.value[row]
            rate, noise = (value, 3.0) if method == "sample" else (plan.levels.rate.max(), 1 / value)
            costs = [100 * step_cost(rate, noise, rungs[k].order) for k in range(rung, 3)]
            return all(cost <= pays[k] for k, cost in enumerate(costs, rung))

        most = alone.rates[unit] if method == "sample" else alone.clip_norms[unit] / 3.0
        row = int(rows[unit])
        assert row == -1 or (fits(row) and prices.value[row] <= most)
        assert row == prices.value.size - 1 or prices.value[row + 1] > most * (1 - 1e-9) or not fits(row + 1)
    assert (plan.spent() <= np.minimum(GRANTED, at_most or 9)).all()


@pytest.mark.parametrize("method", ["scale", pytest.param("sample", marks=pytest.mark.slow)])
def test_nothing_public_moves_with_what_people_have_left(ledger, tmp_path, method):
    """The noise is solved from public balances: alike to the last bit whatever earlier runs really took."""
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.ones(N))
    used_up(other, np.arange(N) % 2)
    one, two = (pp.plan(BUDGETS, method, ledger=each, **SHAPE) for each in (ledger, other))
    assert one.noise_multiplier == two.noise_multiplier
    assert one.summary() == two.summary()
    assert not np.array_equal(
        one.clip_norms * one.rates, two.clip_norms * two.rates
    )  # a person's own rate follows their own purse
    assert np.array_equal(one.clip_norms[1::2], two.clip_norms[1::2])


def test_the_twin_that_solves_noise_from_balances_is_seen(ledger, tmp_path, monkeypatch):
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.ones(N))
    used_up(other, np.where(np.arange(N) == 7, 0.0, 1.0))  # one person's gradients were small
    monkeypatch.setattr(pp.Ledger, "public_room", pp.Ledger.room)
    one, two = (pp.plan(BUDGETS, "scale", ledger=each, **SHAPE) for each in (ledger, other))
    assert one.noise_multiplier != two.noise_multiplier


def test_who_is_empty_has_rate_0_and_nothing_tells(ledger, tmp_path):
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.zeros(N), at_most=None)
    used_up(other, np.ones(N), at_most=None)
    one, two = (pp.plan(BUDGETS, ledger=each, noise_multiplier=2.0, **SHAPE) for each in (ledger, other))
    assert (one.rates > 0).all()
    poor = two.rates == 0
    assert poor.any()
    assert one.summary() == two.summary()
    assert "expected batch" not in one.summary()


def test_a_plan_says_when_public_caps_have_used_everything_up(ledger, tmp_path):
    """By grants and caps alone: the same words whatever people really have left, and none while a cap leaves some."""
    other = copied(ledger, tmp_path / "other.db")
    shape = {**SHAPE, "noise_multiplier": 2.0, "at_most": 0.2}
    used_up(ledger, np.ones(N), run="some", at_most=0.3)
    assert "by public caps" not in pp.plan(BUDGETS, ledger=ledger, **shape).summary()
    used_up(other, np.zeros(N), run="some", at_most=0.3)
    used_up(ledger, np.zeros(N), run="all", at_most=None)
    used_up(other, np.zeros(N), run="all", at_most=None)
    one, two = (pp.plan(BUDGETS, ledger=each, **shape).notes for each in (ledger, other))
    assert one == two
    assert "by public caps nobody listed has anything left" in one[-1]
    assert "(2 in this ledger)" in one[-1]


def test_public_balances_decide_what_is_infeasible(ledger, tmp_path):
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.zeros(N), at_most=None)
    used_up(other, np.ones(N), at_most=None)
    said = []
    for each in (ledger, other):
        with pytest.raises(pp.InfeasibleBudget, match="public balance") as raised:
            pp.plan(BUDGETS, ledger=each, **SHAPE)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_cap_holds_back_public_and_real_balances_alike(ledger):
    first = pp.plan(BUDGETS, "scale", ledger=ledger, at_most=0.2, **SHAPE)
    assert first.epsilon.max() <= 0.2
    prices = PriceList.of_plan(ledger, first)
    caps = ledger.caps(prices.charges, 0.2)
    charges = prices.charges[prices.rows_of(first)][first.level_of]
    assert (charges <= caps[ledger.members(IDS).rung]).all()


def test_a_plan_remembers_its_ledger_and_cap(ledger, tmp_path):
    plan = pp.plan(BUDGETS, ledger=ledger, at_most=0.25, noise_multiplier=3.0, **SHAPE)
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["version"] == 3
    loaded = pp.Plan.load(tmp_path / "plan.json")
    assert (loaded.ledger.id, loaded.ledger.at_most) == (ledger.id, 0.25)
    assert loaded.digest() == plan.digest()
    assert plan.promise is pp.Promise.DATA


def test_what_cannot_be_is_refused_by_name(ledger):
    shape = {**SHAPE, "noise_multiplier": 3.0, "ledger": ledger}
    with pytest.raises(pp.InvalidInput, match=r"person=ids"):
        pp.plan(pp.Budgets(GRANTED, delta=DELTA), **shape)
    for method in ("uniform", "exclude", "curve-fit"):
        with pytest.raises(pp.InvalidInput, match=f"method is '{method}'"):
            pp.plan(BUDGETS, method, **shape)
    with pytest.raises(pp.InvalidInput, match="extra_steps"):
        pp.plan(BUDGETS, extra_steps=5, **shape)
    with pytest.raises(pp.InvalidInput, match=r"at_most is 0\.1"):
        pp.plan(BUDGETS, at_most=0.1, **SHAPE)
    with pytest.raises(pp.InvalidInput, match="at_most"):
        pp.plan(BUDGETS, at_most=-1.0, **shape)
    with pytest.raises(pp.InvalidInput, match="ledger is 'sqlite"):
        pp.plan(BUDGETS, ledger="sqlite:///purses.db", **SHAPE)
    with pytest.raises(pp.InvalidInput, match="Nobody"):
        pp.plan(pp.Budgets([1.0], delta=DELTA, person=["Nobody"]), **shape)

"""Plans under a ledger: rates that purses pay for, and nothing public that follows from what people have left."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, UNIT, copied, new_ledger, step_cost
from privypurse.assignment.uniform import Uniform
from privypurse.plans.price_list import PriceList
from some_of import some_of

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


def pays(ledger: pp.Ledger, plan: pp.Plan, unit: int, rate: float, noise: float) -> bool:
    """Whether a person's balance and the cap hold all steps at every order from their rung on, by the plain sum."""
    members, rungs = ledger.members(IDS), ledger.rungs
    rung, room = int(members.rung[unit]), ledger.room(members)[unit]
    cap = ledger.caps(np.zeros((1, 3), dtype=np.int64), plan.ledger.at_most)[rung, rung]
    held = [min(room[k], cap) if k == rung else room[k] for k in range(3)]
    return all(100 * step_cost(rate, noise, rungs[k].order) <= held[k] * UNIT for k in range(rung, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "at_most"),
    some_of(
        [(method, most) for method in ("sample", "scale", "curve-fit") for most in (None, 0.4)],
        quick=[("sample", None), ("scale", 0.4), ("curve-fit", 0.4)],
    ),
)
def test_everybody_gets_the_largest_that_their_purse_and_their_epsilon_pay_for(ledger, method, at_most):
    used_up(ledger, np.arange(N) % 11 / 10, at_most=None if at_most is None else 0.9)
    plan = pp.plan(BUDGETS, method, ledger=ledger, at_most=at_most, noise_multiplier=3.0, **SHAPE)
    prices = PriceList.of_plan(ledger, plan)
    rows = prices.rows_of(plan)[plan.level_of]
    alone = pp.plan(
        pp.Budgets(np.minimum(GRANTED, at_most or 9), delta=DELTA, person=IDS), method, noise_multiplier=3.0, **SHAPE
    )
    for unit in range(N):

        def fits(row: int, unit: int = unit) -> bool:
            value = prices.value[row]
            return pays(ledger, plan, unit, *((0.2, 1 / value) if method == "scale" else (value, 3.0)))

        most = alone.clip_norms[unit] / 3.0 if method == "scale" else alone.rates[unit]
        row = int(rows[unit])
        assert row == -1 or (fits(row) and prices.value[row] <= most)
        assert row == prices.value.size - 1 or prices.value[row + 1] > most * (1 - 1e-9) or not fits(row + 1)
    assert (plan.spent() <= np.minimum(GRANTED, at_most or 9)).all()


@pytest.mark.parametrize(
    ("method", "noise"),
    some_of(
        [(method, noise) for method in ("uniform", "exclude") for noise in (None, 3.0)],
        quick=[("uniform", None), ("exclude", 3.0)],
    ),
)
def test_one_rate_for_all_is_taken_or_left(ledger, method, noise):
    """What everybody's public balance pays for; by real balances those take part whose public one is used up."""
    used_up(ledger, np.arange(N) % 11 / 10, at_most=0.1)
    some = ledger.members(IDS[:33])
    limits = np.array([rung.limit for rung in ledger.rungs])
    most = np.minimum.accumulate(limits[::-1])[::-1] * 4 // 5
    table = np.stack([most * 0, most // 50, most])
    ledger.reserve("much", some, table, np.full(33, 2), at_most=None).settle(table, np.arange(33) // 3 % 3)
    ledger.withdraw(IDS[50:52])
    at_most = 0.7 if method == "exclude" else 0.4  # whose mean of 0.5 and twice 0.7 leaves out the strictest
    plan = pp.plan(BUDGETS, method, ledger=ledger, at_most=at_most, noise_multiplier=noise, **SHAPE)
    one, stays = plan.ledger.rate, at_most <= GRANTED
    assert (noise is None) == (one == pytest.approx(12 / stays.sum()))
    want = [bool(stays[unit]) and pays(ledger, plan, unit, one, plan.noise_multiplier) for unit in range(N)]
    assert np.array_equal(plan.rates, np.where(want, one, 0.0))
    assert np.array_equal([*want[33:50], *want[52:]], [*stays[33:50], *stays[52:]])
    assert not any(want[50:52])
    assert 0 < sum(want[:33]) < stays[:33].sum()
    assert "35 people have withdrawn, or have nothing left by public caps" in plan.notes[-1]
    assert plan.spent().max() <= at_most
    # It is no less than it may be: of 2 % more somebody's public balance, or the ε allowed, does not hold all.
    public, rung = ledger.public_room(ledger.members(IDS)), ledger.members(IDS).rung
    own = public[np.arange(N), rung]
    cap = np.diag(ledger.caps(np.zeros((1, 3), dtype=np.int64), at_most))[rung]
    held = np.minimum(own, cap)[(own > 0) & stays] * UNIT
    orders = np.array([each.order for each in ledger.rungs])[rung][(own > 0) & stays]
    more = [100 * step_cost(one * 1.02, plan.noise_multiplier / 1.02, order) for order in orders]
    strict = pp.Budgets(np.full(stays.sum(), at_most), delta=DELTA)
    alone = pp.plan(strict, "uniform", noise_multiplier=noise, **SHAPE)
    assert (np.array(more) > held).any() or alone.rates[0] / alone.noise_multiplier < (
        1.02 * one / plan.noise_multiplier
    )


@pytest.mark.parametrize(
    ("noise", "extra_steps"),
    some_of([(noise, extra) for noise in (None, 3.0) for extra in (0, 10)], quick=[(None, 10), (3.0, 0)]),
)
def test_whoever_has_no_more_than_their_public_balance_takes_part_at_the_one_rate(ledger, noise, extra_steps):
    """Whatever that is: what is reserved is rounded down, and rates have to fit what is reserved."""
    members, shape = ledger.members(IDS), {**SHAPE, "noise_multiplier": noise, "extra_steps": extra_steps}
    for number in range(6):
        caps = np.diag(ledger.caps(np.zeros((1, 3), dtype=np.int64), 0.15))
        row, before = members.rung.astype(int), np.repeat(caps[:, None], 3, axis=1)
        ledger.charge(f"run {number}", members, before, row, at_most=0.15)
        assert (ledger.room(members) == ledger.public_room(members)).all()
        plan = pp.plan(BUDGETS, "uniform", ledger=ledger, at_most=2.0, **shape)
        assert (plan.rates == plan.ledger.rate).all()


SLOW = [pytest.param(method, marks=pytest.mark.slow) for method in ("sample", "curve-fit")]


@pytest.mark.parametrize("method", ["scale", "uniform", "exclude", *SLOW])
def test_nothing_public_moves_with_what_people_have_left(ledger, tmp_path, method):
    """The noise is solved from public balances: alike to the last bit whatever earlier runs really took."""
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.ones(N))
    used_up(other, np.arange(N) % 2)
    one, two = (pp.plan(BUDGETS, method, ledger=each, **SHAPE) for each in (ledger, other))
    assert one.noise_multiplier == two.noise_multiplier
    assert (one.ledger, one.summary()) == (two.ledger, two.summary())
    assert np.array_equal(one.clip_norms[1::2], two.clip_norms[1::2])
    if method not in ("uniform", "exclude"):  # a person's own rate follows their own purse
        assert not np.array_equal(one.clip_norms * one.rates, two.clip_norms * two.rates)


@pytest.mark.parametrize("method", ["uniform", "exclude"])
def test_a_rate_for_all_at_given_noise_does_not_move_with_what_people_have_left(ledger, tmp_path, method):
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.ones(N))
    used_up(other, np.arange(N) % 2)
    one, two = (pp.plan(BUDGETS, method, ledger=each, noise_multiplier=3.0, **SHAPE) for each in (ledger, other))
    assert (one.ledger, one.summary()) == (two.ledger, two.summary())
    assert one.ledger.rate > 0


@pytest.mark.parametrize(
    ("method", "noise"), [("scale", None), ("uniform", None), ("uniform", 3.0), ("exclude", None), ("exclude", 3.0)]
)
def test_the_twin_that_solves_from_balances_is_seen(ledger, tmp_path, monkeypatch, method, noise):
    other = copied(ledger, tmp_path / "other.db")
    used_up(ledger, np.ones(N), at_most=0.9)
    poorest = np.isin(GRANTED, 2.0 if method == "exclude" else 0.5)
    used_up(other, np.where(poorest, 0.5, 1.0), at_most=0.9)  # some people's gradients were small
    monkeypatch.setattr(pp.Ledger, "public_room", pp.Ledger.room)
    one, two = (pp.plan(BUDGETS, method, ledger=each, noise_multiplier=noise, **SHAPE) for each in (ledger, other))
    assert (one.noise_multiplier, one.ledger.rate) != (two.noise_multiplier, two.ledger.rate)


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
    with pytest.raises(pp.InvalidInput, match="give person=, the column of ids"):
        pp.plan(pp.Budgets(GRANTED, delta=DELTA), **shape)
    mine = type("Mine", (), {"name": "mine", "assign": Uniform().assign})()
    with pytest.raises(pp.InvalidInput, match=r"method is 'mine', which does not say .* Own\.RATE"):
        pp.plan(BUDGETS, mine, **shape)
    with pytest.raises(pp.InvalidInput, match="extra_steps"):
        pp.plan(BUDGETS, extra_steps=5, **shape)
    with pytest.raises(pp.InvalidInput, match="at_most"):
        pp.plan(BUDGETS, at_most=-1.0, **shape)
    with pytest.raises(pp.InvalidInput, match="ledger is 'sqlite"):
        pp.plan(BUDGETS, ledger="sqlite:///purses.db", **SHAPE)
    with pytest.raises(pp.InvalidInput, match="Nobody"):
        pp.plan(pp.Budgets([1.0], delta=DELTA, person=["Nobody"]), **shape)


def test_a_plan_says_how_much_of_a_purse_its_cap_is(ledger):
    """Public numbers: α·μ²/2 of a Gaussian release that is (0.3, δ)-DP, over what ε = 0.5 and ε = 2 hold."""
    plan = pp.plan(BUDGETS, ledger=ledger, at_most=0.3, noise_multiplier=3.0, **SHAPE)
    mu = optimize.brentq(lambda mu: gaussian_delta(0.3, mu) - DELTA, 1e-3, 1)
    shares = []
    for epsilon, order in ((0.5, 28), (2.0, 9)):
        held = epsilon - math.log1p(-1 / order) + (math.log(DELTA) + math.log(order)) / (order - 1)
        shares.append(f"{order * mu**2 / 2 / held:.0%}".replace("%", " %"))
    lowest, highest = shares
    said = f"the cap, ε = 0.3, is {lowest} of the lowest rung (ε = 0.5) and {highest} of the highest rung (ε = 2)"
    assert any(note.startswith(said) for note in plan.notes)
    assert said in plan.summary()
    assert "everybody is treated alike" in plan.summary()  # 0.3 is within what the strictest grant
    assert np.unique(plan.rates).size == 1
    apart = pp.plan(BUDGETS, ledger=ledger, at_most=0.7, noise_multiplier=3.0, **SHAPE)
    assert "everybody is treated alike" not in apart.summary()
    assert np.unique(apart.rates).size > 1


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_batch_that_public_balances_do_not_fill_is_laid_to_earlier_caps(ledger, share):
    """The same words whatever people were really charged (rule 15); with noise that is given it goes on."""
    shape = {**SHAPE, "batch_size": 30}
    first = pp.plan(BUDGETS, ledger=ledger, at_most=0.9, **shape)
    after = "After this run no noise can be solved for 1 of the ladder's 3 rungs (ε = 0.5)"
    assert any(after in note for note in first.notes)
    used_up(ledger, np.full(N, share), at_most=0.9)
    used_up(ledger, np.zeros(N), run="again", at_most=0.9)
    with pytest.raises(pp.InfeasibleBudget) as refused:
        pp.plan(BUDGETS, ledger=ledger, at_most=0.9, **shape)
    assert "earlier uses took all of 2 of the ladder's 3 rungs (ε = 0.5, 1) from whoever was in all of them" in str(
        refused.value
    )
    assert "Give noise_multiplier=" in str(refused.value)
    pp.plan(BUDGETS, ledger=ledger, at_most=0.9, noise_multiplier=first.noise_multiplier, **shape)


@pytest.mark.slow
def test_without_earlier_uses_a_batch_that_is_too_large_is_laid_to_the_budgets(ledger):
    """Its twin: nothing is said of caps that nobody has used, nor of a rung that keeps some of its balance."""
    small = pp.Budgets(np.full(N, 0.05), delta=DELTA, person=IDS)
    shape = {**SHAPE, "steps": 1_000_000, "batch_size": 59}
    with pytest.raises(pp.InfeasibleBudget, match="these ε are too small"):
        pp.plan(small, ledger=ledger, at_most=0.01, **shape)
    assert not any(
        "no noise can be solved" in note for note in pp.plan(BUDGETS, ledger=ledger, at_most=0.3, **SHAPE).notes
    )


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle & Wang 2018, arXiv 1805.06530, Theorem 8."""
    phi = stats.norm.cdf
    return float(phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu))


def test_what_is_above_all_that_was_granted_is_said(ledger):
    shape = {**SHAPE, "noise_multiplier": 3.0}
    above = "above what they granted in the ledger"
    assert any("it caps nothing" in note for note in pp.plan(BUDGETS, ledger=ledger, at_most=9, **shape).notes)
    greedy = pp.Budgets(GRANTED + 8, delta=DELTA, person=IDS)
    assert any(above in note for note in pp.plan(greedy, ledger=ledger, at_most=0.3, **shape).notes)
    modest = pp.plan(BUDGETS, ledger=ledger, at_most=0.3, **shape).notes
    assert not any(above in note or "caps nothing" in note for note in modest)


@pytest.mark.parametrize("method", ["uniform", "exclude"])
@pytest.mark.parametrize("noise", [None, 3.0])
def test_training_is_not_paid_from_what_is_set_apart(tmp_path, method, noise):
    """With nothing left there by public account, whoever had a rate has one."""
    url = f"sqlite:///{tmp_path / 'purses.db'}"
    ledger = pp.Ledger.create(url, epsilons=EPSILONS, delta=DELTA, set_apart=0.1, key=bytes(32))
    ledger.join(IDS, GRANTED)
    members, how = ledger.members(IDS), {"at_most": 0.3, "noise_multiplier": noise, **SHAPE}
    before = pp.plan(BUDGETS, method, ledger=ledger, **how)
    table = ledger.room(members)[:3]  # one of each rung
    table[:, :3] = 0
    ledger.charge("statistics", members, table, np.arange(N) % 3, at_most=0.5)
    assert (ledger.public_room(members)[:, 3:] == 0).all()
    after = pp.plan(BUDGETS, method, ledger=ledger, **how)
    assert (after.rates > 0).tolist() == (before.rates > 0).tolist()
    assert after.rates.any()

"""Random plans: nobody is overdrawn, budgets are used, and dp-accounting, asked on its own, agrees."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import privypurse as pp
from privypurse.accounting import RDP, SampledGaussian
from privypurse.accounting.rdp import ORDERS


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    people = draw(st.integers(1, 400))
    levels = draw(st.lists(st.floats(0.2, 12.0), min_size=1, max_size=6))
    seed = draw(st.integers(0, 2**32 - 1))
    epsilon = np.random.default_rng(seed).choice(levels, people)
    return {
        "epsilon": epsilon,
        "delta": draw(st.sampled_from([1e-3, 1e-5, 1e-6])),
        "method": draw(st.sampled_from(["uniform", "sample", "scale", "exclude", "curve-fit"])),
        "steps": draw(st.integers(1, 4000)),
        "batch": draw(st.floats(0.005, 1.0)),
        "sigma": draw(st.one_of(st.none(), st.floats(0.6, 30.0))),
    }


def planned(shape: dict, accountant: str) -> tuple[pp.Budgets, pp.Plan]:
    budgets = pp.Budgets(shape["epsilon"], delta=shape["delta"])
    people = (
        int((budgets.epsilon >= budgets.epsilon.mean()).sum()) if shape["method"] == "exclude" else budgets.people
    )
    batch = max(1, math.ceil(shape["batch"] * people))
    try:
        plan = pp.plan(
            budgets,
            shape["method"],
            steps=shape["steps"],
            batch_size=batch,
            noise_multiplier=shape["sigma"],
            accountant=accountant,
        )
    except pp.InfeasibleBudget:
        assume(False)
    return budgets, plan


def check(budgets: pp.Budgets, plan: pp.Plan) -> None:
    spent = plan.spent()
    assert (spent <= budgets.epsilon).all()
    plan.check(budgets)
    held = budgets.epsilon if plan.method in ("sample", "scale", "curve-fit") else np.full(spent.size, spent.max())
    took_part = (plan.rates > 0) & ~plan.capped
    assert (spent[took_part] >= 0.98 * held[took_part]).all()
    if plan.method in ("uniform", "exclude") and took_part.any():
        assert spent.max() >= 0.98 * budgets.epsilon[took_part].min()


WHOLE = ORDERS[(np.floor(ORDERS) == ORDERS) & (ORDERS <= 256)]


def peer_rdp(release: SampledGaussian, delta: float) -> float:
    """dp-accounting at whole orders; its series for fractional ones often does not converge."""
    accountant = rdp_privacy_accountant.RdpAccountant(WHOLE.tolist())
    event = dp_accounting.PoissonSampledDpEvent(release.rate, dp_accounting.GaussianDpEvent(release.noise_multiplier))
    accountant.compose(event, release.count)
    return float(accountant.get_epsilon(delta))


def peer_pld(rate: float, sigma: float, steps: int, delta: float, pessimistic: bool) -> float:
    spread = math.sqrt(math.log1p(rate**2 * math.expm1(min(sigma**-2, 700))))
    once = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=min(max(spread / 8, 5e-5), 5e-3),
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    )
    return float(once.self_compose(steps).get_epsilon_for_delta(delta))


@pytest.mark.slow
@given(shape=shapes())
@settings(max_examples=25, deadline=None)
def test_rdp_plans(shape: dict) -> None:
    is_right_by_rdp(shape)


@pytest.mark.slow
@given(shape=shapes())
@settings(max_examples=250, deadline=None)
def test_many_rdp_plans(shape: dict) -> None:
    is_right_by_rdp(shape)


def is_right_by_rdp(shape: dict) -> None:
    budgets, plan = planned(shape, "rdp")
    check(budgets, plan)
    level = int(np.argmax(plan.levels.rate))
    release = plan.releases()[level]
    if 0 < release.rate < 1:
        delta = float(plan.levels.delta[level])
        theirs = peer_rdp(release, delta)
        same_orders = float(RDP(WHOLE).epsilons([release], delta)[0])
        if theirs > 0 and same_orders < 25:
            assert same_orders == pytest.approx(theirs, rel=1e-6)
        assert plan.spent_by_level()[level] <= same_orders * (1 + 1e-9)


@pytest.mark.slow
@given(shape=shapes())
@settings(max_examples=12, deadline=None)
def test_pld_plans(shape: dict) -> None:
    is_right_by_pld(shape)


@pytest.mark.slow
@given(shape=shapes())
@settings(max_examples=60, deadline=None)
def test_many_pld_plans(shape: dict) -> None:
    is_right_by_pld(shape)


def is_right_by_pld(shape: dict) -> None:
    budgets, plan = planned(shape, "pld")
    check(budgets, plan)
    level = int(np.argmax(plan.levels.rate))
    release, delta = plan.releases()[level], float(plan.levels.delta[level])
    if release.rate > 1e-5 and release.noise_multiplier > 0.5:
        below = peer_pld(release.rate, release.noise_multiplier, plan.steps, delta, pessimistic=False)
        above = peer_pld(release.rate, release.noise_multiplier, plan.steps, delta, pessimistic=True)
        assert below <= plan.spent_by_level()[level] <= above * 1.01 + 1e-4


def test_a_solver_that_rounds_to_nearest_is_caught() -> None:
    """The broken twin: look-ups to the nearest grid point instead of the safe neighbour overspend."""
    rng = np.random.default_rng(5)
    budgets = pp.Budgets(rng.uniform(0.5, 5.0, 2000), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=500, batch_size=50, accountant="rdp")
    plan.check(budgets)
    table = pp.accounting.CertifiedTable(plan.levels.rate, plan.spent_by_level())
    assert (table.cost(table.within(budgets.epsilon)) <= budgets.epsilon).all()
    nearest = np.abs(table.epsilon[None, :] - budgets.epsilon[:, None]).argmin(axis=1)
    assert (table.cost(table.parameter[nearest]) > budgets.epsilon).any()


def test_an_overdrawn_plan_is_caught() -> None:
    """`check` and the 98 % test above see a plan whose rates are 1 % too high."""
    budgets = pp.Budgets(np.repeat([1.0, 2.0, 3.0], 100), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=500, batch_size=30, accountant="rdp")
    levels = {name: getattr(plan.levels, name) for name in ("epsilon", "delta", "clip_norm", "capped")}
    greedy = pp.Plan(
        method="sample",
        accountant="rdp",
        promise=plan.promise,
        shape=plan.shape,
        levels=type(plan.levels)(rate=plan.levels.rate * 1.01, **levels),
        level_of=plan.level_of,
    )
    with pytest.raises(pp.InvalidInput, match="overspend"):
        greedy.check(budgets)

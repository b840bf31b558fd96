"""Plans whose steps may go on under a filter: what δ is spent on, what questions cost, and the file."""

import dataclasses

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import privypurse as pp
from privypurse.accounting import Composed, Gaussian, PureDP
from privypurse.plans import TrainingShape
from privypurse.plans import file as planfile
from reproductions.unsound.trusted_curve import TrustedCurve

LEVELS = (1.0, 2.0, 3.0)
PLATEAU, FEW = pp.StopAtPlateau(noise=30.0, most=12), pp.StopWhenFew(below=50, epsilon=0.1)


def planned(method="sample", batch_size=60, **options):
    budgets = pp.Budgets(np.repeat(LEVELS, 200), delta=1e-5)
    options = {"steps": 150, "extra_steps": 50, **options}
    return budgets, pp.plan(budgets, method, batch_size=batch_size, **options)


def by_peer(plan, level, delta):
    """The ε of a level's fixed steps and questions by dp-accounting, optimistic: a bound from below."""
    noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm[level]
    event = dp_accounting.PoissonSampledDpEvent(float(plan.levels.rate[level]), dp_accounting.GaussianDpEvent(noise))
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(event, plan.steps)
    stop = plan.shape.stop
    if isinstance(stop, pp.StopAtPlateau):
        accountant.compose(dp_accounting.GaussianDpEvent(stop.noise), stop.most)
    return accountant.get_epsilon(delta)


@pytest.mark.each_value_once
@pytest.mark.parametrize("method", ["uniform", "sample", "scale", "exclude", "curve-fit"])
@pytest.mark.parametrize("stop", [None, PLATEAU, FEW], ids=["all", "plateau", "few"])
def test_fixed_steps_and_questions_fit_nine_tenths_of_delta(method, stop):
    budgets, plan = planned(method, stop=stop)
    plan.check(budgets)
    assert plan.filter == "rdp"
    np.testing.assert_allclose(plan.fixed_delta, 0.9e-5)
    assert (plan.fixed_delta + plan.filter_delta <= plan.levels.delta).all()
    assert (plan.spent_by_level() <= plan.levels.epsilon).all()
    assert plan.spent_by_level().max() >= 0.98 * plan.levels.epsilon[np.argmax(plan.spent_by_level())]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sample", "scale"])
def test_the_peer_agrees_on_steps_and_questions_together(method):
    _, plan = planned(method, stop=PLATEAU)
    for level in range(3):
        peer = by_peer(plan, level, 0.9e-5)
        assert peer <= plan.levels.epsilon[level] * 1.001
        assert plan.spent_by_level()[level] == pytest.approx(peer, rel=5e-3)


def test_a_plan_that_forgets_its_questions_overspends():
    """The broken twin: steps that use up everything, and questions on top."""
    _, without = planned("sample")
    forgetful = dataclasses.replace(without, shape=dataclasses.replace(without.shape, stop=PLATEAU))
    assert (forgetful.spent_by_level() > forgetful.levels.epsilon).all()
    assert by_peer(forgetful, 0, 0.9e-5) > 1.0


def test_full_batches_are_filtered_by_gaussian_dp_at_the_whole_delta():
    _, plan = planned("scale", batch_size=600)
    assert plan.filter == "gdp"
    np.testing.assert_array_equal(plan.fixed_delta, plan.levels.delta)
    assert (plan.spent_by_level() > 0.99 * plan.levels.epsilon).all()


def test_without_extra_steps_nothing_changes():
    _, plan = planned(extra_steps=0)
    assert plan.filter is None
    assert plan.all_steps == plan.steps == 150
    np.testing.assert_array_equal(plan.fixed_delta, plan.levels.delta)
    assert "extra_steps" not in planfile.dumps(plan)


def test_beyond_the_fixed_steps_the_promise_is_the_purse():
    _, plan = planned()
    np.testing.assert_array_equal(plan.spent_by_level(151), plan.levels.epsilon)
    assert (plan.spent_by_level(100) < plan.spent_by_level(150)).all()
    with pytest.raises(pp.InvalidInput, match="0 to 200"):
        plan.spent_by_level(201)


def test_questions_are_faced_after_all_fixed_steps_by_those_who_take_part():
    _, plan = planned("exclude", stop=PLATEAU)
    left_out, *others = plan.releases()
    assert left_out.rate == 0
    assert plan.spent_by_level()[0] == 0
    assert all(isinstance(each, Composed) and each.releases[1] == Gaussian(30.0, 12) for each in others)
    assert not any(isinstance(each, Composed) for each in plan.releases(149))
    assert planned(stop=FEW)[1].releases()[0].releases[1] == PureDP(0.1)


@pytest.mark.parametrize("stop", [None, PLATEAU, FEW])
def test_the_file_keeps_it_all(tmp_path, stop):
    _, plan = planned(stop=stop)
    plan.save(tmp_path / "plan.json")
    again = pp.Plan.load(tmp_path / "plan.json")
    assert again.shape == plan.shape
    assert planfile.digest(again) == planfile.digest(plan)
    longer = dataclasses.replace(plan, shape=dataclasses.replace(plan.shape, extra_steps=51))
    assert planfile.digest(longer) != planfile.digest(plan)


def test_rates_with_a_given_noise_still_depend_on_nobody_else():
    """Rule 7: the same person in another crowd, with questions and a filter."""
    mine = [2.0]
    rates = [
        pp.plan(
            pp.Budgets(np.array([*mine, *others]), delta=1e-5),
            "sample",
            steps=100,
            batch_size=5,
            noise_multiplier=2.0,
            extra_steps=30,
            stop=PLATEAU,
        ).rates[0]
        for others in ([0.5] * 9, [7.0] * 99)
    ]
    assert rates[0] == rates[1]


def test_summaries_say_it():
    _, plan = planned(stop=PLATEAU)
    text = plan.summary()
    assert "50 steps may follow" in text
    assert "a filter (rdp) keeps everyone within the ε promised" in text
    assert "StopAtPlateau" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": PLATEAU, "extra_steps": 0}, "extra_steps"),
        ({"stop": "plateau"}, "StopAtPlateau"),
        ({"extra_steps": -1}, "extra_steps"),
        ({"extra_steps": 1.5}, "extra_steps"),
        ({"extra_steps": True}, "extra_steps"),
    ],
)
def test_bad_input(options, said):
    with pytest.raises(pp.InvalidInput, match=said):
        TrainingShape(**{"steps": 10, "batch_size": 5, **options})


def test_a_method_that_keeps_no_budget_has_no_filter():
    with pytest.raises(pp.InvalidInput, match="keeps no budget"):
        planned(TrustedCurve())


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), True, "2"])
def test_questions_need_noise(wrong):
    with pytest.raises(pp.InvalidInput, match="must be a finite number above 0"):
        pp.StopAtPlateau(noise=wrong)
    with pytest.raises(pp.InvalidInput, match="must be a finite number above 0"):
        pp.StopWhenFew(below=1, epsilon=wrong)


@pytest.mark.parametrize("name", ["every", "most", "patience"])
@pytest.mark.parametrize("wrong", [0, 1.5, True])
def test_counts_of_questions_are_whole(name, wrong):
    with pytest.raises(pp.InvalidInput, match=name):
        pp.StopAtPlateau(noise=1.0, **{name: wrong})


def test_full_batches_hold_their_comparisons_in_gaussian_dp():
    """What the filter sets aside for them is in the plan: the fixed steps are paid for beside it."""
    budgets, plan = planned("scale", batch_size=600, stop=pp.StopWhenFew(below=10, epsilon=0.05))
    plan.check(budgets)
    held = pp.Filter(plan.levels.epsilon, plan.levels.delta)
    noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm
    fixed = plan.steps / noise**2
    assert (fixed + float(held.currency.pure(0.05)) <= held.total * (1 + 1e-6)).all()
    assert (fixed + float(held.currency.pure(0.05)) >= held.total * 0.97).all()
    with pytest.raises(pp.InfeasibleBudget, match="questions"):
        planned("scale", batch_size=600, stop=pp.StopWhenFew(below=10, epsilon=1.0))


@pytest.mark.parametrize("one", [50.0, 0.1])
def test_the_filter_of_a_plan_that_protects_presence_follows_from_nobodys_rate(one: float) -> None:
    """At ε = 50 everyone's rate is 1; one strict person among them must not change what all others are promised."""
    budgets = pp.Budgets(np.array([50.0] * 199 + [one]), delta=1e-5)
    made = pp.plan(budgets, "sample", steps=2, extra_steps=5, batch_size=100, noise_multiplier=5, accountant="rdp")
    assert made.promise == "presence"
    assert made.filter == "rdp"
    assert np.all(made.filter_delta <= 0.1 * 1e-5)
    solved = pp.plan(budgets, "scale", steps=2, extra_steps=5, batch_size=200, accountant="rdp")
    assert solved.promise == "data"
    assert solved.filter == "gdp"  # which follows from all budgets, and says so

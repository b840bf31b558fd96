"""From budgets to plans: every method keeps every budget, and says what it is conditional on."""

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

import privypurse as pp
from privypurse import assignment
from privypurse.assignment import METHODS, Assignment, CurveFit, Exclude, Sample, Scale, Uniform
from reproductions.unsound.trusted_curve import TrustedCurve

OBJECTS = {
    "uniform": Uniform(),
    "sample": Sample(),
    "scale": Scale(),
    "curve-fit": CurveFit(),
    "exclude": Exclude(),
}
PERSONAL = ["sample", "scale", "curve-fit"]
"""Methods by which everyone's own ε is used up."""
EPSILON = (1.0, 2.0, 3.0) * 4 + (1.0,) * 8


@functools.cache
def make(method="sample", epsilon=EPSILON, *, steps=50, batch_size=4, accountant="rdp", delta=1e-5, **more):
    budgets = pp.Budgets(epsilon, delta=delta)
    return pp.plan(budgets, method, steps=steps, batch_size=batch_size, accountant=accountant, **more)


def gaussian_noise(epsilon, steps, delta):
    """The exact noise multiplier at which ``steps`` unsampled Gaussian releases cost ε (Balle & Wang 2018)."""

    def excess(sigma):
        mu = math.sqrt(steps) / sigma
        first = special.ndtr(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 0.1, 1e4, xtol=1e-12)


def least_epsilon(rate, sigma, steps, delta):
    """A lower bound on the true ε by another library: its optimistic privacy loss distribution."""
    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=1e-3,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return one.self_compose(steps).get_epsilon_for_delta(delta)


# --------------------------------------------------------------------------------------------- all the methods


def test_every_method_is_among_those_tested_here():
    assert set(METHODS) == set(OBJECTS)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_method_by_name_is_the_method_by_object(name):
    by_name, by_object = (make(method, steps=100, noise_multiplier=2.0) for method in (name, OBJECTS[name]))
    assert by_name.method == by_object.method == name
    assert by_name.noise_multiplier == by_object.noise_multiplier
    assert by_name.rates.tobytes() == by_object.rates.tobytes()
    assert by_name.clip_norms.tobytes() == by_object.clip_norms.tobytes()


@pytest.mark.parametrize("method", ["best", "", "Sample", "curve_fit"])
def test_an_unknown_method_is_refused_with_the_choice(method):
    with pytest.raises(pp.InvalidInput) as caught:
        make(method)
    assert repr(method) in str(caught.value)
    for name in OBJECTS:
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("method", [None, 3, object()])
def test_what_is_no_method_is_refused(method):
    with pytest.raises(pp.InvalidInput, match="method must be a name or a method object"):
        make(method)


def test_budgets_must_be_budgets():
    with pytest.raises(pp.InvalidInput, match=r"budgets must be a Budgets, not list; write pp\.Budgets"):
        pp.plan([1.0, 2.0], steps=10, batch_size=1)


def test_an_unknown_accountant_is_refused_with_the_choice():
    with pytest.raises(pp.InvalidInput, match=r"'guess'.*'pld', 'rdp'"):
        make(accountant="guess")


@pytest.mark.parametrize("method", list(OBJECTS))
def test_a_batch_cannot_hold_more_people_than_there_are(method):
    with pytest.raises(pp.InvalidInput, match="batch_size is 21, but there are only 20 people"):
        make(method, batch_size=21)


def test_with_given_noise_the_batch_size_is_a_divisor_only():
    plan = make(batch_size=10**6, noise_multiplier=2.0)
    assert plan.batch_size == 10**6
    assert plan.rates.tobytes() == make(batch_size=1, noise_multiplier=2.0).rates.tobytes()


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("noise_multiplier", [None, 2.0])
@pytest.mark.parametrize("method", list(OBJECTS))
def test_nobody_is_overdrawn(method, noise_multiplier, accountant):
    plan = make(method, noise_multiplier=noise_multiplier, accountant=accountant, steps=100)
    assert plan.promise is not pp.Promise.NONE
    assert (plan.spent() <= EPSILON).all()
    plan.check(pp.Budgets(EPSILON))
    if method in PERSONAL:
        assert (plan.spent() >= 0.995 * np.array(EPSILON)).all()


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_odd_budgets_are_kept_too_and_mostly_used(method):
    epsilon = tuple(np.exp(np.random.default_rng(8).uniform(np.log(0.3), np.log(9.0), 40)).tolist())
    plan = make(method, epsilon, batch_size=8)
    assert (plan.spent() <= epsilon).all()
    assert (plan.spent() >= 0.985 * np.array(epsilon)).all()


@pytest.mark.parametrize("method", ["sample", "scale"])
@pytest.mark.parametrize("person", [0, 1, 2])
def test_spent_is_no_less_than_the_truth_by_another_library(method, person):
    plan = make(method, accountant="pld")
    sigma = plan.noise_multiplier * plan.clip_norm / plan.clip_norms[person]
    truth = least_epsilon(plan.rates[person], sigma, plan.steps, 1e-5)
    assert truth <= plan.spent()[person] <= 1.05 * truth


@pytest.mark.parametrize("person", [0, 1, 2])
def test_spent_by_the_quick_accountant_is_that_of_another_library(person):
    plan = make("sample")
    peer = dp_accounting.rdp.RdpAccountant(orders=list(range(2, 257)))
    step = dp_accounting.PoissonSampledDpEvent(
        plan.rates[person], dp_accounting.GaussianDpEvent(plan.noise_multiplier)
    )
    theirs = peer.compose(step, plan.steps).get_epsilon(1e-5)
    assert plan.spent()[person] == pytest.approx(theirs, rel=0.01)


# ------------------------------------------------------------------------------------------ infeasible budgets


@pytest.mark.parametrize("method", ["uniform", "sample", "scale"])
@pytest.mark.parametrize("noise_multiplier", [None, 0.5])
def test_a_budget_that_cannot_be_kept_is_named(method, noise_multiplier):
    with pytest.raises(pp.InfeasibleBudget) as caught:
        make(method, (2.0, 1e-5, 3.0, 1.0), batch_size=1, noise_multiplier=noise_multiplier)
    for word in ("ε = 1e-05", "δ = 1e-05", "rdp", "pld", "raise"):
        assert word in str(caught.value)
    assert issubclass(pp.InfeasibleBudget, pp.PrivyPurseError)
    assert not issubclass(pp.InfeasibleBudget, pp.InvalidInput)


def test_leaving_out_whom_a_training_cannot_serve_is_a_way_out():
    plan = make(Exclude(threshold=0.5), (2.0, 0.001, 3.0, 1.0), batch_size=1)
    assert plan.rates[1] == 0.0
    assert (plan.rates[[0, 2, 3]] > 0).all()


# ----------------------------------------------------------------------------------------------------- uniform


def test_uniform_serves_everyone_like_the_strictest():
    plan = make("uniform")
    assert plan.rates.tolist() == [4 / 20] * 20
    assert plan.clip_norms.tolist() == [1.0] * 20
    assert len(set(plan.spent().tolist())) == 1
    assert 0.995 < plan.spent()[0] <= 1.0
    # What the others grant in addition changes nothing.
    assert make("uniform", (1.0,) * 20).noise_multiplier == plan.noise_multiplier


def test_uniform_at_full_batch_needs_the_exact_noise_of_gaussians():
    plan = make("uniform", (1.0, 2.0, 8.0), batch_size=3, steps=10, accountant="pld")
    exact = gaussian_noise(1.0, 10, 1e-5)
    assert exact <= plan.noise_multiplier <= 1.003 * exact


def test_uniform_with_given_noise_solves_the_rate():
    plan = make("uniform", noise_multiplier=2.0)
    assert plan.noise_multiplier == 2.0
    assert plan.rates.tolist() == [make("sample", noise_multiplier=2.0).rates[0]] * 20


def test_uniform_takes_the_strictest_epsilon_and_the_strictest_delta():
    plan = make("uniform", (1.0, 2.0), delta=(1e-4, 1e-6), batch_size=1)
    assert plan.noise_multiplier == make("uniform", (1.0, 1.0), delta=1e-6, batch_size=1).noise_multiplier


# ----------------------------------------------------------------------------------------------------- exclude


def test_exclude_leaves_out_who_is_below_the_mean():
    plan = make("exclude", (1.0, 2.0, 3.0, 6.0), batch_size=1, accountant="pld")
    assert plan.rates.tolist() == [0.0, 0.0, 1 / 2, 1 / 2]  # the mean is 3, and 3 is not below it
    assert plan.spent()[:2].tolist() == [0.0, 0.0]
    assert 0.995 * 3 < plan.spent()[2] == plan.spent()[3] <= 3.0
    assert plan.noise_multiplier == make("uniform", (3.0, 6.0), batch_size=1, accountant="pld").noise_multiplier
    assert "2 people" in plan.notes[0]
    assert "below 3 " in plan.notes[0]


def test_the_mean_is_over_people_not_over_levels():
    plan = make("exclude", (1.0,) * 9 + (1.9, 4.0), batch_size=1)
    assert (plan.rates == 0).tolist() == [True] * 9 + [False] * 2  # the mean of people is 1.4, of levels 2.3


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1])
def test_alike_people_are_all_kept_although_their_mean_may_round_up(epsilon):
    assert (make("exclude", (epsilon,) * 7, batch_size=1).rates == 1 / 7).all()


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, 4), (1.0, 4), (1.001, 4), (1.02, 3), (3.0, 2), (6.0, 1)])
def test_exclude_with_a_threshold(threshold, kept):
    plan = make(Exclude(threshold=threshold), (1.0, 2.0, 3.0, 6.0), batch_size=1)
    assert (plan.rates > 0).tolist() == [False] * (4 - kept) + [True] * kept
    assert plan.expected_batch_size == pytest.approx(1.0)


def test_excluding_everyone_is_refused():
    with pytest.raises(pp.InvalidInput, match=r"threshold is 10, above the largest ε 3"):
        make(Exclude(threshold=10.0))


def test_excluding_so_many_that_the_batch_cannot_be_filled_is_refused():
    with pytest.raises(pp.InvalidInput, match=r"batch_size is 5, but only 4 people hold ε ≥ 3"):
        make(Exclude(threshold=3.0), batch_size=5)


# ----------------------------------------------------------------------------------- scale, sample, few people


@pytest.mark.parametrize("clip_norm", [1.0, 0.2, 30.0])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_clip_norms_of_scale_average_to_the_reference(clip_norm, accountant):
    plan = make("scale", clip_norm=clip_norm, accountant=accountant)
    assert math.fsum(plan.clip_norms) / plan.people == pytest.approx(clip_norm, rel=1e-9)
    assert plan.rates.tolist() == [4 / 20] * 20
    assert plan.clip_norms[0] < plan.clip_norms[1] < plan.clip_norms[2]


def test_scale_without_sampling_clips_in_proportion_to_the_exact_noise():
    plan = make("scale", (0.5, 2.0, 2.0), batch_size=3, steps=10, accountant="pld")
    mine, theirs = gaussian_noise(0.5, 10, 1e-5), gaussian_noise(2.0, 10, 1e-5)
    assert plan.clip_norms[1] / plan.clip_norms[0] == pytest.approx(mine / theirs, rel=3e-3)
    assert plan.noise_multiplier == pytest.approx(3 / (1 / mine + 2 / theirs), rel=3e-3)


def test_scale_with_given_noise_gives_everyone_the_effective_noise_of_their_own_budget():
    solved, fixed = make("scale"), make("scale", noise_multiplier=5.0)
    assert fixed.noise_multiplier == 5.0
    ratio = fixed.clip_norms / solved.clip_norms
    assert ratio == pytest.approx(5.0 / solved.noise_multiplier, rel=1e-9)


@pytest.mark.parametrize(("batch_size", "tolerance"), [(30, 0.002), (100, 0.002)])
def test_the_rates_of_sample_average_to_the_batch(batch_size, tolerance):
    plan = make("sample", (1.0, 2.0, 3.0) * 100, batch_size=batch_size)
    assert plan.rates.mean() == pytest.approx(batch_size / 300, rel=tolerance)
    assert plan.rates[0] < plan.rates[1] <= plan.rates[2]
    assert plan.clip_norms.tolist() == [1.0] * 300


def test_sample_needs_less_noise_than_uniform_and_more_budget_helps():
    uniform, sample = make("uniform"), make("sample")
    assert sample.noise_multiplier < uniform.noise_multiplier
    assert make("sample", tuple(2 * value for value in EPSILON)).noise_multiplier < sample.noise_multiplier


def test_sample_with_everyone_in_every_batch_is_uniform():
    plan = make("sample", (1.0, 2.0, 3.0), batch_size=3)
    assert plan.rates.tolist() == [1.0] * 3
    uniform = make("uniform", (1.0, 2.0, 3.0), batch_size=3)
    assert plan.noise_multiplier == pytest.approx(uniform.noise_multiplier, rel=1e-12)


@pytest.mark.parametrize("method", ["uniform", "sample", "scale", "exclude"])
def test_one_person(method):
    plan = make(method, (1.5,), batch_size=1, accountant="pld", steps=10)
    assert plan.rates.tolist() == [1.0]
    assert plan.clip_norms == pytest.approx([1.0])
    assert 0.995 * 1.5 < plan.spent()[0] <= 1.5
    assert plan.noise_multiplier == pytest.approx(gaussian_noise(1.5, 10, 1e-5), rel=3e-3)


@pytest.mark.parametrize("method", ["uniform", "sample", "scale", "exclude"])
def test_with_one_level_all_methods_are_ordinary_training(method):
    plan = make(method, (2.0,) * 50, batch_size=10)
    assert plan.rates == pytest.approx([10 / 50] * 50, rel=0.002)
    assert plan.clip_norms == pytest.approx([1.0] * 50)
    assert plan.noise_multiplier == pytest.approx(
        make("uniform", (2.0,) * 50, batch_size=10).noise_multiplier, rel=0.002
    )


# ----------------------------------------------------------------------------- rule 7: who else is in the data

TARGETS = (0.73, 1.0, 2.5)
COMPANIES = {
    "stricter": (0.4, 0.55),
    "looser": (4.0, 30.0),
    "next to them": (0.72, 0.74, 0.99, 1.01, 2.48, 2.54),
    "hugely loose": (1e7,),
    "many": tuple(np.linspace(0.4, 9.0, 60).tolist()),
    "many alike": (1.0,) * 100,
}


def rates_of_targets(method, accountant, delta, company=(), last=False):
    """What the targets get, with other people after or (``last``) before them."""
    epsilon = (*company, *TARGETS) if last else (*TARGETS, *company)
    plan = make(method, epsilon, accountant=accountant, delta=delta, noise_multiplier=2.0, batch_size=1)
    return plan.rates[-len(TARGETS) :].tolist() if last else plan.rates[: len(TARGETS)].tolist()


def moved_by_company(method, accountant="rdp", delta=1e-5, companies=tuple(COMPANIES)):
    """The companies in which somebody's rate is not bit for bit what it is without them."""
    alone = rates_of_targets(method, accountant, delta)
    return [
        name
        for name in companies
        if any(rates_of_targets(method, accountant, delta, COMPANIES[name], last) != alone for last in (False, True))
    ]


@dataclasses.dataclass(frozen=True)
class SolvesNoiseFromEveryone:
    """Breaks rule 7 on purpose: it ignores the given noise and solves it from all budgets."""

    name: str = "broken"

    def assign(self, levels, means):
        open_shape = dataclasses.replace(means.shape, noise_multiplier=None)
        return Sample().assign(levels, dataclasses.replace(means, shape=open_shape))


@dataclasses.dataclass(frozen=True)
class LeansOnTheStrictest:
    """Breaks rule 7 on purpose, in the tenth digit: everyone's rate is nudged by the strictest ε."""

    name: str = "broken"

    def assign(self, levels, means):
        right = Sample().assign(levels, means)
        return dataclasses.replace(right, rate=right.rate * (1 - 1e-10 * levels.epsilon.min()))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_with_given_noise_a_rate_is_the_same_whoever_else_is_in_the_data(accountant):
    assert moved_by_company("sample", accountant) == []


def test_each_persons_rate_is_what_they_would_get_alone():
    together = rates_of_targets("sample", "rdp", 1e-5)
    for epsilon, rate in zip(TARGETS, together, strict=True):
        alone = make("sample", (epsilon,), batch_size=1, noise_multiplier=2.0)
        assert alone.rates.tolist() == [rate]


def test_the_same_check_catches_a_method_that_looks_at_everyone():
    assert moved_by_company(LeansOnTheStrictest(), companies=("stricter",)) != []


def test_a_method_keeps_the_noise_that_was_given():
    with pytest.raises(pp.InvalidInput, match=r"noise_multiplier is 2, and method broken takes .* in its place"):
        make(SolvesNoiseFromEveryone(), noise_multiplier=2.0)


def test_only_plans_that_pass_the_check_promise_presence():
    assert make("sample", noise_multiplier=2.0).promise is pp.Promise.PRESENCE
    assert make("sample").promise is pp.Promise.DATA
    for method in ("uniform", "scale", "exclude"):
        assert make(method, noise_multiplier=2.0).promise is pp.Promise.DATA


def test_methods_of_ones_own_are_welcome_and_say_what_they_promise():
    @dataclasses.dataclass(frozen=True)
    class Nobody:
        name: str = "nobody"

        def assign(self, levels, means):
            none = np.zeros(levels.epsilon.size)
            return Assignment(1.0, none, none + 1.0, none > 0, from_budgets=False)

    plan = make(Nobody(), accountant="pld")
    assert plan.method == "nobody"
    assert plan.promise is pp.Promise.PRESENCE
    assert plan.spent().tolist() == [0.0] * 20


# ----------------------------------------------------------------------------------------------- curve fitting

CURVE = {"epsilon": tuple(np.linspace(0.2, 5.0, 25).round(3).tolist()), "steps": 100, "delta": 1e-3, "batch_size": 1}


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_curve_as_published_overspends_and_promises_nothing(accountant):
    plan = make(TrustedCurve(), noise_multiplier=1.0, accountant=accountant, **CURVE)
    assert plan.promise is pp.Promise.NONE
    assert "NO PROMISE" in plan.summary()
    assert (plan.spent() > CURVE["epsilon"]).any()
    with pytest.raises(pp.InvalidInput, match="overspend"):
        plan.check(pp.Budgets(CURVE["epsilon"], delta=1e-3))


def test_the_curve_as_published_overspends_in_truth_not_only_by_our_bound():
    plan = make(TrustedCurve(), noise_multiplier=1.0, **CURVE)
    assert least_epsilon(plan.rates[0], 1.0, 100, 1e-3) > 3 * CURVE["epsilon"][0]


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_checked_curve_never_overspends_and_uses_what_is_left(accountant):
    plan = make("curve-fit", noise_multiplier=1.0, accountant=accountant, **CURVE)
    assert plan.promise is pp.Promise.PRESENCE
    assert (plan.spent() <= CURVE["epsilon"]).all()
    assert (plan.spent() >= 0.985 * np.array(CURVE["epsilon"])).all()
    assert "lowered" in plan.notes[0]


def test_the_published_fit_is_good_and_still_no_bound():
    from privypurse.accounting import SampledGaussian
    from privypurse.assignment import curve_fit

    curve = curve_fit.fit(lambda q: SampledGaussian(q, 1.0, 100), 1e-3)
    assert curve.r_squared > 0.99
    rates = np.linspace(0.1, 0.9, 9)
    assert curve.rate(curve.cost(rates)) == pytest.approx(rates)
    assert curve.rate(np.array([curve.at_one, 2 * curve.at_one])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("mine", "others", "arguments"),
    [  # near the floor of the Rényi curve, where nodes are flat; and a neighbour whose tiny δ wants more digits
        ((0.0315, 1e-5), [(7.5, 1e-5)], {"steps": 2, "noise_multiplier": 2.1728621713593057, "accountant": "rdp"}),
        ((0.10273711127344616, 1e-8), [(2.69, 1e-8)], {"steps": 40, "noise_multiplier": 2.1154, "accountant": "rdp"}),
        ((3.26, 1e-3), [(13.5, 1e-8)], {"steps": 538, "noise_multiplier": 6.4445, "accountant": "pld"}),
    ],
)
def test_no_corner_lets_others_move_my_rate(mine, others, arguments):
    def rate(purses):
        epsilon, delta = zip(*purses, strict=True)
        return pp.plan(pp.Budgets(list(epsilon), delta=list(delta)), "sample", batch_size=1, **arguments).rates[0]

    assert rate([mine]) == rate([mine, *others])


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_who_takes_no_part_spends_nothing(accountant):
    budgets = pp.Budgets([1e-4, 1.0, 1.0], delta=1e-5)
    plan = pp.plan(budgets, "exclude", steps=10, batch_size=1, accountant=accountant)
    assert plan.spent()[0] == 0
    assert (plan.spent(0) == 0).all()
    plan.check(budgets)


@pytest.mark.slow
def test_capped_means_that_budget_is_left():
    huge = pp.plan(pp.Budgets([1.0, 1e9]), "scale", steps=10, batch_size=1, accountant="rdp")
    assert huge.capped.tolist() == [False, True]
    everybody = pp.plan(pp.Budgets([0.5, 0.5, 3.0]), "sample", steps=10, batch_size=3, accountant="rdp")
    assert everybody.capped.tolist() == [False, False, True]
    with pytest.raises(pp.InfeasibleBudget, match="batch as small"):
        pp.plan(pp.Budgets([1.0] * 50 + [1e9] * 50), "sample", steps=10, batch_size=10, accountant="rdp")


LARGE_DELTAS = pytest.mark.filterwarnings("ignore:δ = ")  # of 1/n and more, which are warned of
small_batches = given(
    people=st.integers(1, 3000),
    batch=st.integers(1, 40),
    steps=st.integers(1, 2000),
    levels=st.lists(st.floats(0.3, 30.0), min_size=1, max_size=4),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    accountant=st.sampled_from(["rdp", "rdp", "rdp", "pld"]),
)


@pytest.mark.slow
@small_batches
@settings(max_examples=8, deadline=None)
@LARGE_DELTAS
def test_small_batches_of_many_people_never_overspend(people, batch, steps, levels, delta, accountant):
    nobody_overspends(people, batch, steps, levels, delta, accountant)


@pytest.mark.slow
@small_batches
@settings(max_examples=80, deadline=None)
@LARGE_DELTAS
def test_many_small_batches_of_many_people_never_overspend(people, batch, steps, levels, delta, accountant):
    nobody_overspends(people, batch, steps, levels, delta, accountant)


def nobody_overspends(people, batch, steps, levels, delta, accountant):
    """Where the mean rate is a steep function of σ, the rates must still be those of the σ that is returned."""
    budgets = pp.Budgets(np.resize(levels, people), delta=delta)
    try:
        plan = pp.plan(budgets, "sample", steps=steps, batch_size=min(batch, people), accountant=accountant)
    except pp.InfeasibleBudget:
        return
    plan.check(budgets)
    assert (plan.spent()[~plan.capped] >= 0.98 * budgets.epsilon[~plan.capped]).all()


def test_a_method_that_overspends_is_caught_by_plan_itself():
    """The broken twin: rates of one σ, noise of a smaller one."""

    class Mismatched:
        name = "mismatched"

        def assign(self, levels, means):
            right = assignment.Sample().assign(levels, means)
            return dataclasses.replace(right, noise_multiplier=right.noise_multiplier * 0.9)

    with pytest.raises(pp.PrivyPurseError, match="bug in the method"):
        pp.plan(pp.Budgets([1.0, 2.0] * 50), Mismatched(), steps=100, batch_size=10, accountant="rdp")


def test_a_plan_for_records_is_none_for_persons():
    by_record = pp.Budgets([1.0] * 6)
    by_person = pp.Budgets([1.0] * 6, person=[1, 1, 2, 2, 3, 3])
    plan = pp.plan(by_record, "sample", steps=10, batch_size=2, accountant="rdp")
    with pytest.raises(pp.InvalidInput, match="person= ids"):
        plan.check(by_person)
    plan.check(by_record)


def test_exclude_keeps_who_is_above_the_threshold_whatever_the_ladder():
    plan = pp.plan(
        pp.Budgets([3.15, 3.15, 4.0, 1.0]),
        assignment.Exclude(threshold=3.145),
        steps=5,
        batch_size=1,
        accountant="rdp",
    )
    assert (plan.rates > 0).tolist() == [True, True, True, False]
    for wrong in (-1.0, 0.0, float("nan")):
        with pytest.raises(pp.InvalidInput, match="threshold"):
            pp.plan(pp.Budgets([1.0]), assignment.Exclude(threshold=wrong), steps=5, batch_size=1)

"""Schedules: whatever the budgets, every round is paid for by everybody, and nobody pays more than they promised."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privypurse as pp
from privypurse.accounting import PLD, RDP, Composed, SampledGaussian, SampledRound
from privypurse.accounting.inverse import Inverse
from privypurse.assignment import round_planner
from privypurse.assignment.round_planner import AdaPdp, Groups, PdpSgd, Sampling, nominal_chances
from privypurse.assignment.threshold_sampling import FixedLoss, probabilities
from privypurse.budgets import ladder
from privypurse.plans.schedule import Round, Schedule

THREE = np.repeat([1.0, 2.0, 3.0], [54, 37, 9])
METHODS = [
    "pdp-sgd",
    "adapdp",
    "sampling",
    "groups",
    PdpSgd(rounds=3),
    PdpSgd(FixedLoss(0.5, 0.5)),
    AdaPdp(rounds=2),
    Sampling(FixedLoss(0.0, 1.0)),
    Groups("relaxed-first"),
]


def made(epsilon, method="pdp-sgd", *, epochs=5, batch_size=10, accountant="rdp", delta=1e-5, person=None, **options):
    budgets = pp.Budgets(epsilon, delta=delta, person=person)
    return pp.rounds.schedule(budgets, method, epochs=epochs, batch_size=batch_size, accountant=accountant, **options)


def made_or_named(epsilon, method, **options):
    """The schedule, or the ε that an error names as out of reach."""
    try:
        return made(epsilon, method, **options), None
    except pp.InfeasibleBudget as error:
        return None, error.epsilon


@functools.cache
def several(accountant="rdp"):
    """A schedule of several rounds over three levels."""
    schedule = made(np.repeat(THREE, 10), epochs=20, batch_size=100, accountant=accountant)
    assert len(schedule.rounds) > 1
    return schedule


def recomputed(schedule, accountant):
    """What each level faces, put together from the rounds alone."""
    faced = [
        Composed(
            tuple(
                SampledRound(float(one.chance[level]), SampledGaussian(one.rate, one.noise_multiplier, one.steps))
                for one in schedule.rounds
                if one.chance[level] > 0  # where nobody of the level can be drawn, nothing is paid for
            )
        )
        for level in range(schedule.epsilon_by_level.size)
    ]
    return accountant.epsilons(faced, schedule.delta_by_level)


def overspends(schedule):
    """Whether any level really spends more than it promised: both bounds are true, so the smaller one decides."""
    spent = np.minimum(recomputed(schedule, PLD()), recomputed(schedule, RDP()))
    return bool((spent > schedule.epsilon_by_level).any())


def with_chances(schedule, chances):
    rounds = [
        dataclasses.replace(one, chance=chances[:, k], expected=float(schedule.people_by_level() @ chances[:, k]))
        for k, one in enumerate(schedule.rounds)
    ]
    return dataclasses.replace(schedule, rounds=tuple(rounds))


@st.composite
def populations(draw):
    levels = draw(st.lists(st.floats(0.5, 6.0), min_size=1, max_size=8))
    counts = draw(st.lists(st.integers(1, 60), min_size=len(levels), max_size=len(levels)))
    return np.repeat(levels, counts)


def require_sound(schedule, epsilon, accountant):
    held = ladder.rung_value(ladder.rung_below(epsilon))
    assert (schedule.spent() <= held).all()
    assert (held <= epsilon).all()
    # A round that somebody is in for sure is written here as a draw: the same cost, bounded a little more coarsely.
    np.testing.assert_allclose(schedule.spent_by_level(), recomputed(schedule, accountant), rtol=1e-7)
    schedule.check(pp.Budgets(epsilon, delta=1e-5))
    for one in schedule.rounds:
        assert ((one.chance >= 0) & (one.chance <= 1)).all()
        assert 0 < one.rate <= 1
        assert one.steps >= 1


@pytest.mark.parametrize("method", ["pdp-sgd", "adapdp", "sampling", "groups"])
def test_what_is_promised_was_solved_for_just_these_releases(monkeypatch, method):
    """Bounds of one release with and without rounds of chance 0 or 1 differ in their last digits, and one of them may
    lie above the promise: so the search must have seen what the schedule will be asked."""
    seen = []

    class Watched(RDP):
        def epsilons(self, releases, delta, progress=None):
            found = super().epsilons(releases, delta, progress)
            seen.extend(zip(releases, found.tolist(), strict=True))
            return found

    monkeypatch.setattr(round_planner, "accountant_named", lambda name: Watched())
    schedule = made(np.repeat(THREE, 10), method, epochs=20, batch_size=100)
    assert any((one.chance == 0).any() for one in schedule.rounds) == (method != "sampling")
    assert any((one.chance == 1).any() for one in schedule.rounds)
    costs = dict(seen)
    for release, promised in zip(schedule.releases(), schedule.epsilon_by_level, strict=True):
        assert release in costs, "never priced in the search"
        assert costs[release] <= promised


def test_groups_at_a_small_delta_keep_what_they_promise():
    """By loss distributions a round that somebody is in for sure costs more than its steps alone, by up to 4e-5."""
    for epsilon, people, batch_size, epochs in [(0.96, 100, 10, 2), (2.4, 50, 5, 0.5)]:
        made(np.full(people, epsilon), "groups", delta=1e-10, epochs=epochs, batch_size=batch_size, accountant="pld")


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(populations(), st.sampled_from(METHODS), st.floats(0.1, 40.0), st.floats(0.05, 1.0))
def test_nobody_overspends(epsilon, method, epochs, share):
    batch_size = max(1, int(share * epsilon.size))
    schedule, named = made_or_named(epsilon, method, epochs=epochs, batch_size=batch_size)
    if schedule is None:  # then an ε is named that somebody holds (rule 9)
        assert np.isclose(ladder.rung_value(ladder.rung_below(epsilon)), named, rtol=1e-12).any()
        return
    require_sound(schedule, epsilon, RDP())
    if method in ("groups", Groups("relaxed-first")):
        return
    for one in schedule.rounds:
        assert (np.diff(one.chance) >= 0).all()  # levels ascend in ε, all at one δ
    use = schedule.spent_by_level() / schedule.epsilon_by_level
    if getattr(method, "rounds", 10) > 1 and method != "sampling" and len(schedule.rounds) > 1:
        assert use[-1] >= 0.98
    if np.unique(schedule.epsilon_by_level).size == 1:
        assert [one.chance.tolist() for one in schedule.rounds] == [[1.0]]
        assert use[0] >= 0.98


@pytest.mark.parametrize("method", ["pdp-sgd", "adapdp", "sampling", "groups"])
def test_nobody_overspends_by_loss_distributions(method):
    epsilon = np.repeat([0.05, 0.7, 2.5, 8.0], [200, 300, 400, 100])
    schedule = made(epsilon, method, batch_size=100, epochs=10, accountant="pld")
    require_sound(schedule, epsilon, PLD())


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_what_everybody_grants_is_used_up(accountant):
    schedule = several(accountant)
    use = schedule.spent_by_level() / schedule.epsilon_by_level
    assert (use >= 0.98).all()
    assert (use <= 1).all()
    assert not overspends(schedule)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_chances_that_are_not_solved_overspend(accountant):
    """The broken twin: chances from ε itself. With few steps only one round is worth it, and all noise is for it."""
    epsilon = np.repeat([0.1, 0.2, 0.4, 0.5, 1.0], [100, 100, 400, 300, 100])
    schedule = made(epsilon, epochs=3, batch_size=1000, accountant=accountant)
    assert not overspends(schedule)
    twin = with_chances(
        schedule, nominal_chances(schedule.epsilon_by_level, [one.threshold for one in schedule.rounds])
    )
    assert overspends(twin)
    with pytest.raises(pp.InvalidInput, match="overspend"):
        twin.check(pp.Budgets(epsilon, delta=1e-5))


def test_chances_that_are_not_solved_waste_where_they_do_not_overspend():
    schedule = several("pld")
    twin = with_chances(
        schedule, nominal_chances(schedule.epsilon_by_level, [one.threshold for one in schedule.rounds])
    )
    assert (
        (twin.spent_by_level() / twin.epsilon_by_level)[0]
        < 0.9
        < 0.98
        < (schedule.spent_by_level() / schedule.epsilon_by_level)[0]
    )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_who_pays_only_when_drawn_overspends(accountant):
    """The broken twin: whoever was not drawn has everything left, so that each round draws with the full budget."""
    schedule = several(accountant)
    lucky = np.stack([probabilities(schedule.epsilon_by_level, one.threshold) for one in schedule.rounds], axis=1)
    twin = with_chances(schedule, lucky)
    assert overspends(twin)
    with pytest.raises(pp.InvalidInput, match="overspend"):
        twin.check(pp.Budgets(np.repeat(THREE, 10), delta=1e-5))


def test_a_chance_only_a_little_too_large_is_caught():
    schedule = several()
    chances = np.stack([one.chance for one in schedule.rounds], axis=1)
    chances[0] = np.minimum(1.0, chances[0] * 1.05)
    with pytest.raises(pp.InvalidInput, match="record 0"):
        with_chances(schedule, chances).check(pp.Budgets(np.repeat(THREE, 10), delta=1e-5))


@pytest.mark.parametrize("method", ["pdp-sgd", "adapdp", "sampling"])
def test_alike_people_are_in_for_sure(method):
    schedule = made(np.full(80, 2.0), method, batch_size=8)
    assert len(schedule.rounds) == 1
    assert schedule.rounds[0].chance.tolist() == [1.0]
    assert schedule.rounds[0].expected == 80
    assert schedule.steps == 50  # five epochs of ten batches
    alone = RDP().epsilons([SampledGaussian(0.1, schedule.rounds[0].noise_multiplier, 50)], 1e-5)
    np.testing.assert_allclose(schedule.spent_by_level(), alone, rtol=1e-9)


def test_one_person():
    schedule = made([1.0], batch_size=1, epochs=1)
    assert schedule.people == 1
    assert 0.98 <= schedule.spent()[0] <= 1.0


@pytest.mark.slow
def test_steps_are_those_of_the_epochs():
    for epochs in (1, 7.5):
        schedule = made(np.repeat(THREE, 10), epochs=epochs, batch_size=50, accountant="pld")
        assert schedule.steps == pytest.approx(epochs * 20, abs=len(schedule.rounds))


def test_weights_are_public():
    """They follow from how many are drawn on average; whoever was drawn changes nothing."""
    schedule = made(np.repeat(THREE, 10), "adapdp", epochs=20, batch_size=100)
    counts = schedule.people_by_level()
    assert counts.tolist() == [540, 370, 90]
    raw = [one.threshold * sum(n * c for n, c in zip(counts, one.chance, strict=True)) for one in schedule.rounds]
    np.testing.assert_allclose(schedule.weights, np.array(raw) / sum(raw), rtol=1e-12)
    assert schedule.weights.sum() == pytest.approx(1.0, rel=1e-12)
    before = schedule.weights.tolist()
    coins = np.random.default_rng(0)
    for number in range(len(schedule.rounds)):
        drawn = schedule.draw(number, 1.0 - coins.random(schedule.people))
        schedule.round_plan(number, drawn)
        assert drawn.sum() != round(schedule.rounds[number].expected)  # so realised weights would be others
    assert schedule.weights.tolist() == before


@pytest.mark.parametrize(("order", "taus"), [("strict-first", [1.0, 2.0, 3.0]), ("relaxed-first", [3.0, 2.0, 1.0])])
def test_groups_come_one_after_another(order, taus):
    schedule = made(THREE, Groups(order), batch_size=5, epochs=2)
    assert [one.threshold for one in schedule.rounds] == taus
    inside = np.stack([one.chance for one in schedule.rounds])
    np.testing.assert_array_equal(inside.sum(axis=0), 1.0)
    np.testing.assert_array_equal(inside.sum(axis=1), 1.0)
    sizes = {1.0: 54, 2.0: 37, 3.0: 9}
    for one in schedule.rounds:
        assert schedule.epsilon_by_level[one.chance == 1].tolist() == [one.threshold]
        assert one.expected == sizes[one.threshold]
        assert one.rate == pytest.approx(5 / sizes[one.threshold])
        assert one.steps == round(2 * sizes[one.threshold] / 5)
    alone = RDP().epsilons([one.release for one in schedule.rounds], 1e-5)
    np.testing.assert_allclose(alone, schedule.spent_by_level()[np.argsort(np.argsort(taus))], rtol=1e-9)


def test_deltas_of_their_own():
    epsilon, delta = np.tile([1.0, 2.0, 3.0], 30), np.repeat([1e-7, 1e-5, 1e-3], 30)
    for method in ("pdp-sgd", "groups"):
        schedule = made(epsilon, method, delta=delta)
        assert (schedule.spent() <= epsilon).all()
        assert schedule.epsilon_by_level.size == 9
        schedule.check(pp.Budgets(epsilon, delta=delta))


def test_epsilon_and_delta_are_by_record_as_in_a_plan():
    person, epsilon, delta = ["b", "a", "b", "c"], [2.0, 1.0, 2.0, 2.0], [1e-5, 1e-6, 1e-5, 1e-6]
    schedule = made(epsilon, "groups", person=person, delta=delta, batch_size=1)
    assert schedule.epsilon.tolist() == epsilon
    assert schedule.delta.tolist() == delta
    assert schedule.epsilon_by_level.size == 3
    again = schedule.applied_to(["c", "a", "b"])
    assert (again.epsilon.tolist(), again.delta.tolist()) == ([2.0, 1.0, 2.0], [1e-6, 1e-6, 1e-5])


@pytest.mark.slow
def test_a_million_different_budgets():
    epsilon = np.random.default_rng(0).uniform(1, 4, 1_000_000)
    schedule = made(epsilon, "sampling", batch_size=50_000, epochs=50)
    assert schedule.epsilon_by_level.size < 1000
    assert (schedule.spent() <= epsilon).all()
    assert len(schedule.summary().splitlines()) < 40


# --- Persons, and the plan of a round -------------------------------------------------------------------------------


def test_persons_with_several_records():
    person = np.repeat(np.arange(40), np.tile([1, 2, 3, 4], 10))
    epsilon = np.array([1.0, 2.0, 3.0, 2.0])[person % 4]
    schedule = made(epsilon, "adapdp", person=person, batch_size=5)
    assert schedule.people == 40
    assert schedule.people_by_level().tolist() == [10, 20, 10]
    assert schedule.spent().shape == (100,)
    assert (schedule.spent() <= epsilon).all()
    alike = made(np.array([1.0, 2.0, 3.0, 2.0])[np.arange(40) % 4], "adapdp", batch_size=5)
    np.testing.assert_array_equal(schedule.spent_by_level(), alike.spent_by_level())
    drawn = np.arange(40) % 4 == 3
    plan = schedule.round_plan(0, drawn)
    assert (plan.people, plan.records) == (40, 100)
    np.testing.assert_array_equal(plan.rates > 0, drawn[person])


def test_the_plan_of_a_round():
    schedule = several()
    drawn = np.random.default_rng(1).random(schedule.people) < 0.3
    for number, one in enumerate(schedule.rounds):
        plan = schedule.round_plan(number, drawn)
        assert plan.promise is pp.Promise.PART
        np.testing.assert_array_equal(plan.rates, np.where(drawn, one.rate, 0.0))
        assert (plan.noise_multiplier, plan.steps) == (one.noise_multiplier, one.steps)
        assert (plan.batch_size, plan.clip_norm) == (schedule.batch_size, schedule.clip_norm)
        assert (plan.clip_norms == schedule.clip_norm).all()
    for wrong in (drawn[:-1], drawn[None], np.ones(3)):
        with pytest.raises(pp.InvalidInput, match="one coin for each"):
            schedule.round_plan(0, wrong)


def test_nothing_drawn_is_printed():
    """Neither the text nor the short form of a schedule changes with who was drawn."""
    schedule = several()
    before = schedule.summary(), repr(schedule)
    schedule.round_plan(0, np.arange(schedule.people) < 7)
    assert (schedule.summary(), repr(schedule)) == before
    assert "540" not in before[1]  # how many hold a level is in the summary alone (rule 6)


def test_draws_follow_the_chance_and_the_level():
    schedule = several()
    half = np.full(schedule.people, 0.5)
    for number, one in enumerate(schedule.rounds):
        assert (schedule.draw(number, half) == (one.chance[schedule.level_of] >= 0.5)).all()
        assert not schedule.draw(number, np.ones(schedule.people))[one.chance[schedule.level_of] < 1].any()
    nobody = with_chances(schedule, np.zeros((3, len(schedule.rounds))))
    assert not nobody.draw(0, np.full(schedule.people, 2.0**-53)).any()
    assert nobody.spent().tolist() == [0.0] * 1000


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_finds_a_budget_that_was_lowered():
    schedule = made(THREE, "groups")
    schedule.check(pp.Budgets(THREE, delta=1e-5))
    lower = THREE.copy()
    lower[60] = 1.5
    with pytest.raises(pp.InvalidInput, match=r"1 records overspend; worst is record 60"):
        schedule.check(pp.Budgets(lower, delta=1e-5))
    lower[60] = schedule.spent()[60] * (1 - 1e-6)  # and a hair is enough
    with pytest.raises(pp.InvalidInput, match="record 60"):
        schedule.check(pp.Budgets(lower, delta=1e-5))
    with pytest.raises(pp.InvalidInput, match="100 records, budgets hold 99"):
        schedule.check(pp.Budgets(THREE[:-1], delta=1e-5))


# --- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [0, -1, math.nan, math.inf, True, "3", None])
def test_epochs_must_be_positive(epochs):
    with pytest.raises(pp.InvalidInput, match="epochs"):
        made(THREE, epochs=epochs)


@pytest.mark.parametrize("rounds", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("method", [PdpSgd, AdaPdp])
def test_rounds_must_be_a_positive_number(method, rounds):
    with pytest.raises(pp.InvalidInput, match="rounds"):
        made(THREE, method(rounds=rounds))


@pytest.mark.parametrize(
    ("epsilon", "counts", "epochs", "batch_size"),
    [([0.02, 8.0], [5000, 5000], 30, 200), ([0.01, 0.1, 1.0, 10.0], [1000] * 4, 20, 100)],
)
def test_groups_that_lie_far_apart(epsilon, counts, epochs, batch_size):
    """Rounds of the generous must not coarsen the grid on which the strict are certified."""
    budgets = pp.Budgets(np.repeat(epsilon, counts), delta=1e-5)
    schedule = pp.rounds.schedule(budgets, "groups", epochs=epochs, batch_size=batch_size)
    assert (schedule.spent_by_level() <= epsilon).all()
    assert schedule.spent_by_level() == pytest.approx(epsilon, rel=1e-3)


def test_steps_go_with_the_squares_of_people_and_threshold():
    """n passes over m people: signal n·m, noise n/τ, so n is best proportional to m·τ², and steps to m²τ²."""
    budgets = pp.Budgets(np.repeat([0.5, 2.0], [300, 700]), delta=1e-5)
    schedule = pp.rounds.schedule(budgets, PdpSgd(rounds=2), epochs=50, batch_size=100, accountant="rdp")
    first, second = schedule.rounds
    expected = [
        float(np.array([300, 700]) @ nominal_chances(np.array([0.5, 2.0]), [first.threshold, second.threshold])[:, k])
        for k in range(2)
    ]
    ratio = (expected[0] * first.threshold) ** 2 / (expected[1] * second.threshold) ** 2
    assert first.steps / second.steps == pytest.approx(ratio, rel=0.02)
    assert first.steps + second.steps == pytest.approx(50 * 1000 / 100, abs=1)
    assert ratio != pytest.approx(expected[0] ** 2 * first.threshold / expected[1] ** 2 / second.threshold, rel=0.05)


def test_the_one_round_of_sampling_costs_its_threshold():
    budgets = pp.Budgets(np.repeat([0.5, 1.0, 3.0], [300, 400, 300]), delta=1e-5)
    schedule = pp.rounds.schedule(budgets, "sampling", epochs=5, batch_size=100, accountant="rdp")
    (only,) = schedule.rounds
    assert only.threshold < 3.0
    cost = float(RDP().epsilons([only.release], np.array([1e-5]))[0])
    assert only.threshold * 0.998 <= cost <= only.threshold


def test_a_schedule_that_overspends_is_never_given_out(monkeypatch):
    """The last line of defence: whatever is wrong before it."""
    right = Inverse.certified

    def wrong(self, epsilon, delta):
        nominal, spent = right(self, epsilon, delta)
        return nominal * 1.5, spent

    monkeypatch.setattr(Inverse, "certified", wrong)
    with pytest.raises(pp.PrivyPurseError, match="overspends"):
        made(THREE, "sampling", accountant="rdp")


def test_sampling_has_one_round():
    with pytest.raises(TypeError, match="rounds"):
        Sampling(rounds=3)


def test_names_that_are_unknown():
    with pytest.raises(pp.InvalidInput, match=r"'sample'.*'pdp-sgd', 'adapdp', 'sampling', 'groups'"):
        made(THREE, "sample")
    with pytest.raises(pp.InvalidInput, match="not int"):
        made(THREE, 3)
    with pytest.raises(pp.InvalidInput, match="order is 'random'"):
        Groups("random")
    with pytest.raises(pp.InvalidInput):
        made(THREE, accountant="magic")


@pytest.mark.parametrize("batch_size", [0, 1.5, True])
@pytest.mark.parametrize("method", ["pdp-sgd", "groups"])
def test_batch_sizes_must_be_positive(method, batch_size):
    with pytest.raises(pp.InvalidInput, match="batch_size"):
        made(THREE, method, batch_size=batch_size)


def test_clip_norms_must_be_positive():
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(pp.InvalidInput, match="clip_norm"):
            made(THREE, clip_norm=wrong)


def test_budgets_must_be_budgets():
    with pytest.raises(pp.InvalidInput, match="must be a Budgets, not list"):
        pp.rounds.schedule([1.0, 2.0], epochs=1, batch_size=1)


@pytest.mark.parametrize("method", ["sampling", "groups"])
def test_a_delta_that_the_accountant_cannot_prove(method):
    with pytest.raises(pp.PrivyPurseError, match="δ = 1e-11"):
        made(THREE, method, delta=1e-11, accountant="pld")
    assert (made(THREE, method, delta=1e-11, accountant="rdp").spent() <= THREE).all()


@pytest.mark.parametrize("method", ["sampling", "groups"])
def test_a_budget_out_of_reach_is_named(method):
    with pytest.raises(pp.InfeasibleBudget, match=r"ε = 1e-06") as raised:
        made([1e-6, 1.0, 2.0], method, batch_size=1)
    assert raised.value.epsilon == 1e-6


@pytest.mark.parametrize("chance", [[-0.1], [1.1], [math.nan], [[0.5]]])
def test_a_round_needs_probabilities(chance):
    with pytest.raises(pp.InvalidInput, match="probability"):
        Round(threshold=1.0, noise_multiplier=1.0, steps=1, rate=0.1, chance=np.array(chance), expected=1.0)


def test_a_schedule_needs_rounds_that_fit():
    schedule = several()
    with pytest.raises(pp.InvalidInput, match="at least one round"):
        dataclasses.replace(schedule, rounds=())
    with pytest.raises(pp.InvalidInput, match="each of the 2 levels"):
        dataclasses.replace(schedule, epsilon_by_level=[1.0, 2.0], delta_by_level=[1e-5, 1e-5])
    with pytest.raises(ValueError, match="read-only"):
        schedule.rounds[0].chance[0] = 1.0
    assert isinstance(schedule, Schedule)


def test_check_looks_at_delta_and_persons_too() -> None:
    made = pp.rounds.schedule(pp.Budgets([0.5, 1.0] * 20, delta=1e-3), epochs=2, batch_size=10, accountant="rdp")
    with pytest.raises(pp.InvalidInput, match=r"δ = 0\.001"):
        made.check(pp.Budgets([0.5, 1.0] * 20, delta=1e-9))
    with pytest.raises(pp.InvalidInput, match="person"):
        made.check(pp.Budgets([0.5, 1.0] * 20, delta=1e-3, person=[k % 2 for k in range(40)]))


def test_more_in_a_batch_than_there_are_is_an_error() -> None:
    with pytest.raises(pp.InvalidInput, match="only 40 people"):
        pp.rounds.schedule(pp.Budgets([0.5, 1.0] * 20, delta=1e-3), epochs=2, batch_size=41)


@pytest.mark.slow
def test_huge_budgets_do_not_make_an_empty_schedule() -> None:
    made = pp.rounds.schedule(
        pp.Budgets([1.0] * 50 + [1e4] * 50, delta=1e-3), epochs=5, batch_size=10, accountant="rdp"
    )
    assert max(one.chance.max() for one in made.rounds) == 1.0


def test_a_round_does_not_tell_how_many_were_drawn() -> None:
    made = pp.rounds.schedule(pp.Budgets([0.5, 1.0] * 20, delta=1e-3), epochs=2, batch_size=10, accountant="rdp")
    texts = {made.round_plan(0, np.arange(40) < drawn).summary() for drawn in (3, 17, 40)}
    assert len(texts) == 1


def test_noise_is_solved_at_the_delta_of_those_who_are_in_every_round():
    """The most generous in ε hold the smallest δ: they belong into every round for sure, at their own δ."""
    epsilon = np.repeat([1.0, 2.0, 3.0], 300)
    schedule = made(epsilon, epochs=20, batch_size=100, delta=np.repeat([1e-3, 1e-3, 1e-7], 300))
    most = int(np.argmax(schedule.epsilon_by_level))
    assert len(schedule.rounds) > 1
    assert schedule.delta_by_level[most] == 1e-7
    assert all(one.chance[most] == 1 for one in schedule.rounds)
    assert 0.99 * 3 < schedule.spent_by_level()[most] <= 3

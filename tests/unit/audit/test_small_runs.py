"""Many small runs: what is released is the plan's mechanism, and bounds hold for it and fail for a louder one."""

import math

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from privypurse.accounting import PLD, SampledGaussian
from privypurse.audit.families import Family, scaled_gaussian, scaled_noise
from privypurse.audit.small_runs import OTHERS, OWN, SmallWorld, traces
from privypurse.audit.two_worlds import bound, by_counts, by_curves, scores_for
from privypurse.errors import InvalidInput

DELTA = 1e-5


@pytest.fixture(scope="module")
def plan() -> pp.Plan:
    budgets = pp.Budgets([2.0] * 8 + [1000.0] * 8, delta=DELTA)
    return pp.plan(budgets, "sample", steps=2, batch_size=4, noise_multiplier=2.0, clip_norm=0.5)


@pytest.mark.parametrize(
    ("road", "runs"), [("side by side", 4000), pytest.param("in sequence", 40, marks=pytest.mark.slow)]
)
def test_what_is_released_is_the_plans_mechanism(plan: pp.Plan, road: str, runs: int) -> None:
    """Of the own direction mean and variance follow from rate, clip norm and noise; both worlds, either road."""
    world, rate, clip, noise = SmallWorld(plan, 0), float(plan.levels.rate[0]), 0.5, 1.0
    for present in (True, False):
        found = traces(world, present, runs, road, seed=5)  # type: ignore[arg-type]
        assert found.shape == (runs, 2, 4)
        mean, error = (rate * clip if present else 0.0), 4.5 * noise / math.sqrt(2 * runs)
        variance = noise**2 + (rate * (1 - rate) * clip**2 if present else 0.0)
        assert found[:, :, OWN].mean() == pytest.approx(mean, abs=error)
        assert found[:, :, OWN].var() == pytest.approx(variance, rel=6.5 / math.sqrt(2 * runs))
        assert found[:, :, OTHERS].mean() == pytest.approx(clip, abs=error)  # at ε = 1000 the rate is 1
        assert np.abs(found[:, :, OTHERS + 1 :].mean()) < error


@pytest.mark.slow
def test_runs_side_by_side_have_nothing_in_common(plan: pp.Plan) -> None:
    """Neither noise nor coins: correlations over runs, steps and directions are those of independent numbers."""
    found = traces(SmallWorld(plan, 0), True, 4000, seed=6)[:, :, OWN]
    neighbours = np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1], np.corrcoef(found[:, 0], found[:, 1])[0, 1]
    assert max(map(abs, neighbours)) < 4.5 / math.sqrt(4000)


@pytest.mark.slow
def test_a_sound_pipeline_is_cleared_and_nearly_all_of_its_epsilon_is_proved(plan: pp.Plan) -> None:
    world, family = SmallWorld(plan, 0), scaled_noise(plan.releases()[0], DELTA, events=True)
    with_person, without = (traces(world, present, 10_000, seed=7 + present) for present in (True, False))
    claimed = float(plan.spent_by_level()[0])
    found = bound(scores_for(world), with_person, without, by_curves(family))
    assert found.score == "likelihood ratio"
    assert 0.6 * claimed < found.epsilon <= claimed
    assert bound(scores_for(world), with_person, without, by_counts(DELTA)).epsilon <= found.epsilon


def gaussian_worlds(mu: float, runs: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(mean, 1.0, (runs, 1, 1)) for mean in (mu, 0.0)]


SCORE = {"value": lambda trace: trace[:, 0, 0]}


@pytest.fixture(scope="module")
def family() -> Family:
    return scaled_gaussian(1.0, DELTA)


@pytest.mark.slow
def test_bounds_hold_as_often_as_they_say(family: Family) -> None:
    """Against a mechanism whose ε is known, G_1; chosen and counted on the same runs they hold less often."""
    true = 4.377  # of G_1 at 1e-5
    assert stats.norm.sf(true - 0.5) - math.exp(true) * stats.norm.sf(true + 0.5) == pytest.approx(DELTA, rel=0.01)
    counted = [bound(SCORE, *gaussian_worlds(1.0, 400, seed), by_curves(family), 0.9) for seed in range(60)]
    above = sum(each.epsilon > true for each in counted)
    assert above <= 12  # 6 at most on average
    assert np.median([each.epsilon for each in counted]) > 0.5 * true
    rates = [bound(SCORE, *gaussian_worlds(1.0, 400, seed), by_counts(DELTA), 0.9) for seed in range(60)]
    assert sum(each.epsilon > true for each in rates) <= 12


def test_no_sound_test_refutes_the_curve_of_its_own_release_and_one_of_guesses_is_refused() -> None:
    """One sampled step, whose best test has rates in closed form: both directions, and a broken curve below."""
    rate, sigma = 0.56, 1.0
    family = scaled_noise(SampledGaussian(rate, sigma, 1), DELTA, events=True)
    of_guesses = scaled_noise(SampledGaussian(rate, sigma, 1), DELTA)
    threshold = np.linspace(-4, 6, 400)
    false = stats.norm.sf(threshold / sigma)
    true = (1 - rate) * false + rate * stats.norm.sf((threshold - 1) / sigma)
    right, broken = family.curve(1.0), of_guesses.curve(1.0)
    assert all(
        t <= right.most(f) + 1e-12 and 1 - f <= right.most(1 - t) + 1e-12 for t, f in zip(true, false, strict=True)
    )
    assert any(t > broken.most(f) + 1e-3 for t, f in zip(true, false, strict=True))
    with pytest.raises(InvalidInput, match="guesses alone"):
        by_curves(of_guesses)


@pytest.mark.slow
def test_bounds_hold_where_both_directions_differ() -> None:
    """Two sampled steps at half the noise of the claim: the curve in the family that is theirs is seldom refuted."""
    rng, rate = np.random.default_rng(3), 0.56
    family = scaled_noise(SampledGaussian(rate, 2.0, 2), DELTA, events=True)
    true = float(PLD().epsilons([SampledGaussian(rate, 1.0, 2)], DELTA)[0])
    score = {"sum": lambda trace: trace.sum(axis=(1, 2))}

    def world(present: bool) -> np.ndarray:
        return rng.normal(0, 1, (2000, 2, 1)) + (present & (rng.random((2000, 2, 1)) < rate))

    above = sum(bound(score, world(True), world(False), by_curves(family)).epsilon > true for _ in range(60))
    assert above <= 7  # 3 at most on average


@pytest.mark.slow
def test_a_mechanism_that_tells_more_is_flagged(family: Family) -> None:
    for seed in range(5):
        assert bound(SCORE, *gaussian_worlds(2.0, 2000, seed), by_curves(family)).epsilon > 4.4


@pytest.mark.slow
def test_worlds_that_do_not_overlap_refute_as_much_as_counts_can(family: Family) -> None:
    far = gaussian_worlds(100.0, 400, 0)
    found = bound(SCORE, *far, by_counts(DELTA))
    most = stats.beta.ppf(0.975, 1, 200)
    assert found.epsilon == pytest.approx(math.log((1 - most - DELTA) / most), rel=1e-9)
    assert bound(SCORE, *far, by_curves(family)).epsilon > 4.4


def test_what_cannot_be_audited_is_refused(plan: pp.Plan) -> None:
    with pytest.raises(InvalidInput, match="level must be"):
        SmallWorld(plan, 2)
    with pytest.raises(InvalidInput, match="at least four"):
        bound(SCORE, *gaussian_worlds(1.0, 3, 0), by_counts(DELTA))
    with pytest.raises(InvalidInput, match="road is 'both'"):
        traces(SmallWorld(plan, 0), True, 1, "both")  # type: ignore[arg-type]

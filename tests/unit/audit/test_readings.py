"""Readings of canary scores against exact mechanisms, other people's numbers, and twins that read too much."""

import numpy as np
import pytest
from scipy import stats

from privypurse.accounting import SampledGaussian, gdp
from privypurse.accounting.trade_off import TradeOff
from privypurse.audit import guessing, readings
from privypurse.audit.families import PER_DOUBLING, PLACES, scaled_epsilon, scaled_gaussian, scaled_noise
from privypurse.audit.guessing import Guesses, guesses_of
from privypurse.errors import InvalidInput

DELTA = 1e-5
ANCHORS = [
    ((5000, 500, 371), 0.8817787, 1.2331765),
    ((2000, 200, 150), 0.8185367, 1.1742060),
    ((2000, 200, 196), 3.0348961, 4.6498146),
]
"""By auditing.py of jax_privacy 2.3.0.dev0 (_epsilon_one_run, _epsilon_one_run_fdp) at δ = 1e-5, significance 5 %."""


def flips(canaries, rng):
    """How many are in and out by a fair coin each."""
    inside = int(rng.binomial(canaries, 0.5))
    return inside, canaries - inside


def gaussian_pair(mu, canaries, rng):
    inside, outside = flips(canaries, rng)
    return rng.normal(mu, 1, inside), rng.normal(0, 1, outside)


def responses(epsilon, canaries, rng):
    """Randomised response: each canary's truth, told with the probability that ε allows."""
    inside, outside = flips(canaries, rng)
    honest = np.exp(epsilon) / (1 + np.exp(epsilon))
    return (rng.random(inside) < honest) * 1.0, (rng.random(outside) >= honest) * 1.0


@pytest.mark.parametrize(("counts", "by_guesses", "by_curve"), ANCHORS)
def test_other_peoples_numbers(counts, by_guesses, by_curve):
    made = Guesses(*counts)
    assert readings.chance(made, by_guesses, DELTA) == pytest.approx(0.05, rel=1e-3)
    lower, upper = (TradeOff.gaussian(float(gdp.mu(by_curve * factor, DELTA))) for factor in (0.999, 1.001))
    assert readings.refuted(lower, made, 0.95)
    assert not readings.refuted(upper, made, 0.95)


@pytest.mark.parametrize(
    ("epsilon", "by_guesses", "by_curve", "by_scores"),
    [(1, 0.31, 0.5, 0.81), (2, 0.87, 1.0, 1.79), (3, 1.42, 1.5, 2.78), (8, 3.33, 4.0, 7.69)],
)
def test_what_a_perfect_audit_of_5000_canaries_gives(epsilon, by_guesses, by_curve, by_scores):
    mu = float(gdp.mu(epsilon, DELTA))
    places = (np.arange(2500) + 0.5) / 2500
    outside = stats.norm.ppf(places)  # scores exactly as they are on average
    inside = outside + mu
    assert readings.guesses(inside, outside, DELTA) >= 0.9 * by_guesses
    assert readings.f_dp(inside, outside, scaled_gaussian(mu, DELTA)) >= by_curve
    assert readings.gaussian_scores(inside, outside, DELTA) == pytest.approx(by_scores, abs=0.02)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("canaries", [2, 7])
def test_no_curve_is_refuted_by_what_its_worst_mechanism_does(epsilon, canaries):
    """Of randomised response on all canaries the tail is binomial: asked at that confidence, the curve stands."""
    curve, honest = TradeOff.approximate(epsilon, 0.0), np.exp(epsilon) / (1 + np.exp(epsilon))
    for correct in range(1, canaries + 1):
        tail = stats.binom.sf(correct - 1, canaries, honest)
        made = Guesses(canaries, canaries, correct)
        assert not readings.refuted(curve, made, 1 - tail * (1 - 1e-9))
    assert readings.refuted(curve, Guesses(canaries, canaries, canaries), 1 - honest**canaries * 1.001)


def above_the_truth(reading, scores, truth, repeats, seed):
    rng = np.random.default_rng(seed)
    return sum(reading(*scores(rng)) > truth for _ in range(repeats))


ALLOWED = int(stats.binom.isf(1e-3, 100, 0.05))


def test_guesses_are_a_bound_for_randomised_response():
    found = above_the_truth(
        lambda a, b: readings.guesses(a, b, DELTA), lambda rng: responses(1.0, 400, rng), 1.0, 100, seed=1
    )
    assert found <= ALLOWED


def test_a_reading_that_lets_ties_help_is_above_the_truth(monkeypatch):
    def helped(scores_in, scores_out):
        return guesses_of(scores_in + 1e-9, scores_out)  # among equal scores those who were in come first

    monkeypatch.setattr(readings, "guesses_of", helped)
    found = above_the_truth(
        lambda a, b: readings.guesses(a, b, DELTA), lambda rng: responses(1.0, 400, rng), 1.0, 20, seed=1
    )
    assert found > ALLOWED


@pytest.fixture(scope="module")
def one_gaussian():
    mu = float(gdp.mu(2.0, DELTA))
    return mu, scaled_gaussian(mu, DELTA)


@pytest.mark.slow
def test_f_dp_is_a_bound_for_the_gaussian(one_gaussian):
    mu, family = one_gaussian
    found = above_the_truth(
        lambda a, b: readings.f_dp(a, b, family), lambda rng: gaussian_pair(mu, 400, rng), 2.0, 100, seed=2
    )
    assert found <= ALLOWED


@pytest.mark.slow
def test_f_dp_is_a_bound_for_few_sampled_steps():
    """Where in and out are least alike: two steps at rate 0.3 with little noise."""
    family = scaled_noise(SampledGaussian(0.3, 0.8, 2), DELTA)
    truth = family.at(5 * PER_DOUBLING)[1]

    def scores(rng):
        is_in = rng.random(400) < 0.5
        drawn = is_in[:, None] & (rng.random((400, 2)) < 0.3)
        values = rng.normal(0, 0.8, (400, 2)) + drawn
        ratio = np.log1p(0.3 * np.expm1((2 * values - 1) / (2 * 0.64))).sum(1)
        return ratio[is_in], ratio[~is_in]

    assert above_the_truth(lambda a, b: readings.f_dp(a, b, family), scores, truth, 100, seed=6) <= ALLOWED


@pytest.mark.slow
def test_choosing_how_many_guesses_by_their_outcome_is_no_bound(monkeypatch):
    """The twin: the best of many numbers of guesses at the confidence of one, under the strictest claim."""

    def best(scores_in, scores_out):
        found = 0.0
        for share in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
            monkeypatch.setattr(guessing, "SHARE", share)
            found = max(found, readings.guesses(scores_in, scores_out, 1e-9))
        return found

    assert above_the_truth(best, lambda rng: gaussian_pair(0.0, 2000, rng), 0.0, 100, seed=3) > ALLOWED


def test_f_dp_sees_halved_noise_and_clears_the_claim():
    rng, release = np.random.default_rng(4), SampledGaussian(0.3, 4.0, 60)
    family = scaled_noise(release, DELTA)
    claim = family.at(PLACES * 5 // 9)[1]

    def scores(sigma):
        drawn = rng.random((1000, 60)) < 0.3
        values = rng.normal(0, sigma, (2000, 60))
        values[:1000] += drawn
        ratio = np.log1p(0.3 * np.expm1((2 * values - 1) / 32.0)).sum(1)
        return ratio[:1000], ratio[1000:]

    assert readings.f_dp(*scores(4.0), family) < claim
    assert readings.f_dp(*scores(2.0), family) > claim


def test_curves_of_a_family_rise():
    for family in (
        scaled_noise(SampledGaussian(0.1, 1.0, 10), DELTA),
        scaled_gaussian(1.0, DELTA),
        scaled_epsilon(1.0, DELTA),
    ):
        found = [family.at(place) for place in (0, 200, 320, 400)]
        epsilons = [each[1] for each in found]
        assert epsilons == sorted(epsilons)
        powers = [each[0].most(0.1) for each in found]
        assert powers == sorted(powers)
    assert scaled_epsilon(1.0, DELTA).at(320)[1] == 1.0


def test_gaussian_scores_are_no_bound():
    """The issue with it: randomised response at ε = 1 reads about 4.6, and is never called a bound."""
    rng = np.random.default_rng(5)
    assert readings.gaussian_scores(*responses(1.0, 200_000, rng), DELTA) == pytest.approx(4.6, abs=0.1)


@pytest.mark.slow
def test_the_estimate_is_above_the_truth_as_seldom_as_it_says_where_scores_are_normal():
    """The deviation is estimated too: without its part of the standard error 16 in 100 would be above, not 5."""
    rng, mu, above, without = np.random.default_rng(6), 3.0, 0, 0
    truth = float(gdp.epsilon(mu, DELTA))
    for _ in range(1000):
        inside, outside = rng.normal(mu, 1, 50), rng.normal(0, 1, 50)
        above += readings.gaussian_scores(inside, outside, DELTA) > truth
        spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        narrow = (inside.mean() - outside.mean()) / spread - stats.norm.ppf(0.95) * np.sqrt(2 / 50)
        without += gdp.epsilon(narrow, DELTA) > truth
    assert above <= stats.binom.isf(1e-6, 1000, 0.05)
    assert without > stats.binom.isf(1e-6, 1000, 0.05)


def test_without_any_noise_there_is_no_estimate_and_both_bounds_stay_finite():
    inside, outside = np.full(500, 3.0), np.zeros(500)
    assert readings.gaussian_scores(inside, outside, DELTA) == np.inf
    assert 1 < readings.guesses(inside, outside, DELTA) < 100


@pytest.mark.parametrize("delta", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("reading", [readings.guesses, readings.gaussian_scores])
def test_a_delta_that_is_none_is_named(reading, delta):
    with pytest.raises(InvalidInput, match="delta"):
        reading(np.array([1.0, 2.0]), np.array([0.0, 1.0]), delta)


def test_scores_that_tell_nothing_prove_nothing():
    same = np.zeros(500)
    assert readings.guesses(same, same, DELTA) == 0
    assert readings.f_dp(same, same, scaled_gaussian(1.0, DELTA)) == 0
    assert readings.gaussian_scores(same, same, DELTA) == 0


@pytest.mark.parametrize(
    ("inside", "outside", "confidence", "named"),
    [
        ([1.0], [0.0, 1.0], 0.95, "scores_in"),
        ([0.0, 1.0], [np.nan, 1.0], 0.95, "scores_out"),
        ([0.0, 1.0], [0.0, 1.0], 1.0, "confidence"),
    ],
)
def test_what_is_given_wrongly_is_named(inside, outside, confidence, named):
    with pytest.raises(InvalidInput, match=named):
        readings.guesses(np.array(inside), np.array(outside), DELTA, confidence)

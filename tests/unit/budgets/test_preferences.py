"""The papers' simulated budgets: exact shares, the right laws (and not wrong ones), the seed decides."""

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from privypurse.budgets import preferences

N = 20_000
ACCEPT, REJECT = 1e-3, 1e-9
"""The seeds are fixed: the right law has to fit well enough, a wrong one has to be out of the question."""


def rng(seed=7):
    return np.random.default_rng(seed)


def counts(values):
    levels, many = np.unique(values, return_counts=True)
    return dict(zip(levels.tolist(), many.tolist(), strict=True))


def p_value(values, law):
    return stats.kstest(values, law.cdf).pvalue


def truncated_normal(mean, deviation, low=0.1, high=10.0):
    return stats.truncnorm((low - mean) / deviation, (high - mean) / deviation, loc=mean, scale=deviation)


EVERY_LAW = {
    "levels": lambda n, g: preferences.levels(n, (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), g),
    "three_levels": preferences.three_levels,
    "bounded_pareto": preferences.bounded_pareto,
    "bounded_gaussian_mixture": preferences.bounded_gaussian_mixture,
    "skewed_groups": lambda n, g: preferences.skewed_groups(n, -0.2, g),
}


@pytest.mark.parametrize("law", EVERY_LAW)
def test_the_seed_decides(law):
    draw = EVERY_LAW[law]
    assert draw(500, rng(1)).tolist() == draw(500, rng(1)).tolist()
    assert draw(500, rng(1)).tolist() != draw(500, rng(2)).tolist()


@pytest.mark.parametrize("law", EVERY_LAW)
@pytest.mark.parametrize("n", [1, 2, 3, 999])
def test_as_many_as_asked_for_and_good_as_budgets(law, n):
    epsilon = EVERY_LAW[law](n, rng())
    assert epsilon.shape == (n,)
    assert epsilon.dtype == np.float64
    assert len(pp.Budgets(epsilon)) == n


@pytest.mark.parametrize("law", EVERY_LAW)
@pytest.mark.parametrize("n", [0, -5])
def test_nobody_is_an_error(law, n):
    with pytest.raises(pp.InvalidInput, match="at least one"):
        EVERY_LAW[law](n, rng())


# ------------------------------------------------------------------------------------------------ fixed levels


@pytest.mark.parametrize("n", [1, 2, 7, 10, 99, 100, 1001, 48_842])
@pytest.mark.parametrize("shares", [(0.34, 0.43, 0.23), (0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3), (0.0, 0.5, 0.5)])
def test_shares_are_exact_to_one_record(n, shares):
    found = counts(preferences.levels(n, (1.0, 2.0, 3.0), shares, rng()))
    assert sum(found.values()) == n
    for level, share in zip((1.0, 2.0, 3.0), shares, strict=True):
        assert abs(found.get(level, 0) - n * share) < 1 + 1e-6


def test_shares_that_are_whole_are_met_exactly():
    assert counts(preferences.three_levels(1000, rng())) == {0.1: 700, 1.0: 200, 5.0: 100}
    assert counts(preferences.levels(100, (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), rng())) == {1.0: 34, 2.0: 43, 3.0: 23}


def test_levels_are_spread_at_random_over_the_records():
    epsilon = preferences.levels(N, (1.0, 2.0), (0.5, 0.5), rng())
    strict_places = np.flatnonzero(epsilon == 1.0) / N
    assert p_value(strict_places, stats.uniform()) > ACCEPT
    assert p_value(np.flatnonzero(np.sort(epsilon) == 1.0) / N, stats.uniform()) < REJECT


@pytest.mark.parametrize(
    ("shares", "words"),
    [((0.5,), "shares has 1"), ((0.5, 0.6), "sum to 1"), ((-0.5, 1.5), "non-negative"), ((0.2, 0.2), "sum to 1")],
)
def test_bad_shares_are_refused(shares, words):
    with pytest.raises(pp.InvalidInput, match=words):
        preferences.levels(10, (1.0, 2.0), shares, rng())


# ---------------------------------------------------------------------------------------------- bounded Pareto


def test_bounded_pareto_follows_its_law_and_no_other():
    epsilon = preferences.bounded_pareto(N, rng())
    assert epsilon.min() >= 0.1
    assert epsilon.max() <= 10.0
    assert p_value(epsilon, stats.truncpareto(1.0, 100.0, scale=0.1)) > ACCEPT
    assert p_value(epsilon, stats.truncpareto(1.1, 100.0, scale=0.1)) < REJECT
    assert p_value(epsilon, stats.truncpareto(0.9, 100.0, scale=0.1)) < REJECT


def test_bounded_pareto_is_conditioned_not_clipped():
    epsilon = preferences.bounded_pareto(N, rng(), high=0.5)
    assert p_value(epsilon, stats.truncpareto(1.0, 5.0, scale=0.1)) > ACCEPT
    clipped = stats.pareto(1.0, scale=0.1).rvs(N, random_state=rng()).clip(0.1, 0.5)
    assert p_value(clipped, stats.truncpareto(1.0, 5.0, scale=0.1)) < REJECT
    assert (epsilon == 0.5).mean() < 1e-3


@pytest.mark.parametrize(("shape", "low", "high"), [(2.5, 0.1, 10.0), (0.5, 0.5, 4.0), (1.1, 0.01, 1.0)])
def test_bounded_pareto_of_any_shape(shape, low, high):
    epsilon = preferences.bounded_pareto(N, rng(), shape=shape, low=low, high=high)
    assert p_value(epsilon, stats.truncpareto(shape, high / low, scale=low)) > ACCEPT
    assert p_value(epsilon, stats.truncpareto(shape * 1.15, high / low, scale=low)) < REJECT


# -------------------------------------------------------------------------------------------- Gaussian mixture

COMPONENTS = [(0.1, 0.01, 0.7), (1.0, 0.05, 0.2), (5.0, 0.5, 0.1)]


@pytest.mark.parametrize(("mean", "deviation", "share"), COMPONENTS)
def test_each_component_of_the_mixture_follows_its_law_and_no_other(mean, deviation, share):
    epsilon = preferences.bounded_gaussian_mixture(10 * N, rng())
    # The components lie so far apart that no value of one comes near another.
    mine = epsilon[np.abs(epsilon - mean) < 7 * deviation]
    assert mine.size == round(10 * N * share)
    assert p_value(mine, truncated_normal(mean, deviation)) > ACCEPT
    assert p_value(mine, truncated_normal(mean, deviation * 1.2)) < REJECT
    assert p_value(mine, truncated_normal(mean + deviation / 10, deviation)) < REJECT


def test_the_mixture_is_within_bounds_and_conditioned_not_clipped():
    epsilon = preferences.bounded_gaussian_mixture(N, rng())
    assert epsilon.min() >= 0.1
    assert epsilon.max() <= 10.0
    # Clipping would put half of the strictest people, 35 % of all, at exactly the bound.
    assert (epsilon == 0.1).mean() < 1e-3


def test_a_mixture_with_a_tight_upper_bound():
    epsilon = preferences.bounded_gaussian_mixture(
        N, rng(), means=(1.0,), deviations=(0.5,), shares=(1.0,), low=0.8, high=1.1
    )
    assert p_value(epsilon, truncated_normal(1.0, 0.5, 0.8, 1.1)) > ACCEPT
    assert p_value(epsilon, stats.norm(1.0, 0.5)) < REJECT


# ----------------------------------------------------------------------------------------------- skewed groups

PRINTED = {-0.2: (2.098, -1.715), 0.2: (1.554, -1.715)}
"""Heo et al. (2023), C.1: Count(ε) = n (c1·e^{kε} + c2)."""


def printed_counts(skew):
    """The paper's counts for one person in all, group by group."""
    scale, shift = PRINTED[skew]
    return [scale * np.exp(skew * (0.5 + 0.5 * group / 19)) + shift for group in range(20)]


@pytest.mark.parametrize("skew", PRINTED)
def test_the_printed_constants_do_not_sum_to_everyone(skew):
    assert sum(printed_counts(skew)) == pytest.approx(1.83, abs=0.005)
    assert min(printed_counts(skew)) > 0


@pytest.mark.parametrize("skew", PRINTED)
@pytest.mark.parametrize("n", [20, 1000, 60_000])
def test_skewed_groups_share_out_everyone_in_the_printed_proportions(skew, n):
    found = counts(preferences.skewed_groups(n, skew, rng()))
    assert sum(found.values()) == n
    printed = printed_counts(skew)
    for group, count in enumerate(printed):
        epsilon = 0.5 + 0.5 * group / 19
        mine = sum(many for value, many in found.items() if abs(value - epsilon) < 1e-9)
        assert abs(mine - n * count / sum(printed)) < 1 + 1e-6


def test_the_sign_of_the_skew_says_who_is_many():
    strict, even, relaxed = (
        list(counts(preferences.skewed_groups(20_000, k, rng())).values()) for k in (-0.2, 0, 0.2)
    )
    assert strict == sorted(strict, reverse=True)
    assert even == [1000] * 20
    assert relaxed == sorted(relaxed)
    assert strict[0] > 10 * strict[-1]


def test_a_skew_that_the_paper_does_not_print_is_refused():
    with pytest.raises(pp.InvalidInput, match=r"0\.3.*-0\.2, 0\.0 and 0\.2"):
        preferences.skewed_groups(100, 0.3, rng())


# ---------------------------------------------------------------------------------------------------- by label


def test_by_label_gives_each_class_its_epsilon():
    labels = np.array([3, 0, 3, 1])
    assert preferences.by_label(labels, {0: 0.5, 1: 1.0, 3: 2.0}).tolist() == [2.0, 0.5, 2.0, 1.0]


def test_a_label_without_an_epsilon_is_named():
    with pytest.raises(pp.InvalidInput, match=r"levels\[2\] is 7"):
        preferences.by_label([0, 1, 7], {0: 0.5, 1: 1.0})

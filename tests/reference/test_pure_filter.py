"""The filter for adaptive pure steps: against Rogers et al. (2016), and against the truth by enumeration."""

import math

import numpy as np
import pytest
from benchmarks.pure_filters import equal_steps, published_budget, rogers_continues
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from privypurse.accounting.pure_filter import PureDPFilter
from privypurse.errors import InvalidInput, PrivyPurseError

PURSES = [(0.1, 1e-5), (0.5, 1e-3), (1.0, 1e-5), (2.0, 1e-6), (5.0, 1e-9), (1.0, 1e-2)]


def true_delta(count, step, epsilon):
    """δ(ε) of that many randomised responses: a sum over how many of them told the truth."""
    told = np.arange(count + 1)
    ways = special.gammaln(count + 1) - special.gammaln(told + 1) - special.gammaln(count - told + 1)
    yes = -math.log1p(math.exp(-step))
    with_record, without = ways + count * yes - (count - told) * step, ways + count * yes - told * step
    worse = with_record > epsilon + without
    return float(np.sum(np.exp(with_record[worse]) * -np.expm1((epsilon + without - with_record)[worse])))


def test_the_sum_over_counts_is_the_sum_over_transcripts():
    yes = math.exp(0.7) / (1 + math.exp(0.7))
    p, q = np.ones(1), np.ones(1)
    for _ in range(9):
        p, q = np.outer(p, [yes, 1 - yes]).ravel(), np.outer(q, [1 - yes, yes]).ravel()
    assert true_delta(9, 0.7, 1.0) == pytest.approx(np.maximum(p - math.e * q, 0).sum(), rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), PURSES)
@pytest.mark.parametrize("step", [0.001, 0.01, 0.1])
def test_what_it_allows_is_private_and_more_than_others_allow(epsilon, delta, step):
    allowed = equal_steps(step, epsilon, delta)
    assert allowed["ours"] >= allowed["Feldman & Zrnic, example"] >= allowed["Rogers et al."]
    assert true_delta(allowed["ours"], step, epsilon) <= delta
    filter_ = PureDPFilter(epsilon, delta)
    if 0 < allowed["ours"] < 3000:
        for _ in range(allowed["ours"] - 1):
            filter_.charge(step)
        assert filter_.left >= 0
        for _ in range(2):
            if filter_.continues(step):
                filter_.charge(step)
        assert not filter_.continues(step)


def test_three_times_as_many_steps_as_rogers():
    allowed = equal_steps(0.01, 1.0, 1e-5)
    assert allowed["ours"] >= 3 * allowed["Rogers et al."] > 0
    original = [rogers_continues([0.01] * count, 1.0, 1e-5, original=True) for count in range(300)]
    assert sum(original) <= allowed["Rogers et al."] + 1  # the empty sequence counts too


@given(
    steps=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=60),
    epsilon=st.floats(0.05, 8.0),
    delta=st.sampled_from([1e-2, 1e-5, 1e-9]),
)
@settings(max_examples=200, deadline=None)
def test_never_halts_before_rogers(steps, epsilon, delta):
    """Term by term: ε(e^ε - 1) ≥ ε², and their deviation is that of zCDP and more."""
    filter_ = PureDPFilter(epsilon, delta)
    for taken, step in enumerate(steps):
        if not rogers_continues(steps[: taken + 1], epsilon, delta):
            return
        assert filter_.continues(step)
        filter_.charge(step)


def test_a_larger_budget_is_caught():
    """The broken twin: B* a quarter larger lets so many steps through that they are no longer (ε, δ)-DP."""
    for epsilon, delta in [(0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-5), (1.0, 1e-9)]:
        budget = PureDPFilter(epsilon, delta).total
        assert budget > published_budget(epsilon, delta)
        assert true_delta(math.floor(budget / (0.01**2 / 2)), 0.01, epsilon) <= delta
        assert true_delta(math.floor(1.25 * budget / (0.01**2 / 2)), 0.01, epsilon) > delta


def adaptive(budget, choose, depth):
    """All transcripts of randomised responses; ``choose`` makes ε of the earlier answers while ½·Σε² ≤ budget."""
    ended, open_ = [], [((), 0.0, 1.0, 1.0)]
    for _ in range(depth):
        going = []
        for answers, spent, p, q in open_:
            step = choose(answers)
            if spent + step**2 / 2 > budget:
                ended.append((p, q))
                continue
            yes = 1 / (1 + math.exp(-step))
            going.append(((*answers, 1), spent + step**2 / 2, p * yes, q * (1 - yes)))
            going.append(((*answers, 0), spent + step**2 / 2, p * (1 - yes), q * yes))
        open_ = going
    ended += [(p, q) for _, _, p, q in open_]
    return np.array(ended).T


def both_ways(p, q, epsilon):
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())


def chase(answers):
    """Large steps after a truth was told, small ones after a lie: what somebody who wants to find out would do."""
    return 0.4 if answers and answers[-1] else 0.2


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (1.5, 0.01), (2.0, 1e-3), (1.0, 1e-4)])
def test_adaptive_trees_by_enumeration(epsilon, delta):
    budget = PureDPFilter(epsilon, delta).total
    rng = np.random.default_rng(0)
    for kind in range(30):
        sizes = rng.uniform(0.1, 1.0, 2**13)

        def choose(answers, sizes=sizes, kind=kind):
            at_random = sizes[int("1" + "".join(map(str, answers)), 2) % sizes.size]
            return chase(answers) if kind == 0 else at_random

        p, q = adaptive(budget, choose, 12)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert both_ways(p, q, epsilon) <= delta


def test_an_adaptive_tree_finds_too_large_a_budget():
    epsilon, delta = 1.5, 0.01
    budget = PureDPFilter(epsilon, delta).total
    assert both_ways(*adaptive(budget, chase, 16), epsilon) <= delta
    assert both_ways(*adaptive(2 * budget, chase, 16), epsilon) > delta


def test_charges_that_overdraw_are_refused_and_cost_nothing():
    filter_ = PureDPFilter(1.0, 1e-5)
    filter_.charge(0.1)
    left = filter_.left
    assert 0 < left < filter_.total
    assert filter_.continues(0.0)
    assert not filter_.continues(1.0)
    with pytest.raises(PrivyPurseError, match="overdraw"):
        filter_.charge(1.0)
    assert filter_.left == left
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="from 0 on"):
            filter_.continues(wrong)
    with pytest.raises(InvalidInput):
        PureDPFilter(1.0, 0.0)

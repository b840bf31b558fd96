"""Threshold sampling: probabilities as the paper defines them, and the best threshold against brute force."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privypurse.assignment.threshold_sampling import (
    AdaptiveLoss,
    FixedLoss,
    PrintedLoss,
    Wastes,
    best_threshold,
    probabilities,
)
from privypurse.budgets import ladder, preferences
from privypurse.errors import InvalidInput

BUDGETS = st.lists(st.floats(0.01, 20.0), min_size=1, max_size=30)
LOSSES = [FixedLoss(), FixedLoss(0.3, 0.7), AdaptiveLoss(), PrintedLoss()]


def wastes_by_hand(budgets, tau):
    """Heo et al. (2023), the two sums under Equation 6, term by term."""
    u = sum(e * (1 - math.expm1(e) / math.expm1(tau)) for e in budgets if e < tau)
    s = sum(e - tau for e in budgets if e > tau)
    return u, s


def loss_by_hand(loss, u, s):
    if isinstance(loss, FixedLoss):
        return loss.unsampled * u + loss.surplus * s
    if u + s == 0:
        return 0.0
    if isinstance(loss, PrintedLoss):
        return 2 * u * s / (u + s)
    return u / (u + s) * u + s / (u + s) * s


@settings(max_examples=150, deadline=None)
@given(BUDGETS, st.floats(0.01, 20.0))
def test_wastes_are_the_sums_of_the_paper(budgets, tau):
    u, s = Wastes(np.array(budgets)).at(np.array([tau]))
    by_hand = wastes_by_hand(budgets, tau)
    scale = sum(budgets)
    assert u[0] == pytest.approx(by_hand[0], abs=1e-12 * scale)
    assert s[0] == pytest.approx(by_hand[1], abs=1e-12 * scale)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}{getattr(loss, 'surplus', '')}")
@settings(max_examples=50, deadline=None)
@given(BUDGETS)
def test_no_threshold_is_better(loss, budgets):
    """A fine grid, and every budget itself, term by term: nothing is below what was found."""
    found = best_threshold(np.array(budgets), loss)
    assert min(budgets) <= found <= max(budgets)
    reached = loss_by_hand(loss, *wastes_by_hand(budgets, found))
    grid = [*np.linspace(min(budgets), max(budgets), 100).tolist(), *budgets]
    others = min(loss_by_hand(loss, *wastes_by_hand(budgets, tau)) for tau in grid)
    assert reached <= others + 1e-9 * sum(budgets)


def test_a_coarse_grid_would_miss_it():
    """The broken twin: a hundred steps over the range, as is usual."""
    budgets = np.concatenate([np.full(100, 1.0), np.full(500, 1.0371), np.full(10, 20.0)])
    found = best_threshold(budgets, FixedLoss())
    grid = np.linspace(1.0, 20.0, 101)
    loss = FixedLoss()
    on_grid = min(loss_by_hand(loss, *wastes_by_hand(budgets.tolist(), tau)) for tau in grid.tolist())
    assert loss_by_hand(loss, *wastes_by_hand(budgets.tolist(), found)) < on_grid - 0.1


@settings(max_examples=300, deadline=None)
@given(*[st.floats(0, 50)] * 4, st.floats(0, 1), st.floats(0, 1))
def test_the_least_of_a_box_is_a_lower_bound(a, b, c, d, x, y):
    (u_low, u_high), (s_low, s_high) = sorted((a, b)), sorted((c, d))
    u, s = u_low + x * (u_high - u_low), s_low + y * (s_high - s_low)
    box = tuple((np.array([low]), np.array([high])) for low, high in ((u_low, u_high), (s_low, s_high)))
    for loss in LOSSES:
        assert loss.least(*box)[0] <= loss_by_hand(loss, u, s) * (1 + 1e-12) + 1e-12


def test_printed_the_adaptive_loss_is_degenerate():
    """Equation 7 as printed is smallest where somebody's whole budget is wasted: at an end of the range."""
    budgets = np.array([0.1, 0.5, 1.0, 2.0, 5.0])
    assert best_threshold(budgets, PrintedLoss()) in (0.1, 5.0)
    assert 0.1 < best_threshold(budgets, AdaptiveLoss()) < 5.0


def test_probabilities_are_definition_4_1():
    found = probabilities(np.array([0.5, 1.0, 2.0]), 1.0)
    assert found[0] == pytest.approx(math.expm1(0.5) / math.expm1(1.0))
    assert found[0] == pytest.approx(0.3775, abs=5e-5)  # the figure of rule 1
    assert found[1:].tolist() == [1.0, 1.0]


def test_budgets_beyond_what_an_exponential_holds():
    budgets = np.array([1.0, 5e3, 9e3])
    assert probabilities(budgets, 9e3).tolist() == [0.0, 0.0, 1.0]
    assert 1.0 <= best_threshold(budgets) <= 9e3


def test_alike_budgets_have_one_threshold():
    assert best_threshold(np.array([2.0])) == 2.0
    assert best_threshold(np.full(1000, 0.3)) == 0.3


@pytest.mark.parametrize(("loss", "weighed"), [(AdaptiveLoss(), None), (FixedLoss(0.5, 0.5), (0.5, 0.5))])
def test_a_minimum_between_budgets_is_where_the_slope_is_zero(
    loss: AdaptiveLoss | FixedLoss, weighed: tuple[float, float] | None
) -> None:
    """Two people, ε = 0.5 and 4, by a root of the derivative in 40 digits."""
    low, high = mpmath.mpf("0.5"), mpmath.mpf(4)

    def waste(tau: mpmath.mpf) -> mpmath.mpf:
        u = low * (1 - mpmath.expm1(low) / mpmath.expm1(tau))
        s = high - tau
        return (u * u + s * s) / (u + s) if weighed is None else weighed[0] * u + weighed[1] * s

    with mpmath.workdps(40):
        slope = [(tau, mpmath.diff(waste, tau)) for tau in mpmath.linspace(low + 0.01, high - 0.01, 60)]
        inside = [(one, other) for (one, a), (other, b) in pairwise(slope) if a < 0 < b]
        valleys = [mpmath.findroot(lambda tau: mpmath.diff(waste, tau), ends, solver="anderson") for ends in inside]
        expected = min([*valleys, low, high], key=waste)
    assert best_threshold(np.array([0.5, 4.0]), loss) == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.slow
def test_a_million_different_budgets():
    budgets = np.random.default_rng(0).uniform(0.1, 10, 1_000_000)
    for loss in (FixedLoss(), AdaptiveLoss()):
        found = best_threshold(budgets, loss)
        at = np.linspace(0.1, 10, 1001)
        assert loss(*Wastes(budgets).at(np.array([found])))[0] <= loss(*Wastes(budgets).at(at)).min()


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_bad_input(wrong):
    with pytest.raises(InvalidInput, match="positive"):
        best_threshold(np.array([1.0, wrong]))
    with pytest.raises(InvalidInput, match="threshold"):
        probabilities(np.array([1.0]), wrong)
    with pytest.raises(InvalidInput, match="empty"):
        best_threshold(np.array([]))


@pytest.mark.parametrize("wrong", [-0.1, math.nan, math.inf])
def test_weights_are_not_negative(wrong):
    with pytest.raises(InvalidInput, match="weight"):
        FixedLoss(wrong, 0.5)


@pytest.mark.parametrize(
    ("skew", "adaptive", "fixed", "for_adapdp"),
    [(-0.2, 0.653, 0.55, 0.785), (0.0, 0.751, 0.63, 0.92), (0.2, 0.840, 0.76, 0.945)],
)
def test_the_thresholds_of_the_docs_are_those_of_a_fine_grid(skew, adaptive, fixed, for_adapdp):
    """docs/rounds.md, the first round on 60,000 people: term by term over the groups, on a grid of 0.0005."""
    drawn = preferences.skewed_groups(60_000, skew, np.random.default_rng(0))
    rungs = ladder.rung_value(ladder.rung_below(drawn))
    epsilon, people = np.unique(rungs, return_counts=True)
    grid = np.arange(0.5, 1.0005, 0.0005)
    below = epsilon[:, None] < grid
    u = (people * epsilon) @ np.where(below, 1 - np.expm1(epsilon)[:, None] / np.expm1(grid), 0.0)
    s = people @ np.maximum(epsilon[:, None] - grid, 0.0)
    for loss, told in ((AdaptiveLoss(), adaptive), (FixedLoss(), fixed), (FixedLoss(0.2, 0.8), for_adapdp)):
        by_grid = grid[np.argmin([loss_by_hand(loss, a, b) for a, b in zip(u, s, strict=True)])]
        assert best_threshold(epsilon, loss, people) == pytest.approx(by_grid, abs=6e-4)
        assert told == pytest.approx(by_grid, abs=1.1e-3)
    assert best_threshold(epsilon, PrintedLoss(), people) == epsilon.min()

"""Groups of people and their losses, against what they spent."""

import math

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from reproductions.analyses import by_group, correlation, correlation_with_loss


def test_groups_are_averaged_and_sorted():
    epsilon = [3.0, 1.0, 2.0, 5.0, 1.5]
    groups = by_group(epsilon, ["b", "a", "b", "c", "a"], {"a": 0.9, "b": 0.8, "c": 0.5, "unused": 1.0})
    assert [(group.name, group.people, group.mean_epsilon, group.accuracy) for group in groups] == [
        ("a", 2, 1.25, 0.9),
        ("b", 2, 2.5, 0.8),
        ("c", 1, 5.0, 0.5),
    ]
    assert [group.accuracy for group in by_group(epsilon, ["b", "a", "b", "c", "a"])] == [None] * 3


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([0, 1, 0], int),
        (np.array([0, 1, 0], dtype=np.uint8), int),
        (np.array(["x", "y", "x"]), str),
        (np.array(["x", "y", "x"], dtype=object), str),  # as a data frame's column gives them
        (np.array([True, False, True]), bool),
    ],
)
def test_names_of_groups_are_plain(labels, kind):
    groups = by_group([1.0, 2.0, 4.0], labels)
    assert all(type(group.name) is kind for group in groups)
    assert sorted(group.mean_epsilon for group in groups) == [2.0, 2.5]


def test_groups_that_do_not_fit():
    for groups in (["a"], ["a", "b", "c"], [["a", "b"]], "a"):
        with pytest.raises(pp.InvalidInput, match="groups has shape"):
            by_group([1.0, 2.0], groups)
    with pytest.raises(pp.InvalidInput, match="nothing about the group 'b'"):
        by_group([1.0, 2.0], ["a", "b"], {"a": 0.5})
    with pytest.raises(pp.InvalidInput, match="epsilon is empty"):
        by_group([], [])


# --- Correlations ---------------------------------------------------------------------------------------------------


def test_correlation_with_the_logarithm_of_the_loss():
    rng = np.random.default_rng(0)
    losses = np.exp(rng.normal(size=50))
    epsilon = 2 + 0.3 * np.log(losses) + 0.1 * rng.normal(size=50)
    ours = correlation_with_loss(epsilon, losses)
    assert ours == pytest.approx(stats.pearsonr(epsilon, np.log(losses)).statistic, rel=1e-12)
    assert correlation_with_loss(2 + 0.3 * np.log(losses), losses) == pytest.approx(1.0)
    assert correlation(epsilon, -epsilon) == pytest.approx(-1.0)


def test_losses_without_a_logarithm_are_left_out():
    epsilon, losses = (
        np.array([1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 9.0]),
        np.array([0.1, 0.5, 0.3, 0.9, 0.0, math.inf, -1.0]),
    )
    assert correlation_with_loss(epsilon, losses) == correlation_with_loss(epsilon[:4], losses[:4])
    for wrong in (losses[:4], np.zeros(7), np.array([1.0, 0, 0, 0, 0, 0, 0])):
        with pytest.raises(pp.InvalidInput, match="one loss for each ε"):
            correlation_with_loss(epsilon, wrong)

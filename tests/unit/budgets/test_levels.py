"""Levels: people with equal purses, after the one rounding of ε, which is downwards."""

import numpy as np

import privypurse as pp
from privypurse.budgets import ladder


def test_levels_count_people_and_points_back_at_them():
    levels, level_of = pp.Budgets([2.0, 1.0, 2.01, 1.0, 5.0]).levels()
    assert levels.epsilon.tolist() == [1.0, 2.0, 5.0]
    assert levels.people.tolist() == [2, 2, 1]
    assert levels.total == 5
    assert level_of.tolist() == [1, 0, 1, 0, 2]


def test_levels_of_persons_with_several_deltas():
    budgets = pp.Budgets([1.0, 1.0, 2.0, 1.0], delta=[1e-5, 1e-6, 1e-5, 1e-5], person=["a", "b", "c", "a"])
    levels, level_of = budgets.levels()
    table = list(zip(levels.epsilon.tolist(), levels.delta.tolist(), levels.people.tolist(), strict=True))
    assert table == [(1.0, 1e-6, 1), (1.0, 1e-5, 1), (2.0, 1e-5, 1)]
    assert level_of.tolist() == [1, 0, 2]


def test_what_is_promised_is_rounded_once_and_down():
    rng = np.random.default_rng(0)
    epsilon = np.exp(rng.uniform(np.log(0.01), np.log(50.0), 500))
    person = rng.permutation(np.repeat(np.arange(250), 2))
    budgets = pp.Budgets(epsilon[person], delta=10.0 ** -rng.integers(3, 6, 250)[person], person=person)
    own = budgets.epsilon[budgets.first_record]
    assert (budgets.promised <= own).all()
    assert (budgets.promised > own * (1 - ladder.LOOSEST_STEP)).all()
    levels, level_of = budgets.levels()
    np.testing.assert_array_equal(levels.epsilon[level_of], budgets.promised)
    np.testing.assert_array_equal(levels.delta[level_of], budgets.delta[budgets.first_record])
    # Rounding what is rounded changes nothing, so a second rounding anywhere would go unseen only if it is the same.
    np.testing.assert_array_equal(pp.Budgets(budgets.promised).promised, budgets.promised)
    some = levels.only(levels.epsilon > 1)
    assert some.total == int((budgets.promised > 1).sum())

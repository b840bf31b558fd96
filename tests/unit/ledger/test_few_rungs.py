"""Eight rungs for people who each named an ε of their own: nobody is above what they allow, and little is lost."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privypurse as pp
from privypurse.ledger.few_rungs import required_rung, rung_within, rungs_for

EPSILONS = st.lists(st.floats(0.01, 20.0), min_size=1, max_size=40)


def lost(values: np.ndarray, rungs: np.ndarray, power: int = 2) -> float:
    """The share of ε that is lost, or its square, on average, one person at a time."""
    return float(np.mean([(1 - max(rung for rung in rungs if rung <= value) / value) ** power for value in values]))


@given(EPSILONS, st.data())
def test_everybody_has_a_rung_that_is_not_above_what_they_allow(epsilons: list[float], data: st.DataObject) -> None:
    epsilon = np.array(epsilons)
    some = st.sampled_from([1e-7, 1e-6, 1e-5])
    delta = np.array(data.draw(st.lists(some, min_size=epsilon.size, max_size=epsilon.size)))
    rungs = rungs_for(epsilon, delta, 8)
    assert 1 <= len(rungs) <= 8
    assert sorted({one for one, _ in rungs}) == [one for one, _ in rungs]
    for own_epsilon, own_delta, place in zip(epsilon, delta, rung_within(rungs, epsilon, delta), strict=True):
        assert place >= 0
        assert rungs[place][0] <= own_epsilon
        assert rungs[place][1] <= own_delta
    if np.unique(epsilon).size <= 8 and np.unique(delta).size == 1:
        assert [rungs[place][0] for place in rung_within(rungs, epsilon, delta)] == epsilon.tolist()


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 5.0), min_size=4, max_size=9), st.integers(1, 3))
def test_no_other_choice_of_rungs_loses_less(epsilons: list[float], most: int) -> None:
    values = np.array(epsilons)
    found = np.array([one for one, _ in rungs_for(values, np.full(values.size, 1e-5), most)])
    others = np.unique(values)[1:]
    least = min(
        lost(values, np.array([values.min(), *more]))
        for count in range(min(most - 1, others.size) + 1)
        for more in combinations(others, count)
    )
    assert lost(values, found) == pytest.approx(least, abs=1e-10)


def test_what_a_different_epsilon_for_everybody_costs() -> None:
    """The figure in the docs, and that nobody who shares an ε with many others loses anything."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0.5, 3.0, 20_000)
    rungs = np.array([one for one, _ in rungs_for(values, np.full(values.size, 1e-5), 8)])
    assert rungs.size == 8
    assert lost(values[:2000], rungs, 1) == pytest.approx(0.10, abs=0.01)
    crowd = np.append(np.repeat([0.5, 1.0, 2.0, 3.0], 5000), rng.uniform(0.5, 3.0, 50))
    assert {0.5, 1.0, 2.0, 3.0} <= {one for one, _ in rungs_for(crowd, np.full(crowd.size, 1e-5), 8)}


def test_whoever_is_below_every_rung_is_named_and_whoever_allows_very_much_is_kept_to_the_most() -> None:
    rungs = [(0.5, 1e-5), (1.0, 1e-6)]
    assert rung_within(rungs, np.array([0.4, 0.5, 2.0, 2.0]), np.array([1e-5, 1e-5, 1e-5, 1e-7])).tolist() == [
        -1,
        0,
        1,
        -1,
    ]
    with pytest.raises(
        pp.InvalidInput, match=r"'bea' allows \(ε, δ\) = \(0\.4, 1e-05\).*\(0\.5, 1e-05\), \(1, 1e-06\)"
    ):
        required_rung(rungs, np.array([0.5, 0.4]), np.full(2, 1e-5), ["ada", "bea"])
    assert rungs_for(np.array([1e9]), np.array([1e-5]), 8) == [(2.0**18, 1e-5)]

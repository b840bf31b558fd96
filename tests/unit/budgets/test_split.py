"""A purse in two parts: never more than the whole, in exact arithmetic, by everybody's own purse alone."""

from fractions import Fraction

import numpy as np
import pytest

import privypurse as pp
from privypurse.budgets.split import split

EPSILON = np.concatenate([[0.1, 0.3, 0.7, 1.0, 2.9, 8.0], np.random.default_rng(0).uniform(0.01, 20, 400)])


def overdrawn(first, rest, whole):
    """How many records' two parts add up to more than the whole, without rounding."""
    parts = zip(first.tolist(), rest.tolist(), whole.tolist(), strict=True)
    return sum(Fraction(a) + Fraction(b) > Fraction(c) for a, b, c in parts)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5])
def test_the_parts_add_up_to_no_more_than_the_whole(share):
    for delta in (1e-5, 3e-7, np.random.default_rng(1).uniform(1e-9, 1e-3, EPSILON.size)):
        whole = pp.Budgets(EPSILON, delta=delta)
        parts = split(whole, share)
        assert overdrawn(parts.first.epsilon, parts.rest.epsilon, whole.epsilon) == 0
        assert overdrawn(parts.first.delta, parts.rest.delta, whole.delta) == 0
        assert (parts.first.promised == parts.first.epsilon).all()  # on the ladder already: nothing is lost twice
        assert (parts.first.epsilon > 0.99 * share * EPSILON).all()
        assert (parts.rest.epsilon >= (1 - share) * EPSILON * (1 - 1e-15)).all()
    twin = share * EPSILON, (1 - share) * EPSILON  # the twin: two products, each rounded as it comes
    assert share == 0.5 or overdrawn(*twin, EPSILON) > 0


def test_one_delta_stays_one_and_nobody_elses_moves_mine():
    parts = split(pp.Budgets(EPSILON, delta=1e-5), 0.05)
    assert parts.first.one_delta
    assert parts.rest.one_delta
    assert parts.first.delta[0] == pytest.approx(5e-7, rel=1e-12)
    deltas = np.array([1e-5, 1e-5, 3e-6])
    own, other = (split(pp.Budgets([1.0, 2.0, 3.0], delta=each), 0.05) for each in (deltas, deltas[[0, 0, 0]]))
    assert not own.first.one_delta
    assert (own.rest.delta[:2] == other.rest.delta[:2]).all()
    assert (own.first.epsilon == other.first.epsilon).all()


def test_a_public_cap_holds_for_both_together():
    whole = pp.Budgets(EPSILON)
    parts = split(whole, 0.05, at_most=1.3)
    second = np.minimum(parts.rest.epsilon, parts.rest_at_most)
    assert overdrawn(parts.first.epsilon, second, np.minimum(EPSILON, 1.3)) == 0
    assert parts.rest_at_most > 0.949 * 1.3
    # The twin: the first part of all that is granted, the second under the cap.
    assert overdrawn(split(whole, 0.05).first.epsilon, second, np.minimum(EPSILON, 1.3)) > 0


def test_people_keep_their_ids_and_a_wrong_share_is_named():
    parts = split(pp.Budgets([1.0, 1.0, 2.0], person=["a", "a", "b"]), 0.1)
    assert parts.first.people == parts.rest.people == 2
    assert parts.rest.person.tolist() == ["a", "a", "b"]
    for wrong in (0, 0.6, -1):
        with pytest.raises(pp.InvalidInput, match="share"):
            split(pp.Budgets([1.0]), wrong)

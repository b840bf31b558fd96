"""ROC, AUC and their intervals, against sums over all pairs."""

import numpy as np
import pytest

from privypurse.audit import roc
from privypurse.errors import InvalidInput

_MADE = np.random.default_rng(7)
MEMBERS, OTHERS = _MADE.normal(0.5, 1, 60).round(1), _MADE.normal(0, 1, 80).round(1)  # with ties
ABOVE = (MEMBERS[:, None] > OTHERS) + 0.5 * (MEMBERS[:, None] == OTHERS)


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    assert roc.area(MEMBERS, OTHERS) == pytest.approx(ABOVE.mean(), rel=1e-12)


def test_the_curve_goes_through_every_threshold_and_has_that_area() -> None:
    false, true = roc.curve(MEMBERS, OTHERS)
    for threshold in (-1.0, 0.0, 0.7):
        point = (threshold <= OTHERS).mean(), (threshold <= MEMBERS).mean()
        assert np.abs(np.stack([false, true], 1) - point).sum(1).min() < 1e-12
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(true, false) == pytest.approx(ABOVE.mean(), rel=1e-12)


def test_a_thinned_curve_keeps_its_ends_and_lies_on_the_whole_one() -> None:
    rng = np.random.default_rng(8)
    members, others = rng.normal(1, 1, 3000), rng.normal(0, 1, 3000)
    whole, few = roc.curve(members, others, most=10**6), roc.curve(members, others, most=40)
    assert few[0].size <= 42
    assert set(zip(*few, strict=True)) <= set(zip(*whole, strict=True))
    assert (few[0][0], few[0][-1]) == (0.0, 1.0)


def test_the_interval_has_the_variance_of_delong_over_all_pairs() -> None:
    by_member, by_other = ABOVE.mean(axis=1), ABOVE.mean(axis=0)
    variance = by_member.var(ddof=1) / by_member.size + by_other.var(ddof=1) / by_other.size
    low, high = roc.area_interval(MEMBERS, OTHERS, 0.95)
    assert (low + high) / 2 == pytest.approx(ABOVE.mean(), rel=1e-12)
    assert (high - low) / 2 == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)


def test_intervals_hold_as_often_as_they_say_and_a_narrow_one_does_not() -> None:
    held, narrow, rng = 0, 0, np.random.default_rng(9)
    for _ in range(300):
        members, others = rng.normal(1, 1, 50), rng.normal(0, 1, 50)
        low, high = roc.area_interval(members, others)
        middle, half = (low + high) / 2, (high - low) / 2
        held += abs(middle - 0.7602) <= half  # Φ(1/√2)
        narrow += abs(middle - 0.7602) <= half / 2
    assert held > 270
    assert narrow < 240


def test_students_interval() -> None:
    low, high = roc.mean_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.302653 / np.sqrt(3), 2 + 4.302653 / np.sqrt(3)), rel=1e-6)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="others holds no scores"):
        roc.area([1.0], [])
    with pytest.raises(InvalidInput, match="at least two values"):
        roc.mean_interval([1.0])

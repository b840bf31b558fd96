"""The ladder of round numbers: downwards only, by less than 1 %, and round numbers stay what they are."""

from decimal import ROUND_FLOOR, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privypurse.budgets import ladder

# A slow machine is no failure, and nothing is written next to the code.
calm = settings(deadline=None, database=None)

LOW, HIGH = 1e-19, 1e20
positive = st.one_of(
    st.floats(min_value=LOW, max_value=HIGH),
    st.builds(lambda mantissa, power: mantissa * 10.0**power, st.floats(1, 10), st.integers(-6, 6)),
    st.builds(lambda whole, power: float(f"{whole}e{power}"), st.integers(1, 9999), st.integers(-9, 9)),
    # Neighbours of round numbers, where a rung is missed or overshot by an ulp.
    st.builds(
        lambda whole, power, way: float(np.nextafter(float(f"{whole}e{power}"), way)),
        st.integers(1, 9999),
        st.integers(-9, 9),
        st.sampled_from([0.0, np.inf]),
    ),
)


def down(x: float) -> float:
    return float(ladder.rung_value(ladder.rung_below(np.array([x])))[0])


def largest_float_below(x: float, grid) -> float:
    """The largest decimal of ``grid`` (a rule: decade of x → ascending decimals) whose float is not above x."""
    at = Decimal(x).adjusted()
    candidates = [float(value.scaleb(k)) for k in (at - 1, at, at + 1) for value in grid]
    return max(value for value in candidates if value <= x)


HUNDREDTHS = [Decimal(k) / 100 for k in [*range(100, 200), *range(200, 500, 2), *range(500, 1000, 5)]]
DIGITS = [Decimal(k) for k in range(1, 10)]


@calm
@given(positive)
def test_a_rung_is_never_above_and_loses_less_than_one_percent(x):
    kept = down(x)
    assert kept <= x
    assert kept > x * (1 - 0.01 - 1e-9)


@calm
@given(positive)
def test_the_rung_is_the_highest_that_fits(x):
    assert down(x) == largest_float_below(x, HUNDREDTHS)


@calm
@given(positive)
def test_rounding_twice_is_rounding_once(x):
    rung = ladder.rung_below(np.array([x]))
    assert ladder.rung_below(ladder.rung_value(rung)).tolist() == rung.tolist()


@calm
@given(positive)
def test_the_next_rung_would_be_too_high(x):
    assert ladder.rung_value(ladder.rung_below(np.array([x])) + 1)[0] > x


def test_rungs_strictly_increase_and_never_by_more_than_one_percent():
    values = ladder.rung_value(np.arange(-19 * ladder.RUNGS_PER_DECADE, 20 * ladder.RUNGS_PER_DECADE))
    steps = np.diff(values) / values[:-1]
    assert (steps > 0).all()
    assert steps.max() <= ladder.LOOSEST_STEP * (1 + 1e-12)


def test_a_decade_starts_at_each_power_of_ten():
    powers = np.arange(-15, 16)
    values = ladder.rung_value(powers * ladder.RUNGS_PER_DECADE)
    assert values.tolist() == [float(f"1e{power}") for power in powers]


HUMAN = """
    0.1 0.2 0.25 0.3 0.5 0.7 0.75 0.9 0.95 1 1.01 1.1 1.25 1.5 1.99 2 2.5 3 3.14 4 5 6 7 8 9 9.95
    10 12 15 20 50 100 150 1000 1e6 0.01 0.015 0.02 0.03 0.05 0.07 0.001 1e-4 3e-5 1e-9
"""


@pytest.mark.parametrize("human", [float(text) for text in HUMAN.split()])
def test_numbers_that_people_choose_stay_exactly_what_they_are(human):
    assert down(human) == human


@pytest.mark.parametrize(
    ("odd", "kept"),
    [(1.005, 1.0), (1.999, 1.99), (2.01, 2.0), (4.999, 4.98), (5.04, 5.0), (9.99, 9.95), (0.0999, 0.0995)],
)
def test_odd_numbers_go_down(odd, kept):
    assert down(odd) == kept


def test_a_float_just_below_a_round_number_does_not_reach_it():
    for human in (0.1, 0.3, 1.0, 2.0, 5.0, 10.0):
        assert down(float(np.nextafter(human, 0))) < human
        assert down(float(np.nextafter(human, np.inf))) == human


def test_everyone_is_rounded_alone():
    values = np.exp(np.random.default_rng(2).uniform(-5, 5, 1000))
    together = ladder.rung_below(values)
    assert together.tolist() == [int(ladder.rung_below(np.array([value]))[0]) for value in values]


@calm
@given(positive)
def test_one_digit_floor_against_decimal_arithmetic(x):
    assert float(ladder.one_digit_floor(np.array([x]))[0]) == largest_float_below(x, DIGITS)


@calm
@given(st.floats(min_value=1e-15, max_value=1.0, exclude_max=True))
def test_one_digit_floor_never_exceeds_and_halves_at_most(x):
    kept = float(ladder.one_digit_floor(np.array([x]))[0])
    assert kept <= x < 2 * kept
    exact = Decimal(x)
    floor = exact.scaleb(-exact.adjusted()).to_integral_value(ROUND_FLOOR).scaleb(exact.adjusted())
    # The same as the floor of the exact binary value, unless x is itself the float of a one-digit number.
    assert kept == float(floor) or kept == x


@calm
@given(st.integers(1, 9), st.integers(-12, 6))
def test_one_digit_numbers_stay_exactly_what_they_are(digit, power):
    x = float(f"{digit}e{power}")
    assert float(ladder.one_digit_floor(np.array([x]))[0]) == x

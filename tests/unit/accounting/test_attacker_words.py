"""Plain words say no less than is true, and no rounding doubles a gain or hides an error."""

from fractions import Fraction

import pytest

from privypurse.accounting import SampledGaussian
from privypurse.accounting.advantage import best_accuracy
from privypurse.accounting.attacker_words import attacker_words, frequency
from privypurse.errors import InvalidInput

ACCURACIES = [best_accuracy(epsilon, 1e-5) for epsilon in (0.0, 0.001, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 20.0)]


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_frequencies_are_rounded_up_and_stay_near(accuracy: float) -> None:
    times, out_of = frequency(accuracy)
    assert Fraction(times, out_of) >= Fraction(accuracy)
    if out_of < 1_000_000:
        assert Fraction(times, out_of) - Fraction(1, 2) <= Fraction(6, 5) * (Fraction(accuracy) - Fraction(1, 2))
        assert 1 - Fraction(times, out_of) >= Fraction(4, 5) * (1 - Fraction(accuracy))


def test_rounding_to_the_nearest_would_say_too_little() -> None:
    """ε = 1 is right 73.1 times in 100: 73 is broken."""
    assert round(100 * best_accuracy(1.0, 1e-5)) == 73
    assert frequency(best_accuracy(1.0, 1e-5)) == (74, 100)
    assert "at most 74 times in 100 instead of 50" in attacker_words(1.0, 1e-5)


def test_the_whole_curve_says_more_than_one_point() -> None:
    """At (1, 1e-5) as well, and total variation 0.016 and 0.105: right half plus half of that."""
    assert "at most 509 times in 1,000 instead of 500" in attacker_words(
        1.0, 1e-5, SampledGaussian(0.00129709, 0.6, 100)
    )
    assert "at most 56 times in 100" in attacker_words(1.0, 1e-5, SampledGaussian(0.26406068, 10.0, 100))


def test_a_curve_never_says_more_than_its_point() -> None:
    assert attacker_words(0.1, 1e-5, SampledGaussian(1.0, 0.1, 1)) == attacker_words(0.1, 1e-5)


def test_what_limits_nothing_is_not_given_a_number() -> None:
    assert "nearly every time" in attacker_words(40.0, 1e-5)


def test_worse_than_a_coin_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"accuracy must be a finite number of at least 0\.5"):
        frequency(0.4)

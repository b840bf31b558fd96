"""Guesses: the bound against the mechanism that attains it, with many digits (Kairouz et al. 2015)."""

import math
from decimal import Decimal, getcontext

import pytest

from privypurse.ledger.bets import COIN, GUESSES, right_guesses

getcontext().prec = 60


def best_guesser(epsilon: float, delta: float) -> Decimal:
    """How often the best guess is right about the (ε, δ) mechanism that all others can be made of.

    It has four outcomes, of which the first and the last give somebody away.
    """
    growth, d = Decimal(epsilon).exp(), Decimal(delta)
    rest = (1 - d) / (1 + growth)
    present, absent = [d, growth * rest, rest, Decimal(0)], [Decimal(0), rest, growth * rest, d]
    return sum((max(p, q) for p, q in zip(present, absent, strict=True)), Decimal(0)) / 2


CASES = [(0.1, 1e-5), (0.5, 1e-5), (1.0, 1e-5), (2.0, 0.1), (3.0, 1e-9), (0.7, 0.4), (8.0, 1e-5)]


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_no_guesser_is_better_and_the_best_one_is_told(epsilon: float, delta: float) -> None:
    assert right_guesses(epsilon, delta) == math.ceil(GUESSES * best_guesser(epsilon, delta))


def test_without_delta_the_figure_would_be_too_small() -> None:
    assert math.ceil(GUESSES / (1 + math.exp(-2.0))) < GUESSES * best_guesser(2.0, 0.1)


def test_no_information_is_a_coin_and_a_huge_epsilon_is_certainty() -> None:
    assert right_guesses(1e-9, 1e-12) == COIN + 1  # rounded up
    assert right_guesses(1e6, 1e-5) == right_guesses(20.0, 1e-5) == GUESSES

"""What an ε means in plain words: how often the best attacker is right."""

from __future__ import annotations

import math
from fractions import Fraction

from privypurse._validate import real
from privypurse.accounting.advantage import advantage, best_accuracy, total_variation
from privypurse.accounting.releases import Release

_OUT_OF = (100, 1_000, 10_000, 100_000, 1_000_000)
_ROUGH = Fraction(1, 5)  # of what an attacker gains, and of how often they err, may be lost to rounding


def frequency(accuracy: float) -> tuple[int, int]:
    """(times right, out of): never less than the accuracy, in the smallest round number that hardly moves it.

    A gain over a coin is not doubled by rounding, and an attacker who errs now and then is not said never to.
    """
    value = Fraction(real(accuracy, "accuracy", least=0.5, most=1.0))
    for out_of in _OUT_OF:
        times = math.ceil(value * out_of)
        moved = Fraction(times, out_of) - value
        if moved <= _ROUGH * (value - Fraction(1, 2)) and moved <= _ROUGH * (1 - value):
            return times, out_of
    return math.ceil(value * _OUT_OF[-1]), _OUT_OF[-1]


def attacker_words(epsilon: float, delta: float, release: Release | None = None) -> str:
    """One sentence on the best attacker against an (ε, δ) promise; with the whole ``release``, as it is, tighter."""
    accuracy = best_accuracy(epsilon, delta)
    if release is not None:
        accuracy = min(accuracy, (1 + min(total_variation(release), advantage(epsilon, delta))) / 2 * (1 + 1e-15))
    return of_accuracy(min(accuracy, 1.0))


def of_accuracy(accuracy: float) -> str:
    """The sentence for an attacker who is right at most so often."""
    times, out_of = frequency(accuracy)
    if times == out_of:
        return "whoever guesses whether your data was used may be right nearly every time: this limits little"
    return (
        "whoever guesses whether your data was used, with all that was published and all else there is to know, "
        f"is right at most {times:,} times in {out_of:,} instead of {out_of // 2:,}"
    )

"""Filters for pure steps that others published, beside `privypurse.accounting.pure_filter`: for comparison."""

import math
from collections.abc import Sequence

import numpy as np

from privypurse.accounting.pure_filter import PureDPFilter


def published_budget(epsilon: float, delta: float) -> float:
    """The example of a B* in Feldman & Zrnic (2021), Theorem 4.8: (√(log 1/δ + ε) - √(log 1/δ))²."""
    log_inverse = math.log(1 / delta)
    return (math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)) ** 2


def rogers_continues(epsilons: Sequence[float], epsilon: float, delta: float, original: bool = False) -> bool:
    """Whether the filter of Rogers et al. (2016, arXiv 1605.08294), Theorem 5.1, lets all these pure steps through.

    Feldman & Zrnic (2021), §4.3, print it for equal steps with log(1/δ) after the square root; in the theorem the
    logarithm stands under the root, as it has to (the term is a deviation, √(2·variance·log(1/δ))). The theorem also
    has log(2/δ), since half of δ is kept for approximate steps; for pure ones nothing need be kept, so log(1/δ) is
    used here unless the ``original`` is asked for. That favours Rogers et al. in a comparison. Their δ is below 1/e.
    """
    steps = np.asarray(epsilons, dtype=np.float64)
    squares = float((steps**2).sum())
    offset = epsilon**2 / (28.04 * math.log(1 / delta))
    mean = float((steps * np.expm1(steps)).sum()) / 2
    variance = (squares + offset) * (1 + 0.5 * math.log1p(squares / offset))
    return mean + math.sqrt(2 * variance * math.log((2 if original else 1) / delta)) <= epsilon


def equal_steps(step_epsilon: float, epsilon: float, delta: float) -> dict[str, int]:
    """How many steps of the same ε each filter lets through: ours, the paper's example, Rogers et al."""

    def rogers(count: int) -> bool:
        return rogers_continues([step_epsilon] * count, epsilon, delta)

    low, high = 0, 1
    while rogers(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rogers(middle) else (low, middle)
    each = step_epsilon**2 / 2 * (1 + 1e-12)
    return {
        "ours": math.floor(PureDPFilter(epsilon, delta).total / each),
        "Feldman & Zrnic, example": math.floor(published_budget(epsilon, delta) / each),
        "Rogers et al.": low,
    }

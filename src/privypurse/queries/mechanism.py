"""The one place where an answer is made public: who can pay takes part, pays, and noise is added."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privypurse.accounting.filters import Filter
from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput
from privypurse.queries.contributions import UP, Contributions, grain
from privypurse.queries.noise import Noise

_SMALLEST, _LARGEST = 1e-100, 1e100


def noisy_sum(
    contributions: Contributions,
    purses: Filter,
    *,
    clip: float,
    noise: float,
    source: Noise,
    save: Callable[[], None] | None = None,
) -> FloatArray:
    """The sum of everybody's clipped vector, with normal noise of standard deviation ``noise`` on each number.

    Feldman & Zrnic (2021), Algorithm 2 with the Gaussian mechanism: a person pays for ‖their vector‖/noise and
    nothing if it is zero; who cannot pay contributes nothing, is charged nothing, and nobody is told.

    Guarantee: nothing is returned unless it was charged, and saved by ``save`` if there is one; if anything fails
    before, nothing is charged. Asking who can pay and charging them is one step: no other thread's question is paid
    for with the same coin.
    """
    fine = grain(purses.total.size, clip, noise)
    parts = contributions.clipped(clip).rounded(fine)
    with np.errstate(over="ignore"):  # a cost of ∞ is one that nobody can pay
        cost = purses.currency.gaussian(parts.norms() * (UP / noise))
    with purses.lock:
        pays = purses.affords(cost)
        total = parts.total(pays)
        added = np.rint(source.normal(total.size) * (noise / fine)) * fine
        before = purses.spent.copy()
        try:
            purses.charge(np.where(pays, cost, 0.0))
            if save is not None:
                save()
        except BaseException:
            purses.spent = before
            raise
    return np.asarray(total + added)


def worst_cost(purses: Filter, clip: float, noise: float) -> float:
    """What `noisy_sum` costs a person at most, in the filter's currency."""
    with np.errstate(over="ignore"):
        return float(purses.currency.gaussian(np.asarray(clip * UP * UP / noise)))


def check_scale(value: float, name: str) -> float:
    """A public positive number such as the noise or a clip norm, or an error that names it."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise InvalidInput(f"{name} is {value!r}, not a number")
    number = float(value)
    if not _SMALLEST <= number <= _LARGEST:
        raise InvalidInput(f"{name} is {number:g}; it must be positive and finite ({_SMALLEST:g} … {_LARGEST:g})")
    return number

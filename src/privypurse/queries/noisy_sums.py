"""The one place where an answer is made public: who can pay takes part, pays, and noise is added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np

from privypurse._validate import real
from privypurse.accounting.filters import Filter, full_purse
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import ladder
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.errors import InvalidInput
from privypurse.queries.answers import Cost
from privypurse.queries.contributions import UP, Contributions, grain
from privypurse.queries.ledger_purses import LedgerPurses
from privypurse.queries.noise import Noise

_SMALLEST, _LARGEST = 1e-100, 1e100

Purses = Filter | LedgerPurses
"""Of this analyst alone, or for life."""


def noisy_sum(
    contributions: Contributions,
    purses: Purses,
    *,
    clip: float,
    noise: float,
    source: Noise,
    alike: bool = False,
) -> FloatArray:
    """The sum of everybody's clipped vector, with normal noise of standard deviation ``noise`` on each number.

    Feldman & Zrnic (2021), Algorithm 2 with the Gaussian mechanism: a person pays for ‖their vector‖/noise and
    nothing if it is zero; who cannot pay contributes nothing, is charged nothing, and nobody is told.

    Guarantee: nothing is returned unless it was charged. Asking who can pay and charging them is one step: no other
    thread's question is paid for with the same coin. ``alike`` says that whoever contributes, contributes ``clip``.
    """
    if isinstance(purses, Filter):
        pay = partial(_paid_from, purses)
    else:
        pay = partial(purses.pay, most=largest_ratio(clip, noise), alike=alike)
    return paid_sum(contributions, purses.total.size, pay, clip=clip, noise=noise, source=source)


def _paid_from(purses: Filter, ratio: FloatArray) -> AnyArray:
    with np.errstate(over="ignore"):  # a cost of ∞ is one that nobody can pay
        cost = purses.currency.gaussian(ratio)
    with purses.lock:
        pays = purses.affords(cost)
        purses.charge(np.where(pays, cost, 0.0))
    return pays


def paid_sum(
    contributions: Contributions,
    people: int,
    pay: Callable[[FloatArray], AnyArray],
    *,
    clip: float,
    noise: float,
    source: Noise,
) -> FloatArray:
    """As `noisy_sum`, charged by ``pay``: from ‖vector‖/noise of each person to whether they take part."""
    fine = grain(people, clip, noise)
    parts = contributions.clipped(clip).rounded(fine)
    added = np.rint(source.normal(parts.size) * (noise / fine)) * fine
    with np.errstate(over="ignore"):
        ratio = parts.norms() * (UP / noise)
    return np.asarray(parts.total(pay(ratio)) + added)


def largest_ratio(clip: float, noise: float) -> float:
    """What ``pay`` of `paid_sum` is asked for at most: a public number."""
    return clip * UP * UP / noise


def worst_cost(purses: Purses, clip: float, noise: float) -> float:
    """What `noisy_sum` costs a person at most, in the filter's currency."""
    with np.errstate(over="ignore"):
        return float(purses.currency.gaussian(np.asarray(largest_ratio(clip, noise))))


class Pay(TypedDict, total=False):
    """What a question may say about its noise: either ``noise`` or ``cost``.

    ``noise`` is a standard deviation. ``cost`` is an ε at ``delta``, which whoever asks names: the least noise is
    taken at which nobody pays more, for that ε rounded down to the ladder, so that a full purse of it can pay. With
    ``noise``, ``delta`` is only where the cost is told as ε.
    """

    noise: float | None
    cost: float | None
    delta: float


@dataclass(frozen=True)
class Price:
    """What a question's noise is and what it costs, known before the data are touched."""

    clip: float
    noise: float
    cost: Cost


def priced(
    purses: Purses,
    clip: float,
    *,
    noise: float | None = None,
    cost: float | None = None,
    delta: float = DEFAULT_DELTA,
) -> Price:
    """By the noise that was given, or the least at which a contribution of ``clip`` costs no more than ``cost``."""
    at = checked_delta(delta)
    if (noise is None) == (cost is None):
        raise InvalidInput("give either noise= (a standard deviation) or cost= (an ε at delta=)")
    deviation = scale(noise, "noise") if cost is None else _noise_for(purses, clip, scale(cost, "cost"), at)
    return Price(clip, deviation, Cost(worst_cost(purses, clip, deviation), purses.currency.name, at))


def _noise_for(purses: Purses, clip: float, epsilon: float, delta: float) -> float:
    """Rounded up: the cost that is told in the end is not above ``epsilon``, and a full purse of it pays.

    For that ε is rounded down to the ladder, as purses are.
    """
    currency, held = purses.currency, ladder.rounded_down(epsilon)
    amount = float(full_purse(currency, np.array([held]), np.array([delta]))[0])
    if not amount > 0:
        raise InvalidInput(f"cost is ε = {epsilon:g} at δ = {delta:g}, too little for any noise; allow more")
    noise, more = clip * math.sqrt(worst_cost(purses, 1.0, 1.0) / amount), 1e-12
    while (one := worst_cost(purses, clip, noise)) > amount or Cost(one, currency.name, delta).epsilon > held:
        noise, more = noise * (1 + more), 2 * more
    return scale(noise, "the noise for this cost")


def scale(value: Any, name: str) -> float:
    """A public positive number such as the noise or a clip norm, or an error that names it."""
    return real(value, name, least=_SMALLEST, most=_LARGEST)


def checked_delta(delta: Any) -> float:
    """The δ at which a cost is told as ε."""
    return real(delta, "delta", least=_SMALLEST, below=1)

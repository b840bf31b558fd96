"""Private statistics of one number for each person, such as what training cost them (Yu et al. 2023, section 3.4).

What a single person spent is that person's secret (rule 6: sensitive outputs). Its mean and quantiles can be told to
everybody for a small cost, which each person pays for their own term: out of a reserve (a `Filter`), or out of their
purse for life (`LedgerPurses`), where every sum is a charge. The number of people and the cap on values are public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from privypurse._validate import integer
from privypurse.accounting.filters import CURRENCIES
from privypurse.arrays import FloatArray, frozen
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.errors import InvalidInput
from privypurse.queries.answers import SYMBOLS, Cost
from privypurse.queries.contributions import Dense
from privypurse.queries.noise import Noise
from privypurse.queries.noisy_sums import Price, Purses, checked_delta, noisy_sum, priced, scale, worst_cost

PROBABILITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
STEPS = 20

# Public constants of the quantile steps, chosen on made-up skewed, bimodal, uniform, capped and discrete values, with
# caps up to 20 times too large (`python -m benchmarks.queries statistics` shows those and others).
_START = math.exp(-1.5)  # of the cap
_FIRST_STEP = 4.0
_SEARCHING, _SEARCH_FALL, _CLOSING_FALL = 8, 0.92, 0.75  # of 20 steps; how much smaller each step is than the last
_HIGHEST = 0.99  # of the cap: at the cap itself everybody is below, which is known for nothing
_MEAN_SHARE = 0.25  # of a release's cost: a cap far too large hurts the mean more than the quantiles


@dataclass(frozen=True)
class Estimate:
    """A private mean or number of people. ``noise`` is its standard deviation."""

    value: float
    noise: float
    cost: Cost


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Private quantiles, in the order of ``probabilities``."""

    probabilities: tuple[float, ...]
    values: FloatArray
    noise: float
    """Standard deviation of each number of people below a threshold, at each step."""
    steps: int
    cost: Cost


@dataclass(frozen=True, eq=False)
class Statistics:
    """A private mean and quantiles, and what they cost together."""

    mean: float
    quantiles: FloatArray
    probabilities: tuple[float, ...]
    cost: Cost

    def __str__(self) -> str:
        parts = [f"{p:g}-quantile {q:.4g}" for p, q in zip(self.probabilities, self.quantiles, strict=True)]
        return f"mean {self.mean:.4g}, {', '.join(parts)}; costs {self.cost}"


def count(
    flags: Any, purses: Purses, *, noise: float, delta: float = DEFAULT_DELTA, seed: int | None = None
) -> Estimate:
    """How many flags are set, such as `Spending.contributing`, by the Gaussian mechanism.

    Whose flag is set pays for 1/noise, the others nothing; somebody without reserve is not counted. ``delta`` is only
    where the cost is told as ε.
    """
    each = np.asarray(flags)
    if each.dtype != np.bool_ or each.shape != purses.total.shape:
        raise InvalidInput(f"flags must be one True or False for each of {purses.total.size:,} people")
    price = priced(purses, 1.0, noise=noise, delta=delta)
    _refuse_beyond_all(price.cost.amount, purses)
    parts = Dense(each.astype(np.float64)[:, None])
    total = noisy_sum(parts, purses, clip=1.0, noise=price.noise, source=Noise(seed), alike=True)
    return Estimate(float(total[0]), price.noise, price.cost)


def mean(
    values: Any, purses: Purses, *, cap: float, noise: float, delta: float = DEFAULT_DELTA, seed: int | None = None
) -> Estimate:
    """The mean of ``values`` clipped to [0, cap], by the Gaussian mechanism.

    ``noise`` is the standard deviation on the sum, in units of the values. Terms are centred at cap/2, so a person
    pays for |value - cap/2|/noise, at most (cap/2)/noise; somebody without reserve counts as cap/2. ``delta`` is
    only where the cost is told as ε.
    """
    each, high = _checked(values, purses, cap)
    _refuse_not_finite(each)
    price = priced(purses, high / 2, noise=noise, delta=delta)
    _refuse_beyond_all(price.cost.amount, purses)
    return _mean(each, purses, price, Noise(seed))


def quantiles(
    values: Any,
    purses: Purses,
    *,
    probabilities: Sequence[float] = PROBABILITIES,
    cap: float,
    noise: float,
    steps: int = STEPS,
    delta: float = DEFAULT_DELTA,
    seed: int | None = None,
) -> Quantiles:
    """Quantiles of ``values`` clipped to [0, cap], by geometric gradient steps (Andrew et al. 2021, Algorithm 1).

    Each step asks how many people lie at or below a threshold c for each quantile γ, all as one vector of centred
    bits ±1/2 with normal noise of standard deviation ``noise`` people on each, and moves c ← c·exp(-η(b - γ)), b the
    noisy share. Step sizes η fall in a public way. In the end the quantiles are read off a rising curve fitted
    to all noisy shares, which costs nothing more and is more exact than the last threshold.

    A person pays for √(quantiles)/2/noise at every step; somebody without a finite value or without reserve counts as
    half below and half above. A value that is not finite is no error here, since values may follow from people's data
    (gradient norms) and an error would tell of it. ``delta`` is only where the cost is told as ε.
    """
    each, high = _checked(values, purses, cap)
    wanted = _checked_probabilities(probabilities)
    times = integer(steps, "steps", hint="20 is usual")
    price = priced(purses, math.sqrt(wanted.size) / 2, noise=noise, delta=delta)
    _refuse_beyond_all(times * price.cost.amount, purses)
    return _quantiles(each, purses, wanted, high, price, times, Noise(seed))


def release(
    values: Any, purses: Purses, *, cap: float, epsilon: float, delta: float = DEFAULT_DELTA, seed: int | None = None
) -> Statistics:
    """Mean and five quantiles of ``values`` clipped to [0, cap], at a total cost of (ε, δ) for each person at most.

    A quarter of the cost, in μ² or ρ, goes to the mean and the rest evenly to 20 quantile steps.
    """
    each, high = _checked(values, purses, cap)
    _refuse_not_finite(each)
    most, at = scale(epsilon, "epsilon"), checked_delta(delta)
    # A little less than the purse of (ε, δ), so that the cost told as ε does not exceed it by rounding.
    total = float(purses.currency.purse(np.array([most]), np.array([at]))[0]) * (1 - 1e-5)
    one = worst_cost(purses, 1.0, 1.0)  # of a contribution as large as the noise
    if not total > 0:
        raise InvalidInput(f"(ε = {most:g}, δ = {at:g}) is too small to tell anything")
    _refuse_beyond_all(total, purses)
    source = Noise(seed)
    length = math.sqrt(len(PROBABILITIES)) / 2
    for_mean = high / 2 / math.sqrt(_MEAN_SHARE * total / one)
    for_steps = length / math.sqrt((1 - _MEAN_SHARE) * total / STEPS / one)
    middle = _mean(each, purses, priced(purses, high / 2, noise=for_mean, delta=at), source)
    price = priced(purses, length, noise=for_steps, delta=at)
    others = _quantiles(each, purses, np.array(PROBABILITIES), high, price, STEPS, source)
    cost = Cost(middle.cost.amount + others.cost.amount, purses.currency.name, at)
    return Statistics(middle.value, others.values, PROBABILITIES, cost)


def _mean(each: FloatArray, purses: Purses, price: Price, source: Noise) -> Estimate:
    """Of values in [0, 2·clip], each centred at the clip norm of the price."""
    middle = price.clip
    parts = Dense(np.where(np.isnan(each), 0.0, each - middle)[:, None])
    total = noisy_sum(parts, purses, clip=price.clip, noise=price.noise, source=source)
    value = float(np.clip(middle + total[0] / each.size, 0.0, 2 * middle))
    return Estimate(value, price.noise / each.size, price.cost)


def _quantiles(
    each: FloatArray, purses: Purses, wanted: FloatArray, cap: float, price: Price, steps: int, source: Noise
) -> Quantiles:
    missing = np.isnan(each)[:, None]
    ceiling = math.log(cap * _HIGHEST)
    position = np.full(wanted.size, math.log(cap * _START))
    tried, shares = np.empty((steps, wanted.size)), np.empty((steps, wanted.size))
    for step in range(steps):
        bits = np.where(missing, 0.0, np.where(each[:, None] <= np.exp(position), 0.5, -0.5))
        below = noisy_sum(Dense(bits), purses, clip=price.clip, noise=price.noise, source=source, alike=True)
        tried[step], shares[step] = position, np.clip(0.5 + below / each.size, 0.0, 1.0)
        position = np.minimum(position - _step_size(step * STEPS / steps) * (shares[step] - wanted), ceiling)
    found = np.exp(_read_off(tried.ravel(), shares.ravel(), wanted, math.log(cap)))
    cost = replace(price.cost, amount=steps * price.cost.amount)
    return Quantiles(tuple(wanted.tolist()), frozen(found), price.noise, steps, cost)


def _step_size(step: float) -> float:
    """Large while thresholds search, quickly smaller once they are near."""
    return float(_FIRST_STEP * _SEARCH_FALL ** min(step, _SEARCHING) * _CLOSING_FALL ** max(step - _SEARCHING, 0.0))


def _read_off(tried: FloatArray, shares: FloatArray, wanted: FloatArray, top: float) -> FloatArray:
    """Where a rising curve through the noisy shares reaches each probability; at ``top`` it is 1.

    The curve is flat over thresholds that the noise does not tell apart, and straight between the last of one such
    piece and the first of the next.
    """
    order = np.argsort(tried, kind="stable")
    rising = scipy.optimize.isotonic_regression(shares[order]).x
    return np.asarray(np.interp(wanted, np.append(rising, 1.0), np.append(tried[order], top)), dtype=np.float64)


def _checked(values: Any, purses: Purses, cap: float) -> tuple[FloatArray, float]:
    """Values clipped to [0, cap], NaN for those that are not finite."""
    high = scale(cap, "cap")
    if purses.currency.name not in CURRENCIES:
        raise InvalidInput(f"purses are in the currency {purses.currency.name!r}; statistics need 'gdp' or 'zcdp'")
    try:
        each = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("values must be numbers, one for each person") from None
    if each.ndim != 1 or each.shape != purses.total.shape or each.size == 0:
        raise InvalidInput(
            f"values has shape {each.shape}, but there are {purses.total.size:,} purses; give one value for each"
        )
    return np.where(np.isfinite(each), np.clip(each, 0.0, high), np.nan), high


def _refuse_not_finite(each: FloatArray) -> None:
    if np.isnan(each).any():
        raise InvalidInput("values must be finite, and some are NaN or ∞; what made them went wrong")


def _refuse_beyond_all(cost: float, purses: Purses) -> None:
    """Nobody could take part, and noise alone would be told as an answer.

    Compared with full purses: what is left of them follows from people's data, and a refusal would tell of it.
    """
    fullest = float(purses.total.max())
    if cost > fullest:
        symbol = SYMBOLS[purses.currency.name]
        raise InvalidInput(
            f"this costs up to {symbol} = {cost:.4g} a person, but the fullest purse holds {fullest:.4g} when full; "
            "ask for less (a smaller ε, more noise, fewer steps) or reserve more"
        )


def _checked_probabilities(probabilities: Sequence[float]) -> FloatArray:
    wanted = np.asarray(probabilities, dtype=np.float64)
    if wanted.ndim != 1 or wanted.size == 0 or not ((wanted > 0) & (wanted < 1)).all():
        raise InvalidInput("probabilities must be one or more numbers between 0 and 1")
    return wanted

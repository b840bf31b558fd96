"""Sample: whoever grants more privacy is drawn more often."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import scipy  # whole: its parts are loaded by whoever uses them, and optimize takes longer than all of ours

from privypurse.accounting.inverse import GUIDE
from privypurse.arrays import FloatArray
from privypurse.assignment.method import UNUSED, Assignment, Calibrator, refuse_unreachable
from privypurse.assignment.uniform import Uniform
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget
from privypurse.plans.under_ledger import Own

Excess = Callable[[float], float]
"""log σ → log of (mean rate / wanted mean rate)."""

_LEAST_NOISE, _MOST_NOISE = 0.02, 1e5
_CLOSE = 2e-4  # in the logarithm of the mean rate
_MOST_CORRECTIONS = 8
_USUAL_SLOPE = 1.2  # rates rise a little faster than σ


class BatchTooLarge(InfeasibleBudget):
    """No noise makes so large a batch of what people allow."""


@dataclass(frozen=True)
class Sample:
    """Boenisch et al. (2023, arXiv 2303.17046), Algorithm 1: one noise multiplier, a sampling rate for each ε.

    With a given noise multiplier each rate follows from the person's own (ε, δ) and the training shape alone.
    Without, σ is solved so that the mean rate is batch_size / people.
    """

    name: str = "sample"
    own: ClassVar[Own] = Own.RATE

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        given = calibrator.shape.noise_multiplier
        if given is None:
            sigma, rate, spent = solved_rates(levels, calibrator)
        else:
            sigma = given
            rate, spent = calibrator.rates(sigma).certified(levels.epsilon, levels.delta)
        return Assignment(
            noise_multiplier=sigma,
            rate=rate,
            clip_norm=np.full(rate.size, calibrator.shape.clip_norm),
            capped=spent < UNUSED * levels.epsilon,
            from_budgets=given is None,
        )


def solved_rates(levels: Levels, calibrator: Calibrator) -> tuple[float, FloatArray, FloatArray]:
    """σ, the certified rates *at that σ* and their ε; σ is put right until these rates average what is wanted."""
    wanted = calibrator.shape.batch_size / levels.total
    log_sigma = math.log(solved_noise(levels, calibrator))
    low, high = -math.inf, math.inf  # σ that give too small, and too large a mean rate
    best: tuple[float, float, FloatArray, FloatArray] | None = None
    for _ in range(_MOST_CORRECTIONS):
        rate, spent = calibrator.rates(math.exp(log_sigma)).certified(levels.epsilon, levels.delta)
        off = math.log(float(levels.people @ rate) / levels.total / wanted)
        if best is None or abs(off) < best[0]:
            best = abs(off), math.exp(log_sigma), rate, spent
        if abs(off) < 1e-3 or wanted >= 1.0:
            break
        low, high = (log_sigma, high) if off < 0 else (low, log_sigma)
        log_sigma -= float(np.clip(off / _USUAL_SLOPE, -0.5, 0.5))
        if not low < log_sigma < high:
            log_sigma = (low + high) / 2
    assert best is not None
    return best[1:]


def solved_noise(levels: Levels, calibrator: Calibrator) -> float:
    """The σ at which the rates that all budgets buy average batch_size / people.

    More noise buys everyone a larger rate, so the mean rate rises with σ and one σ fits.
    """
    refuse_unreachable(levels, calibrator)
    wanted = calibrator.shape.batch_size / levels.total
    if wanted >= 1.0:  # everybody in every step: the strictest person decides
        return Uniform().assign(levels, calibrator).noise_multiplier

    def excess(calibrator: Calibrator) -> Excess:
        @cache
        def at(log_sigma: float) -> float:
            rate = calibrator.rates(math.exp(log_sigma)).guess(levels.epsilon, levels.delta)
            return math.log(float(levels.people @ rate) / levels.total / wanted)

        return at

    by_rdp = _root(excess(replace(calibrator, accountant=GUIDE, progress=None)))
    if calibrator.accountant.name == GUIDE.name:
        return math.exp(by_rdp)
    return math.exp(_secant(excess(calibrator), by_rdp))


def _root(excess: Excess) -> float:
    """Bracket the root by doubling from σ = 1, then Brent."""
    low = high = 0.0
    if excess(0.0) > 0:
        while excess(low) > 0:
            low, high = low - math.log(2), low
            _check_range(low)
    else:
        while excess(high) < 0:
            low, high = high, high + math.log(2)
            _check_range(high)
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-5))


def _secant(excess: Excess, start: float) -> float:
    """A few slow evaluations around a good start."""
    x, y = start, excess(start)
    slope = _USUAL_SLOPE
    for _ in range(12):
        if abs(y) < _CLOSE:
            break
        step = float(np.clip(-y / slope, -0.3, 0.3))
        x_new = x + step
        _check_range(x_new)
        y_new = excess(x_new)
        slope = float(np.clip((y_new - y) / step, 0.05, 20.0))
        x, y = x_new, y_new
    return float(x)


def _check_range(log_sigma: float) -> None:
    if log_sigma < math.log(_LEAST_NOISE):
        raise InfeasibleBudget(
            "no noise multiplier makes a batch as small as batch_size on average: people with a large ε belong into "
            "almost every step at any noise; raise batch_size, lower the largest ε, or give noise_multiplier= and "
            "let batch_size be a divisor only"
        )
    if log_sigma > math.log(_MOST_NOISE):
        raise BatchTooLarge(
            "no noise multiplier makes a batch as large as batch_size on average: these ε are too small for so large "
            "a batch; lower batch_size or steps"
        )

"""Simulation-CurveFitting of Liu et al. (2024, arXiv 2401.16251), §6.1, with every rate checked and corrected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from privypurse.accounting import RDP, Release, SampledGaussian
from privypurse.accounting.rdp import epsilon_from_rdp_mironov
from privypurse.arrays import FloatArray
from privypurse.assignment.method import UNUSED, Assignment, Calibrator
from privypurse.assignment.sample import solved_noise
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget
from privypurse.plans.under_ledger import Own

CANDIDATE_RATES = np.linspace(0.01, 1.0, 100)
CANDIDATE_ORDERS = np.arange(2.0, 257.0)


@dataclass(frozen=True)
class FittedCurve:
    """f(q) = e^{aq+b} + c, their best-fit model of ε*(q), and its inverse."""

    a: float
    b: float
    c: float
    at_one: float
    """ε*(1): budgets beyond it get rate 1 (their Algorithm 2, line 8)."""
    r_squared: float

    def cost(self, rate: FloatArray) -> FloatArray:
        return np.asarray(np.exp(self.a * rate + self.b) + self.c, dtype=np.float64)

    def rate(self, epsilon: FloatArray) -> FloatArray:
        """The sampling probability estimator F. Below the curve's foot it has no answer; that is rate 0."""
        above = np.maximum(np.asarray(epsilon) - self.c, 1e-300)
        inner = ((np.log(above) - self.b) / self.a).clip(0.0, 1.0)
        return np.asarray(np.where(np.asarray(epsilon) >= self.at_one, 1.0, inner), dtype=np.float64)


def fit(release_at: Callable[[float], Release], delta: float) -> FittedCurve:
    """Their Algorithm 2: simulate ε*(q) at candidate rates with Mironov's conversion, fit, invert.

    The paper prints neither the candidate rates nor the orders; these are a hundred even rates and the
    integers to 256.
    """
    accountant = RDP(CANDIDATE_ORDERS, convert=epsilon_from_rdp_mironov)
    cost = accountant.epsilons([release_at(rate) for rate in CANDIDATE_RATES.tolist()], delta)
    start = (1.0, np.log(max(float(np.ptp(cost)), 1e-6)) - 1.0, float(cost.min()))
    try:
        (a, b, c), _ = scipy.optimize.curve_fit(
            lambda q, a, b, c: np.exp(np.minimum(a * q + b, 700.0)) + c,
            CANDIDATE_RATES,
            cost,
            p0=start,
            maxfev=20_000,
        )
    except RuntimeError as error:
        raise InfeasibleBudget(f"the curve e^(aq+b)+c does not fit this training shape: {error}") from None
    fitted = np.exp(a * CANDIDATE_RATES + b) + c
    r_squared = 1 - float(np.sum((cost - fitted) ** 2) / np.sum((cost - cost.mean()) ** 2))
    return FittedCurve(float(a), float(b), float(c), float(cost[-1]), r_squared)


@dataclass(frozen=True)
class CurveFit:
    """Rates by the fitted curve, each checked; σ is given, or the one that Sample would solve.

    A fit is no bound: a rate that overspends is backed off to the certified rate, one that leaves budget unused is
    raised to it (see docs/soundness.md, rule 4).
    """

    name: ClassVar[str] = "curve-fit"
    own: ClassVar[Own] = Own.RATE

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        given = calibrator.shape.noise_multiplier
        sigma = solved_noise(levels, calibrator) if given is None else given
        fitted, unfitted = np.full(levels.epsilon.size, np.nan), 0
        for delta in np.unique(levels.delta):
            rows = levels.delta == delta
            try:
                curve = fit(lambda q: SampledGaussian(q, sigma, calibrator.shape.steps), float(delta))
                fitted[rows] = curve.rate(levels.epsilon[rows])
            except InfeasibleBudget:
                unfitted += int(levels.people[rows].sum())
        safe, spent = calibrator.rates(sigma).certified(levels.epsilon, levels.delta)
        over, under = int(levels.people[fitted > safe].sum()), int(levels.people[fitted < safe].sum())
        note = f"of the fitted rates {over:,} overspent and were lowered, {under:,} left budget and were raised"
        if unfitted:
            note += f"; for {unfitted:,} people no curve of that form fits at all"
        return Assignment(
            noise_multiplier=sigma,
            rate=safe,
            clip_norm=np.full(safe.size, calibrator.shape.clip_norm),
            capped=spent < UNUSED * levels.epsilon,
            from_budgets=given is None,
            notes=(note,),
        )

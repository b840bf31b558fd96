"""Rates by a fitted curve that is taken for a bound, as in Liu et al. (2024), Algorithm 2: it keeps NO promise.

A fit is no bound: on the settings of their Figure 5 a record with budget 0.2 gets a rate whose tightest Rényi bound
is 0.94. `privypurse.assignment.CurveFit` checks every fitted rate; this does not.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privypurse.accounting import SampledGaussian
from privypurse.assignment import curve_fit
from privypurse.assignment.method import Assignment, Calibrator
from privypurse.assignment.sample import solved_noise
from privypurse.budgets.levels import Levels


@dataclass(frozen=True)
class TrustedCurve:
    """A method for `pp.plan`, whose plan promises nothing; σ is given, or the one that Sample would solve."""

    name: ClassVar[str] = "curve-fit-as-published"

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        given, steps = calibrator.shape.noise_multiplier, calibrator.shape.steps
        sigma = solved_noise(levels, calibrator) if given is None else given
        rate = np.empty(levels.epsilon.size)
        for delta in np.unique(levels.delta):
            rows = levels.delta == delta
            curve = curve_fit.fit(lambda q: SampledGaussian(q, sigma, steps), float(delta))
            rate[rows] = curve.rate(levels.epsilon[rows])
        return Assignment(
            noise_multiplier=sigma,
            rate=rate,
            clip_norm=np.full(rate.size, calibrator.shape.clip_norm),
            capped=rate >= 1.0,
            from_budgets=given is None,
            keeps_budgets=False,
            notes=("rates trust a fitted curve",),
        )

"""Everyone at the strictest budget: ordinary DP-SGD, the baseline."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privypurse.assignment.method import UNUSED, Assignment, Calibrator
from privypurse.budgets.levels import Levels
from privypurse.plans.under_ledger import Own


@dataclass(frozen=True)
class Uniform:
    """One rate and one clip norm for all, chosen for the strictest (ε, δ) among them.

    Without a given noise multiplier the rate is batch_size / people and σ is solved; with one, the rate is.
    """

    name: str = "uniform"
    own: ClassVar[Own] = Own.PRESENCE

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        sigma = calibrator.shape.noise_multiplier
        if sigma is None:
            rate = min(1.0, calibrator.shape.batch_size / levels.total)
            inverse, spent = calibrator.inverse_noise(rate).for_all(levels.epsilon, levels.delta)
            sigma = 1.0 / inverse
        else:
            rate, spent = calibrator.rates(sigma).for_all(levels.epsilon, levels.delta)
        return Assignment(
            noise_multiplier=sigma,
            rate=np.full(levels.epsilon.size, rate),
            clip_norm=np.full(levels.epsilon.size, calibrator.shape.clip_norm),
            capped=np.full(levels.epsilon.size, bool(spent < UNUSED * levels.epsilon.min())),
            from_budgets=True,
        )

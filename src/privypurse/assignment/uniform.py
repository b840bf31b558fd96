"""Everyone at the strictest budget: ordinary DP-SGD, the baseline."""

from dataclasses import dataclass

import numpy as np

from privypurse.assignment.method import UNUSED, Assignment, Calibrator
from privypurse.budgets.levels import Levels


@dataclass(frozen=True)
class Uniform:
    """One rate and one clip norm for all, chosen for the strictest (ε, δ) among them.

    Without a given noise multiplier the rate is batch_size / people and σ is solved; with one, the rate is.
    """

    name: str = "uniform"

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        strictest, at_delta = levels.epsilon.min(keepdims=True), levels.delta.min(keepdims=True)
        sigma = calibrator.shape.noise_multiplier
        if sigma is None:
            rate = min(1.0, calibrator.shape.batch_size / levels.total)
            inverse, spent = calibrator.inverse_noise(rate).certified(strictest, at_delta)
            sigma = float(1.0 / inverse[0])
        else:
            rates, spent = calibrator.rates(sigma).certified(strictest, at_delta)
            rate = float(rates[0])
        return Assignment(
            noise_multiplier=sigma,
            rate=np.full(levels.epsilon.size, rate),
            clip_norm=np.full(levels.epsilon.size, calibrator.shape.clip_norm),
            capped=np.full(levels.epsilon.size, bool(spent[0] < UNUSED * strictest[0])),
            from_budgets=True,
        )

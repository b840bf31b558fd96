"""Scale: whoever grants more privacy is clipped less."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privypurse.assignment.method import UNUSED, Assignment, Calibrator
from privypurse.budgets.levels import Levels
from privypurse.plans.under_ledger import Own

_ROUND_DOWN = 1 - 1e-12


@dataclass(frozen=True)
class Scale:
    """Boenisch et al. (2023, arXiv 2303.17046), Algorithm 2: one rate, batch_size / people; a clip norm for each ε.

    σᵢ is what ε_i needs at that rate; the common σ is the harmonic mean of the σᵢ over people, so that the
    clip norms cᵢ = C·σ/σᵢ average C (their Eq. 10). With a given noise multiplier that takes its place.
    """

    name: str = "scale"
    own: ClassVar[Own] = Own.CLIP_NORM

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        rate = min(1.0, calibrator.shape.batch_size / levels.total)
        inverse, spent = calibrator.inverse_noise(rate).certified(levels.epsilon, levels.delta)
        sigma = calibrator.shape.noise_multiplier
        if sigma is None:
            sigma = levels.total / float(levels.people @ inverse)
        # Rounded down, so that σ·C/cᵢ, once computed, is not a hair below the certified σᵢ.
        clip_norm = calibrator.shape.clip_norm * sigma * inverse * _ROUND_DOWN
        return Assignment(
            noise_multiplier=sigma,
            rate=np.full(inverse.size, rate),
            clip_norm=clip_norm,
            capped=spent < UNUSED * levels.epsilon,
            from_budgets=True,
        )

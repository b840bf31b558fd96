"""Leave out the strictest people and train on the others as if they were alike."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from privypurse._validate import real
from privypurse.assignment.method import Assignment, Calibrator
from privypurse.assignment.uniform import Uniform
from privypurse.budgets import ladder
from privypurse.budgets.levels import Levels
from privypurse.errors import InvalidInput
from privypurse.plans.under_ledger import Own


@dataclass(frozen=True)
class Exclude:
    """Boenisch et al. (2023, arXiv 2303.17046), E.1: those with ε below ``threshold`` take no part and spend nothing.

    The threshold is rounded down to the ladder, as budgets are. The default is the mean ε, as in the Dropout baseline
    of Liu et al. (2024, arXiv 2401.16251). Who remains trains uniformly at the strictest ε that remains.
    """

    threshold: float | None = None
    name: str = "exclude"
    own: ClassVar[Own] = Own.PRESENCE

    def _threshold(self, levels: Levels) -> float:
        if self.threshold is None:
            mean = float(levels.people @ levels.epsilon) / levels.total
            return min(mean, float(levels.epsilon.max()))
        return real(self.threshold, "threshold", above=0, hint="it is an ε")

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        # Budgets stand on the ladder, rounded down; so must the threshold, or people just above it would fall below.
        threshold = ladder.rounded_down(self._threshold(levels))
        stays = levels.epsilon >= threshold
        if not stays.any():
            raise InvalidInput(
                f"threshold is {threshold:g}, above the largest ε {levels.epsilon.max():g}: nobody would remain"
            )
        some = levels.only(stays)
        shape = calibrator.shape
        if shape.noise_multiplier is None and shape.batch_size > some.total:
            raise InvalidInput(
                f"batch_size is {shape.batch_size:,}, but only {some.total:,} people hold ε ≥ {threshold:g}; "
                "lower the batch size or the threshold"
            )
        inner = Uniform().assign(some, calibrator.only(stays))
        rate, capped = np.zeros(stays.size), np.zeros(stays.size, dtype=bool)
        rate[stays], capped[stays] = inner.rate, inner.capped
        note = f"{levels.total - some.total:,} people with ε below {threshold:g} take no part"
        clip_norm = np.full(stays.size, shape.clip_norm)
        return replace(inner, rate=rate, clip_norm=clip_norm, capped=capped, notes=(note,))

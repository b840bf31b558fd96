"""Leave out the strictest people and train on the others as if they were alike."""

from dataclasses import dataclass

import numpy as np

from privypurse.assignment.base import Assignment, Levels, Means
from privypurse.assignment.uniform import Uniform
from privypurse.budgets import ladder
from privypurse.errors import InvalidInput


@dataclass(frozen=True)
class Exclude:
    """Boenisch et al. (2023), E.1: those with ε below ``threshold`` take no part and spend nothing.

    The threshold is rounded down to the ladder, as budgets are. The default is the mean ε, as in the Dropout baseline
    of Liu et al. (2024). Who remains trains uniformly at the strictest ε that remains.
    """

    threshold: float | None = None
    name: str = "exclude"

    def _threshold(self, levels: Levels) -> float:
        if self.threshold is None:
            mean = float(levels.people @ levels.epsilon) / levels.total
            return min(mean, float(levels.epsilon.max()))
        if not (np.isfinite(self.threshold) and self.threshold > 0):
            raise InvalidInput(f"threshold is {self.threshold}; it must be finite and positive, an ε")
        return float(self.threshold)

    def assign(self, levels: Levels, means: Means) -> Assignment:
        # Budgets stand on the ladder, rounded down; so must the threshold, or people just above it would fall below.
        threshold = float(ladder.rung_value(ladder.rung_below(np.array([self._threshold(levels)])))[0])
        stays = levels.epsilon >= threshold
        if not stays.any():
            raise InvalidInput(
                f"threshold is {threshold:g}, above the largest ε {levels.epsilon.max():g}: nobody would remain"
            )
        some = Levels(levels.epsilon[stays], levels.delta[stays], levels.people[stays])
        if means.shape.noise_multiplier is None and means.shape.batch_size > some.total:
            raise InvalidInput(
                f"batch_size is {means.shape.batch_size:,}, but only {some.total:,} people hold ε ≥ {threshold:g}; "
                "lower the batch size or the threshold"
            )
        inner = Uniform().assign(some, means)
        rate, capped = np.zeros(stays.size), np.zeros(stays.size, dtype=bool)
        rate[stays], capped[stays] = inner.rate, inner.capped
        return Assignment(
            noise_multiplier=inner.noise_multiplier,
            rate=rate,
            clip_norm=np.full(stays.size, means.shape.clip_norm),
            capped=capped,
            from_budgets=True,
            notes=(f"{levels.total - some.total:,} people with ε below {threshold:g} take no part",),
        )

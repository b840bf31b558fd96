"""Sample with weights against its bias: whoever is drawn less counts for more, within their own ε.

`Sample` draws people in proportion to what they grant, so that the model learns most from the generous. Here a person
with sampling rate q is clipped to C·(q̄/q)^γ instead of C, with the public q̄ = batch size / people, and *that* clip
norm is charged: they face the noise multiplier σ·(q/q̄)^γ. γ = 0 is Sample; with γ = 1 everybody's expected
contribution is the same (as Fay, Mair & Sjölund, arXiv 2307.10187, weigh records).

What can be had for it: for large σ a step costs about q²·(e^{(q̄/q)^{2γ}/σ²} - 1), which for γ = 1 is never below
q̄²/σ². So exact unbiasedness gives nobody less ε than uniform training at the same σ would: σ has to rise to that of
the strictest. Weights put on after clipping and not charged would overdraw exactly the strict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import optimize

from privypurse._validate import real
from privypurse.accounting import RDP, Release, SampledGaussian
from privypurse.assignment.method import Assignment, Calibrator
from privypurse.budgets.levels import Levels

_NOISE = (0.1, 1000.0)
_COARSE, _FINE = 80, 2000  # rates between 1e-5 and 1: while σ is searched, and in the end


@dataclass(frozen=True)
class WeightedSample:
    """A method for `pp.plan`.

    Without a given σ it is the smallest at which everybody can be drawn and Σ q·(clip norm / C), a step's signal,
    is at least the batch size. For γ = 0 that is Sample's.
    """

    gamma: float = 0.5
    name: ClassVar[str] = "weighted-sample"

    def __post_init__(self) -> None:
        real(self.gamma, "gamma", least=0, most=1)

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        shape = calibrator.shape
        mean = shape.batch_size / levels.total

        def lacking(log_sigma: float) -> float:
            rate = self._rates(levels, calibrator, math.exp(log_sigma), mean, _COARSE)
            signal = float(levels.people @ (rate * self._weight(rate, mean))) / shape.batch_size
            return -1.0 if (rate == 0).any() else min(signal - 1.0, 1.0) or 1.0

        sigma = shape.noise_multiplier
        if sigma is None:
            sigma = math.exp(optimize.bisect(lacking, *map(math.log, _NOISE), xtol=2e-4) + 2e-4)
        rate = self._rates(levels, calibrator, sigma, mean, _FINE)
        return Assignment(
            noise_multiplier=sigma,
            rate=rate,
            clip_norm=shape.clip_norm * self._weight(rate, mean),
            capped=rate == 1.0,
            from_budgets=shape.noise_multiplier is None,
        )

    def _weight(self, rate: np.ndarray, mean: float) -> np.ndarray:
        return np.where(rate > 0, mean / np.maximum(rate, 1e-12), 1.0) ** self.gamma

    def _rates(self, levels: Levels, calibrator: Calibrator, sigma: float, mean: float, nodes: int) -> np.ndarray:
        """The largest rate on a grid whose Rényi cost, at its weight, is within each ε; 0 where none is.

        On the coarse grid it is interpolated to the next one: a guess, to search σ with.
        """
        grid = np.geomspace(1e-5, 1.0, nodes)
        noise = sigma / self._weight(grid, mean)
        releases: list[Release] = [
            calibrator.shape.facing(SampledGaussian(rate, faced, calibrator.shape.steps))
            for rate, faced in zip(grid.tolist(), noise.tolist(), strict=True)
        ]
        found = np.zeros(levels.epsilon.size)
        for delta in np.unique(levels.delta):
            cost = RDP().epsilons(releases, float(delta))
            for level in np.flatnonzero(levels.delta == delta).tolist():
                within = np.flatnonzero(cost <= levels.epsilon[level])
                if not within.size:
                    continue
                k = int(within[-1])
                found[level] = grid[k]
                if nodes == _COARSE and k + 1 < nodes:
                    share = math.log(levels.epsilon[level] / cost[k]) / math.log(cost[k + 1] / cost[k])
                    found[level] *= (grid[k + 1] / grid[k]) ** share
        return found

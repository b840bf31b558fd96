"""What all assignments share: levels in, rates and clip norms out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privypurse.accounting import RDP, Accountant, Gaussian, Progress, Release, SampledGaussian
from privypurse.accounting.inverse import INVERSE_NOISE, RATE, Axis, Inverse
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets import Budgets, ladder
from privypurse.errors import InfeasibleBudget
from privypurse.plans import TrainingShape


@dataclass(frozen=True, eq=False)
class Levels:
    """People grouped by their budget, rounded down to the ladder. Nothing downstream looks at single people."""

    epsilon: FloatArray
    delta: FloatArray
    people: IntArray

    @property
    def total(self) -> int:
        return int(self.people.sum())


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a method decided for each level."""

    noise_multiplier: float
    rate: FloatArray
    clip_norm: FloatArray
    capped: AnyArray
    from_budgets: bool
    """Whether anything public was solved from the list of budgets (rule 7)."""
    keeps_budgets: bool = True
    """False where a method overspends, as some published ones do; the plan then promises nothing."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Means:
    """What a method works with besides the levels."""

    shape: TrainingShape
    accountant: Accountant
    progress: Progress | None = None

    @property
    def guide(self) -> Accountant:
        """The cheap accountant that says where the dear one should look."""
        return RDP()

    def _inverse(self, release_at: object, axis: Axis) -> Inverse:
        cheap = self.accountant.name == "rdp"
        return Inverse(
            self.accountant,
            release_at,  # type: ignore[arg-type]
            # The Rényi curve is quick to evaluate but kinked; that of a loss distribution is slow but smooth.
            Axis(axis.lowest_decade, axis.highest_decade, 32 if cheap else 8),
            guide=self.guide,
            slack=5e-4,
            progress=self.progress,
        )

    def rates(self, noise_multiplier: float) -> Inverse:
        """ε → sampling rate, at this noise multiplier."""
        steps = self.shape.steps

        def at(rate: float) -> Release:
            return self.shape.facing(SampledGaussian(min(rate, 1.0), noise_multiplier, steps))

        return self._inverse(at, RATE)

    def inverse_noise(self, rate: float) -> Inverse:
        """ε → 1 / effective noise multiplier, at this sampling rate."""
        steps = self.shape.steps

        def at(inverse_noise: float) -> Release:
            return self.shape.facing(SampledGaussian(rate, 1.0 / inverse_noise, steps))

        return self._inverse(at, INVERSE_NOISE)

    def with_accountant(self, accountant: Accountant) -> Means:
        return Means(self.shape, accountant, None)


UNUSED = 0.99
"""Who spends less than this share of an ε that was aimed at is capped: not even the largest parameter uses it up."""


class Method(Protocol):
    """Turns levels into rates, clip norms and a noise multiplier."""

    @property
    def name(self) -> str: ...

    def assign(self, levels: Levels, means: Means) -> Assignment: ...


def refuse_unreachable(levels: Levels, means: Means) -> None:
    """Raise for an ε below what the accountant answers even for next to nothing: no noise can mend that."""
    nothing = means.accountant.epsilons([Gaussian(1e9)] * levels.epsilon.size, levels.delta)
    out_of_reach = np.flatnonzero(nothing >= levels.epsilon)
    if out_of_reach.size:
        level = int(out_of_reach[0])
        epsilon, delta = float(levels.epsilon[level]), float(levels.delta[level])
        raise InfeasibleBudget(
            f"ε = {epsilon:g} at δ = {delta:g} is below {nothing[level]:.3g}, the least that the "
            f'{means.accountant.name} accountant can certify at all; try accountant="pld", or raise that ε or δ',
            epsilon=epsilon,
            delta=delta,
        )


def levels_of(budgets: Budgets) -> tuple[Levels, IntArray]:
    """The levels of a data set, ascending in ε, and for each unit its level."""
    first = budgets.first_record
    epsilon, delta = budgets.epsilon[first], budgets.delta[first]
    rung = ladder.rung_below(epsilon)
    deltas, which = (
        (delta[:1], np.zeros(1, dtype=np.int64))
        if delta.min() == delta.max()
        else np.unique(delta, return_inverse=True)
    )
    lowest = int(rung.min())
    key = (rung - lowest) * deltas.size + which
    people = np.bincount(key)
    present = np.flatnonzero(people)
    place = np.zeros(people.size, dtype=np.int64)
    place[present] = np.arange(present.size)
    return (
        Levels(
            ladder.rung_value(present // deltas.size + lowest),
            deltas[present % deltas.size],
            people[present].astype(np.int64),
        ),
        place[key],
    )

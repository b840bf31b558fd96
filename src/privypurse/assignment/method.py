"""What all assignments share: levels in, rates and clip norms out, and the checks around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from privypurse._validate import one_of
from privypurse.accounting import Accountant, Gaussian, Progress, Release, SampledGaussian
from privypurse.accounting.inverse import INVERSE_NOISE, RATE, Axis, Inverse
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import Budgets
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseError
from privypurse.plans import Promise, TrainingShape
from privypurse.plans.plan_base import PlanBase

UNUSED = 0.99
"""Who spends less than this share of an ε that was aimed at is capped: not even the largest parameter uses it up."""

M = TypeVar("M")


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


class Method(Protocol):
    """Turns levels into rates, clip norms and a noise multiplier."""

    @property
    def name(self) -> str: ...

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment: ...


@dataclass(frozen=True)
class Calibrator:
    """Finds the sampling rate, or the noise, that an ε buys under this training shape by this accountant."""

    shape: TrainingShape
    accountant: Accountant
    progress: Progress | None = None

    def only(self, which: AnyArray) -> Calibrator:
        """For some of the levels, where it knows more of them than their ε and δ."""
        return self

    def inverse(self, release_at: Callable[[float], Release], axis: Axis) -> Inverse:
        """ε → the parameter of these releases."""
        return Inverse(self.accountant, release_at, axis, self.progress)

    def _nodes(self, axis: Axis) -> Axis:
        # The Rényi curve is quick to evaluate but kinked; that of a loss distribution is slow but smooth.
        return Axis(axis.lowest_decade, axis.highest_decade, 32 if self.accountant.name == "rdp" else 8)

    def rates(self, noise_multiplier: float) -> Inverse:
        """ε → sampling rate, at this noise multiplier."""
        return self.inverse(lambda rate: self._faced(min(rate, 1.0), noise_multiplier), self._nodes(RATE))

    def inverse_noise(self, rate: float) -> Inverse:
        """ε → 1 / effective noise multiplier, at this sampling rate."""
        return self.inverse(lambda inverse: self._faced(rate, 1.0 / inverse), self._nodes(INVERSE_NOISE))

    def _faced(self, rate: float, noise_multiplier: float) -> Release:
        return self.shape.facing(SampledGaussian(rate, noise_multiplier, self.shape.steps))


def refuse_unreachable(levels: Levels, calibrator: Calibrator) -> None:
    """Raise for an ε below what the accountant answers even for next to nothing: no noise can mend that."""
    accountant = calibrator.accountant
    nothing = accountant.epsilons([Gaussian(1e9)] * levels.epsilon.size, levels.delta)
    out_of_reach = np.flatnonzero(nothing >= levels.epsilon)
    if out_of_reach.size:
        level = int(out_of_reach[0])
        epsilon, delta = float(levels.epsilon[level]), float(levels.delta[level])
        raise InfeasibleBudget(
            f"ε = {epsilon:g} at δ = {delta:g} is below {nothing[level]:.3g}, the least that the "
            f'{accountant.name} accountant can certify at all; try the accountant "pld", or raise that ε or δ',
            epsilon=epsilon,
            delta=delta,
        )


def named(method: str | Any, known: Mapping[str, M]) -> M | Any:
    """The method of that name with its usual settings; a method object as it is."""
    if not isinstance(method, str):
        return method
    one_of(method, "method", known)
    return known[method]


def require_budgets(budgets: Any) -> None:
    """Raise unless these are Budgets."""
    if not isinstance(budgets, Budgets):
        raise InvalidInput(
            f"budgets must be a Budgets, not {type(budgets).__name__}; write pp.Budgets(epsilon, delta=…)"
        )


def require_people(shape: TrainingShape, levels: Levels, hint: str) -> None:
    """Raise if a batch is larger than all people together."""
    if shape.batch_size > levels.total:
        raise InvalidInput(
            f"batch_size is {shape.batch_size:,}, but there are only {levels.total:,} people to draw from; {hint}"
        )


def whose(budgets: Budgets) -> dict[str, Any]:
    """What binds a plan or a schedule to the people of these budgets."""
    return {"owner": None if budgets.person is None else budgets.owner, "keyed_ids": budgets.keyed_ids()}


def refuse_overspending(made: PlanBase, progress: Progress | None) -> None:
    """Compute everyone's ε anew from what was made, whatever the method believed: a promise must hold."""
    try:
        if made.promise is not Promise.NONE:
            made.require_kept(progress)
    except InvalidInput as error:
        raise PrivyPurseError(
            f"method {made.method} made a {made.WHAT} that overspends: a bug in the method, please report the call "
            f"({error})"
        ) from None

"""plan: from everyone's budget to a training plan that keeps every one of them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from privypurse.accounting import Progress, accountant_named
from privypurse.arrays import IntArray
from privypurse.assignment.base import Assignment, Levels, Means, Method, levels_of
from privypurse.assignment.curve_fit import CurveFit
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.sample import Sample
from privypurse.assignment.scale import Scale
from privypurse.assignment.uniform import Uniform
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseError, PrivyPurseWarning
from privypurse.plans import summary as summaries
from privypurse.plans.plan import FIXED_SHARE, LevelTable, Plan, Promise, TrainingShape, in_every_step
from privypurse.plans.stopping import Stop

_HARDLY = 0.01  # expected draws in all steps below which somebody takes part in name only

METHODS: dict[str, Method] = {method.name: method for method in (Uniform(), Sample(), Scale(), CurveFit(), Exclude())}


def plan(
    budgets: Budgets,
    method: str | Method = "sample",
    *,
    steps: int,
    batch_size: int,
    clip_norm: float = 1.0,
    noise_multiplier: float | None = None,
    extra_steps: int = 0,
    stop: Stop | None = None,
    accountant: str = "pld",
    progress: Progress | None = None,
) -> Plan:
    """Turn everyone's ε into a training plan that keeps every one of them.

    ``batch_size`` is the public divisor of every step. Without ``noise_multiplier`` σ is solved so that it is
    also the expected batch. With it, and method "sample", each rate follows from the person's own ε alone.

    ``extra_steps`` may follow the fixed ``steps``: in them takes part who has something left, because their gradients
    were smaller than their clip norm. A filter sees to it that nobody overdraws (`Plan.filter` says which). ``stop``
    (`StopAtPlateau`, `StopWhenFew`) ends them early by private questions, which the plan pays for.

    Guarantee: ``plan.spent() <= budgets.epsilon`` for every record, proved by the named accountant ("pld", the
    tighter, or "rdp"). A method of one's own that declares that it keeps no budget gives a plan that promises
    nothing, and says so.
    A budget that cannot be kept is an `InfeasibleBudget`; one that cannot be used up is reported as capped.
    """
    if not isinstance(budgets, Budgets):
        raise InvalidInput(
            f"budgets must be a Budgets, not {type(budgets).__name__}; write pp.Budgets(epsilon, delta=…)"
        )
    chosen = _method(method)
    shape = TrainingShape(
        steps=steps,
        batch_size=batch_size,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        extra_steps=extra_steps,
        stop=stop,
    )
    levels, level_of = levels_of(budgets)
    if noise_multiplier is None and shape.batch_size > levels.total:
        raise InvalidInput(
            f"batch_size is {shape.batch_size:,}, but there are only {levels.total:,} people to draw from; "
            "lower it, or give noise_multiplier= and let batch_size be a divisor only"
        )
    means = Means(shape, accountant_named(accountant), progress)

    def decide(share: float) -> Assignment:
        aimed = replace(levels, delta=levels.delta * share)
        try:
            return chosen.assign(aimed, means)
        except InfeasibleBudget as error:
            if shape.stop is not None:
                text = f"{error}. The stopping rule's questions are part of that: give them more noise, or ask fewer"
                error = InfeasibleBudget(text, error.epsilon, error.delta)
            raise _located(error, budgets, aimed, level_of) from None

    # People who are in every step are filtered by Gaussian DP, which needs no δ of its own.
    whole = noise_multiplier is None and shape.batch_size == levels.total
    decided = decide(1.0 if whole or not shape.extra_steps else FIXED_SHARE)
    if shape.extra_steps and whole and not in_every_step(decided.rate):
        decided = decide(FIXED_SHARE)
    if shape.extra_steps and not decided.keeps_budgets:
        raise InvalidInput(f"method {chosen.name} keeps no budget, so no filter can; leave extra_steps out")
    made = Plan(
        method=chosen.name,
        accountant=accountant,
        promise=_promise(decided),
        shape=shape.with_noise(decided.noise_multiplier),
        levels=LevelTable(
            epsilon=levels.epsilon,
            delta=levels.delta,
            rate=decided.rate,
            clip_norm=decided.clip_norm,
            capped=decided.capped,
        ),
        level_of=level_of,
        owner=None if budgets.person is None else budgets.owner,
        roll=budgets.roll(),
        notes=(*decided.notes, *_remarks(decided, levels, shape)),
    )
    _refuse_overspending(made, progress)
    if made.levels.delta.max() * made.people >= 1:
        warnings.warn(summaries.large_delta(made), PrivyPurseWarning, stacklevel=2)
    return made


def _refuse_overspending(made: Plan, progress: Progress | None) -> None:
    """Compute everyone's ε anew from the finished plan, whatever the method believed; a promise must hold."""
    over = made.spent_by_level(progress=progress) > made.levels.epsilon
    if made.promise is not Promise.NONE and over.any():
        level = int(np.argmax(over))
        raise PrivyPurseError(
            f"method {made.method} made a plan that spends ε = {made.spent_by_level()[level]:.4g} where "
            f"{made.levels.epsilon[level]:g} was promised; a bug in the method, please report the call"
        )


def _remarks(decided: Assignment, levels: Levels, shape: TrainingShape) -> list[str]:
    """What a reader of the plan should not have to find out alone."""
    remarks = []
    batch = float(levels.people @ decided.rate)
    if abs(batch / shape.batch_size - 1) > 0.02:
        remarks.append(
            f"a step draws {batch:,.1f} people on average but divides by {shape.batch_size:,}: "
            "gradients are that much smaller or larger than in ordinary training"
        )
    idle = int(levels.people[(decided.rate > 0) & (decided.rate * shape.steps < _HARDLY)].sum())
    if idle:
        remarks.append(f"{idle:,} people are drawn less than once in {1 / _HARDLY:,.0f} such trainings")
    return remarks


def _method(method: str | Method) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise InvalidInput(f"method is {method!r}; choose one of {', '.join(map(repr, METHODS))}")
        return METHODS[method]
    if isinstance(method, type):
        raise InvalidInput(f"method is the class {method.__name__}; give an object of it: {method.__name__}()")
    if not hasattr(method, "assign"):
        raise InvalidInput(f"method must be a name or a method object, not {type(method).__name__}")
    return method


def _located(error: InfeasibleBudget, budgets: Budgets, levels: Levels, level_of: IntArray) -> InfeasibleBudget:
    """The same error, naming the first record that it is about."""
    concerned = np.flatnonzero((levels.epsilon == error.epsilon) & (levels.delta == error.delta))
    if not concerned.size:
        return error
    record = int(budgets.first_record[int(np.argmax(level_of == concerned[0]))])
    who = f"record {record}" + ("" if budgets.person is None else f" (person {budgets.person[record]})")
    others = int(levels.people[concerned[0]]) - 1
    more = f" and {others:,} others" if others else ""
    return InfeasibleBudget(f"{who}{more}: {error}", error.epsilon, error.delta)


def _promise(decided: Assignment) -> Promise:
    if not decided.keeps_budgets:
        return Promise.NONE
    return Promise.DATA if decided.from_budgets else Promise.PRESENCE


__all__ = [
    "METHODS",
    "Assignment",
    "CurveFit",
    "Exclude",
    "Levels",
    "Means",
    "Method",
    "Sample",
    "Scale",
    "Uniform",
    "levels_of",
    "plan",
]

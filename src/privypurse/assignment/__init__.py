"""Budgets → plan. Each method is a small object; a string looks up the one with its usual settings."""

from __future__ import annotations

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
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape

METHODS: dict[str, Method] = {
    method.name: method
    for method in (Uniform(), Sample(), Scale(), CurveFit(), CurveFit(as_published=True), Exclude())
}


def plan(
    budgets: Budgets,
    method: str | Method = "sample",
    *,
    steps: int,
    batch_size: int,
    clip_norm: float = 1.0,
    noise_multiplier: float | None = None,
    accountant: str = "pld",
    progress: Progress | None = None,
) -> Plan:
    """Turn everyone's ε into a training plan that keeps every one of them.

    ``batch_size`` is the public divisor of every step. Without ``noise_multiplier`` σ is solved so that it is
    also the expected batch. With it, and method "sample", each rate follows from the person's own ε alone.

    Guarantee: ``plan.spent() <= budgets.epsilon`` for every record, proved by the named accountant ("pld", the
    tighter, or "rdp"), for every method but "curve-fit-as-published", whose plan says that it promises nothing.
    A budget that cannot be kept is an `InfeasibleBudget`; one that cannot be used up is reported as capped.
    """
    if not isinstance(budgets, Budgets):
        raise InvalidInput(
            f"budgets must be a Budgets, not {type(budgets).__name__}; write pp.Budgets(epsilon, delta=…)"
        )
    chosen = _method(method)
    shape = TrainingShape(steps=steps, batch_size=batch_size, clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    levels, level_of = levels_of(budgets)
    if noise_multiplier is None and shape.batch_size > levels.total:
        raise InvalidInput(
            f"batch_size is {shape.batch_size:,}, but there are only {levels.total:,} people to draw from; "
            "lower it, or give noise_multiplier= and let batch_size be a divisor only"
        )
    try:
        decided = chosen.assign(levels, Means(shape, accountant_named(accountant), progress))
    except InfeasibleBudget as error:
        raise _located(error, budgets, levels, level_of) from None
    return Plan(
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
        notes=decided.notes,
    )


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

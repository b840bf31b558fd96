"""plan: from everyone's budget to a training plan that keeps every one of them."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from privypurse._validate import integer, real
from privypurse.accounting import Progress, accountant_named
from privypurse.arrays import IntArray
from privypurse.assignment import under_ledger
from privypurse.assignment.method import (
    Assignment,
    Calibrator,
    Method,
    named,
    refuse_overspending,
    require_budgets,
    require_people,
    whose,
)
from privypurse.assignment.methods import METHODS
from privypurse.budgets import Budgets
from privypurse.budgets.budgets import LARGEST, SMALLEST
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseWarning
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape
from privypurse.plans.level_table import in_every_step
from privypurse.plans.planned_training import FIXED_SHARE
from privypurse.plans.stop_rules import Stop
from privypurse.plans.summary import large_delta

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_HARDLY = 0.01  # expected draws in all steps below which somebody takes part in name only


def plan(
    budgets: Budgets,
    method: str | Method = "sample",
    *,
    steps: int | None = None,
    epochs: float | None = None,
    people: int | None = None,
    batch_size: int,
    clip_norm: float = 1.0,
    noise_multiplier: float | None = None,
    extra_steps: int = 0,
    stop: Stop | None = None,
    ledger: Ledger | None = None,
    at_most: float | None = None,
    accountant: str = "pld",
    progress: Progress | None = None,
) -> Plan:
    """Turn everyone's ε into a training plan that keeps every one of them.

    ``batch_size`` is the public divisor of every step. Without ``noise_multiplier`` σ is solved so that it is
    also the expected batch. With it, and method "sample", each rate follows from the person's own ε alone.
    ``epochs`` instead of ``steps``: as many as draw ``people``, by default all in ``budgets``, so often by expected
    batches. Where presence is protected their number tells of it, and ``people`` has to be a public one.

    ``extra_steps`` may follow the fixed ``steps``: in them takes part who has something left, because their gradients
    were smaller than their clip norm. A filter sees to it that nobody overdraws (`Plan.filter` says which). ``stop``
    (`StopAtPlateau`, `StopWhenFew`) ends them early by private questions, which the plan pays for.

    ``at_most`` is a public cap: nobody spends more than this ε, whatever they grant, so it may be told
    (`Plan.public_epsilon`). ``ledger``: each ε is what a person allows now, and nobody's rate or clip norm costs more
    than their purse holds; without ``at_most`` public balances lose all they have (docs/ledger.md). Extra steps
    reserve all of it.

    Guarantee: ``plan.spent() <= budgets.epsilon`` for every record, proved by the named accountant ("pld", the
    tighter, or "rdp"). A method of one's own that declares that it keeps no budget gives a plan that promises
    nothing, and says so.
    A budget that cannot be kept is an `InfeasibleBudget`; one that cannot be used up is reported as capped.
    """
    require_budgets(budgets)
    chosen = _method(method)
    shape = TrainingShape(
        steps=steps_for(steps, epochs, people, budgets.people, batch_size),
        batch_size=batch_size,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        extra_steps=extra_steps,
        stop=stop,
        at_most=at_most if ledger is None else None,
    )
    made = _made(budgets, chosen, Calibrator(shape, accountant_named(accountant), progress), ledger, at_most)
    if made.promise is Promise.PRESENCE and epochs is not None and people is None:
        raise InvalidInput(
            f"epochs is {epochs!r}, and with noise_multiplier= this plan protects people's presence: how many there "
            "are is sensitive, and the number of steps would tell it. Give people=, a public number such as 10000, "
            "or steps="
        )
    refuse_overspending(made, progress)
    if made.levels.delta.max() * made.people >= 1:
        warnings.warn(large_delta(made), PrivyPurseWarning, stacklevel=2)
    return made


def steps_for(steps: int | None, epochs: float | None, people: int | None, held: int, batch_size: int) -> int:
    """Given, or as many as draw that many people so often on average, rounded up; ``held``: how many there are."""
    if (steps is None) == (epochs is None):
        raise InvalidInput(f"steps is {steps!r} and epochs is {epochs!r}; give the one or the other")
    if people is not None and epochs is None:
        raise InvalidInput(f"people is {people!r}, which turns epochs into steps; leave it out beside steps=")
    if epochs is None:
        assert steps is not None
        return steps
    people = held if people is None else integer(people, "people")
    share = Fraction(str(real(epochs, "epochs", above=0)))  # as it is written: 1.1 is no 1.100…09
    return math.ceil(share * people / integer(batch_size, "batch_size"))


def _made(
    budgets: Budgets, method: Method, calibrator: Calibrator, ledger: Ledger | None, at_most: float | None
) -> Plan:
    shape = calibrator.shape
    if ledger is not None:
        under_ledger.require_ledger(ledger, budgets, method, shape, at_most)
    if at_most is not None:
        at_most = real(at_most, "at_most", least=SMALLEST, most=LARGEST, hint="an ε")
    levels, level_of = budgets.levels(at_most)
    under = None
    if shape.noise_multiplier is None:
        require_people(shape, levels, "lower it, or give noise_multiplier= and let batch_size be a divisor only")
    try:
        if ledger is None:
            decided = _decided(method, levels, calibrator)
            remarks = _remarks(decided, levels, shape)
        else:
            made = under_ledger.assigned(method, budgets, calibrator, ledger, at_most, _decided)
            decided, levels, level_of, under = made.decided, made.levels, made.level_of, made.under
            remarks = []  # expected draws follow from what people have left (rule 15)
    except InfeasibleBudget as error:
        raise _located(error, budgets, levels, level_of, shape.stop) from None
    return Plan(
        method=method.name,
        accountant=calibrator.accountant.name,
        promise=_promise(decided),
        shape=shape.with_noise(decided.noise_multiplier),
        levels=_table(levels, decided),
        level_of=level_of,
        notes=(*decided.notes, *remarks),
        ledger=under,
        **whose(budgets),
    )


def planned_levels(method: Method, levels: Levels, calibrator: Calibrator) -> Plan:
    """The plan of as many people as there are levels, one of each: what it assigns and costs a level, in little time.

    Nobody trains by it. It is checked like any other.
    """
    decided = _decided(method, levels, calibrator)
    made = Plan(
        method=method.name,
        accountant=calibrator.accountant.name,
        promise=_promise(decided),
        shape=calibrator.shape.with_noise(decided.noise_multiplier),
        levels=_table(levels, decided),
        level_of=np.arange(levels.epsilon.size),
    )
    refuse_overspending(made, calibrator.progress)
    return made


def _table(levels: Levels, decided: Assignment) -> LevelTable:
    columns = {name: getattr(decided, name) for name in ("rate", "clip_norm", "capped")}
    return LevelTable(epsilon=levels.epsilon, delta=levels.delta, **columns)


def _decided(method: Method, levels: Levels, calibrator: Calibrator, drawn: bool = False) -> Assignment:
    """What the method assigns. With extra steps a share of δ is kept for the filter that follows (rule 5).

    ``drawn``: people are drawn at rates of their own, and whether all of these are 1 may not decide anything.
    """
    shape = calibrator.shape
    if not shape.extra_steps:
        return _assigned(method, levels, calibrator)
    kept_back = replace(levels, delta=levels.delta * FIXED_SHARE)
    decided = None
    # People who are in every step are filtered by Gaussian DP, which needs no δ of its own.
    if shape.noise_multiplier is None and shape.batch_size == levels.total and not drawn:
        decided = _assigned(method, levels, calibrator)
    if decided is None or not in_every_step(decided.rate):
        decided = _assigned(method, kept_back, calibrator)
    if not decided.keeps_budgets:
        raise InvalidInput(f"method {method.name} keeps no budget, so no filter can; leave extra_steps out")
    return decided


def _assigned(method: Method, levels: Levels, calibrator: Calibrator) -> Assignment:
    """By the method, which has to keep a noise multiplier that was given."""
    made, given = method.assign(levels, calibrator), calibrator.shape.noise_multiplier
    if given is not None and made.noise_multiplier != given:
        raise InvalidInput(
            f"noise_multiplier is {given:g}, and method {method.name} takes {made.noise_multiplier:g} in its place; "
            "leave noise_multiplier out, or let the method keep what it is given"
        )
    return made


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
    chosen: Method = named(method, METHODS)
    if isinstance(chosen, type):
        raise InvalidInput(f"method is the class {chosen.__name__}; give an object of it: {chosen.__name__}()")
    if not hasattr(chosen, "assign"):
        raise InvalidInput(f"method must be a name or a method object, not {type(chosen).__name__}")
    return chosen


def _located(
    error: InfeasibleBudget, budgets: Budgets, levels: Levels, level_of: IntArray, stop: Stop | None
) -> InfeasibleBudget:
    """The same error, naming the first record that it is about."""
    said = str(error)
    if stop is not None:
        said += ". The stopping rule's questions are part of that: give them more noise, or ask fewer"
    of_delta = (levels.delta == error.delta) | (levels.delta * FIXED_SHARE == error.delta)
    concerned = np.flatnonzero((levels.epsilon == error.epsilon) & of_delta)
    if not concerned.size:
        return InfeasibleBudget(said, error.epsilon, error.delta)
    record = int(budgets.first_record[int(np.argmax(level_of == concerned[0]))])
    who = f"record {record}" + ("" if budgets.person is None else f" (person {budgets.person[record]})")
    others = int(levels.people[concerned[0]]) - 1
    more = f" and {others:,} others" if others else ""
    return InfeasibleBudget(f"{who}{more}: {said}", error.epsilon, error.delta)


def _promise(decided: Assignment) -> Promise:
    if not decided.keeps_budgets:
        return Promise.NONE
    return Promise.DATA if decided.from_budgets else Promise.PRESENCE

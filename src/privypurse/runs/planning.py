"""From the budgets that a configuration names to a plan that keeps every one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import Progress
from privypurse.assignment import Exclude
from privypurse.assignment import plan as make_plan
from privypurse.budgets import Budgets, preferences
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.budgets.person_ids import Seal
from privypurse.budgets.split import split
from privypurse.budgets.tables import FileColumns
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.runs.config import Grants, NewPlan, RunConfig, Table
from privypurse.runs.held_out import HeldOut
from privypurse.runs.kept_plan import keep, kept

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


def plan_of(config: RunConfig, records: int, progress: Progress | None = None, ledger: Ledger | None = None) -> Plan:
    """The plan of a run on ``records`` records, under the ledger that is given.

    A run with a ledger and a checkpoint goes on with the plan that it began with, which is kept there.

    Guarantee: it keeps the budgets of the configuration, or, where that names none, was made for the people of these
    rows: by their ids, or for exactly this file.
    """
    table = config.data.table if isinstance(config.data, Table) else None
    held_out = config.data.held_out if isinstance(config.data, Table) else None
    budgets, seal = (
        (None, None) if config.budgets is None else granted(config.budgets, table, records, ledger, held_out=held_out)
    )
    if isinstance(config.plan, Path):
        loaded = Plan.load(config.plan)
        _refuse_others(loaded, config, budgets)
        return loaded
    assert budgets is not None
    asked = config.plan
    if config.private_ranges is not None:
        budgets, asked = left_for_training(config.private_ranges.share, budgets, asked, ledger)
    folder = None if ledger is None else config.training.checkpoint
    plan = None if folder is None else kept(folder, asked, budgets)
    if plan is None:
        plan = made(asked, budgets, seal, progress, ledger)
        if folder is not None and not keep(plan, folder, asked):
            plan = kept(folder, asked, budgets)
    assert plan is not None
    return plan


def left_for_training(
    share: float, budgets: Budgets, asked: NewPlan, ledger: Ledger | None
) -> tuple[Budgets, NewPlan]:
    """Once ends and categories were asked for; what is left of a ledger's purses is known there."""
    parts = split(budgets, share, asked.at_most)
    return parts.rest if ledger is None else budgets, replace(asked, at_most=parts.rest_at_most)


def _refuse_others(plan: Plan, config: RunConfig, budgets: Budgets | None) -> None:
    """Raise unless the plan is known to be for the people of these rows (rule 13: people, not rows)."""
    data, name = config.data, str(config.plan)
    person = data.person if isinstance(data, Table) else None
    if plan.keyed_ids is not None and person is None:
        raise InvalidInput(
            f'{name} was made with ids and is applied by id; name the column of ids: person = "…" under [data]'
        )
    if plan.keyed_ids is None and person is not None:
        raise InvalidInput(
            f"{name} was made without ids, but [data] or [budgets] names person = {person!r}; make the plan with "
            f"--person {person}, or leave person out"
        )
    if plan.seal is not None and not (isinstance(data, Table) and plan.seal.fits(data.table)):
        raise InvalidInput(
            f"{name} holds for the rows of its table as they were, and these are others, or in another order; make "
            "the plan anew from this table, or with --person, so that it follows people"
        )
    if plan.keyed_ids is None and plan.seal is None and isinstance(data, Table) and budgets is None:
        raise InvalidInput(
            f"{name} does not say whose rows it is for; make it with `privypurse plan {data.table} --person …`, or "
            "name what people granted under [budgets], to be compared with it row by row"
        )
    if budgets is not None:
        plan.check(budgets)


def granted(
    asked: Grants,
    table: Path | None,
    records: int = 0,
    ledger: Ledger | None = None,
    held_out: HeldOut | None = None,
) -> tuple[Budgets, Seal | None]:
    """The budgets of all who are not held out, and without ids what binds them to the table as it was read."""
    delta = usual_delta(ledger) if asked.delta is None else asked.delta
    if asked.simulate is not None:
        random = np.random.default_rng(asked.simulate.seed)
        budgets = Budgets(
            preferences.levels(records, asked.simulate.epsilon, asked.simulate.shares, random), delta=delta
        )
    else:
        assert table is not None
        budgets = Budgets.read(
            asked.table or table,
            asked.epsilon,
            level=asked.level,
            levels=asked.levels,
            person=asked.person,
            delta=delta,
        )
        if asked.table is not None and Path(asked.table) != table:
            assert asked.person is not None
            budgets = budgets.for_rows(FileColumns(table).ids(asked.person))
        if held_out is not None:
            budgets = _without(budgets, held_out, delta)
    return budgets, None if table is None or budgets.person is not None else Seal.of(table)


def _without(budgets: Budgets, held_out: HeldOut, delta: float | str) -> Budgets:
    """Of those who take part alone: others are neither planned for nor charged."""
    assert budgets.person is not None
    stay = ~held_out.of(budgets.person)
    if not stay.any():
        raise InvalidInput(f"held_out with share {held_out.share} and seed {held_out.seed} leaves nobody to train on")
    deltas = budgets.delta[stay] if isinstance(delta, str) else delta
    return Budgets(budgets.epsilon[stay], delta=deltas, person=budgets.person[stay])


def usual_delta(ledger: Ledger | None) -> float:
    """Where nobody chooses one: the ledger's δ, of several the smallest, which keeps all of them."""
    return DEFAULT_DELTA if ledger is None else min(rung.delta for rung in ledger.rungs)


def made(
    asked: NewPlan,
    budgets: Budgets,
    seal: Seal | None,
    progress: Progress | None = None,
    ledger: Ledger | None = None,
) -> Plan:
    """The plan that a configuration or a command asks for, for the rows under that seal."""
    arguments = {**vars(asked), "method": asked.method if asked.threshold is None else Exclude(asked.threshold)}
    del arguments["threshold"]
    plan = make_plan(budgets, **arguments, ledger=ledger, progress=progress)
    return plan if seal is None else plan.sealed(seal)

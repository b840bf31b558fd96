"""From the budgets that a configuration names to a plan that keeps every one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privypurse import preferences
from privypurse.accounting import Progress
from privypurse.assignment import Exclude, Method, plan
from privypurse.budgets import Budgets
from privypurse.plans import Plan
from privypurse.runs.config import FromColumns, NewPlan, RunConfig, Simulated, Table


def plan_of(config: RunConfig, records: int, progress: Progress | None = None) -> Plan:
    """The plan of a run on ``records`` records.

    Guarantee: it keeps the budgets of the configuration. One that was made before is checked against them, and where
    the configuration names none, against what it says itself.
    """
    budgets = None if config.budgets is None else _budgets(config.budgets, config, records)
    if isinstance(config.plan, Path):
        made = Plan.load(config.plan)
        if budgets is not None:
            made.check(budgets)
        return made
    assert budgets is not None
    return _made(config.plan, budgets, progress)


def _budgets(asked: FromColumns | Simulated, config: RunConfig, records: int) -> Budgets:
    if isinstance(asked, Simulated):
        random = np.random.default_rng(asked.seed)
        return Budgets(preferences.levels(records, asked.epsilon, asked.shares, random), delta=asked.delta)
    assert isinstance(config.data, Table)
    return Budgets.read(
        config.data.path,
        asked.epsilon,
        level=asked.level,
        levels=asked.levels,
        delta=asked.delta,
        person=asked.person,
    )


def _made(asked: NewPlan, budgets: Budgets, progress: Progress | None) -> Plan:
    method: str | Method = asked.method
    if asked.threshold is not None:
        method = Exclude(threshold=asked.threshold)
    return plan(
        budgets,
        method,
        steps=asked.steps,
        batch_size=asked.batch_size,
        clip_norm=asked.clip_norm,
        noise_multiplier=asked.noise_multiplier,
        extra_steps=asked.extra_steps,
        stop=asked.stop,
        accountant=asked.accountant,
        progress=progress,
    )

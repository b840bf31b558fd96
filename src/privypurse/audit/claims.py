"""What a plan claims of each level that is audited: its ε, and the whole curve."""

from __future__ import annotations

import numpy as np

from privypurse.accounting import PLD, gdp
from privypurse.arrays import IntArray
from privypurse.audit.families import Family, scaled_epsilon, scaled_gaussian, scaled_noise
from privypurse.audit.result import PlanConstants
from privypurse.errors import InvalidInput
from privypurse.plans import Plan


def audited_levels(plan: Plan, groups: int) -> IntArray:
    """At most so many levels: of those with people who are drawn, the lowest ε, the highest, and between."""
    found = _drawn(plan)
    if found.size <= groups:
        return found
    return found[np.linspace(0, found.size - 1, groups).round().astype(np.int64)]


def not_attacked(plan: Plan, levels: IntArray) -> tuple[str, ...]:
    """The other levels with people who are drawn, by name. They tell what somebody chose."""
    return tuple(f"ε = {epsilon:g}" for epsilon in plan.levels.epsilon[np.setdiff1d(_drawn(plan), levels)])


def _drawn(plan: Plan) -> IntArray:
    return np.flatnonzero((plan.people_by_level() > 0) & (plan.levels.rate > 0))


def require_somebody(plan: Plan) -> None:
    """Raise where nobody is ever drawn."""
    if not audited_levels(plan, 1).size:
        raise InvalidInput("nobody of this plan takes part in training: every rate is 0, and nothing to audit")


def claimed(plan: Plan, level: int) -> tuple[float, float]:
    """The certified ε after all steps, and δ."""
    return float(plan.spent_by_level(plan.all_steps)[level]), float(plan.levels.delta[level])


def constants_of(plan: Plan) -> PlanConstants:
    """By which a report knows the plan again."""
    return PlanConstants(
        method=plan.method,
        noise_multiplier=plan.noise_multiplier,
        clip_norm=plan.clip_norm,
        batch_size=plan.batch_size,
        accountant=plan.accountant,
        steps=plan.steps,
        all_steps=plan.all_steps,
        filter=plan.filter,
    )


def family_of(plan: Plan, level: int, *, events: bool = False) -> Family:
    """The curves that a level's canaries may have; with ``events`` those of any test (`scaled_noise`).

    Fixed steps have their own, with σ scaled. Under a filter later steps depend on earlier ones, and no curve is
    known but that of the purse: G_μ where the filter is one of Gaussian DP, else (ε, δ) (rule 5).
    """
    epsilon, delta = float(plan.levels.epsilon[level]), float(plan.levels.delta[level])
    if plan.filter == "gdp":
        return scaled_gaussian(float(gdp.mu(epsilon, delta)), delta)
    if plan.filter is not None or delta < PLD().smallest_delta:
        return scaled_epsilon(epsilon, delta)
    return scaled_noise(plan.releases()[level], delta, events=events)

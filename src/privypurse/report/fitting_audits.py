"""Which audits may stand in a run's report: of its own plan, and in a public one such as tell of nobody."""

from __future__ import annotations

from collections.abc import Iterator

from privypurse.audit.result import AuditResult, PlanConstants
from privypurse.errors import InvalidInput
from privypurse.report.facts import PublicFacts


def require_same_plan(audit: AuditResult, facts: PublicFacts) -> None:
    """Raise if an audit attacked another plan than the run's, by its constants.

    With noise that was fixed beforehand they decide every rate and clip norm of a level (rule 7). Noise that was
    solved from everybody's budgets has all its digits from them. An audit that does not name its plan is let
    through, and the page says so; in a public report it is refused (`require_public`).
    """
    if audit.plan is None:
        return
    if facts.method is None:
        raise InvalidInput("this audit attacked a training by a plan, and this run trained nothing; leave it out")
    found = list(_differences(audit, audit.plan, facts))
    if found:
        raise InvalidInput(
            f"this audit attacked another plan than that of this run: {'; '.join(found)}. Audit the run's own plan, "
            "or leave the audit out"
        )


def require_public(audit: AuditResult, facts: PublicFacts) -> None:
    """Raise unless an audit tells of nobody, and attacked a plan with the run's constants.

    On members it does tell. On made-up records its bounds tell σ, and its groups which levels anybody chose: so σ has
    to be public, and the groups have to be the levels that people could choose, all of them. That the plan was made
    of made-up budgets, and not of people who happen to hold every level, is for whoever publishes it to see to.
    """
    why = None
    if audit.data != "made up":
        why = "it attacked people in training, and what it found is sensitive"
    elif facts.noise_multiplier is None:
        why = (
            "its bounds tell the noise, which is told where a plan protects presence alone (noise fixed beforehand, "
            "and no ledger): elsewhere it may follow from everybody's budgets"
        )
    elif audit.plan is None:
        why = "it does not say which plan it attacked; make it anew"
    elif {group.name for group in audit.groups} not in (set(facts.levels), _by_epsilon(facts)):
        why = (
            "its groups tell which levels somebody chose; audit a plan of made-up budgets instead, with the same "
            "noise, steps and clip norm and with all levels that people could choose"
        )
    elif audit.not_attacked:
        why = "it names levels that it left out, which nobody was offered: they tell what somebody chose"
    if why is not None:
        raise InvalidInput(
            f"this audit cannot stand in a public report: {why}. Leave it out, or choose the internal edition; where "
            "noise was fixed beforehand, one of a plan of made-up budgets may stand there (docs/report.md)"
        )
    require_same_plan(audit, facts)


def _differences(audit: AuditResult, plan: PlanConstants, facts: PublicFacts) -> Iterator[str]:
    """What is one thing in the audit and another in the run."""
    both = {
        "method": (plan.method, facts.method),
        "noise_multiplier": (plan.noise_multiplier, facts.noise_multiplier),
        "clip_norm": (plan.clip_norm, facts.clip_norm),
        "batch_size": (plan.batch_size, facts.batch_size),
        "accountant": (plan.accountant, facts.accountant),
        "steps": (plan.steps, facts.fixed_steps),
        "filter": (plan.filter, facts.filter),
    }
    for name, (there, here) in both.items():
        if there != here:
            yield f"{name} is {there!r} there and {here!r} here"
    if facts.steps is not None and facts.steps > plan.all_steps:
        yield f"it had {plan.all_steps:,} steps in all, and this run took {facts.steps:,}"
    deltas = {group.delta for group in audit.groups}
    if facts.delta is not None and facts.private_ranges is None and deltas != {facts.delta}:  # else a plan has less
        yield f"delta is {max(deltas):g} there and {facts.delta:g} here"


def _by_epsilon(facts: PublicFacts) -> set[str]:
    """The public levels as audits name them."""
    return {f"ε = {min(epsilon, facts.at_most or epsilon):g}" for epsilon in facts.levels.values()}

"""What a run says of its plan: public constants beside the model, and the table of levels in its metrics."""

from __future__ import annotations

from typing import Any

from privypurse._totals import NOT_KEPT
from privypurse.plans import Plan, Promise
from privypurse.runs.public_choices import PublicChoices

CHARGED = "Everybody in the plan is charged in a ledger."
SEEDED = "This run was seeded, so its noise can be repeated and taken off: a test, NOT private."

_SHARED = (
    "Of every ε and δ this share went to ranges.json, the ends and categories of columns, before training; the plan, "
    "and every ε that is said of training, has the rest. Both together keep what each person granted."
)


def who_is_charged(under_ledger: bool) -> str:
    """What a training run's lists of files say of it."""
    return CHARGED if under_ledger else NOT_KEPT


def facts_of_plan(plan: Plan, seeded: bool) -> dict[str, Any]:
    """Constants of training and what was promised.

    A noise multiplier that was solved from everybody's budgets tells something about them, and is none of these.
    Steps are not here: where they were computed from how many people there are, they tell that.
    """
    return {
        "method": plan.method,
        "filter": plan.filter,
        "batch_size": plan.batch_size,
        "clip_norm": plan.clip_norm,
        **({"noise_multiplier": plan.noise_multiplier} if plan.promise is Promise.PRESENCE else {}),
        "accountant": plan.accountant,
        **({} if plan.public_epsilon is None and plan.ledger is None else {"at_most": plan.public_epsilon}),
        "unit": "record" if plan.owner is None else "person",
        **({"seeded": True} if seeded else {"protects": plan.promise.value}),
        "promise": SEEDED if seeded else plan.promise_text,
        "under_ledger": plan.ledger is not None,
    }


def steps_are_public(plan: Plan, chosen: PublicChoices) -> bool:
    """Whether the number of steps may be told. Where presence is protected it never follows from people."""
    return plan.promise is Promise.PRESENCE or not chosen.steps_tell_people


def facts_of_choices(chosen: PublicChoices, seeded: bool) -> dict[str, Any]:
    """What was chosen in public. Beside a promise that is none stands no ε."""
    return {
        **({"levels": dict(chosen.levels)} if chosen.levels and not seeded else {}),
        "simulated_budgets": chosen.simulated,
        **({} if chosen.delta is None else {"delta": chosen.delta}),
        **({"about_run": dict(chosen.about)} if chosen.about else {}),
        **facts_of_ranges(chosen),
    }


def facts_of_ranges(chosen: PublicChoices) -> dict[str, Any]:
    """Where ends and categories were asked of the people: the share, and the cap, of which the plan has the rest."""
    if chosen.range_share is None:
        return {}
    share = {"private_ranges": {"share": chosen.range_share, "about": _SHARED}}
    return share if chosen.at_most is None else {**share, "at_most": chosen.at_most}


def levels_of_plan(plan: Plan, seeded: bool) -> list[dict[str, Any]]:
    """How many people there are at each level, what they were promised, and what is certified. Sensitive.

    Beside a promise that is none stands no ε.
    """
    return [
        {"people": row.people}
        if seeded
        else {"people": row.people, "epsilon": row.epsilon[1], "certified": row.certified[1]}
        for row in plan.by_level()
    ]

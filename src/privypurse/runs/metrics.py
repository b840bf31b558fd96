"""What a run came to, as plain data: public facts, internal metrics, and what each person spent."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.plans import Plan
from privypurse.runs.measures import WHOSE, Measured
from privypurse.runs.plan_facts import SEEDED, facts_of_choices, facts_of_plan, levels_of_plan, steps_are_public
from privypurse.runs.public_choices import PublicChoices
from privypurse.training.evaluation import Score
from privypurse.training.individual.spending import Spending
from privypurse.training.trained import Trained

_PUBLIC = (
    "The model and the test figures cost the people in training nothing beyond their certified ε (with extra steps: "
    "beyond the ε promised, which a filter kept). Whose the test figures are, they say themselves."
)
_SENSITIVE = (
    "Figures below, and plan.json, follow from people's budgets or from who was drawn: keep them as safe as the "
    "data. A person may see their own."
)
_FORMULA = re.compile(r"(?![+-]?[0-9]+(\.[0-9]+)?$)[\t\r\n=+@\uff1d\uff0b\uff0d\uff20-]")


def facts_of(
    plan: Plan, trained: Trained, data: str, seeded: bool, chosen: PublicChoices | None = None
) -> dict[str, Any]:
    """Constants of training, what was promised, and released answers: what may be published beside the model.

    A noise multiplier that was solved from everybody's budgets tells something about them, and is none of these;
    nor are steps that were computed from how many people there are, nor the first step after those, at which a
    stopping rule begins to ask.
    """
    told = [] if trained.spending is None else trained.spending.told
    chosen = PublicChoices() if chosen is None else chosen
    shown = steps_are_public(plan, chosen)
    return {
        "data": data,
        **facts_of_plan(plan, seeded),
        **({"steps": trained.steps, "fixed_steps": plan.steps} if shown else {}),
        **facts_of_choices(chosen, seeded),
        "told": [{**({"step": step} if shown else {}), "answer": answer} for step, answer in told],
    }


def metrics_of(
    facts: dict[str, Any], plan: Plan, trained: Trained, score: Measured | Score | None, seeded: bool
) -> dict[str, Any]:
    """The facts, figures of people outside training, and those that are sensitive, under a key that says so."""
    return {
        **facts,
        "steps": trained.steps,
        "fixed_steps": plan.steps,
        "noise_multiplier": plan.noise_multiplier,
        "test": figures(score),
        **({"history": {**_whose(score), "steps": history(trained)}} if history(trained) else {}),
        "about": SEEDED if seeded else _PUBLIC,
        "sensitive": {
            "about": _SENSITIVE,
            "levels": levels_of_plan(plan, seeded),
            # Planned people without a row here: they are absent, and contribute nothing.
            "absent": plan.absent,
            # How long a step takes tells how many were drawn.
            "seconds": round(trained.seconds, 3),
            **({} if trained.spending is None else {"spending": _spending(trained.spending, seeded)}),
        },
    }


def figures(score: Measured | Score | None) -> dict[str, Any] | None:
    """On records that took no part in training; all of them are in test.json."""
    if score is None:
        return None
    return {**_whose(score), "records": score.records, **figures_by_name(score)}


def _whose(score: Measured | Score | None) -> dict[str, str]:
    return {"measured": score.measured, "about": WHOSE[score.measured]} if isinstance(score, Measured) else {}


def figures_by_name(score: Measured | Score) -> dict[str, float]:
    """Accuracy, where there are classes, and the mean loss."""
    return {**({} if score.accuracy is None else {"accuracy": score.accuracy}), "loss": score.loss}


def history(trained: Trained) -> list[dict[str, Any]]:
    """What validation found while the model trained."""
    return [
        {"step": one.step, "learning_rate": one.learning_rate, **one.validation}
        for one in trained.history
        if one.validation
    ]


def _spending(spending: Spending, seeded: bool) -> dict[str, Any]:
    return {
        "about": SEEDED + " What these steps would have cost with secret noise:" if seeded else spending.text,
        "file": "spending.csv",
        "active": [{"step": step, "people": people} for step, people in spending.active],
    }


def spending_lines(plan: Plan, spent: FloatArray) -> str:
    """CSV: what each person granted and really spent, by id; without ids, each record by its number."""
    rows = np.arange(plan.records)
    who, names = "record", rows
    if plan.person is not None:
        assert plan.owner is not None
        rows = np.sort(np.unique(plan.owner, return_index=True)[1])
        who, names = "person", plan.person[rows]
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow((who, "epsilon_promised", "epsilon_spent"))
    each = zip(names.tolist(), plan.epsilon[rows].tolist(), spent[rows].tolist(), strict=True)
    lines.writerows((_cell(name), f"{granted:g}", f"{cost:.6g}") for name, granted, cost in each)
    return out.getvalue()


def _cell(name: Any) -> Any:
    """An id as a spreadsheet takes it for text: what would be a formula there has an apostrophe before it."""
    return f"'{name}" if isinstance(name, str) and _FORMULA.match(name) else name

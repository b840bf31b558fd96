"""The folder that a run leaves behind: model.pt, plan.json and metrics.json."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from privypurse._storage import replace_text
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.runs.evaluation import Score
from privypurse.training.individual.spending import Spending

MODEL, PLAN, METRICS, SPENDING = "model.pt", "plan.json", "metrics.json", "spending.csv"
_PUBLIC = (
    "The model and the test figures cost the people in training nothing beyond their certified ε (with extra steps: "
    "beyond the ε promised, which a filter kept). The test figures "
    "were not made private for the people in the test."
)
_SENSITIVE = (
    "Figures below, and plan.json, follow from people's budgets or from who was drawn: keep them as safe as the "
    "data. A person may see their own."
)
_SEEDED = "This run was seeded, so its noise can be repeated and taken off: a test, NOT private."


def check_out(folder: Path) -> None:
    """Raise unless results can be written there without destroying any."""
    for name in (MODEL, METRICS):
        if (folder / name).exists():
            raise InvalidInput(
                f"{folder} already holds the {name} of a run; name another folder for out, or remove it. Mind that "
                "training again spends everyone's ε again"
            )
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"out {folder} is a file; name a folder")


def make(folder: Path) -> None:
    """Make the folder, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"out {folder} cannot be made: {error.strerror}; name a folder that can") from None


def metrics_of(
    plan: Plan,
    score: Score | None,
    seconds: float,
    *,
    data: str,
    seeded: bool,
    steps: int | None = None,
    spending: Spending | None = None,
) -> dict[str, Any]:
    """What a run came to, as plain data that says which of its figures are sensitive (rule 6)."""
    return {
        "data": data,
        "method": plan.method,
        "steps": plan.steps if steps is None else steps,
        "fixed_steps": plan.steps,
        "filter": plan.filter,
        "batch_size": plan.batch_size,
        "clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
        "accountant": plan.accountant,
        "promise": _SEEDED if seeded else plan.promise.text,
        "told": [] if spending is None else [{"step": step, "answer": answer} for step, answer in spending.told],
        "test": figures(score),
        "about": _SEEDED if seeded else _PUBLIC,
        "sensitive": {
            "about": _SENSITIVE,
            # Beside a promise that is none stands no ε.
            "levels": [
                {"people": row.people}
                if seeded
                else {"people": row.people, "epsilon": row.epsilon[1], "certified": row.certified[1]}
                for row in plan.by_level()
            ],
            # Planned people without a row here: they are absent, and contribute nothing.
            "absent": plan.absent,
            # How long a step takes tells how many were drawn.
            "seconds": round(seconds, 3),
            **({} if spending is None else {"spending": _spending(spending, seeded)}),
        },
    }


def _spending(spending: Spending, seeded: bool) -> dict[str, Any]:
    return {
        "about": _SEEDED + " What these steps would have cost with secret noise:" if seeded else spending.text,
        "file": SPENDING,
        "active": [{"step": step, "people": people} for step, people in spending.active],
    }


def save_spending(folder: Path, spending: Spending) -> None:
    """What each person granted and really spent, a line each, for its owner's eyes only."""
    replace_text(folder / SPENDING, _lines(spending))


def _lines(spending: Spending) -> str:
    """A line for each person with their id; without ids, for each record with its number."""
    plan, spent = spending.plan, spending.epsilon()
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
    lines.writerows((name, f"{granted:g}", f"{cost:.6g}") for name, granted, cost in each)
    return out.getvalue()


def figures(score: Score | None) -> dict[str, Any] | None:
    """On records that took no part in training."""
    return None if score is None else {"records": score.records, "accuracy": score.accuracy, "loss": score.loss}


def save(folder: Path, model: nn.Module, metrics: dict[str, Any]) -> None:
    """Write the model (its state_dict) and the metrics, which only their owner may read."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    torch.save(state, folder / MODEL)
    replace_text(folder / METRICS, json.dumps(metrics, ensure_ascii=False, indent=1) + "\n")

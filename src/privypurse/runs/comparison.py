"""The demonstration: the same network on the Adult census, by three plans and without privacy.

Half of the census trains, the other half tests. Levels are assigned by a seed (nobody in 1994 was asked); training is
not seeded: these are real private runs. The constants below are the same for all private methods. They, and the
learning rate without privacy, were chosen by accuracy on a part of the training half, which is public; on data that
is not, choosing them would cost ε as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from privypurse._validate import integer
from privypurse.accounting import Progress
from privypurse.assignment import plan
from privypurse.budgets import Budgets, preferences
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.plans import file as planfile
from privypurse.runs.config import BuiltIn
from privypurse.runs.folder import RunFolder
from privypurse.runs.metrics import figures
from privypurse.runs.models import mlp
from privypurse.runs.records import TrainTest, records_of
from privypurse.runs.training_run import add_model, add_results
from privypurse.training.evaluation import Score, losses, score
from privypurse.training.loop import train
from privypurse.training.without_privacy import train_ordinarily

PRIVATE = ("uniform", "sample", "scale")
NONE = "none"
COMPARED = (*PRIVATE, NONE)
EPSILON, SHARES, DELTA = (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), 1e-5
BATCH, CLIP_NORM, HIDDEN = 1024, 4.0, (64,)
LEARNING_RATE, ORDINARY_LEARNING_RATE = 0.3, 1.0
_NOT_PRIVATE = "Trained without privacy, for comparison: the model itself tells about the people in it."


@dataclass(frozen=True)
class Trial:
    """One method, trained several times, each time with fresh coins and noise."""

    method: str
    plan: Plan | None
    """None for training without privacy."""
    scores: tuple[Score, ...]

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean and standard deviation over the runs."""
        found = [each.accuracy for each in self.scores]
        return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0

    @property
    def loss(self) -> float:
        """Mean over the runs."""
        return float(np.mean([each.loss for each in self.scores]))


def census() -> TrainTest:
    """The people of the demonstration."""
    return records_of(BuiltIn("adult"))


def budgets_of(people: int) -> Budgets:
    """Three levels of consent."""
    return Budgets(preferences.levels(people, EPSILON, SHARES, np.random.default_rng(0)), delta=DELTA)


def check_out(folder: Path) -> None:
    """Raise unless the folder is new, or holds nothing but an earlier demonstration."""
    if folder.exists() and (
        not folder.is_dir() or any(path.name not in COMPARED or not path.is_dir() for path in folder.iterdir())
    ):
        raise InvalidInput(f"--out {folder} holds something that is not of a demo; name another folder")


def trials(
    records: TrainTest, folder: Path, *, steps: int, runs: int, accountant: str = "pld", progress: Progress
) -> list[Trial]:
    """Train each method ``runs`` times and save its first model, plan and metrics.

    Guarantee: one run of a private method costs each person in training at most the ε of its plan. Whoever sees
    several runs sees several such costs: only the first model is kept.
    """
    integer(runs, "runs")
    budgets = budgets_of(len(records.train))
    found: list[Trial] = []
    progress(0, runs * len(COMPARED))
    for method in COMPARED:
        made = None
        if method != NONE:
            made = plan(budgets, method, steps=steps, batch_size=BATCH, clip_norm=CLIP_NORM, accountant=accountant)
        scores: list[Score] = []
        for number in range(runs):
            scores.append(_trained(records, made, steps, folder / method if number == 0 else None))
            progress(runs * len(found) + len(scores), runs * len(COMPARED))
        found.append(Trial(method, made, tuple(scores)))
    return found


def _trained(records: TrainTest, made: Plan | None, steps: int, kept: Path | None) -> Score:
    """Train once, by the plan or without privacy, and keep it in a run's folder, where one is named."""
    model = mlp(records.shape, records.outputs, HIDDEN)
    optimizer = torch.optim.SGD(model.parameters(), lr=ORDINARY_LEARNING_RATE if made is None else LEARNING_RATE)
    data = records.train.tensors(torch.device("cpu"))
    if made is None:
        train_ordinarily(model, optimizer, data.tensors, losses, steps=steps, batch_size=BATCH)
    else:
        trained = train(model, optimizer, data, made, losses)
    assert records.test is not None
    found = score(model, records.test.inputs, records.test.labels)
    if kept is None:
        return found
    folder = RunFolder.begin(kept, "demo")
    if made is None:
        add_model(folder, model, public=False)
        about = {"data": "adult", "method": NONE, "steps": steps, "test": figures(found), "about": _NOT_PRIVATE}
        folder.add_json("metrics.json", about)
    else:
        folder.add("plan.json", planfile.dumps(made))
        add_results(folder, model, made, trained, found, data="adult", seeded=False)
    return found

"""The demonstration: a branch with few people beside the whole census, by four plans and without privacy.

Half of the census trains, the other half tests. Who is in the branch, who holds which level and the first weights
follow from a seed, the same for every method (nobody in 1994 was asked); coins and noise do not: these are real
private runs. The settings of each method were chosen on people of the training half, which is public, by
`python -m benchmarks.demo_settings`; on data that is not public, choosing them would cost ε as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import stdtrit

from privypurse._validate import integer
from privypurse.accounting import Progress, accountant_named
from privypurse.arrays import FloatArray
from privypurse.assignment import Calibrator, Exclude, plan
from privypurse.assignment.best_threshold import best_threshold
from privypurse.budgets import Budgets, preferences
from privypurse.datasets.census import ADULT_ENCODING
from privypurse.datasets.encoder import Encoder
from privypurse.errors import InvalidInput
from privypurse.plans import Plan, TrainingShape
from privypurse.plans import file as planfile
from privypurse.runs.config import BuiltIn, Model
from privypurse.runs.folder import RunFolder
from privypurse.runs.metrics import figures
from privypurse.runs.models import mlp
from privypurse.runs.predictor import add_network
from privypurse.runs.public_choices import PublicChoices
from privypurse.runs.records import Records, TrainTest, records_of
from privypurse.runs.training_run import add_model, add_results
from privypurse.runs.workers import Submit, at_once
from privypurse.training.evaluation import Score, losses, score
from privypurse.training.loop import train
from privypurse.training.without_privacy import train_ordinarily

PRIVATE = ("uniform", "exclude", "scale", "sample")
NONE = "none"
COMPARED = (*PRIVATE, NONE)
EPSILON, SHARES, DELTA = preferences.THREE_LEVELS, preferences.THREE_SHARES, 1e-5
REPORTS = {"public": "report.html", "internal": "report-internal.html"}
"""Of the whole census by the method sample, by edition; written by the command."""
_NOT_PRIVATE = "Trained without privacy, for comparison: the model itself tells about the people in it."


@dataclass(frozen=True)
class Setting:
    """What one method trains with."""

    hidden: int
    """Units of the one hidden layer; 0 for logistic regression."""
    clip_norm: float
    learning_rate: float


@dataclass(frozen=True)
class Crowd:
    """So many people, and what each method trains them with."""

    name: str
    people: int
    steps: int
    batch_size: int
    settings: Mapping[str, Setting]


BRANCH = Crowd(
    "branch",
    people=3_000,
    steps=200,
    batch_size=256,
    settings={
        "uniform": Setting(0, 1.0, 0.24),
        "exclude": Setting(0, 1.0, 1.4),
        "scale": Setting(64, 1.0, 0.74),
        "sample": Setting(0, 1.0, 0.83),
        NONE: Setting(0, 1.0, 1.0),
    },
)
WHOLE = Crowd(
    "whole",
    people=32_561,
    steps=200,
    batch_size=1_024,
    settings={
        "uniform": Setting(0, 3.0, 0.42),
        "exclude": Setting(64, 1.0, 1.4),
        "scale": Setting(0, 1.0, 5.3),
        "sample": Setting(0, 3.0, 0.77),
        NONE: Setting(64, 1.0, 0.3),
    },
)
CROWDS = {crowd.name: crowd for crowd in (BRANCH, WHOLE)}


@dataclass(frozen=True)
class Trial:
    """One method on one crowd, trained once for each seed."""

    crowd: Crowd
    method: str
    plan: Plan | None
    """None for training without privacy."""
    scores: tuple[Score, ...]

    @property
    def accuracy(self) -> FloatArray:
        """Of each seed, in percent."""
        return 100 * np.array([each.accuracy for each in self.scores])


def gain(better: FloatArray, worse: FloatArray) -> tuple[float, float, float]:
    """The mean difference by the same seeds, and its 95 % interval by Student's t; no interval of a single seed."""
    apart = better - worse
    mean = float(apart.mean())
    if apart.size < 2:
        return mean, -np.inf, np.inf
    reach = float(stdtrit(apart.size - 1, 0.975) * apart.std(ddof=1) / np.sqrt(apart.size))
    return mean, mean - reach, mean + reach


@lru_cache(maxsize=1)
def census() -> TrainTest:
    """The people of the demonstration, and the 16,281 others who test."""
    return records_of(BuiltIn("adult"))


def budgets_of(people: int) -> Budgets:
    """Three levels of consent, in the order that `people_of` puts people."""
    return Budgets(preferences.levels(people, EPSILON, SHARES, np.random.default_rng(0)), delta=DELTA)


def people_of(count: int, seed: int, held: int | None = None) -> TrainTest:
    """So many people of the training half, in an order by seed; ``held``: test on so many of its others instead."""
    records = census()
    order = np.random.default_rng(seed).permutation(len(records.train))

    def some(rows: slice) -> Records:
        return Records(records.train.inputs[order[rows]], records.train.labels[order[rows]])

    if held is not None and count + held > order.size:
        raise InvalidInput(f"{count:,} people and {held:,} others are more than the {order.size:,} there are")
    others = records.test if held is None else some(slice(order.size - held, None))
    return TrainTest(some(slice(count)), others, records.target)


def plan_for(method: str, people: int, *, steps: int, batch_size: int, clip_norm: float, accountant: str) -> Plan:
    """A method's plan; `exclude` at the threshold with the largest expected signal to noise, "exclude@1" at 1."""
    budgets = budgets_of(people)
    if method.startswith("exclude@"):
        how: str | Exclude = Exclude(float(method.removeprefix("exclude@")))
    elif method == "exclude":
        shape = TrainingShape(steps=steps, batch_size=batch_size, clip_norm=clip_norm)
        threshold = best_threshold(budgets.levels()[0], Calibrator(shape, accountant_named(accountant)))
        how = Exclude(threshold)
    else:
        how = method
    return plan(budgets, how, steps=steps, batch_size=batch_size, clip_norm=clip_norm, accountant=accountant)


def trained(
    records: TrainTest,
    made: Plan | None,
    setting: Setting,
    seed: int,
    *,
    steps: int,
    batch_size: int,
    kept: Path | None = None,
) -> Score:
    """Train once, by the plan or without privacy, and keep it in a run's folder, where one is named.

    The seed is of the first weights (and of shuffles without privacy): coins and noise of a plan are fresh.
    """
    torch.manual_seed(seed)
    model = mlp(records.shape, records.outputs, (setting.hidden,) if setting.hidden else ())
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
    data = records.train.tensors(torch.device("cpu"))
    done = None
    if made is None:
        train_ordinarily(model, optimizer, data.tensors, losses, steps=steps, batch_size=batch_size)
    else:
        done = train(model, optimizer, data, made, losses)
    assert records.test is not None
    found = score(model, records.test.inputs, records.test.labels)
    if kept is None:
        return found
    folder = RunFolder.begin(kept, "demo")
    network = Model("mlp", hidden=(setting.hidden,) if setting.hidden else ())
    encoder = Encoder(ADULT_ENCODING, records.target)
    add_network(folder, network, records.shape, records.outputs, encoder, public=made is not None)
    if made is None or done is None:
        add_model(folder, model, public=False)
        about = {"data": "adult", "method": NONE, "steps": steps, "test": figures(found), "about": _NOT_PRIVATE}
        folder.add_json("metrics.json", about)
    else:
        folder.add("plan.json", planfile.dumps(made))
        chosen = PublicChoices(DELTA, {f"ε = {epsilon:g}": epsilon for epsilon in EPSILON}, simulated=True)
        add_results(folder, model, made, done, found, data="adult", seeded=False, chosen=chosen)
    return found


def check_out(folder: Path) -> None:
    """Raise unless the folder is new, or holds nothing but an earlier demonstration."""
    if folder.exists() and (not folder.is_dir() or not all(map(_of_a_demo, folder.iterdir()))):
        raise InvalidInput(f"--out {folder} holds something that is not of a demo; name another folder")


def _of_a_demo(path: Path) -> bool:
    return path.is_file() if path.name in REPORTS.values() else path.is_dir() and path.name in CROWDS


def trials(
    folder: Path,
    *,
    runs: int,
    submit: Submit = at_once,
    steps: int | None = None,
    accountant: str = "pld",
    progress: Progress,
) -> list[Trial]:
    """Train each method on each crowd, once for each of ``runs`` seeds; save the first model, plan and metrics.

    ``submit``: takes each training, for processes side by side. ``steps``: instead of the crowd's. Guarantee: one
    run of a private method costs each person in training at most the ε of its plan. Whoever sees several runs sees
    several such costs: only the first model is kept.
    """
    integer(runs, "runs")
    if steps is not None:
        integer(steps, "steps")
    cells = [(crowd, method) for method in (NONE, *PRIVATE) for crowd in CROWDS.values()]
    waiting: dict[tuple[str, str], tuple[Plan | None, list[Future[Score]]]] = {}
    done, total = 0, runs * len(cells)
    progress(0, total)
    for crowd, method in cells:  # those without a plan first: the plans are made while they train
        setting, count = crowd.settings[method], crowd.steps if steps is None else steps
        sizes = {"steps": count, "batch_size": crowd.batch_size}
        made = None
        if method != NONE:
            made = plan_for(method, crowd.people, **sizes, clip_norm=setting.clip_norm, accountant=accountant)
        train_one = partial(_cell, crowd.people, made, setting, steps=count, batch_size=crowd.batch_size)
        kept = {0: folder / crowd.name / method}
        jobs_of = [submit(partial(train_one, seed=seed, kept=kept.get(seed))) for seed in range(runs)]
        waiting[crowd.name, method] = made, jobs_of
    found: dict[tuple[str, str], Trial] = {}
    for (name, method), (made, futures) in waiting.items():
        scores = []
        for future in futures:
            scores.append(future.result())
            done += 1
            progress(done, total)
        found[name, method] = Trial(CROWDS[name], method, made, tuple(scores))
    return [found[name, method] for name in CROWDS for method in COMPARED]


def _cell(
    people: int, made: Plan | None, setting: Setting, *, seed: int, steps: int, batch_size: int, kept: Path | None
) -> Score:
    return trained(people_of(people, seed), made, setting, seed, steps=steps, batch_size=batch_size, kept=kept)

"""How near suggest comes to the best of a grid: python -m benchmarks.suggest --data adult --out adult.jsonl --bars

Forty cells (steps × batch × clip norm × learning rate · clip norm, SGD with momentum 0.9), each trained once a seed,
beside what `pp.suggest` says without looking. All are scored on held-out records of the *training* set; test records
are not opened. ε 1 / 2 / 3 for 34, 43 and 23 % of the people, method sample, δ = 1e-5. The data sets are public: on
people's data every cell of a grid would be charged.

Networks are those of `privypurse train`: an MLP of 64 for Adult, kind = "cnn" for images (26,010 weights on MNIST and
Fashion-MNIST, 37,274 on CIFAR-10). Trainings are appended to --out and never made twice; those that docs/suggest.md
shows are in benchmarks/results. --bars ends with 1 where suggest's mean is further below the best cell's than half a
point (CIFAR-10: two points).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.budgets import preferences
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.config import BuiltIn
from privypurse.runs.models import TramerBoneh, mlp
from privypurse.runs.records import records_of
from privypurse.training.evaluation import losses, score
from reproductions.data import split

EPSILON, SHARES, DELTA, MOMENTUM = (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), 1e-5, 0.9
CLIP_NORMS = (0.1, 1.0)
LENGTHS = (0.05, 0.125, 0.32, 0.8, 2.0)
"""Learning rate times clip norm."""


@dataclass(frozen=True)
class Task:
    """A data set, how many of its training records are held out to score on, the grid's sizes, and the bar."""

    held: int
    steps: tuple[int, int]
    batches: tuple[int, int]
    bar: float


TASKS = {
    "adult": Task(6_561, (200, 800), (512, 2_048), 0.5),
    "mnist": Task(10_000, (300, 1_000), (1_024, 4_096), 0.5),
    "fashion-mnist": Task(10_000, (300, 1_000), (1_024, 4_096), 0.5),
    "cifar10": Task(10_000, (300, 1_000), (1_024, 4_096), 2.0),
}


@dataclass(frozen=True)
class Cell:
    """What one training has of its own."""

    steps: int
    batch_size: int
    clip_norm: float
    learning_rate: float


@dataclass(frozen=True)
class Trained:
    """One line of the file."""

    data: str
    cell: Cell
    seed: int
    accuracy: float
    noise_multiplier: float
    seconds: float

    @classmethod
    def read(cls, line: str) -> Trained:
        found = json.loads(line)
        return cls(**{**found, "cell": Cell(**found["cell"])})


def grid(task: Task) -> list[Cell]:
    """Forty cells."""
    return [
        Cell(steps, batch, clip, float(f"{length / clip:.3g}"))
        for steps, batch, clip, length in product(task.steps, task.batches, CLIP_NORMS, LENGTHS)
    ]


@lru_cache(maxsize=1)
def records(name: str, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and labels to train on, then those held out, all of the training set."""
    train = records_of(BuiltIn(name)).train  # type: ignore[arg-type]
    inputs, labels = (torch.as_tensor(each, device=device) for each in (train.inputs, train.labels))
    trains, held = (torch.as_tensor(each, device=device) for each in split(len(train), TASKS[name].held))
    return inputs[trains], labels[trains], inputs[held], labels[held]


def people(name: str) -> int:
    return {"adult": 32_561, "cifar10": 50_000}.get(name, 60_000) - TASKS[name].held


def network(name: str) -> nn.Module:
    if name == "adult":
        return mlp((91,), 2)
    return TramerBoneh(10, (3, 32, 32) if name == "cifar10" else (1, 28, 28))


def suggested(name: str) -> pp.Suggestion:
    """From what anybody may know of the data set."""
    shares = dict(zip(EPSILON, SHARES, strict=True))
    return pp.suggest(people=people(name), levels=shares, parameters=network(name), delta=DELTA)


def cell_of(suggestion: pp.Suggestion) -> Cell:
    assert suggestion.momentum == MOMENTUM
    return Cell(suggestion.steps, suggestion.batch_size, suggestion.clip_norm, suggestion.learning_rate)


def _plan_file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.steps}-{cell.batch_size}-{cell.clip_norm}.json"


def make_plans(name: str, cells: list[Cell], folder: Path) -> None:
    """One for all cells of equal sizes: processes read it instead of solving it anew."""
    epsilon = preferences.levels(people(name), EPSILON, SHARES, np.random.default_rng(0))
    budgets = pp.Budgets(epsilon, delta=DELTA)
    for cell in cells:
        if not _plan_file(folder, cell).exists():
            made = pp.plan(budgets, steps=cell.steps, batch_size=cell.batch_size, clip_norm=cell.clip_norm)
            made.save(_plan_file(folder, cell))


@lru_cache(maxsize=16)
def _plan(path: Path) -> pp.Plan:
    return pp.Plan.load(path)


def trained(name: str, cell: Cell, seed: int, device: str, folder: Path) -> Trained:
    """One training, seeded so that it can be repeated, and its score on held-out records in percent."""
    warnings.simplefilter("ignore", PrivyPurseWarning)
    x, y, other_x, other_y = records(name, device)
    plan = _plan(_plan_file(folder, cell))
    torch.manual_seed(seed)
    model = network(name).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=cell.learning_rate, momentum=MOMENTUM)
    began = time.perf_counter()
    pp.train(model, optimizer, TensorDataset(x, y), plan, losses, seed=seed)
    seconds = time.perf_counter() - began
    return Trained(name, cell, seed, 100 * score(model, other_x, other_y).accuracy, plan.noise_multiplier, seconds)


def kept(path: Path, name: str) -> dict[tuple[Cell, int], Trained]:
    """What the file holds of this data set; a line that was broken off is made anew."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            each = Trained.read(line)
        except (ValueError, TypeError, KeyError):
            continue
        if each.data == name:
            found[each.cell, each.seed] = each
    return found


def all_trained(
    name: str, cells: list[Cell], seeds: int, device: str, jobs: int, path: Path
) -> dict[tuple[Cell, int], Trained]:
    """Every cell with every seed: from the file, or trained now, ``jobs`` side by side."""
    found = kept(path, name)
    left = [(cell, seed) for seed in range(seeds) for cell in cells if (cell, seed) not in found]
    left.sort(key=lambda job: -job[0].steps * job[0].batch_size)  # long ones first: processes end together
    if not left:
        return found
    with tempfile.TemporaryDirectory() as folder, path.open("a") as file:
        make_plans(name, [cell for cell, _ in left], Path(folder))
        for each in _side_by_side(name, left, device, jobs, Path(folder)):
            found[each.cell, each.seed] = each
            file.write(json.dumps(asdict(each)) + "\n")
            file.flush()
            print(f"{each.accuracy:.2f}  seed {each.seed}  {each.seconds:.1f} s  {each.cell}", flush=True)
    return found


def _side_by_side(name: str, left: list[tuple[Cell, int]], device: str, jobs: int, folder: Path) -> Iterator[Trained]:
    if jobs == 1:
        yield from (trained(name, cell, seed, device, folder) for cell, seed in left)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        waiting = [pool.submit(trained, name, cell, seed, device, folder) for cell, seed in left]
        for done in as_completed(waiting):
            yield done.result()


@dataclass(frozen=True)
class Verdict:
    """Suggest's cell beside the best cell of the grid, by mean over the same seeds."""

    best: Cell
    best_accuracy: np.ndarray
    suggested: Cell
    accuracy: np.ndarray
    at_edge: bool
    """Whether the best cell has the shortest or the longest of the step lengths that were tried."""

    @classmethod
    def of(cls, found: dict[tuple[Cell, int], Trained], cells: list[Cell], suggested: Cell, seeds: int) -> Verdict:
        def scores(cell: Cell) -> np.ndarray:
            return np.array([found[cell, seed].accuracy for seed in range(seeds)])

        best = max(cells, key=lambda cell: float(scores(cell).mean()))
        lengths = [cell.learning_rate * cell.clip_norm for cell in cells]
        edge = any(math.isclose(best.learning_rate * best.clip_norm, end) for end in (min(lengths), max(lengths)))
        return cls(best, scores(best), suggested, scores(suggested), edge)

    @property
    def behind(self) -> float:
        """Points below the best cell."""
        return float((self.best_accuracy - self.accuracy).mean())

    def row(self, name: str, cells: dict[Cell, float]) -> str:
        """A line of the table in docs/suggest.md."""
        middle = float(np.median(list(cells.values())))
        words = [name, _said(self.suggested), _figures(self.accuracy), _said(self.best), _figures(self.best_accuracy)]
        return "| " + " | ".join([*words, f"{middle:.2f}", f"{self.behind:+.2f}"]) + " |"


HEAD = (
    "| data | suggested | accuracy | best of 40 | accuracy | median of 40 | behind, points |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def _said(cell: Cell) -> str:
    return f"{cell.steps:,} × {cell.batch_size:,}, C {cell.clip_norm:g}, lr {cell.learning_rate:g}"


def _figures(values: np.ndarray) -> str:
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if values.size > 1 else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(TASKS), required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side; they share a GPU")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where lines are kept (default: suggest-DATA.jsonl)")
    parser.add_argument("--bars", action="store_true", help="end with 1 where suggest is too far below the best")
    options: Any = parser.parse_args(arguments)
    task, name = TASKS[options.data], options.data
    path = options.out or Path(f"suggest-{name}.jsonl")
    warnings.simplefilter("ignore", PrivyPurseWarning)
    asked = suggested(name)
    print(asked, flush=True)
    cells, own = grid(task), cell_of(asked)
    found = all_trained(name, [*cells, own], options.seeds, options.device, options.jobs, path)
    verdict = Verdict.of(found, cells, own, options.seeds)
    means = {cell: float(np.mean([found[cell, seed].accuracy for seed in range(options.seeds)])) for cell in cells}
    print(HEAD + "\n" + verdict.row(name, means))
    if verdict.at_edge:
        print("The best cell has the shortest or the longest step of the grid: a wider one may hold a better.")
    return int(options.bars and verdict.behind > task.bar)


if __name__ == "__main__":
    raise SystemExit(main())

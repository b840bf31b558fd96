"""What individual accounting costs: python -m benchmarks.charging [--device cuda]

First, a million people: charging everyone for a step, reading new norms, asking the filter. Then training:
steps of 512 of the MNIST network with 26,010 parameters on 60,000 made-up images, with and without levels, purses and
charges, in turn in one process; and a norm pass over everybody, as a share of the training between two of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.accounting.odometer import Odometer
from privypurse.accounting.sampled_step_filter import StepFilter
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.models import TramerBoneh
from privypurse.training.gradients import recorded
from privypurse.training.individual.accounting import Individual, accounting_of
from privypurse.training.individual.norm_passes import NormPasses
from privypurse.training.mechanism import PrivateRun
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.poisson_loader import Draws
from privypurse.training.setup import Setup

LOSS = partial(F.cross_entropy, reduction="none")
PEOPLE, BATCH = 60_000, 512


def seconds(work: Callable[[], object], repeats: int = 7, times: int = 1) -> float:
    """The median; the first call does not count."""
    work()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(times):
            work()
        taken.append((time.perf_counter() - begun) / times)
    return statistics.median(taken)


def million(console: Console) -> None:
    people, grid_size = 1_000_000, 100
    generator = np.random.default_rng(0)
    rate, noise = np.array([0.0005, 0.001, 0.002]), np.full(3, 1.0)
    epsilon, delta = np.array([1.0, 2.0, 3.0]), np.full(3, 1e-6)
    level_of = generator.integers(0, 3, people).astype(np.uint8)
    shares = generator.random(people) ** 3
    purses = StepFilter(rate, noise, epsilon, delta, level_of, grid_size)
    plain = Odometer(rate, noise, level_of, grid_size=grid_size)
    filtered = Odometer(rate, noise, level_of, grid_size=grid_size, purses=purses)
    counted = Odometer(rate, noise, level_of, grid_size=grid_size)
    filtered.new_norms(shares, filtering=True)

    def one_step_and_write(odometer: Odometer) -> None:
        odometer.advance()
        odometer.settle()

    def norms_at_every_step() -> None:
        counted.new_norms(shares)
        counted.advance()

    table = Table(title=f"{people:,} people, {grid_size} grid norms, milliseconds")
    table.add_column("what")
    table.add_column("ms", justify="right")
    for what, work in (
        ("charge everyone for a step (written down with the next norms)", plain.advance),
        ("charge a step and write it down at once", lambda: one_step_and_write(plain)),
        ("the same under the filter", lambda: one_step_and_write(filtered)),
        ("new norms at every single step (K = 1), charged and written down", norms_at_every_step),
        (
            "new norms under the filter: grid norms, steps allowed, last drop",
            lambda: filtered.new_norms(shares, filtering=True),
        ),
    ):
        table.add_row(what, f"{1e3 * seconds(work, 5, 32):.3f}")
    console.print(table)


class Steps:
    """Training steps by hand, so that the same loop runs with and without individual accounting."""

    def __init__(self, data: TensorDataset, plan: pp.Plan, device: str, individual: Individual | None) -> None:
        torch.manual_seed(0)
        model = TramerBoneh().to(device)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        setup, records = Setup(plan, model, self._optimizer, seed=0), PlannedRecords(data, plan)
        self.passes = NormPasses(setup, records, LOSS)
        self.run = PrivateRun(setup, accounting_of(setup, records, LOSS, individual))
        self._draws, self._data, self._device = Draws(self.run, records), data, device
        self.run.prepare()  # the first norm pass

    def __call__(self, count: int = 20) -> None:
        run = self.run
        for _ in range(count):
            run.prepare()
            for batch in self._draws.step(run.steps_taken + 1):
                index = torch.as_tensor(batch.records, device=self._device)
                x, y = (tensor[index] for tensor in self._data.tensors)
                tape, _ = recorded(run.recorder, LOSS, (x,), y, False)
                run.add(tape, *batch.places(run.setup))
            run.release()
            self._optimizer.step()
        if self._device == "cuda":
            torch.cuda.synchronize()


def training(console: Console, device: str, repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PEOPLE, 1, 28, 28, generator=generator).to(device)
    data = TensorDataset(x, torch.randint(0, 10, (PEOPLE,), generator=generator).to(device))
    budgets = pp.Budgets(np.full(PEOPLE, 3.0), delta=1e-5)
    never = 10**9
    plans = [
        pp.plan(budgets, "uniform", steps=steps, batch_size=BATCH, extra_steps=extra, accountant="rdp")
        for steps, extra in ((100_000, 0), (1, 100_000))
    ]
    ways = {
        "without": Steps(data, plans[0], device, None),
        "odometer, exact": Steps(data, plans[0], device, Individual(every=never)),
        "odometer and filter": Steps(data, plans[1], device, Individual(every=never)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, steps in ways.items():  # in turn, so that what disturbs the machine disturbs all alike
            begun = time.perf_counter()
            steps()
            if turn:
                taken[name].append((time.perf_counter() - begun) / 20)
    plain = statistics.median(taken["without"])
    table = Table(title=f"steps of {BATCH} of the MNIST network, {device}, milliseconds; norm passes not counted")
    for column in ("", "ms a step", "more than without"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in taken.items():
        ratio = statistics.median(one / other - 1 for one, other in zip(found, taken["without"], strict=True))
        table.add_row(name, f"{1e3 * statistics.median(found):.2f}", f"{ratio:+.1%}")
    console.print(table)
    passes = ways["without"].passes
    whole = seconds(lambda: passes.norms(0), 3)
    half = seconds(lambda: passes.norms(0, np.arange(0, PEOPLE, 2)), 3)
    epoch = plain * PEOPLE / BATCH
    table = Table(title=f"a norm pass over everybody: {whole:.2f} s ({half:.2f} s with half of the purses empty)")
    for column in ("one norm pass in", "training in between", "more time"):
        table.add_column(column, justify="right")
    for epochs in (1, 2, 10):
        table.add_row(f"{epochs} epochs", f"{epochs * epoch:.2f} s", f"{whole / (epochs * epoch):+.0%}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivyPurseWarning)
    console = Console(width=110)
    million(console)
    training(console, options.device, options.repeats)


if __name__ == "__main__":
    main()

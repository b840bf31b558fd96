"""Faults planted into the mechanism, and which audit sees them: python -m benchmarks.faults

Each fault is planted from outside, by replacing a piece of the mechanism for the time of the audit: the product has
no switch for it. The audit is that of many small runs (docs/attacks.md): side by side where a fault shows in every
run by itself, in sequence where it needs batches of a run's own. "FLAGGED" means that the f-DP bound at confidence
0.95 is above the certified ε; by how much it is above counts only for faults of the noise, which the family of curves
holds. Two faults are no matter of noise and are seen by exact enumeration alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import privypurse as pp
from privypurse.audit import result
from privypurse.audit.families import scaled_noise
from privypurse.audit.small_runs import Road, SmallWorld, linear_loss, traces
from privypurse.audit.small_runs_audit import SmallRunsAudit
from privypurse.audit.two_worlds import Bound, bound, by_curves, scores_for
from privypurse.training import loop, mechanism
from privypurse.training.grid_noise import GridNoise
from privypurse.training.mechanism import PrivateRun
from privypurse.training.step_randomness import Keys

DELTA = 1e-5
EPSILON, OPEN = 2.0, 1000.0  # of the person who is tried; others have so much that they are in every step


def audited_plan() -> pp.Plan:
    budgets = pp.Budgets([EPSILON] * 8 + [OPEN] * 8, delta=DELTA)
    return pp.plan(budgets, "sample", steps=2, batch_size=4, noise_multiplier=2.0)


@contextmanager
def halved_noise() -> Iterator[None]:
    right = GridNoise.__init__

    def made(self: GridNoise, deviation: float, size: int) -> None:
        right(self, deviation / 2, size)

    with mock.patch.object(GridNoise, "__init__", made):
        yield


@contextmanager
def no_clipping() -> Iterator[None]:
    with mock.patch.object(mechanism, "clip_factors", lambda norms, limits: torch.ones_like(norms)):
        yield


@contextmanager
def doubled_rate() -> Iterator[None]:
    """Of the strict group alone."""

    def rates(run: PrivateRun) -> np.ndarray:
        by_level = run.plan.levels.rate.copy()
        by_level[0] = min(1.0, 2 * by_level[0])
        return np.asarray(by_level[run.plan.level_of])

    with mock.patch.object(PrivateRun, "rates", property(rates)):
        yield


@contextmanager
def realised_batch() -> Iterator[None]:
    """The sum is divided by how many were drawn, not by the public batch size."""
    weights, release = PrivateRun.weights, PrivateRun._release
    drawn: list[int] = []

    def counted(run: PrivateRun, tape: Any, units: Tensor, owner: Tensor | None = None) -> tuple[Tensor, Tensor]:
        drawn.append(int((units != run.plan.people).sum()))
        return weights(run, tape, units, owner)

    def divided(run: PrivateRun, step: int) -> None:
        release(run, step)
        for parameter in run.parameters.values():
            assert parameter.grad is not None
            parameter.grad *= run.plan.batch_size / max(1, sum(drawn))
        drawn.clear()

    with mock.patch.object(PrivateRun, "weights", counted), mock.patch.object(PrivateRun, "_release", divided):
        yield


@contextmanager
def same_noise() -> Iterator[None]:
    """Every step adds the first step's noise."""
    right, first = GridNoise.to_grid, {}

    def repeated(self: GridNoise, values: Tensor, source: Any) -> None:
        if values.numel() not in first:
            first[values.numel()] = torch.zeros_like(values)
            right(self, first[values.numel()], source)
        right(self, values, None)
        values.add_(first[values.numel()])

    with mock.patch.object(GridNoise, "to_grid", repeated):
        yield


@contextmanager
def unchecked() -> Iterator[None]:
    """Nobody looks whether records mix: the mechanism as it would be without its checks."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Keys, "due", return_value=False))
        stack.enter_context(mock.patch.object(loop, "require_isolated"))
        yield


def mixing_loss(score: Tensor, length: Tensor) -> Tensor:
    """Everybody's loss divided by the longest record of the batch, as some scale their features."""
    return score / length.max().clamp(min=1.0)


@dataclass(frozen=True)
class Fault:
    name: str
    planted: Callable[[], AbstractContextManager[None]]
    road: Road = "side by side"
    others: int = 1
    empty: int = 2
    loss_fn: Callable[[Tensor, Tensor], Tensor] = linear_loss


SOUND = Fault("none", nullcontext)
SOUND_IN_SEQUENCE = Fault("none, in sequence", nullcontext, "in sequence", others=20, empty=32)
FAULTS = (
    Fault("halved noise", halved_noise),
    Fault("no clipping", no_clipping),
    Fault("one group's rate doubled", doubled_rate),
    Fault("the same noise in every step", same_noise),
    Fault("division by the realised batch", realised_batch, "in sequence", empty=32),
    Fault("a loss that mixes records", unchecked, "in sequence", others=20, loss_fn=mixing_loss),
)
ENUMERATED = {
    "only those drawn are charged": "tests/reference/test_rules.py",
    "the best order is chosen at the end": "tests/reference/test_filters.py",
}


def audited(fault: Fault, plan: pp.Plan, runs: int, seed: int | None = None) -> tuple[Bound, bool, float]:
    """The bound with this fault planted, whether it is above what is certified, and the seconds it took."""
    world = SmallWorld(plan, 0, others=fault.others, empty=fault.empty)
    begun = time.perf_counter()
    with fault.planted():
        seeds = (None, None) if seed is None else (seed, seed + 1)
        worlds = [
            traces(world, present, runs, fault.road, loss_fn=fault.loss_fn, seed=number)
            for present, number in zip((True, False), seeds, strict=True)
        ]
    family = scaled_noise(plan.releases()[0], DELTA, events=True)
    found = bound(scores_for(world), worlds[0], worlds[1], by_curves(family))
    return found, found.epsilon > plan.spent_by_level()[0], time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="of each world, side by side (default: 20,000)")
    parser.add_argument("-o", "--out", type=Path, metavar="FOLDER", help="write audit.json there, with the table")
    parser.add_argument("--in-sequence", type=int, default=150, help="of each world, one by one (default: 150)")
    options = parser.parse_args()
    plan, table = audited_plan(), Table(title="planted faults, and the audit that sees them")
    for column in ("fault", "seen by", "runs", "ε certified", "ε at least", "", "seconds"):
        table.add_column(column)
    begun, seen_faults = time.perf_counter(), []
    for fault in (SOUND, SOUND_IN_SEQUENCE, *FAULTS):
        runs = options.runs if fault.road == "side by side" else options.in_sequence
        found, flagged, seconds = audited(fault, plan, runs)
        seen = f"small runs {fault.road}: {found.score}" if flagged else "nobody"
        certified, verdict = plan.spent_by_level()[0], "FLAGGED" if flagged else "cleared"
        row = (f"2 × {runs:,}", f"{certified:.2f}", f"{found.epsilon:.2f}", verdict, f"{seconds:.1f}")
        table.add_row(fault.name, seen, *row)
        if fault in FAULTS:
            seen_faults.append(
                result.Fault(name=fault.name, seen_by=seen, seen=bool(flagged), seconds=round(seconds, 1))
            )
    for name, where in ENUMERATED.items():
        alone = f"exact enumeration alone: {where}"
        table.add_row(name, alone, "", "", "", "", "")
        seen_faults.append(result.Fault(name=name, seen_by=alone, seen=True))
    Console(width=160).print(table)
    if options.out is not None:
        sound = SmallRunsAudit(plan, runs=options.runs, groups=1).run()
        cost = result.Cost(trainings=sound.cost.trainings, seconds=round(time.perf_counter() - begun, 1))
        print(msgspec.structs.replace(sound, faults=tuple(seen_faults), cost=cost).save(options.out))


if __name__ == "__main__":
    main()

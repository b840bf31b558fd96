"""How much canaries prove, and how often they are wrong: python -m benchmarks.audit [--data mnist] [--bars]

Trainings by plans for ε = 1, 2, 3 (34, 43 and 23 % of people, δ = 1e-5) on made-up records, through `train` as it
stands. A *repeat* is a set of canaries, so many for each budget group, with coins, coordinates and noise of its own,
and its readings; --together of them share a training, where each counts among the others of all the rest. --out keeps
a line for every group of every repeat. --bars asks of sound trainings and of such with halved noise (planted from
outside):

- in groups with ε ≥ 2 and an effective noise multiplier of at least 1.5 the f-DP bound is on average half of the
  certified ε or more;
- of 200 sound repeats at most 18 have some group above its claim, and of 200 with halved noise 190 are flagged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import privypurse as pp
from privypurse.audit.canaries import Canaries
from privypurse.audit.canary_audit import COORDINATES, CanaryAudit
from privypurse.audit.result import Group
from privypurse.audit.subject import Subject, some_levels
from privypurse.datasets.targets import Classes
from privypurse.runs.config import Optimizer
from privypurse.runs.models import TramerBoneh, mlp, optimizer_of
from privypurse.runs.objectives import class_losses
from privypurse.training import setup
from privypurse.training.grid_noise import GridNoise

METHODS = ("uniform", "sample", "scale", "filter", "full-batch-filter")
FULL_BATCH_STEPS = 20


@dataclass(frozen=True)
class Course:
    """A network, and how many people, steps and canaries there are."""

    people: int
    steps: int
    batch_size: int
    canaries: int
    shape: tuple[int, ...]
    classes: int
    network: Callable[[], nn.Module]

    def plan(self, method: str) -> pp.Plan:
        epsilon = np.repeat([1.0, 2.0, 3.0], (np.array([0.34, 0.43, 0.23]) * self.people).round().astype(int))
        budgets = pp.Budgets(epsilon, delta=1e-5)
        if method == "full-batch-filter":  # everybody in every step: a filter of Gaussian DP, read by G_μ
            more = FULL_BATCH_STEPS // 4
            return pp.plan(
                budgets, "scale", steps=FULL_BATCH_STEPS, batch_size=epsilon.size, extra_steps=more, clip_norm=1.0
            )
        chosen, more = ("sample", self.steps // 4) if method == "filter" else (method, 0)
        return pp.plan(budgets, chosen, steps=self.steps, batch_size=self.batch_size, extra_steps=more)

    def subject(self, method: str) -> Subject:
        plan = self.plan(method)
        level_of = some_levels(plan, 2000)
        rng = np.random.default_rng()
        return Subject(
            plan=plan,
            level_of=level_of,
            inputs=torch.as_tensor(rng.random((level_of.size, *self.shape), dtype=np.float32)),
            labels=torch.as_tensor(rng.integers(self.classes, size=level_of.size)),
            model=self.network,
            optimizer=partial(optimizer_of, Optimizer("SGD", {"lr": 0.1})),
            loss_fn=class_losses,
            target=Classes("made up", tuple(map(str, range(self.classes)))),
        )


COURSES = {
    "adult": Course(32_561, 300, 2048, 2000, (91,), 2, partial(mlp, (91,), 2)),
    "mnist": Course(60_000, 600, 2048, 5000, (1, 28, 28), 10, TramerBoneh),
}


def sets(canaries: Canaries, each: int) -> Iterator[np.ndarray]:
    """Which canaries belong to each repeat: as many of every level, in their order."""
    place = np.concatenate([np.arange(count) for count in np.bincount(canaries.level) if count])
    for number in range(int(place.max()) // each + 1):
        yield place // each == number


def repeats(audit: CanaryAudit, each: int) -> Iterator[tuple[Group, ...]]:
    """The groups of all repeats of one training."""
    canaries, scores = audit.trained()
    for some in sets(canaries, each):
        own = Canaries(canaries.level[some], canaries.is_in[some])
        yield tuple(audit.group(int(level), *own.scores(int(level), scores[some])) for level in audit.levels)


@contextmanager
def halved_noise() -> Iterator[None]:
    """The fault: half of the noise that the plan says, planted from outside."""
    with patch.object(setup, "GridNoise", lambda deviation, size: GridNoise(deviation / 2, size)):
        yield


def measured(
    audit: CanaryAudit, course: Course, count: int, fault: AbstractContextManager[None]
) -> list[tuple[Group, ...]]:
    """So many repeats, and on the way how long they take."""
    found: list[tuple[Group, ...]] = []
    begun = time.perf_counter()
    with fault:
        while len(found) < count:
            found += list(repeats(audit, course.canaries))
            done = time.perf_counter() - begun
            print(f"  {len(found)} of {count} repeats in {done:.0f} s", file=sys.stderr, flush=True)
    return found[:count]


def effective_noise(plan: pp.Plan, level: int) -> float:
    return float(plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm[level])


def rows(audit: CanaryAudit, found: list[tuple[Group, ...]], name: str) -> Iterator[str]:
    """By group: means with their deviations over repeats, and how many lie above the claim."""
    plan = audit.subject.plan
    for level, groups in zip(audit.levels, zip(*found, strict=True), strict=True):
        noise = effective_noise(plan, int(level))
        bounds = {key: np.array([group.bounds[key] for group in groups]) for key in groups[0].bounds}
        said = "".join(f"{each.mean():8.2f} ±{each.std():5.2f}" for each in bounds.values())
        over = sum(group.flagged for group in groups)
        claim = groups[0].claimed_epsilon
        yield f"{name:<18}{groups[0].name:<8}{claim:8.3f}{noise:8.2f}{said}{over:6d} of {len(groups)}"


def lines(audit: CanaryAudit, found: list[tuple[Group, ...]], data: str, method: str, training: str) -> Iterator[str]:
    """One for every group of every repeat."""
    plan = audit.subject.plan
    for repeat, groups in enumerate(found):
        for level, group in zip(audit.levels.tolist(), groups, strict=True):
            line = {
                "data": data,
                "method": method,
                "training": training,
                "repeat": repeat,
                "coordinates": audit.coordinates,
                "epsilon": float(plan.levels.epsilon[level]),
                "certified": group.claimed_epsilon,
                "delta": group.delta,
                "noise_multiplier": effective_noise(plan, level),
                "steps": plan.all_steps,
                "canaries": group.canaries,
                "bounds": group.bounds,
                "flagged": bool(group.flagged),
            }
            yield json.dumps(line) + "\n"


def bars(
    audit: CanaryAudit, sound: list[tuple[Group, ...]], broken: list[tuple[Group, ...]]
) -> Iterator[tuple[str, bool]]:
    """Each bar in words, and whether it is met; counts are scaled to as many repeats as there are."""
    plan = audit.subject.plan
    for level, groups in zip(audit.levels, zip(*sound, strict=True), strict=True):
        noise = effective_noise(plan, int(level))
        claim, mean = groups[0].claimed_epsilon, float(np.mean([group.bounds["f-dp"] for group in groups]))
        if plan.levels.epsilon[level] >= 2 and noise >= 1.5:
            yield f"{groups[0].name}: f-DP bound {mean:.2f} of {claim:.2f}, at least half", mean >= claim / 2
    above, seen = (sum(any(group.flagged for group in each) for each in found) for found in (sound, broken))
    yield f"{above} of {len(sound)} sound repeats above the claim, at most 9 %", above <= 0.09 * len(sound)
    yield f"{seen} of {len(broken)} with halved noise flagged, at least 95 %", seen >= 0.95 * len(broken)


def keep(lines: Iterator[str], path: Path | None) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=COURSES, default="adult")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["sample"])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--together", type=int, default=20, help="repeats that share a training")
    parser.add_argument("--canaries", type=int, help="of each group (default: 2,000 of adult, 5,000 of mnist)")
    parser.add_argument("--coordinates", choices=COORDINATES, default="appended", help="where canaries are")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a file to which a line is added for every group of every repeat")
    parser.add_argument("--bars", action="store_true", help="halved noise too, and exit code 1 where a bar is missed")
    options = parser.parse_args(arguments)
    course, missed = COURSES[options.data], False
    if options.canaries is not None:
        course = replace(course, canaries=options.canaries)
    print(f"{'':18}{'group':<8}{'claimed':>8}{'noise':>8}{'guesses':>15}{'f-dp':>15}{'gaussian':>15}   above")
    for method in options.methods:
        together = min(options.together, options.repeat)
        audit = CanaryAudit(
            course.subject(method),
            canaries=course.canaries * together,
            coordinates=options.coordinates,
            device=options.device,
        )
        sound = measured(audit, course, options.repeat, nullcontext())
        print("\n".join(rows(audit, sound, method)), flush=True)
        keep(lines(audit, sound, options.data, method, "sound"), options.out)
        if options.bars:
            broken = measured(audit, course, options.repeat, halved_noise())
            print("\n".join(rows(audit, broken, "halved noise")), flush=True)
            keep(lines(audit, broken, options.data, method, "halved noise"), options.out)
            for words, met in bars(audit, sound, broken):
                print(f"{'met   ' if met else 'MISSED'} {words}")
                missed |= not met
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""Many small runs: a tiny model trained over and over by the real pipeline, with and without one person.

The model has one weight in a direction that only this person's record has, one for the others, and some that nobody
has. Losses are linear, so that everybody's gradient is the same in every step, and the person's is ten clip norms
long. What the optimizer is handed in each step is kept. Two roads lead through `train`:

*side by side*: all runs are one model with a row of weights each, and everybody of every run is a person by
themselves. A record's gradient lies in its own row, and coins, clipping and noise are drawn for each, so that one
training is exactly that many independent small ones. It takes seconds for thousands, but they share their batches:
what depends on a batch as a whole does not show.

*in sequence*: one run after another, each with batches of its own. Slower, and nothing is shared.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privypurse._validate import integer, one_of
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan, Promise
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.loop import train

OWN, OTHERS = 0, 1
"""Places of a trace: the person's own direction, and that of the others. What follows is noise alone."""
_LENGTH = 10.0  # of the person's gradient, in clip norms
Road = Literal["side by side", "in sequence"]


@dataclass(frozen=True)
class SmallWorld:
    """The person who is tried, who else is there, and how wide the model is."""

    plan: Plan
    level: int
    """Of the plan, whose rate and clip norm the person has."""
    others: int = 1
    """People beside them, of the most relaxed level, whose gradient is one clip norm in a direction of their own."""
    empty: int = 2
    """Directions that nobody's gradient has."""

    def __post_init__(self) -> None:
        integer(self.level, "level", least=0, most=len(self.plan.levels) - 1)
        integer(self.others, "others", least=1)
        integer(self.empty, "empty", least=0)
        if self.plan.levels.rate[self.level] == 0:
            raise InvalidInput(f"level {self.level} takes no part in any step; audit one that does")

    def levels(self, present: bool) -> AnyArray:
        """The person's level first, if they are there, then the others'."""
        others = np.full(self.others, len(self.plan.levels) - 1)
        return np.append(self.level, others) if present else others

    def records(self, present: bool) -> AnyArray:
        """What everybody's gradient is, a row each."""
        clip_norms = self.plan.levels.clip_norm[self.levels(present)]
        made = np.zeros((clip_norms.size, 2 + self.empty), dtype=np.float32)
        made[-self.others :, OTHERS] = clip_norms[-self.others :]
        if present:
            made[0, OWN] = _LENGTH * clip_norms[0]
        return made


class _Rows(nn.Module):
    """A row of weights for each run; a record's score is its own run's row times the record."""

    def __init__(self, runs: int, width: int) -> None:
        super().__init__()
        self.weights = nn.Embedding(runs, width)
        nn.init.zeros_(self.weights.weight)

    def forward(self, run: Tensor, record: Tensor) -> Tensor:
        score: Tensor = (self.weights(run) * record).sum(dim=1)
        return score


def linear_loss(score: Tensor, length: Tensor) -> Tensor:
    """Whose gradient is the record itself, whatever the weights are; a record's label is its length in clip norms."""
    return score


class _Kept(torch.optim.SGD):
    """Steps, and keeps what it was handed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self.seen: list[Tensor] = []

    def step(self, closure: Any = None) -> Any:
        self.seen += [each.grad.detach().clone() for group in self.param_groups for each in group["params"]]
        return super().step(closure)


def traces(
    world: SmallWorld,
    present: bool,
    runs: int,
    road: Road = "side by side",
    *,
    steps: int | None = None,
    loss_fn: Loss = linear_loss,
    seed: int | None = None,
) -> FloatArray:
    """Every small run's released sums, float64[runs, steps, width]: gradients times the public divisor.

    ``steps`` of each run, by default all that the plan fixes beforehand.
    """
    each = world.plan.steps if steps is None else integer(steps, "steps", most=world.plan.steps)
    integer(runs, "runs")
    one_of(road, "road", ("side by side", "in sequence"))
    rows, repeats = (runs, 1) if road == "side by side" else (1, runs)
    model = _Rows(rows, 2 + world.empty)
    optimizer = _Kept(model)
    records = torch.from_numpy(np.tile(world.records(present), (rows, 1)))
    levels = np.tile(world.levels(present), rows)
    run = torch.arange(rows).repeat_interleave(levels.size // rows)
    clip_norms = torch.from_numpy(world.plan.levels.clip_norm[levels])
    dataset = TensorDataset(run, records, (records.norm(dim=1) / clip_norms).float())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # of seeds, and that these people are nobody
        train(model, optimizer, dataset, _repeated(world.plan, levels, each * repeats), loss_fn, seed=seed)
    width = 2 + world.empty
    seen = torch.stack(optimizer.seen).double().numpy() * world.plan.batch_size
    if road == "in sequence":
        return np.asarray(seen.reshape(runs, each, width))
    return np.ascontiguousarray(seen.transpose(1, 0, 2))


def _repeated(plan: Plan, levels: AnyArray, steps: int) -> Plan:
    """The audited plan's noise, rates and clip norms for these made-up people, run after run.

    It promises nothing as a whole: each run is one of the plan's, and that is what is audited.
    """
    shape = replace(plan.shape, steps=steps, extra_steps=0, stop=None)
    return replace(plan.for_nobody(levels), promise=Promise.PART, shape=shape)

"""Data canaries in one run, and a loss that mixes records: python -m benchmarks.data_canaries

A data canary is a record like any other, whose own gradient goes where no other record's is likely to: here it has an
output of its own, whose target is at the far end of the public range. Half of the canaries are in, by coins. The
attacker knows the model before each step and everybody but the canaries, subtracts the others' clipped sum, and reads
the released step along each canary's own gradient in its own output. In a sound run a canary moves that by one clip
norm at most. A loss that mixes records lets it move what everybody else contributes, and the same score sees more
than ε allows. A gradient canary sees nothing of it: its loss is not the one that mixes.

The mixing loss scales each target by the largest of the batch, as one might to bring outputs onto one scale.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from benchmarks.faults import unchecked
from privypurse.arrays import FloatArray
from privypurse.audit import readings
from privypurse.audit.canaries import Canaries
from privypurse.audit.claims import family_of
from privypurse.audit.own_directions import Others
from privypurse.randomness import randomness

CANARIES, OTHERS, FEATURES = 600, 400, 4
USUAL, FAR = 0.1, -1.0  # targets of everybody, and of a canary in the output that is its own; the range is -1 to 1
Loss = Callable[[Tensor, Tensor], Tensor]


def sound_loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(dim=1)


def mixing_loss(output: Tensor, target: Tensor) -> Tensor:
    """Errors in shares of the batch's largest target, output by output."""
    largest = target.abs().amax(dim=0).clamp(min=USUAL / 2)
    return ((output - target) / largest).square().sum(dim=1)


def audited_plan() -> pp.Plan:
    """Canaries have ε = 1; the others have so much that they are in every step."""
    budgets = pp.Budgets([1.0] * 8 + [1000.0] * 8, delta=1e-5)
    return pp.plan(budgets, "sample", steps=4, batch_size=8, noise_multiplier=8.0)


class _Watched:
    """Adds up log-likelihood ratios along each canary's own clipped gradient, step by step."""

    def __init__(
        self, model: nn.Linear, loss_fn: Loss, plan: pp.Plan, x: Tensor, target: Tensor, others: Others
    ) -> None:
        self._model, self._loss_fn, self._plan, self._x, self._target = model, loss_fn, plan, x, target
        self._others, self.total = others, torch.zeros(len(x), dtype=torch.float64)

    def before_step(self, *_: Any) -> None:
        plan, weight = self._plan, self._model.weight
        assert weight.grad is not None
        sum_of_others = self._others.clipped_sum(torch.arange(OTHERS))
        left = (weight.grad.double() * plan.batch_size - sum_of_others.view_as(weight)) / plan.clip_norm
        norm, own = self._own_gradients()
        factor = (plan.levels.clip_norm[0] / norm).clamp(max=1.0) / plan.clip_norm
        length = own.norm(dim=1)
        seen, most = (own * left).sum(dim=1) / length, length * factor
        odds = torch.expm1((2 * seen * most - most**2) / (2 * plan.noise_multiplier**2))
        self.total += torch.log1p(float(plan.levels.rate[0]) * odds)

    def _own_gradients(self) -> tuple[Tensor, Tensor]:
        """The norm of each canary's gradient, were it alone, and the part of it in the output that is its own."""

        def loss(weight: Tensor, x: Tensor, target: Tensor) -> Tensor:
            return self._loss_fn((x @ weight.T).unsqueeze(0), target.unsqueeze(0)).sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        found = each(self._model.weight.detach(), self._x, self._target).double()
        return found.flatten(1).norm(dim=1), found.diagonal().T


def scores(loss_fn: Loss, plan: pp.Plan, seed: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Of canaries that were in, and of those out, from one training."""
    canaries = Canaries.flipped(np.array([0]), CANARIES, randomness(seed))
    made = torch.Generator().manual_seed(0)
    x = torch.rand((OTHERS + CANARIES, FEATURES), generator=made)
    target = USUAL * torch.rand((OTHERS, CANARIES), generator=made).clamp(min=0.5)
    target = torch.cat([target, FAR * torch.eye(CANARIES)])
    there = torch.cat([torch.arange(OTHERS), OTHERS + torch.from_numpy(np.flatnonzero(canaries.is_in))])
    joined = canaries.joined(plan, np.ones(OTHERS, dtype=np.int64))
    model = nn.Linear(FEATURES, CANARIES, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    records = TensorDataset(x[there], torch.zeros(len(there)), target[there])
    others = Others(model, loss_fn, joined, records, OTHERS)
    watched = _Watched(model, loss_fn, plan, x[OTHERS:], target[OTHERS:], others)
    optimizer.register_step_pre_hook(watched.before_step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pp.PrivyPurseWarning)  # of seeds, and that these people are nobody
        pp.train(model, optimizer, TensorDataset(x[there], target[there]), joined, loss_fn, seed=seed)
    return canaries.scores(0, watched.total.numpy())


def bound(loss_fn: Loss, plan: pp.Plan, seed: int | None = None) -> float:
    """The f-DP bound at confidence 0.95; a loss that mixes is let through as if nobody looked."""
    planted: AbstractContextManager[None] = nullcontext() if loss_fn is sound_loss else unchecked()
    with planted:
        inside, outside = scores(loss_fn, plan, seed)
    return readings.f_dp(inside, outside, family_of(plan, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    plan = audited_plan()
    certified = plan.spent_by_level()[0]
    print(f"ε = {certified:.2f} is certified; {CANARIES} canaries, {OTHERS} others, {options.repeat} trainings each")
    for name, loss_fn in (("none", sound_loss), ("a loss that mixes records", mixing_loss)):
        begun = time.perf_counter()
        found = np.array([bound(loss_fn, plan) for _ in range(options.repeat)])
        seconds = (time.perf_counter() - begun) / options.repeat
        flagged = f"{int((found > certified).sum())} of {options.repeat} flagged"
        print(f"{name:<28} at least {found.mean():.2f} ± {found.std():.2f}, {flagged}, {seconds:.1f} s each")


if __name__ == "__main__":
    main()

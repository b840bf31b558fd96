"""Canaries: records made for an attacker, whose presence each step of a run betrays as much as any record's can.

A canary has a coordinate of its own, in which no other canary has a gradient; its gradient there is ten clip norms
long. It enters before clipping, and is drawn, clipped, summed and covered by noise by the same code, in the same run,
as everybody of its budget group. In or out is a fair coin for each canary. The attacker sees each step's released
gradient, which is what the plan's ε covers. Coordinates are appended to the model, where the others' sum is exactly
zero, or are the model's own, where it is subtracted (`own_directions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.audit.own_directions import NOWHERE, OwnDirections
from privypurse.plans import Plan
from privypurse.randomness import Randomness

PUSH = 10.0
"""How long a canary's gradient is, in clip norms: far enough beyond to show whether clipping happens."""

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries by level of a plan, in or out."""

    level: IntArray
    """For each canary, its level of the plan."""
    is_in: AnyArray

    @classmethod
    def flipped(cls, levels: IntArray, each: int, source: Randomness) -> Canaries:
        """So many of each of these levels, half of them in on average, by coins."""
        level = np.repeat(levels, each)
        return cls(level, source.uniform(level.size) <= 0.5)

    def __len__(self) -> int:
        return int(self.level.size)

    def joined(self, plan: Plan, others: IntArray) -> Plan:
        """The plan for people at the levels ``others`` and, behind them, for all canaries that are in.

        Noise, clip norms, rates, divisor and steps are the plan's, to the bit: nothing is solved anew.
        """
        level_of = np.append(others, self.level[self.is_in])
        return plan.for_nobody(level_of)

    def scores(self, level: int, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The scores of a level's canaries: those in, and those out."""
        here = self.level == level
        return scores[here & self.is_in], scores[here & ~self.is_in]


class WithCanaries(nn.Module):
    """The model, and one more coordinate for each canary; of real records it is the model alone.

    ``places`` says for each canary in which of the model's own numbers it is instead, or NOWHERE.
    """

    def __init__(self, model: nn.Module, canaries: int, places: IntArray | None = None) -> None:
        super().__init__()
        self.model = model
        self.coordinates = nn.Embedding(canaries + 1, 1, padding_idx=canaries)
        nn.init.zeros_(self.coordinates.weight)
        self.own = None if places is None else OwnDirections(model, np.append(places, NOWHERE))

    def forward(self, x: Tensor, canary: Tensor) -> tuple[Any, Tensor, Tensor]:
        """``canary`` is each record's number among canaries, and their count for a real one."""
        is_canary = canary.ne(self.coordinates.num_embeddings - 1).to(x.dtype)
        coordinate = self.coordinates(canary).squeeze(-1)
        if self.own is not None:
            coordinate = torch.where(self.own.place[canary] != NOWHERE, self.own(canary), coordinate)
        return self.model(x), coordinate, is_canary

    def released(self, others: Tensor | None = None) -> Tensor:
        """The released gradient in each canary's coordinate, less that of ``others`` in the model's own."""
        assert self.coordinates.weight.grad is not None
        appended = self.coordinates.weight.grad[:-1, 0].double()
        if self.own is None:
            return appended
        inside, place = self.own.gradient.double() - (0 if others is None else others), self.own.place[:-1]
        return torch.where(place != NOWHERE, inside[place], appended)


def with_canaries(loss_fn: Loss, clip_norm: float) -> Loss:
    """A canary's loss is its coordinate, times its gradient; a real record's is its own."""

    def losses(output: tuple[Any, Tensor, Tensor], label: Tensor) -> Tensor:
        made, coordinate, is_canary = output
        return torch.where(is_canary > 0, PUSH * clip_norm * coordinate, loss_fn(made, label))

    return losses


class Scored:
    """Adds up, step by step, how much likelier what was released is with each canary than without it.

    With y the released sum in the canary's coordinate, in its clip norms, and s its effective noise multiplier, a
    step at rate q is N(0, s²) without the canary and (1 - q)·N(0, s²) + q·N(1, s²) with it: the logarithm of their
    ratio is log(1 - q + q·exp((2y - 1)/2s²)). By Neyman and Pearson no other score of these sums does better.
    """

    def __init__(self, plan: Plan, canaries: Canaries, model: WithCanaries) -> None:
        device = model.coordinates.weight.device

        def constant(of_level: FloatArray) -> Tensor:
            return torch.as_tensor(of_level[canaries.level], dtype=torch.float64, device=device)

        clip = plan.levels.clip_norm
        self._model, self._batch_size, self._rate = model, plan.batch_size, constant(plan.levels.rate)
        self._unit = constant(clip / plan.batch_size)
        self._variance = constant((plan.noise_multiplier * plan.clip_norm / clip) ** 2)
        self._total = torch.zeros(len(canaries), dtype=torch.float64, device=device)
        self.steps = 0
        self.others: Tensor | None = None
        """The clipped sum of the others in this step, over the model's own numbers, to be subtracted."""

    def before_step(self, *_: Any) -> None:
        """To be called as an optimizer's step begins: the released gradient is there, and nothing has used it yet."""
        others = None if self.others is None else self.others / self._batch_size
        value = self._model.released(others) / self._unit
        odds = torch.expm1(((2 * value - 1) / (2 * self._variance)).clamp(max=500.0))
        self._total += torch.log1p(self._rate * odds)
        self.steps += 1

    @property
    def scores(self) -> FloatArray:
        return np.asarray(self._total.cpu().numpy(), dtype=np.float64)

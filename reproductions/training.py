"""One training: a plan, a step length that follows from its noise, and averages of the weights that it releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from reproductions.budgets import plan_of
from reproductions.heads import Head, losses, network
from reproductions.specs import Settings


class Averages:
    """Exponential moving averages of the weights after each step: post-processing of what is released anyway.

    Early on an average forgets faster, as in De et al. (2022): min(decay, (1 + t) / (10 + t)). It is handed to
    `pp.train` as a scheduler, the one thing that is called after every step.
    """

    def __init__(self, model: nn.Module, decays: Sequence[float]) -> None:
        self._weights = [weight.detach() for weight in model.parameters()]
        self._kept = {decay: [weight.clone() for weight in self._weights] for decay in decays}
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        for decay, kept in self._kept.items():
            torch._foreach_lerp_(kept, self._weights, 1 - min(decay, self._steps / (9 + self._steps)))

    def put(self, decay: float) -> None:
        """Make the average the model's weights. Keeps the averages, not the weights."""
        for weight, average in zip(self._weights, self._kept[decay], strict=True):
            weight.copy_(average)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "kept": self._kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps, self._kept = state_dict["steps"], state_dict["kept"]


def step_length(plan: pp.Plan, settings: Settings) -> float:
    """The learning rate with which noise alone moves a weight by ``walk`` in the whole run, whatever the method.

    A step adds noise of deviation lr·σ·C/B to each weight; momentum m multiplies what it does by 1/(1−m), and T
    independent steps by √T.
    """
    noise = plan.noise_multiplier * settings.clip_norm / settings.batch_size * math.sqrt(settings.steps)
    return settings.walk * (1 - settings.momentum) / noise


def trained(
    method: str, settings: Settings, x: Tensor, y: Tensor, epsilon: np.ndarray, delta: float, seed: int
) -> tuple[Head, Averages, dict[str, Any]]:
    """A trained model with its averages, and what there is to say about its plan."""
    torch.manual_seed(seed)
    model = network(settings.network, tuple(x.shape[1:]), settings.width).to(x.device)
    averages = Averages(model, settings.decays)
    if method == "none":
        rate = settings.learning_rate
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=settings.momentum)
        _without_privacy(model, optimizer, averages, x, y, settings, seed)
        return model, averages, {"learning_rate": rate}
    sizes = {"steps": settings.steps, "batch_size": settings.batch_size, "clip_norm": settings.clip_norm}
    plan = plan_of(method, epsilon, delta, **sizes)  # type: ignore[arg-type]
    rate = step_length(plan, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=settings.momentum)
    done = pp.train(model, optimizer, TensorDataset(x, y), plan, losses, scheduler=averages, seed=seed)
    said = {
        "learning_rate": rate,
        "noise_multiplier": plan.noise_multiplier,
        "people": int((plan.rates > 0).sum()),
        "spent": sorted({round(float(each), 4) for each in plan.spent_by_level()}),
        "how": done.how,
        "seconds": done.seconds,
    }
    return model, averages, said


def _without_privacy(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Averages,
    x: Tensor,
    y: Tensor,
    settings: Settings,
    seed: int,
) -> None:
    """Shuffled batches of the same size, no clipping, no noise, no promise to anybody."""
    shuffles = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(settings.steps):
        if order.numel() < settings.batch_size:
            order = torch.randperm(len(y), generator=shuffles)
        some, order = order[: settings.batch_size].to(x.device), order[settings.batch_size :]
        optimizer.zero_grad()
        torch.autograd.backward(losses(model(x[some]), y[some]).mean())
        optimizer.step()
        averages.step()

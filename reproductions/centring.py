"""Features less what all of them have in common, which the first steps of the plan itself estimate.

A clipped gradient of a linear classifier points where its record's features do. What all features have in common is a
part of its length, and tells no class from another.

A step of a plan adds up a vector for each record, no longer than its clip norm, and adds noise: what the vectors are
changes nothing about what it costs, and a later one may follow from earlier releases. So the first steps of a plan
add up features, the others gradients, and all of them together cost what the plan says.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.errors import InvalidInput
from privypurse.plans.promise import Promise
from reproductions.choice import LEAST_CENTRED

_SHARE = 40  # one step in so many
_OTHER_SEED = 1_000_000_007  # coins and noise of these steps are not those of the steps that follow


class Centred(nn.Module):
    """A network on features of length √width, each less the centre: of a record by itself, once that is fixed."""

    centre: Tensor

    def __init__(self, centre: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.network = network

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.network(F.normalize(features - self.centre) * features.shape[-1] ** 0.5)
        return out


def parts(plan: pp.Plan) -> tuple[pp.Plan, pp.Plan]:
    """The steps of a plan that estimate the centre, and those that are left: they keep what it promises together."""
    if plan.promise not in (Promise.DATA, Promise.PRESENCE):
        raise InvalidInput(f"the plan's promise is {plan.promise.value!r}; its parts are sound if the whole is")
    if plan.shape.extra_steps or plan.ledger is not None:
        raise InvalidInput(
            "a plan with extra_steps or under a ledger cannot be taken apart: its filter sees all steps"
        )
    if plan.steps < LEAST_CENTRED:
        raise InvalidInput(f"steps is {plan.steps}; give {LEAST_CENTRED} or more, one of them for the centre")
    plan.require_kept()
    first = max(1, plan.steps // _SHARE)
    return _part(plan, first), _part(plan, plan.steps - first)


def centre(features: Tensor, first: pp.Plan | None, seed: int) -> Tensor:
    """The mean of features [n, width] of length 1 by a plan's first steps, as people weigh in it; exact without one.

    Each record gives its features and a one, which add up to the sum and to the weight that it has to be divided by.
    A mean of vectors of length 1 is no longer than that, so noise does not make this one longer.
    """
    if first is None:
        return features.mean(dim=0)
    both = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    sums = nn.Linear(1, both.shape[1], bias=False).to(features.device)
    nn.init.zeros_(sums.weight)
    optimizer = torch.optim.SGD(sums.parameters(), lr=1.0)
    dataset = TensorDataset(both[:, -1:], both)
    pp.train(sums, optimizer, dataset, first, lambda out, given: -(out * given).sum(dim=1), seed=seed + _OTHER_SEED)
    total = sums.weight.detach()[:, 0]
    if total[-1] <= 0:  # noise alone: nothing is known
        return torch.zeros_like(total[:-1])
    found = total[:-1] / total[-1]
    within: Tensor = found / found.norm().clamp(min=1.0)
    return within


def _part(plan: pp.Plan, steps: int) -> pp.Plan:
    """So many of a plan's steps, as they are. What they promise, they promise together with the others."""
    return replace(plan, shape=replace(plan.shape, steps=steps), promise=Promise.PART)

"""The networks behind the estimators: linear (logistic) regression, and fully connected layers."""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privypurse._validate import integer
from privypurse.errors import InvalidInput


def network(inputs: int, hidden: Any, outputs: int, seed: int | None) -> nn.Module:
    """Linear where nothing is hidden, beginning at zero; else layers with ReLU between them, as torch makes them.

    Nothing here follows from data. torch's own generator stays as it was.
    """
    if isinstance(hidden, str) or not hasattr(hidden, "__iter__"):
        raise InvalidInput(f"hidden is {hidden!r}; give the widths of hidden layers, as in (64,), or () for none")
    widths = [integer(width, "each width of hidden") for width in hidden]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        last = nn.Linear(inputs, outputs)
    if not widths:
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(*layers, last)


def weights(net: nn.Module) -> int:
    """How many numbers it trains."""
    return sum(parameter.numel() for parameter in net.parameters())


def two_classes(output: Tensor, label: Tensor) -> Tensor:
    """One logit for the second class; one loss for each record, as all of these."""
    return F.binary_cross_entropy_with_logits(output[:, 0], label, reduction="none")


def several_classes(output: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(output, label, reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output[:, 0], target, reduction="none")

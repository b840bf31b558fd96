"""Averages of the weights over steps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Averages:
    """Exponential moving averages of the weights after each step: post-processing of what is released anyway.

    Early on an average forgets faster, as in De et al. (2022): min(decay, (1 + t) / (10 + t)). It is handed to
    `pp.train` as a scheduler, the one thing that is called after every step.
    """

    def __init__(self, model: nn.Module, decays: Sequence[float]) -> None:
        self._weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]
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

"""What a run works with and never changes: plan, model, parameters, device, processes, source of randomness."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from privypurse._validate import integer
from privypurse.errors import InvalidInput, PrivyPurseWarning, Unsupported
from privypurse.plans import Plan
from privypurse.randomness import randomness
from privypurse.training.distributed import Processes
from privypurse.training.gradients import Recorder
from privypurse.training.grid_noise import GridNoise
from privypurse.training.step_randomness import Keys


class Setup:
    """The plan and the model it trains, the same in all processes."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int | None = None,
        views: int = 1,
    ) -> None:
        self.plan, self.recorder, self.processes = plan, Recorder(model), Processes.found()
        self.source = randomness(seed)
        self.keys = Keys(self.source, self.processes.rank)
        self.recorder.key, self.recorder.views = self.keys.next, integer(views, "views")
        self.parameters = _held(self.recorder, optimizer)
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) > 1:
            raise InvalidInput(f"the model lies on several devices ({', '.join(map(str, devices))}); put it on one")
        self.device = devices.pop()
        self.processes.agree((*model.parameters(), *model.buffers()))
        size = sum(parameter.numel() for parameter in self.parameters.values())
        self.noise = GridNoise(plan.noise_multiplier * plan.clip_norm, size)
        self.clip_norms = torch.as_tensor(np.append(plan.levels.clip_norm[plan.level_of], 0.0), device=self.device)
        """Of every unit, and behind them a 0 for what is nobody's."""


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[nn.Module]:
    """Afterwards each layer is in the mode that it was in: one may have been put into evaluation mode by itself."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training


def _held(recorder: Recorder, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer trains, by name."""
    if not hasattr(optimizer, "param_groups"):
        raise InvalidInput(
            f"optimizer is a {type(optimizer).__name__}; give one optimizer of torch: a step has one noisy gradient. "
            'For parts with a learning rate of their own give it groups: AdamW([{"params": …, "lr": …}, …])'
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(
            f"optimizer is a {type(optimizer).__name__}, which runs the model several times for one step, and each "
            "time would be a release of its own; use one that takes a step from one gradient, such as SGD or Adam"
        )
    meta = [name for name, value in recorder.model.named_parameters() if value.is_meta]
    if meta:
        raise Unsupported(
            f"{meta[0]} lies on the meta device and has no values; put the model on a real one first: "
            'model.to_empty(device="cpu") and its own initialisation, or load it without device="meta"'
        )
    if not recorder.layers:
        raise InvalidInput("the model has no trainable parameters")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: value for name, value in recorder.trainable.items() if id(value) in held}
    strangers = len(held) - len(parameters)
    if strangers > 0:
        raise InvalidInput(
            f"the optimizer holds {strangers} parameters that are frozen or not the model's; make it anew from "
            "[p for p in model.parameters() if p.requires_grad]"
        )
    _warn_of_missing([name for name in recorder.trainable if name not in parameters])
    return parameters


def _warn_of_missing(names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{', '.join(names[:3])}{more} can be trained, but the optimizer does not hold them: they will never "
            "move, and yet their gradients count in what is clipped. Give them to the optimizer, or freeze them: "
            "requires_grad_(False)",
            PrivyPurseWarning,
            stacklevel=5,
        )

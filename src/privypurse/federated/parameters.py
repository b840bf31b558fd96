"""A model's parameters as they travel between server and clients: float32 arrays by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

State = dict[str, AnyArray]
"""The parameters of a model."""
Update = dict[str, AnyArray]
"""What a round of training changed them by."""


def state_of(model: nn.Module) -> State:
    """The parameters of this model."""
    return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in model.named_parameters()}


def put(state: Mapping[str, AnyArray], model: nn.Module) -> State:
    """Put the parameters into the model; give them as float32. Parameters of another model change nothing."""
    if not isinstance(state, Mapping):
        raise InvalidInput(f"the server's parameters are a {type(state).__name__}, not arrays by name")
    parameters = dict(model.named_parameters())
    if set(parameters) != set(state):
        strange = sorted(set(parameters) ^ set(state))[0]
        raise InvalidInput(f"the server's model is another: {strange!r} is on one side only")
    given = {name: _checked(name, state[name], tuple(parameter.shape)) for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.as_tensor(given[name].copy(), device=parameter.device))
    return given


def _checked(name: str, value: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise InvalidInput(f"the server's {name!r} holds no numbers; nothing was done") from None
    if array.shape != shape:
        raise InvalidInput(f"the server's {name!r} has shape {array.shape}, here it is {shape}; nothing was done")
    if not np.isfinite(array).all():
        raise InvalidInput(f"the server's {name!r} is not finite; nothing was done")
    return array

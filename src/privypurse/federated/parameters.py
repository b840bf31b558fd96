"""A model's parameters as they travel between server and clients: float32 arrays by name.

Frozen ones stay where they are: everybody has the public model that is fine-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

State = dict[str, AnyArray]
"""The parameters of a model that are trained."""
Update = dict[str, AnyArray]
"""What a round of training changed them by."""


def trained_in(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def state_of(model: nn.Module) -> State:
    """The parameters of this model that are trained."""
    return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in trained_in(model).items()}


def put(state: Mapping[str, AnyArray], parameters: Mapping[str, nn.Parameter]) -> State:
    """Put the server's parameters into a model's; give them as float32. Those of another model change nothing."""
    try:
        given = {name: np.asarray(value, dtype=np.float32) for name, value in state.items()}
    except (AttributeError, TypeError, ValueError):
        raise InvalidInput("the server's parameters are not arrays of numbers by name; nothing was done") from None
    if reason := mismatch(given, {name: tuple(parameter.shape) for name, parameter in parameters.items()}):
        raise InvalidInput(f"the server's parameters do not fit: {reason}; nothing was done")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.as_tensor(given[name].copy(), device=parameter.device))
    return given


def mismatch(given: Mapping[str, AnyArray], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Why these arrays are none for a model with such parameters; nothing where they are."""
    if set(given) != set(shapes):
        return f"another model: {sorted(set(given) ^ set(shapes))[0]!r} is on one side only, or frozen on the other"
    for name, value in given.items():
        array = np.asarray(value)
        if array.shape != shapes[name]:
            return f"{name!r} has shape {array.shape}, not {shapes[name]}"
        if array.dtype.kind != "f":
            return f"{name!r} is {array.dtype}, no fraction"
        if not np.isfinite(array).all():
            return f"{name!r} is not finite"
    return ""

"""A model's parameters as they travel between server and clients: float32 arrays by name.

Frozen ones stay where they are: everybody has the public model that is fine-tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def new_model_of(new_model: Callable[[], nn.Module]) -> nn.Module:
    """A new model, if there is something to train in it and its frozen parameters are no matter of chance."""
    model = new_model()
    trained = trained_in(model)
    if not trained:
        raise InvalidInput("every parameter of the model is frozen; there is nothing to train")
    frozen = {name: value for name, value in model.named_parameters() if name not in trained}
    again = dict(new_model().named_parameters()) if frozen else {}
    for name, value in frozen.items():
        if name not in again or not torch.equal(value, again[name]):
            raise InvalidInput(
                f"new_model() gives another {name!r} each time, which is frozen; frozen parameters do not travel: "
                "load them from a file that everybody has"
            )
    return model


def put(state: Mapping[str, AnyArray], model: nn.Module) -> State:
    """Put the server's parameters into the model; give them as float32. Those of another model change nothing."""
    parameters = trained_in(model)
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
        return f"another model: {sorted(set(given) ^ set(shapes))[0]!r} is on one side only"
    for name, value in given.items():
        array = np.asarray(value)
        if array.shape != shapes[name]:
            return f"{name!r} has shape {array.shape}, not {shapes[name]}"
        if array.dtype.kind != "f":
            return f"{name!r} is {array.dtype}, no fraction"
        if not np.isfinite(array).all():
            return f"{name!r} is not finite"
    return ""

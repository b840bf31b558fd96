"""The networks and optimizers that a configuration can name."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privypurse.errors import InvalidInput
from privypurse.runs.config import Model, Optimizer
from privypurse.runs.sections import unknown

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class TramerBoneh(nn.Module):
    """The convolutional network of Tramèr & Boneh (2021) for MNIST, 26,010 parameters there, tanh throughout."""

    def __init__(self, classes: int = 10, shape: Sequence[int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, *sides = shape
        left = math.prod(((side - 4) // 2 - 4) // 2 for side in sides)
        self.first = nn.Conv2d(channels, 16, 8, stride=2, padding=2)
        self.second = nn.Conv2d(16, 32, 4, stride=2)
        self.third = nn.Linear(32 * left, 32)
        self.last = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.first(x)), 2, 1)
        x = F.max_pool2d(torch.tanh(self.second(x)), 2, 1)
        out: Tensor = self.last(torch.tanh(self.third(x.flatten(1))))
        return out


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,), activation: str = "relu") -> nn.Module:
    """Fully connected layers over everything that a record has."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for each in hidden:
        layers += [nn.Linear(width, each), _ACTIVATIONS[activation]()]
        width = each
    return nn.Sequential(*layers, nn.Linear(width, classes))


def model_of(config: Model, shape: Sequence[int], classes: int) -> nn.Module:
    """The network of a configuration, tried on zeros so that a wrong shape shows before anybody's data is touched.

    A "module:callable" is imported, from the working directory too, and called: that executes its code.
    """
    if config.kind == "mlp":
        return mlp(shape, classes, config.hidden, config.activation)
    if config.kind == "cnn":
        return TramerBoneh(classes, shape)
    try:
        model = _imported(config.kind)(**config.options)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"[model] {config.kind} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"[model] {config.kind} gave a {type(model).__name__}; it must give a torch.nn.Module")
    _try(model, config.kind, shape, classes)
    return model


def _imported(kind: str) -> Callable[..., Any]:
    module_name, _, name = kind.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python -m` would look, too
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it needs is not
        raise InvalidInput(
            f"[model] kind {kind!r}: there is no module {error.name}; write it into {error.name.split('.')[0]}.py in "
            "this folder, or install it"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidInput(f"[model] kind {kind!r}: {module_name} has no function or class {name!r}")
    return found  # type: ignore[no-any-return]


def _try(model: nn.Module, kind: str, shape: Sequence[int], classes: int) -> None:
    before = model.training
    wanted = f"float32[n, {', '.join(map(str, shape))}] in, one of {classes} classes out"
    try:
        with torch.no_grad():
            out = model.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise InvalidInput(f"[model] {kind} does not take the data ({wanted}): {error}") from error
    model.train(before)
    if not isinstance(out, torch.Tensor) or out.shape != (2, classes):
        said = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InvalidInput(f"[model] {kind} gives {said} for two records; it must give (2, {classes}): {wanted}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def optimizer_of(config: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """A class of torch.optim over the model's trainable parameters; what torch does not know is an error."""
    known = {
        name: found
        for name, found in vars(torch.optim).items()
        # LBFGS runs the model several times in a step; each would be a release of its own.
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and name not in ("Optimizer", "LBFGS")
    }
    if config.name not in known:
        raise unknown("[optimizer] name: there is no", config.name, known)
    arguments = inspect.signature(known[config.name]).parameters
    for name, given in config.options.items():
        if name not in arguments or name == "params":
            raise unknown(f"[optimizer] {config.name} has no argument", name, [*arguments][1:])
        if _is_number(arguments[name].default) and not _is_number(given):
            raise InvalidInput(f"[optimizer] {name} is {given!r}; {config.name} takes a number there, as in 0.1")
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        return known[config.name](trainable, **config.options)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"[optimizer] {config.name} does not take these arguments: {error}") from None

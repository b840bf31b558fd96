"""The optimizer that a configuration names: any class of torch.optim."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from privypurse.errors import InvalidInput
from privypurse.runs.config import Optimizer
from privypurse.runs.sections import unknown


def optimizer_of(config: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """It, over the model's trainable parameters; names and arguments that torch does not know are errors."""
    known = {
        name: found
        for name, found in vars(torch.optim).items()
        # LBFGS runs the model several times in a step; each would be a release of its own.
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and name not in ("Optimizer", "LBFGS")
    }
    if config.name not in known:
        raise unknown("[optimizer] name: there is no", config.name, known)
    arguments = [name for name in inspect.signature(known[config.name]).parameters if name != "params"]
    for name in config.options:
        if name not in arguments:
            raise unknown(f"[optimizer] {config.name} has no argument", name, arguments)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        return known[config.name](trainable, **config.options)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"[optimizer] {config.name} does not take these arguments: {error}") from None

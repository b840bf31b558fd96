"""torch.compile inside of a model: while layers are watched it runs as it is written.

A compiled part may be one that was made before its layers had hooks. What is compiled stays so wherever nothing is
watched: in evaluation, and in the loss.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


class AsWritten:
    """Called, it gives the context in which nothing of the model is compiled."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        kinds = {kind for module in self._modules for kind in type(module).__mro__}
        held = (value for owner in (*self._modules, *kinds) for value in vars(owner).values() if callable(value))
        self._known = any("_orig_mod" in module._modules for module in self._modules)  # torch.compile(layer)
        self._known |= any(hasattr(value, "_torchdynamo_orig_callable") for value in held)  # a function or method

    def __call__(self) -> AbstractContextManager[Any]:
        compiled = self._known or any(module._compiled_call_impl is not None for module in self._modules)
        return torch.compiler.set_stance("force_eager") if compiled else nullcontext()

"""What others did to a model, undone while its layers are watched: it runs as it is written.

A part that torch.compile made may be one that was made before its layers had hooks. What is compiled stays so where
nothing is watched: in evaluation, and in the loss. Hooks that force gradients: `forced_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from privypurse.training.gradients.forced_gradients import without_forced_gradients


class AsWritten:
    """Called, it gives the context in which nothing of the model is compiled, and nothing forced on it."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        kinds = {kind for module in self._modules for kind in type(module).__mro__}
        held = (value for owner in (*self._modules, *kinds) for value in vars(owner).values() if callable(value))
        self._known = any("_orig_mod" in module._modules for module in self._modules)  # torch.compile(layer)
        self._known |= any(hasattr(value, "_torchdynamo_orig_callable") for value in held)  # a function or method

    @contextmanager
    def __call__(self) -> Iterator[None]:
        compiled = self._known or any(module._compiled_call_impl is not None for module in self._modules)
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with eager, without_forced_gradients(self._modules):
            yield

"""Hooks by which Hugging Face has outputs of frozen embeddings ask for gradients, taken off while layers are watched.

`gradient_checkpointing_enable()` puts them on, for checkpointing with use_reentrant=True. Here taps bring gradients
back without them, and a tensor that asks for gradients by itself looks like one that is trained past the mechanism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

_NAMES = ("make_inputs_require_grads", "make_inputs_require_grad")  # in transformers and in peft


@contextmanager
def without_forced_gradients(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside these modules have none of those hooks; afterwards all are where they were."""
    found = []
    for hooks in (module._forward_hooks for module in modules if module._forward_hooks):
        forced = [key for key, hook in hooks.items() if getattr(hook, "__name__", "") in _NAMES]
        if forced:
            found.append((hooks, dict(hooks)))
            for key in forced:
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in found:
            since = {key: hook for key, hook in hooks.items() if key not in before}
            hooks.clear()
            hooks.update(before | since)

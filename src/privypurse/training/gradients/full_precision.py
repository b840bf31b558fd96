"""Products of float32 as float32, whatever the user's model runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, no TensorFloat-32 and no bfloat16 inside of products.

    A norm that is a little too small would let a record past its clip norm by more than the margin (rule 12).
    """
    backends: Any = torch.backends
    with ExitStack() as stack:
        try:
            before = torch.get_float32_matmul_precision()
            stack.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision("highest")
        except RuntimeError:  # the user has set it kind by kind, which torch 2.9 brought
            _set(stack, backends.cuda.matmul, "fp32_precision", "ieee")
            _set(stack, backends.mkldnn.matmul, "fp32_precision", "ieee")
        if hasattr(backends.cudnn, "conv"):
            _set(stack, backends.cudnn.conv, "fp32_precision", "ieee")
            _set(stack, backends.mkldnn.conv, "fp32_precision", "ieee")
        else:
            _set(stack, backends.cudnn, "allow_tf32", False)
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


def _set(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set it until the stack is left."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)

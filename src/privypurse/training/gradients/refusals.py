"""Ways to run a layer in which nobody's gradient could be told: refused while it is watched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.training.gradients.layout import COUNT_RECORDS
from privypurse.training.gradients.rule import Call
from privypurse.training.isolation.graph import nodes


def refuse_replaced(module: nn.Module) -> None:
    """Raise for a layer that is run in parts and has a forward of its own, which these would not be."""
    if "forward" in module.__dict__:
        raise InvalidInput(
            f"the forward of a {type(module).__name__} was replaced on the object itself, which its rule would pass "
            "by; make it a subclass, which is handled as any layer"
        )


def require_records(call: Call) -> None:
    """Raise for a layer in which records were not found, once a gradient comes back to it."""
    if call.layout.complaint is not None:
        raise InvalidInput(
            f"layer {call.path} ({type(call.module).__name__}) {call.layout.complaint}: {COUNT_RECORDS}"
        )


def require_tensors(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise for what is given, or comes out, in a form that has no row for each record."""
    if any(isinstance(value, nn.utils.rnn.PackedSequence) for value in inputs):
        raise InvalidInput(
            f"a {type(module).__name__} was given a PackedSequence, whose rows are of several records at once; give "
            "it the padded tensor, pick each record's last place from the output with gather, and mask the loss"
        )
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor):
        raise InvalidInput(
            f"{type(module).__name__} has parameters of its own and gives a {type(first).__name__}; a layer that is "
            "trained gives a tensor, or a tuple that begins with one: put the parameters into a module of their own"
        )


class NoWayBack(torch.autograd.Function):
    """The identity, for outputs of a layer that are not watched."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise InvalidInput(
            "a gradient comes back through the second output of a layer (the weights of an attention), which layer "
            "rules do not follow; use the first output"
        )


def goes_back(output: Tensor) -> bool:
    """Whether a gradient may come back from here through every layer behind it."""
    return not any(isinstance(node, NoWayBack._backward_cls) for node in nodes([output]))

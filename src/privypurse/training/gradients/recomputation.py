"""Gradient checkpointing: parts of a forward pass that run again in the backward pass.

`torch.utils.checkpoint` forgets what autograd saves inside of a part, and runs the part again when the backward pass
comes to it: what is saved then, in the same order, takes the place of what was forgotten. So a tap inside of such a
part hands its layer's inputs to autograd instead of keeping them (`tape._Tap`), and they are forgotten and filled in
like all else. What runs again has to save the same: its layers are tapped once more, with calls that are on no tape,
and their parameters ask for no gradient. Random numbers are the same too, as checkpoint puts the generators back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from privypurse.errors import InvalidInput
from privypurse.training.forms import mapped
from privypurse.training.gradients.rule import Call

REENTRANT = (
    "gradient checkpointing with use_reentrant=True makes a backward pass of its own, inside of which gradients are "
    "neither clipped nor noisy. Give use_reentrant=False: torch.utils.checkpoint.checkpoint(…, use_reentrant=False), "
    "or a Hugging Face model's own method without use_reentrant"
)

_top: Callable[[bool], Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


_LENT = object()


def saved_by_others() -> bool:
    """Whether what autograd saves now goes through somebody's hands: checkpointing, or offloading.

    Where torch does not tell, it counts as if it did, which only costs time; but not inside of `torch.func`, as where
    a rule runs a layer for each record.
    """
    return torch._C._functorch.peek_interpreter_stack() is None if _top is None else _top(False) is not None


def lend_inputs(ctx: Any, call: Call) -> None:
    """Hand the call's inputs to autograd, if what it saves goes through somebody's hands."""
    ctx.form = None
    if saved_by_others():
        call.lent = True
        given, ctx.form = tree_flatten(call.inputs)
        ctx.given = [_LENT if isinstance(value, Tensor) else value for value in given]
        ctx.save_for_backward(*(value for value in given if isinstance(value, Tensor)))
        call.inputs = ()


def lent(calls: Iterable[Call]) -> bool:
    """Whether inputs of some call were handed to autograd."""
    return any(call.lent for call in calls)


def take_inputs_back(ctx: Any, call: Call) -> None:
    """In the backward pass: what was forgotten is there again."""
    if ctx.form is not None and ctx.given:  # else they have come another way
        saved = iter(ctx.saved_tensors)
        given = [next(saved) if value is _LENT else value for value in ctx.given]
        call.inputs = tree_unflatten(given, ctx.form)


def refuse_reentrant() -> None:
    """Raise for a layer that runs now in a part which would be run again with a backward pass of its own."""
    frame: Any = None if torch.is_grad_enabled() else sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            raise InvalidInput(REENTRANT)
        frame = frame.f_back


def refuse_around_model() -> None:
    """Raise if the whole model is what would run again, or does: its second run would be a pass of its own."""
    hooks = _top and _top(False)
    if torch._C._current_graph_task_id() != -1 or (hooks and hooks[0].__module__ == CheckpointFunction.__module__):
        raise InvalidInput(
            "gradient checkpointing stands around the whole model that make_private gave back; use it inside of the "
            "model, on its blocks: that is what saves memory"
        )


def no_gradient_comes() -> bool:
    """For calls of what runs again, which no gradient reaches."""
    raise InvalidInput(REENTRANT)


class Recomputation:
    """While a backward pass is under way, whatever runs again does as it did when it was recorded."""

    def __init__(self, install: Callable[[ExitStack, int], None]) -> None:
        """``install`` has what runs watched, of so many records, and leaves the undoing with the stack."""
        self._install, self._undo, self._task = install, ExitStack(), -1

    def expect(self, output: Any, records: int) -> None:
        """Parts of the forward pass that gave this output will run again when gradients come back to it."""

        def begin(_: Tensor) -> None:
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self.end()
                self._task = task
                torch.autograd.Variable._execution_engine.queue_callback(self.end)
                self._install(self._undo, records)

        def tell(value: Tensor) -> Tensor:
            if value.requires_grad:
                value.register_hook(begin)  # type: ignore[no-untyped-call]
            return value

        mapped(tell, output)

    def end(self) -> None:
        """The backward pass is over, or broke off."""
        self._task = -1
        self._undo.close()


Hook = Callable[..., Any]


def watch_again(undo: ExitStack, layer: nn.Module, parameters: list[nn.Parameter], hook: Hook) -> None:
    """When the layer runs again it is tapped by the hook, and these parameters ask for no gradient until it ends.

    What runs in a backward pass for other reasons, as where a rule runs a layer for each record, goes on as it is.
    """

    def ask(asked: bool) -> None:
        for parameter in parameters:
            parameter.requires_grad = asked

    def before(*_: Any) -> None:
        ask(not saved_by_others())

    def after(*_: Any) -> None:
        ask(True)

    def tap(*given: Any) -> Any:
        return hook(*given) if saved_by_others() else None

    undo.enter_context(layer.register_forward_pre_hook(before))
    # Checkpointing stops a part by an exception once it has all that it needs.
    undo.enter_context(layer.register_forward_hook(after, always_call=True))
    undo.enter_context(layer.register_forward_hook(tap, prepend=True, with_kwargs=True))

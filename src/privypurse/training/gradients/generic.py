"""Any other layer: its per-example gradients through torch.func, one vectorised call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from privypurse.errors import InvalidInput
from privypurse.training.gradients.forced_gradients import without_forced_gradients
from privypurse.training.gradients.layout import Constant
from privypurse.training.gradients.numerics import at_least_float32
from privypurse.training.gradients.rule import RULES, Call, Rule

_RECURRENT = {
    *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
    *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell),
}


_CANNOT = {
    "saved tensor hooks": "uses gradient checkpointing inside",
    "_NoopSaveInputs": "uses gradient checkpointing inside",
    "called random operation": "draws random numbers inside",
    "setup_context": "uses an autograd.Function of its own that torch.func cannot take",
    "vmap support": "uses an autograd.Function of its own that torch.func cannot take",
}
"""What torch.func says of a layer that cannot be run for each record, and why that is."""


class GenericRule(Rule):
    """Runs the layer again for each record alone, vectorised, and pulls the output's gradient back.

    For layers that no rule knows, with all that is inside of them. The layer must treat the first dimension of its
    tensor inputs as records, and must not draw random numbers: a second draw would not be the first, and the layer
    would be clipped by another gradient's norm.
    """

    whole_module = True
    takes_all_apart = True
    records_anywhere = True
    features = 1

    def per_record(self, call: Call) -> dict[str, Tensor]:
        layer = call.module
        parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
        trained = {name: at_least_float32(parameters[name]) for name in call.names}
        buffers = dict(layer.named_buffers())
        given, form = tree_flatten((call.inputs, call.options))
        batched = [value for value in given if isinstance(value, Tensor)]
        _refuse_shared_tensors(call, batched)
        dim = call.layout.dim  # where the layer looks for records

        def pulled_back(trained: dict[str, Tensor], back: tuple[Tensor, ...], *mine: Tensor) -> Tensor:
            tensors = iter(mine)
            leaves = [next(tensors).unsqueeze(dim) if isinstance(value, Tensor) else value for value in given]
            leaves = [leaf.value if isinstance(leaf, Constant) else leaf for leaf in leaves]
            inputs, options = tree_unflatten(leaves, form)
            with _OwnStates(), without_forced_gradients(layer.modules()):
                output: Any = torch.func.functional_call(layer, {**parameters, **trained, **buffers}, inputs, options)
            several = output if isinstance(output, tuple) else (output,)
            parts = [(one * theirs.unsqueeze(dim)).sum() for one, theirs in zip(several, back, strict=False)]
            return torch.stack(parts).sum()

        gradient = torch.func.grad(pulled_back)
        each = torch.func.vmap(gradient, in_dims=(None, 0, *[0] * len(batched)))
        back = tuple(map(at_least_float32, (call.output_gradient, *call.other_output_gradients)))
        inputs = [at_least_float32(value) if value.is_floating_point() else value for value in batched]
        try:
            return dict(each(trained, back, *inputs))
        except RuntimeError as error:
            why = next((why for word, why in _CANNOT.items() if word in str(error)), None)
            if why is None:
                raise
            raise InvalidInput(
                f"layer {call.path} ({type(layer).__name__}), which no rule knows, {why}, and cannot be run again "
                "for each record. Turn that off there, or put its bare parameters into modules of their own "
                "(docs/own-layers.md shows how to write a rule)"
            ) from error


def _refuse_shared_tensors(call: Call, batched: list[Tensor]) -> None:
    """Each record runs alone; a tensor that cannot be taken apart by records would bring the others in."""
    records = call.output_gradient.shape[0]
    shared = [value for value in batched if value.shape[:1] != (records,)]
    if shared:
        raise InvalidInput(
            f"layer {call.path} ({type(call.module).__name__}) was given a tensor of shape "
            f"{tuple(shared[0].shape)}, which has no entry for each of the {records} records. No rule knows this "
            "layer (docs/own-layers.md shows how to write one): give it tensors with records first, or register "
            "them as buffers (and leave out the initial state of an RNN: it is zero anyway)"
        )


def require_no_draws(layer: nn.Module, name: str) -> None:
    """Raise for a layer that draws random numbers, which cannot be run again one record at a time."""
    drawing = draws_inside(layer)
    if drawing is None:
        return
    inner_name, inner, rate = drawing
    where = ".".join(part for part in (name, inner_name) if part) or "model"
    attends = any(isinstance(each, nn.MultiheadAttention) for each in layer.modules())
    bare = any(parameter.requires_grad for parameter in layer.parameters(recurse=False)) and inner is not layer
    raise InvalidInput(
        f"layer {where} ({type(inner).__name__}) draws random numbers (dropout {rate}) inside "
        f"{type(layer).__name__}, which no rule knows (see docs/own-layers.md); set its dropout to 0, or split it "
        f"into layers that have rules ({', '.join(sorted(kind.__name__ for kind in RULES))})."
        + (" privypurse.fix(model) does so for MultiheadAttention." if attends else "")
        + (" A bare nn.Parameter beside such layers needs a leading dimension of 1: (1, …)." if bare else "")
    )


def draws_inside(layer: nn.Module) -> tuple[str, nn.Module, float] | None:
    """The first layer inside that draws random numbers, its name and its rate of dropout."""
    for name, inner in layer.named_modules():
        rate = inner.p if isinstance(inner, nn.modules.dropout._DropoutNd) else getattr(inner, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            return name, inner, rate
    return None


class _OwnStates(TorchFunctionMode):
    """Recurrent layers begin with a state for each record: torch writes into it in place, so it has to be one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RECURRENT:
            own = torch.zeros_like(args[0]).flatten()[0]
            args = (args[0], tree_map(lambda state: state + own, args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


GENERIC = GenericRule()

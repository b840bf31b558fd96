"""The only way over the record dimension, and the gates before the model that know it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from privypurse.errors import InvalidInput
from privypurse.training.isolation.graph import nodes
from privypurse.training.isolation.tracking.states import Drawn, Places, Rows, State, Total

HINT = (
    "Give one loss for each record and call optimizer.backward(losses), or take .mean() over them: "
    "the mean or sum over records by a public number is the only crossing (records must not mix; see "
    "docs/soundness.md#isolation)"
)


class Crossing(torch.autograd.Function):
    """Σ over records. A mean is shown as one; what comes back is the gradient of each record's own loss.

    So no gradient is scaled by how many were drawn; the optimizer's step divides by the public batch size (rule 2).
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, divisor: int, kind: str, drawn: Drawn) -> Tensor:
        ctx.shape, ctx.kind, ctx.drawn = losses.shape, kind, drawn
        return losses.sum(dim=0) / max(divisor, 1) if kind == "mean" else losses.sum(dim=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.kind != ctx.drawn.reduction:
            raise InvalidInput(
                f'this loss is a {ctx.kind} over records, but make_private was told loss_reduction="'
                f'{ctx.drawn.reduction}", so gradients would be scaled by how many were drawn. Take '
                f".{ctx.drawn.reduction}() over one loss for each record, or call optimizer.backward(losses). "
                f'(loss_reduction="{ctx.kind}" fits if the loss is meant as a {ctx.kind}; never divide it by '
                "len(batch) or by a count read off the batch: then who was drawn decides about everybody's gradient)"
            )
        ctx.drawn.crossed = True
        torch.autograd.Variable._execution_engine.queue_callback(ctx.drawn.close)
        return gradient.expand(ctx.shape), None, None, None


class Gate(torch.autograd.Function):
    """The identity, behind the model. Only what comes back from a crossing goes through."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, drawn: Drawn, passed: list[int], number: int) -> Tensor:
        ctx.drawn, ctx.passed, ctx.number = drawn, passed, number
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if not ctx.drawn.crossed:
            raise InvalidInput(f"a gradient came back to the model that is not of a loss over records. {HINT}")
        ctx.passed.append(ctx.number)
        return gradient, None, None, None


_OURS = (Crossing._backward_cls, Gate._backward_cls)


@dataclass(frozen=True, eq=False)
class Known:
    """A result, and what its rows are: one state for all of its tensors, or one for each; None for a constant."""

    value: Any
    state: State | tuple[State, ...] | None


def over_records(losses: Tensor, places: Places, kind: str) -> Known:
    """The total of one loss (or several) for each record of ``places``."""
    _require_own_graph(losses)
    divisor = places.records if places.regular else int((places.counts() > 0).sum())
    total = Crossing.apply(losses, divisor, kind, places.drawn)  # type: ignore[no-untyped-call]
    return Known(total, Total(places.drawn, kind))


def per_record(values: Tensor, state: Rows, dims: tuple[int, ...], kind: str) -> Tensor:
    """A record's own sum or mean: of its rows, and over these other dimensions."""
    order = (state.dim, *dims)
    rest = [dim for dim in range(values.dim()) if dim not in order]
    inner = math.prod(values.shape[dim] for dim in dims)
    rows = values.permute(*order, *rest).reshape(values.shape[state.dim], inner, *(values.shape[d] for d in rest))
    added = by_record(rows.sum(dim=1), state.places)
    if kind == "sum":
        return added
    return added / (inner * own_counts(state.places, added))


def by_record(rows: Tensor, places: Places) -> Tensor:
    """The sum of each record's own rows."""
    if places.regular:
        return rows if places.each == 1 else rows.reshape(places.records, places.each, *rows.shape[1:]).sum(dim=1)
    owner = torch.as_tensor(places.rows(), device=rows.device)
    return rows.new_zeros((places.records, *rows.shape[1:])).index_add(0, owner, rows)


def own_counts(places: Places, like: Tensor) -> Tensor | int:
    """How many rows each record has, to divide by."""
    if places.regular:
        return places.each
    counts = torch.as_tensor(places.counts().clip(1), device=like.device, dtype=like.dtype)
    return counts.view(-1, *[1] * (like.dim() - 1))


def _require_own_graph(losses: Tensor) -> None:
    """Raise if the losses hang on a parameter outside of the model, or on a backward pass that nobody knows."""
    for node in nodes([losses], until=_OURS):
        name = node.name()
        if isinstance(node, BackwardCFunction):
            raise InvalidInput(
                f"the loss goes through an autograd.Function of its own ({name}), and whether its backward "
                "pass keeps records apart cannot be seen; write it in torch's operations, or put it into the model"
            )
        if name == "torch::autograd::AccumulateGrad":
            raise InvalidInput(FOREIGN)


FOREIGN = (
    "a tensor that requires gradients and is not the model's goes into the loss: its gradient would be neither "
    "clipped nor noisy. Use the model that make_private gave back, in training mode (model.train(): from_pretrained "
    "gives models in evaluation mode); put a head or a learned weight outside of it into the model and its optimizer "
    "before make_private; for a penalty on parameters use the optimizer's weight_decay"
)

"""Rules for what computes: entry by entry, and over dimensions that are not the records'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, Propagation, require_constant
from privypurse.training.isolation.tracking.record_sum import Known, over_records, per_record
from privypurse.training.isolation.tracking.states import Rows, plain, state_of


def _broadcast(values: list[Tensor]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*(value.shape for value in values)))  # type: ignore[no-untyped-call]


def aligned(op: Operation, operands: list[Tensor]) -> Rows:
    """The record dimension of operands that are broadcast together, if it is the same in all of them."""
    shape = _broadcast(operands)
    places = op.one_place()
    found = {len(shape) - value.dim() + state.dim for value, state in op.rows()}
    if len(found) > 1:
        raise op.refusal(
            f"broadcasts shapes {', '.join(str(tuple(value.shape)) for value in operands)}, which pairs records with "
            "each other's labels (give both the same shape)"
        )
    (dim,) = found
    if shape[dim] != places.size:
        raise op.refusal("spreads one record's values over several rows")
    for value in operands:
        at = dim - (len(shape) - value.dim())
        if state_of(value) is None and at >= 0:
            require_constant(f"{op.name}()", value, at)
    return Rows(places, dim)


def elementwise(op: Operation) -> Rows:
    """Entry by entry, broadcast."""
    return aligned(op, op.tensors)


def where(op: Operation) -> Rows:
    if len(op.args) + len(op.kwargs) < 3:
        raise op.refusal("lists where records meet a condition (index by the condition itself: x[condition])")
    return elementwise(op)


def cast(op: Operation) -> Known:
    """Casts and moves, of the first argument; a constant stays one."""
    return Known(op.result, state_of(op.args[0]))


def reduced(op: Operation, position: int = 1, default: Any = None, kind: str | None = None) -> Rows | Known:
    """Over dimensions that are not the records'; sum and mean (``kind``) also over records, which is the crossing."""
    if len(op.args) > 1 and isinstance(op.args[1], Tensor):
        return elementwise(op)  # max and min of two
    value, state = op.first()
    dims = op.dims(position, value, default)
    if dims is not None and state.dim not in dims:
        result = op.result if isinstance(op.result, Tensor) else op.result[0]
        return Rows(state.places, state.dim - (result.dim() < value.dim()) * sum(dim < state.dim for dim in dims))
    if kind is None or not (torch.is_grad_enabled() and value.requires_grad):
        raise op.refusal("goes over records")
    gone = tuple(range(value.dim())) if dims is None else dims
    values = plain(value).to(op.kwargs.get("dtype") or value.dtype)
    own = per_record(values, state, tuple(dim for dim in gone if dim != state.dim), kind)
    total = over_records(own, state.places, kind)
    if not op.argument(position + 1, "keepdim", default=False):
        return total
    return Known(total.value.reshape([1 if dim in gone else n for dim, n in enumerate(value.shape)]), total.state)


def along(op: Operation, position: int = 1, default: Any = None) -> Rows:
    """Over dimensions that are not the records' and stay: softmax, cumsum, sort, flip …"""
    value, state = op.first()
    dims = op.dims(position, value, default)
    if dims is None or state.dim in dims:
        raise op.refusal("goes over records (name another dimension)")
    if op.public():  # as diff's prepend=
        raise op.refusal("takes a tensor that is not known to be alike for all records")
    return state


def compared(op: Operation, position: int, default: int) -> Rows:
    """cosine_similarity, pairwise_distance: two operands, broadcast, and one dimension less."""
    pair = [value for value in op.args[:2] if isinstance(value, Tensor)]
    state = aligned(op, pair)
    dims = len(_broadcast(pair))
    dim = int(op.argument(position, "dim", default=default)) % dims
    if dim == state.dim:
        raise op.refusal("goes over records")
    return Rows(state.places, state.dim - (dim < state.dim and op.result.dim() < dims))


def gathered(op: Operation) -> Rows:
    """gather, take_along_dim, scatter …: along another dimension, by each record's own index."""
    value, places, at = op.args[0], op.one_place(), op.one_dim()
    if any(each.dim() != value.dim() for each in op.tensors if each.dim()):
        raise op.refusal("looks up entries of tensors whose dimensions differ")
    dims = op.dims(2 if op.name == "take_along_dim" else 1, value)
    if dims is None or at in dims:
        raise op.refusal("looks up entries over records")
    for each in op.public():
        if each.dim():
            require_constant(f"{op.name}()", each, at)
            if each.shape[at] != places.size:
                raise op.refusal("looks up entries over records")
    return Rows(places, at)


def kept_unless(wrong: Callable[[Operation, Tensor, int], bool], complaint: str) -> Propagation:
    """Of layers that make each row of their result of that row of the first argument, unless ``wrong`` is true.

    It is given the first argument and its record dimension.
    """

    def kept(op: Operation) -> Rows:
        value, state = op.first()
        if wrong(op, value, state.dim):
            raise op.refusal(complaint)
        return state

    return kept


def uses_batch(op: Operation, value: Tensor, dim: int) -> bool:
    """Whether batch_norm is not in evaluation mode, with statistics that it knew before."""
    return bool(op.argument(5, "training", default=False)) or op.argument(1, "running_mean") is None or dim != 0


def not_images(op: Operation, value: Tensor, dim: int) -> bool:
    """Whether these are not (records, channels, places …), of as many dimensions as the function's name says."""
    width = next((int(letter) for letter in op.name if letter.isdigit()), value.dim() - 2)
    return dim != 0 or value.dim() != width + 2

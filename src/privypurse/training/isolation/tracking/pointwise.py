"""Rules for what computes: entry by entry, over other dimensions, and products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privypurse.training.isolation.tracking.crossing import cross
from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.tracked import Rows, all_tracked, plain, state_of, tracked


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
            require_constant(op, value, at)
    return Rows(places, dim)


def elementwise(op: Operation) -> Any:
    """Entry by entry, broadcast."""
    return op.gives(aligned(op, list(op.tensors())))


def where(op: Operation) -> Any:
    if len(op.args) + len(op.kwargs) < 3:
        raise op.refusal("lists where records meet a condition (index by the condition itself: x[condition])")
    return elementwise(op)


def like_first(op: Operation) -> Any:
    """Casts and moves, of the first argument."""
    value = op.args[0]
    state, result = state_of(value), op.run()
    if not isinstance(result, Tensor) or state is None:
        return result
    return tracked(result, state)


def reduced(op: Operation, position: int = 1, default: Any = None, kind: str | None = None) -> Any:
    """Over dimensions that are not the records'; sum and mean (``kind``) also over records, which is the crossing."""
    if len(op.args) > 1 and isinstance(op.args[1], Tensor):
        return elementwise(op)  # max and min of two
    value, state = op.first()
    dims = op.dims(position, value, default)
    if dims is not None and state.dim not in dims:
        result = op.run()
        kept = (result if isinstance(result, Tensor) else result[0]).dim() == value.dim()
        moved = 0 if kept else sum(dim < state.dim for dim in dims)
        return all_tracked(result, Rows(state.places, state.dim - moved))
    if kind is None or not (torch.is_grad_enabled() and value.requires_grad):
        raise op.refusal("goes over records")
    dtype = op.kwargs.get("dtype")
    values = plain(value) if dtype is None else plain(value).to(dtype)
    gone = tuple(range(value.dim())) if dims is None else dims
    total = cross(values, state, tuple(dim for dim in gone if dim != state.dim), kind)
    if not op.argument(position + 1, "keepdim", default=False):
        return total
    return total.reshape([1 if dim in gone else size for dim, size in enumerate(value.shape)])


def along(op: Operation, position: int = 1, default: Any = None) -> Any:
    """Over dimensions that are not the records' and stay: softmax, cumsum, sort, flip …"""
    value, state = op.first()
    dims = op.dims(position, value, default)
    if dims is None or state.dim in dims:
        raise op.refusal("goes over records (name another dimension)")
    if op.public():  # as diff's prepend=
        raise op.refusal("takes a tensor that is not known to be alike for all records")
    return op.gives(state)


def compared(op: Operation, position: int, default: int) -> Any:
    """cosine_similarity, pairwise_distance: two operands, broadcast, and one dimension less."""
    pair = [value for value in op.args[:2] if isinstance(value, Tensor)]
    state = aligned(op, pair)
    dims = len(_broadcast(pair))
    dim = int(op.argument(position, "dim", default=default)) % dims
    if dim == state.dim:
        raise op.refusal("goes over records")
    result = op.run()
    return tracked(result, Rows(state.places, state.dim - (dim < state.dim and result.dim() < dims)))


def gathered(op: Operation) -> Any:
    """gather, take_along_dim, scatter …: along another dimension, by each record's own index."""
    value = op.args[0]
    states = op.rows()
    at = {state.dim for _, state in states}
    tensors = list(op.tensors())
    if len(at) > 1 or any(each.dim() != value.dim() for each in tensors if each.dim()):
        raise op.refusal("looks up entries of tensors whose record dimensions differ")
    (at_dim,) = at
    dims = op.dims(2 if op.name == "take_along_dim" else 1, value)
    if dims is None or at_dim in dims:
        raise op.refusal("looks up entries over records")
    places = op.one_place()
    for each in op.public():
        if each.dim():
            require_constant(op, each, at_dim)
            if each.shape[at_dim] != places.size:
                raise op.refusal("looks up entries over records")
    return op.gives(Rows(places, at_dim))


def multiplied(op: Operation) -> Any:
    """matmul, mm, bmm, mv: records may be rows of the left or go along in front of both, and are never added up."""
    left, right = op.args[0], op.argument(1, "other", "mat2", "vec", "weight")
    if len(list(op.tensors())) != 2:
        raise op.refusal("adds up over records")
    dims = max(left.dim(), right.dim())
    places, found = op.one_place(), set()
    for value, state in op.rows():
        from_behind = value.dim() - state.dim
        rows_of_left = value is left and from_behind == 2
        if value.dim() < 2 or not (from_behind > 2 or rows_of_left):
            raise op.refusal("adds up over records")
        if rows_of_left and right.dim() > 2:
            raise op.refusal("multiplies rows of records by a stack of matrices")
        if rows_of_left and len(op.rows()) > 1:
            raise op.refusal("multiplies records by each other")
        found.add(dims - from_behind)
    if len(found) > 1:
        raise op.refusal("multiplies tensors whose record dimensions differ")
    (dim,) = found
    for value in op.public():
        at = dim - (dims - value.dim())
        if 0 <= at < value.dim() - 2:
            require_constant(op, value, at)
    return op.gives(Rows(places, dim))


def linear(op: Operation) -> Any:
    value, state = op.first()
    if state.dim == value.dim() - 1:
        raise op.refusal("adds up over records")
    return op.gives(state)


def einsum(op: Operation) -> Any:
    """Records have one letter, the same in every tracked operand and in the result, and in no other."""
    equation, *operands = op.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        raise op.refusal("needs an equation with an arrow and a letter for every dimension to be followed")
    inputs, output = equation.replace(" ", "").split("->")
    places, letters, others = op.one_place(), set(), set()
    for text, value in zip(inputs.split(","), operands, strict=True):
        state = state_of(value)
        if isinstance(state, Rows):
            letters.add(text[state.dim])
            if text.count(text[state.dim]) > 1:
                raise op.refusal("takes records' diagonal")
        else:
            others |= set(text)
    (letter, *more) = letters
    if more or letter in others or letter not in output:
        raise op.refusal("adds up over records or pairs them with each other")
    return op.gives(Rows(places, output.index(letter)))


def one_hot(op: Operation) -> Any:
    """Of a given number of classes: the largest label of the batch would tell of others."""
    _, state = op.first()
    if int(op.argument(1, "num_classes", default=-1)) < 0:
        raise op.refusal("without num_classes counts the classes in the batch")
    return op.gives(state)


def looked_up(op: Operation) -> Any:
    """F.embedding(index, table)."""
    _, state = op.first()
    return op.gives(state)


def normalised(op: Operation) -> Any:
    """layer_norm, over the last dimensions."""
    value, state = op.first()
    if state.dim >= value.dim() - len(op.argument(1, "normalized_shape")):
        raise op.refusal("goes over records")
    return op.gives(state)


def by_running_statistics(op: Operation) -> Any:
    """batch_norm in evaluation mode."""
    _, state = op.first()
    if op.argument(5, "training", default=False) or op.argument(1, "running_mean") is None or state.dim != 0:
        raise op.refusal("goes over records")
    return op.gives(state)


def padded(op: Operation) -> Any:
    """pad, of other dimensions."""
    value, state = op.first()
    if len(op.argument(1, "pad")) // 2 >= value.dim() - state.dim:
        raise op.refusal("puts rows that are not the loader's between records")
    return op.gives(state)


def by_first(op: Operation) -> Any:
    """Layers that take records first: each row of the result is made of that row of the first argument."""
    value, state = op.first()
    width = next((int(letter) for letter in op.name if letter.isdigit()), value.dim() - 2)
    if state.dim != 0 or value.dim() != width + 2:
        raise op.refusal("takes records first, then channels")
    return op.gives(state)

"""Rules for what moves values around: views, permutations, pieces, cat and stack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.places import Places
from privypurse.training.isolation.tracking.tracked import Mixed, Rows, state_of, tracked


def regrouped(op: Operation) -> Any:
    """view, reshape, flatten, unflatten: records stay whole if they come one after the other in memory's order."""
    value, state = _of_first(op)
    result = op.run()
    places, dim = _regroup(op, tuple(value.shape), state, tuple(result.shape))
    return tracked(result, Rows(places, dim))


def _of_first(op: Operation) -> tuple[Tensor, Rows]:
    """The first argument, whatever shape another lends."""
    value = op.args[0] if op.args else op.kwargs.get("input")
    state = state_of(value)
    if not isinstance(value, Tensor) or not isinstance(state, Rows):
        raise op.refusal("takes its shape from records")
    return value, state


def _regroup(op: Operation, old: tuple[int, ...], state: Rows, new: tuple[int, ...]) -> tuple[Places, int]:
    before, inner = math.prod(old[: state.dim]), math.prod(old[state.dim + 1 :])
    rows = old[state.dim]
    candidates = sorted(range(len(new)), key=lambda dim: (dim != state.dim, dim))
    for dim in candidates:
        size, after = new[dim], math.prod(new[dim + 1 :])
        if math.prod(new[:dim]) != before or size * after != rows * inner:
            continue
        if rows == 0:
            if size == 0:
                return Places(
                    state.places.drawn, state.places.base, max(1, state.places.each * inner // max(1, after))
                ), dim
            continue
        if inner % max(after, 1) == 0 and after:
            return state.places.spread(inner // after), dim
        together = state.places.gathered(after // inner) if inner and after % inner == 0 else None
        if together is not None:
            return together, dim
    raise op.refusal(
        f"makes shape {new} of {old}, where one row holds several records (a record's rows must follow each other: "
        "transpose records to the front first)"
    )


def permuted(op: Operation) -> Any:
    """transpose, permute, movedim …: a stand-in without memory shows where the record dimension goes."""
    value, state = op.first()
    probe = torch.empty(tuple(range(2, 2 + value.dim())), device="meta")
    shape = op.func(probe, *op.args[1:], **{k: v for k, v in op.kwargs.items() if k != "input"}).shape
    return op.gives(Rows(state.places, tuple(shape).index(state.dim + 2)))


def unsqueezed(op: Operation) -> Any:
    value, state = op.first()
    dim = int(op.argument(1, "dim")) % (value.dim() + 1)
    return op.gives(Rows(state.places, state.dim + (dim <= state.dim)))


def squeezed(op: Operation) -> Any:
    """The record dimension stays even if one record was drawn: a shape must not tell."""
    value, state = op.first()
    dims = op.dims(1, value)
    dims = tuple(range(value.dim())) if dims is None else dims
    gone = tuple(dim for dim in dims if dim != state.dim and value.shape[dim] == 1)
    result = value.squeeze(gone) if gone else value.view(value.shape)
    return tracked(result, Rows(state.places, state.dim - sum(dim < state.dim for dim in gone)))


def expanded(op: Operation) -> Any:
    """expand, expand_as, broadcast_to, repeat, tile: new dimensions come in front."""
    value, state = _of_first(op)
    result = op.run()
    dim = result.dim() - value.dim() + state.dim
    if result.shape[dim] != value.shape[state.dim]:
        raise op.refusal("copies one record's rows to others' places")
    if op.name in ("repeat", "tile"):
        times = op.integers(1, "repeats", "dims")
        if len(times) >= result.dim() - dim and times[dim - result.dim()] != 1:
            raise op.refusal("copies records")
    return tracked(result, Rows(state.places, dim))


def interleaved(op: Operation) -> Any:
    """repeat_interleave by a number."""
    value, state = op.first()
    times, dims = op.argument(1, "repeats"), op.dims(2, value)
    if not isinstance(times, int):
        raise op.refusal("repeats records by a tensor")
    if dims is None and value.dim() > 1:
        raise op.refusal("flattens records")
    here = dims is None or dims[0] == state.dim
    return op.gives(Rows(state.places.spread(times) if here else state.places, state.dim))


_ORDERS = ("sort()", "argsort()")


def chosen(
    op: Operation, value: Tensor, places: Places, index: Any, own: bool = False, by: Tensor | None = None
) -> Places:
    """The rows at some positions, which ``by`` gave.

    A record's own mask may leave it out. By position only all rows, in whatever order, may go into a loss: which
    record is the fifth hangs on who else was drawn. What was made of several records is refused whatever it holds,
    but for an order of all of them: whether a mask leaves nobody out tells of somebody.
    """
    taken = places.take(index)
    followed = torch.is_grad_enabled() and value.requires_grad
    made = state_of(by)
    if followed and isinstance(made, Mixed) and made.origin not in _ORDERS:
        raise op.refusal(f"takes records by what {made.origin} made of several (a mask made of its own values may)")
    if not own and followed and not np.array_equal(np.sort(taken.rows()), np.sort(places.rows())):
        raise op.refusal(
            "takes some records by their position in the batch (a mask made of a record's own values may)"
        )
    return taken


def narrowed(op: Operation) -> Any:
    value, state = op.first()
    (dim,) = op.dims(1, value) or (0,)
    if dim != state.dim:
        return op.gives(state)
    start, length = int(op.argument(2, "start")), int(op.argument(3, "length"))
    start %= max(value.shape[dim], 1)
    return op.gives(Rows(chosen(op, value, state.places, slice(start, start + length)), dim))


def selected(op: Operation) -> Any:
    """select(dim, index): one entry, and its dimension is gone."""
    value, state = op.first()
    (dim,) = op.dims(1, value) or (0,)
    if dim == state.dim:
        raise op.refusal("takes one record by its position in the batch (x[i : i + 1] keeps whose it is)")
    return op.gives(Rows(state.places, state.dim - (dim < state.dim)))


def unbound(op: Operation) -> Any:
    value, state = op.first()
    (dim,) = op.dims(1, value, 0) or (0,)
    if dim == state.dim:
        raise op.refusal("takes the batch apart record by record (x[i : i + 1] keeps whose a row is)")
    return op.gives(Rows(state.places, state.dim - (dim < state.dim)))


def in_pieces(op: Operation) -> Any:
    """split, chunk, tensor_split."""
    value, state = op.first()
    (dim,) = op.dims(2, value, 0) or (0,)
    pieces = op.run()
    if dim != state.dim:
        return tuple(tracked(piece, state) for piece in pieces)
    found, begin = [], 0
    for piece in pieces:
        end = begin + piece.shape[dim]
        found.append(tracked(piece, Rows(chosen(op, value, state.places, slice(begin, end)), dim)))
        begin = end
    return tuple(found)


def index_selected(op: Operation) -> Any:
    value, state = op.args[0], state_of(op.args[0])
    (dim,) = op.dims(1, value) or (0,)
    index = op.argument(2, "index")
    if isinstance(state, Rows):
        if dim != state.dim:
            if isinstance(state_of(index), Rows):
                raise op.refusal("looks up entries by other records' values")
            return op.gives(state)
        return op.gives(Rows(chosen(op, value, state.places, index.cpu().numpy(), by=index), dim))
    places = op.one_place()
    if value.dim() == 0 or dim >= value.dim():
        raise op.refusal("looks up entries by records")
    return op.gives(Rows(places, dim))


def joined(op: Operation) -> Any:
    """cat: over another dimension the same records' values, over the record dimension one batch after the other."""
    values = list(op.args[0] if op.args else op.kwargs["tensors"])
    if any(value.dim() != values[0].dim() for value in values):
        raise op.refusal("joins tensors of different dimensions")
    (dim,) = op.dims(1, values[0], 0) or (0,)
    at = {state.dim for _, state in op.rows()}
    if len(at) > 1:
        raise op.refusal("joins tensors whose record dimensions differ")
    (at_dim,) = at
    if dim != at_dim:
        for value in op.public():
            require_constant(op, value, at_dim)
        return op.gives(Rows(op.one_place(), at_dim))
    states = [state_of(value) for value in values]
    rows = [state for state in states if isinstance(state, Rows)]
    if len(rows) != len(values) or any(state.places.drawn is not rows[0].places.drawn for state in rows):
        raise op.refusal("puts rows that are not the loader's between records")
    return op.gives(Rows(rows[0].places.followed_by([state.places for state in rows[1:]]), dim))


def stacked(op: Operation) -> Any:
    values = list(op.args[0] if op.args else op.kwargs["tensors"])
    (dim,) = op.dims(1, values[0].unsqueeze(0), 0) or (0,)
    at = {state.dim for _, state in op.rows()}
    if len(at) > 1:
        raise op.refusal("stacks tensors whose record dimensions differ")
    (at_dim,) = at
    for value in op.public():
        require_constant(op, value, at_dim)
    return op.gives(Rows(op.one_place(), at_dim + (dim <= at_dim)))

"""Rules for what moves values around: views, permutations, copies, cat and stack."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.record_sum import Known
from privypurse.training.isolation.tracking.states import Places, Rows, state_of


def regrouped(op: Operation) -> Rows:
    """view, reshape, flatten, unflatten: records stay whole if they come one after the other in memory's order."""
    value, state = op.first(alone=False)
    old, new = tuple(value.shape), tuple(op.result.shape)
    places, rows = state.places, old[state.dim]
    before, inner = math.prod(old[: state.dim]), math.prod(old[state.dim + 1 :])
    for dim in sorted(range(len(new)), key=lambda dim: (dim != state.dim, dim)):
        size, after = new[dim], math.prod(new[dim + 1 :])
        if math.prod(new[:dim]) != before or size * after != rows * inner:
            continue
        if rows == 0:
            if size == 0:
                return Rows(Places(places.drawn, places.base, max(1, places.each * inner // max(1, after))), dim)
            continue
        if inner % max(after, 1) == 0 and after:
            return Rows(places.spread(inner // after), dim)
        together = places.gathered(after // inner) if inner and after % inner == 0 else None
        if together is not None:
            return Rows(together, dim)
    raise op.refusal(
        f"makes shape {new} of {old}, where one row holds several records (a record's rows must follow each other: "
        "transpose records to the front first)"
    )


def moved(op: Operation) -> Rows:
    """transpose, permute, unsqueeze, select, unbind …: a stand-in without memory shows where the records go."""
    value, state = op.first()
    mark = max(value.shape) + 1  # a size that no other dimension has
    probe = torch.empty([mark if dim == state.dim else n for dim, n in enumerate(value.shape)], device="meta")
    found = op.func(probe, *op.args[1:], **{name: given for name, given in op.kwargs.items() if name != "input"})
    shape = tuple((found[0] if isinstance(found, tuple) else found).shape)
    if mark not in shape:
        raise op.refusal("takes one record by its position in the batch (x[i : i + 1] keeps whose it is)")
    return Rows(state.places, shape.index(mark))


def squeezed(op: Operation) -> Known:
    """The record dimension stays even if one record was drawn: a shape must not tell."""
    value, state = op.first()
    dims = op.dims(1, value) or range(value.dim())
    gone = tuple(dim for dim in dims if dim != state.dim and value.shape[dim] == 1)
    result = value.squeeze(gone) if gone else value.view(value.shape)
    return Known(result, Rows(state.places, state.dim - sum(dim < state.dim for dim in gone)))


def expanded(op: Operation) -> Rows:
    """expand, expand_as, broadcast_to, repeat, tile: new dimensions come in front."""
    value, state = op.first(alone=False)
    dims = op.result.dim()
    dim = dims - value.dim() + state.dim
    if op.result.shape[dim] != value.shape[state.dim]:
        raise op.refusal("copies one record's rows to others' places")
    if op.name in ("repeat", "tile"):
        times = op.integers(1, "repeats", "dims")
        if len(times) >= dims - dim and times[dim - dims] != 1:
            raise op.refusal("copies records")
    return Rows(state.places, dim)


def interleaved(op: Operation) -> Rows:
    """repeat_interleave by a number."""
    value, state = op.first()
    times, dims = op.argument(1, "repeats"), op.dims(2, value)
    if not isinstance(times, int):
        raise op.refusal("repeats records by a tensor")
    if dims is None and value.dim() > 1:
        raise op.refusal("flattens records")
    here = dims is None or dims[0] == state.dim
    return Rows(state.places.spread(times) if here else state.places, state.dim)


def joined(op: Operation) -> Rows:
    """cat: over another dimension the same records' values, over the record dimension one batch after the other."""
    values: list[Tensor] = list(op.argument(0, "tensors"))
    if any(value.dim() != values[0].dim() for value in values):
        raise op.refusal("joins tensors of different dimensions")
    (dim,) = op.dims(1, values[0], 0) or (0,)
    if dim != op.one_dim():
        return _side_by_side(op)
    rows = [state for state in map(state_of, values) if isinstance(state, Rows)]
    if len(rows) != len(values) or any(state.places.drawn is not rows[0].places.drawn for state in rows):
        raise op.refusal("puts rows that are not the loader's between records")
    return Rows(rows[0].places.followed_by([state.places for state in rows[1:]]), dim)


def stacked(op: Operation) -> Rows:
    """stack: a new dimension over the same records' values."""
    (dim,) = op.dims(1, op.argument(0, "tensors")[0].unsqueeze(0), 0) or (0,)
    found = _side_by_side(op)
    return Rows(found.places, found.dim + (dim <= found.dim))


def _side_by_side(op: Operation) -> Rows:
    at = op.one_dim()
    for value in op.public():
        require_constant(f"{op.name}()", value, at)
    return Rows(op.one_place(), at)

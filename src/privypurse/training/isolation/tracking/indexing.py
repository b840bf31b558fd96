"""Rules for x[index], for what is like it, and for x[index] = value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.record_sum import Known
from privypurse.training.isolation.tracking.states import Mixed, Places, Rows, state_of

_ORDERS = ("sort()", "argsort()")


def indexed(op: Operation) -> Rows:
    """x[index], of records, or of a constant table by records' values."""
    return _at(op, *op.args)


def index_selected(op: Operation) -> Rows:
    value = op.argument(0, "input")
    (dim,) = op.dims(1, value) or (0,)
    return _at(op, value, (*[slice(None)] * dim, op.argument(2, "index")))


def narrowed(op: Operation) -> Rows:
    value, _ = op.first()
    (dim,) = op.dims(1, value) or (0,)
    start = int(op.argument(2, "start")) % max(value.shape[dim], 1)
    return _at(op, value, (*[slice(None)] * dim, slice(start, start + int(op.argument(3, "length")))))


def in_pieces(op: Operation) -> Known:
    """split, chunk, tensor_split."""
    value, state = op.first()
    (dim,) = op.dims(2, value, 0) or (0,)
    states, begin = [], 0
    for piece in op.result:
        end = begin + piece.shape[dim]
        own = dim == state.dim
        states.append(Rows(chosen(op, value, state.places, slice(begin, end)), dim) if own else state)
        begin = end
    return Known(op.result, tuple(states))


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


def _at(op: Operation, value: Tensor, index: Any) -> Rows:
    """Whose rows value[index] has."""
    state = state_of(value)
    if state is None:
        return _looked_up(op, index)
    if not isinstance(state, Rows):
        raise op.refusal("takes apart what was made of several records")
    return _rows(op, value, state, _items(value, index))


def _items(value: Tensor, index: Any) -> list[Any]:
    """One item for each dimension (a mask: for several), None for each new one."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [_as_tensor(item) if isinstance(item, list | range | np.ndarray) else item for item in items]
    used = sum(_width(item) for item in items if item is not Ellipsis)
    missing = [slice(None)] * (value.dim() - used)
    at = next((k for k, item in enumerate(items) if item is Ellipsis), None)
    return items + missing if at is None else items[:at] + missing + items[at + 1 :]


def _as_tensor(item: Any) -> Tensor:
    found = np.asarray(item)
    return torch.as_tensor(found if found.size else found.astype(np.int64))


def _width(item: Any) -> int:
    """How many dimensions an item takes up."""
    if item is None:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _advanced(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dim() > 0


def _single(item: Any) -> bool:
    return not isinstance(item, slice) and item is not None and not _advanced(item)


def _rows(op: Operation, value: Tensor, state: Rows, items: list[Any]) -> Rows:
    several = [k for k, item in enumerate(items) if _advanced(item)]
    if len(several) > 1:
        return _paired(op, value, state, items)
    if several and any(_single(item) for item in items):
        raise op.refusal("mixes whole numbers and lists of them; index in two steps")
    found: Rows | None = None
    source = target = 0
    for item in items:
        if source <= state.dim < source + _width(item):
            found = Rows(_of_records(op, value, state, item, source), target)
        elif state_of(item) is not None:
            raise op.refusal("looks up entries by other records' values (gather takes each record's own)")
        source += _width(item)
        target += 0 if _single(item) else item.dim() if _advanced(item) and item.dtype != torch.bool else 1
    if found is None:
        raise op.refusal("cannot be followed")
    return found


def _of_records(op: Operation, value: Tensor, state: Rows, item: Any, source: int) -> Places:
    """Rows by a slice, by a mask (each record's own, or one by position) or by positions."""
    if _single(item):
        raise op.refusal("takes one record by its position in the batch (x[i : i + 1] keeps whose it is)")
    if isinstance(item, slice):
        return chosen(op, value, state.places, item)
    if item.dtype != torch.bool:
        if item.dim() != 1:
            raise op.refusal("takes records by a table of positions")
        return chosen(op, value, state.places, item.cpu().numpy(), by=item)
    if source != state.dim:
        raise op.refusal("takes entries by a mask whose first dimension is not records")
    owner = state_of(item)
    if isinstance(owner, Rows) and (owner.dim != 0 or not owner.places.same(state.places)):
        raise op.refusal("takes records by a mask of other records")
    at = np.nonzero(item.detach().cpu().numpy())[0]
    return chosen(op, value, state.places, at, isinstance(owner, Rows), item)


def _paired(op: Operation, value: Tensor, state: Rows, items: list[Any]) -> Rows:
    """x[positions, own]: of each record the entry that its own value names."""
    first = items[0]
    if state.dim != 0 or not _advanced(first) or first.dtype == torch.bool or first.dim() != 1:
        raise op.refusal("takes entries by several lists; the first has to be all positions of records, in order")
    places = chosen(op, value, state.places, first.cpu().numpy(), by=first)
    for item in items[1:]:
        owner = state_of(item)
        if isinstance(owner, Mixed) or (_advanced(item) and item.dim() != 1):
            raise op.refusal("takes entries by what was made of several records")
        if isinstance(owner, Rows) and not owner.places.same(places):
            raise op.refusal("takes entries by other records' values")
        if owner is None and _advanced(item):
            require_constant(f"{op.name}()", item, 0)
    return Rows(places, 0)


def _looked_up(op: Operation, index: Any) -> Rows:
    """weights[labels]: a constant table, by each record's own value."""
    items = list(index) if isinstance(index, tuple) else [index]
    (at, *more) = [k for k, item in enumerate(items) if state_of(item) is not None]
    own = state_of(items[at])
    others = [item for k, item in enumerate(items) if k != at]
    if more or not isinstance(own, Rows) or any(item != slice(None) for item in others):
        raise op.refusal("looks up entries by several lists")
    if items[at].dtype == torch.bool:
        raise op.refusal("takes entries of a constant by a mask of records")
    return Rows(own.places, at + own.dim)


def require_own_rows(op: Operation) -> None:
    """x[index] = value: raise unless it goes into each record's own rows, whichever they are, never by position."""
    target, index, value = op.args
    state = state_of(target)
    if not isinstance(state, Rows):
        raise op.refusal("writes records into a tensor that is not theirs (torch.where makes a new one)")
    found = _rows(op, target, state, _items(target, index))
    owns = any(isinstance(state_of(item), Rows) for item in (index if isinstance(index, tuple) else (index,)))
    if not owns and not found.places.same(state.places):
        raise op.refusal("writes into some records by their position in the batch")
    if not (isinstance(value, Tensor) and value.dim()):
        if state_of(value) is not None:
            raise op.refusal("writes what was made of several records")
        return
    with torch.no_grad():
        at = found.dim - (target[index].dim() - value.dim())
    own = state_of(value)
    if own is None and at >= 0:
        require_constant(f"{op.name}()", value, at)
    if own is not None and (not isinstance(own, Rows) or own.dim != at or not own.places.same(found.places)):
        raise op.refusal("writes one record's values into another's rows")

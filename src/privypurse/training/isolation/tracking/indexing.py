"""Rules for x[index] and x[index] = value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.places import Places
from privypurse.training.isolation.tracking.shapes import chosen
from privypurse.training.isolation.tracking.tracked import Mixed, Rows, state_of, tracked


def indexed(op: Operation) -> Any:
    """x[index], of records, or of a constant table by records' values."""
    value, index = op.args
    state = state_of(value)
    if state is None:
        return _looked_up(op, value, index)
    if not isinstance(state, Rows):
        raise op.refusal("takes apart what was made of several records")
    found = _rows(op, value, state, _items(value, index))
    return tracked(value[index], found)


def rows_at(op: Operation, value: Tensor, index: Any) -> Rows:
    """Whose rows value[index] has."""
    state = state_of(value)
    assert isinstance(state, Rows)
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


def _rows(op: Operation, value: Tensor, state: Rows, items: list[Any]) -> Rows:
    several = [k for k, item in enumerate(items) if _advanced(item)]
    if len(several) > 1:
        return _paired(op, value, state, items)
    if several and any(_single(item) for item in items):
        raise op.refusal("mixes whole numbers and lists of them; index in two steps")
    source = target = 0
    for item in items:
        if source <= state.dim < source + _width(item):
            if _single(item):
                raise op.refusal("takes one record by its position in the batch (x[i : i + 1] keeps whose it is)")
            if isinstance(item, slice):
                return Rows(chosen(op, value, state.places, item), target)
            return Rows(_by_tensor(op, value, state, item, source), target)
        if isinstance(state_of(item), Rows):
            raise op.refusal("looks up entries by other records' values (gather takes each record's own)")
        source += _width(item)
        target += 0 if _single(item) else item.dim() if _advanced(item) and item.dtype != torch.bool else 1
    raise op.refusal("cannot be followed")


def _single(item: Any) -> bool:
    return not isinstance(item, slice) and item is not None and not _advanced(item)


def _by_tensor(op: Operation, value: Tensor, state: Rows, item: Tensor, source: int) -> Places:
    """Rows by a mask (each record's own, or one by position) or by positions."""
    owner = state_of(item)
    if item.dtype != torch.bool:
        if item.dim() != 1:
            raise op.refusal("takes records by a table of positions")
        return chosen(op, value, state.places, item.cpu().numpy(), by=item)
    own = isinstance(owner, Rows)
    if source != state.dim:
        raise op.refusal("takes entries by a mask whose first dimension is not records")
    if isinstance(owner, Rows) and (owner.dim != 0 or not owner.places.same(state.places)):
        raise op.refusal("takes records by a mask of other records")
    kept = np.nonzero(item.detach().cpu().numpy())[0]
    return chosen(op, value, state.places, kept, own, item)


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
            require_constant(op, item, 0)
    return Rows(places, 0)


def _looked_up(op: Operation, table: Tensor, index: Any) -> Any:
    """weights[labels]: a constant table, by each record's own value."""
    items = list(index) if isinstance(index, tuple) else [index]
    at = [k for k, item in enumerate(items) if state_of(item) is not None]
    own = state_of(items[at[0]])
    others = [item for k, item in enumerate(items) if k != at[0]]
    if len(at) > 1 or not isinstance(own, Rows) or any(item != slice(None) for item in others):
        raise op.refusal("looks up entries by several lists")
    if items[at[0]].dtype == torch.bool:
        raise op.refusal("takes entries of a constant by a mask of records")
    return tracked(table[index], Rows(own.places, at[0] + own.dim))


def written(op: Operation) -> None:
    """x[index] = value: into each record's own rows, whichever they are, never by position."""
    target, index, value = op.args
    state = state_of(target)
    if not isinstance(state, Rows):
        raise op.refusal("writes records into a tensor that is not theirs (torch.where makes a new one)")
    if torch.is_grad_enabled() and isinstance(value, Tensor) and state_of(value) is None and value.requires_grad:
        op.require_ours()
    found = _rows(op, target, state, _items(target, index))
    with torch.no_grad():
        part = target[index]
    owns = any(isinstance(state_of(item), Rows) for item in (index if isinstance(index, tuple) else (index,)))
    if not owns and not found.places.same(state.places):
        raise op.refusal("writes into some records by their position in the batch")
    if isinstance(value, Tensor) and value.dim():
        _require_fits(op, part, found, value)
    elif state_of(value) is not None:
        raise op.refusal("writes what was made of several records")
    op.run()


def _require_fits(op: Operation, part: Tensor, found: Rows, value: Tensor) -> None:
    own, at = state_of(value), found.dim - (part.dim() - value.dim())
    if own is None:
        if at >= 0:
            require_constant(op, value, at)
    elif not isinstance(own, Rows) or own.dim != at or not own.places.same(found.places):
        raise op.refusal("writes one record's values into another's rows")

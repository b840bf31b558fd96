"""A batch asked: is each record's row made of that record alone, by the data set and by collate_fn?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.isolation.replaced_records import NO_BOUND
from privypurse.training.step_randomness import keyed, keyed_apart, made_with

Collate = Callable[[list[Any]], Any]
Fetch = Callable[[list[int]], list[Any]]
"""The records of these numbers."""

_MIXES = (
    f"collate_fn gives a record another row beside other records than by itself, {NO_BOUND}. It must give one row "
    "for each record, in their order, made of that record alone: no statistics of the batch, no sorting, no mixing. "
    "Standardise by public constants, and pad to a public length"
)


def require_own_records(fetch: Fetch, numbers: list[int], records: list[Any], generators: list[Any]) -> None:
    """Raise if a data set that gives many records at once gives one otherwise by itself.

    One that is drawn anew each time says nothing: alone it is asked for twice, with different numbers.
    """
    for place in sorted({0, len(numbers) - 1}):
        alone = []
        for turn in (b"one", b"two"):
            with keyed(turn * 8), keyed_apart(generators, turn):
                alone += fetch([numbers[place]])
        if _same(*alone) and not _same(records[place], alone[0]):
            raise InvalidInput(
                "the data set gives a record otherwise beside other records than by itself (__getitems__, a "
                f"transform of whole batches), {NO_BOUND}: let it make each record of that record alone, and pad "
                "to a public length"
            )


def collated_apart(collate: Collate, records: list[Any], key: bytes) -> Any:
    """The records put together; raises if one's row changes when all others are this record too, or are not there.

    Among as many others whatever is drawn is the same; by itself it is not, so that is asked where nothing is drawn.
    """
    batch, draws = made_with(key, lambda: collate(records))
    size = len(records)
    between = int.from_bytes(key[-4:], "big") % max(size, 1)
    for place in sorted({0, size - 1, between}) if size > 1 else ():
        mine = _row(batch, place, size)
        others, _ = made_with(key, lambda record=records[place]: collate([record] * size))  # type: ignore[misc]
        same = _same(mine, _row(others, place, size))
        if not same or not (draws or _same(mine, _row(collate([records[place]]), 0, 1))):
            raise InvalidInput(_MIXES)
    return batch


def _row(data: Any, place: int, size: int) -> Any:
    """What stands at this place of a batch, in the form that the batch has."""
    if isinstance(data, Tensor | np.ndarray):
        if data.ndim == 0 or data.shape[0] != size:
            raise InvalidInput(f"collate_fn gave an array of shape {tuple(data.shape)} for {size} records. {_MIXES}")
        return data[place]
    if isinstance(data, Mapping):
        return {key: _row(value, place, size) for key, value in data.items()}
    if isinstance(data, list | tuple):
        columns = all(isinstance(value, Tensor | np.ndarray) and value.shape[:1] == (size,) for value in data)
        if len(data) == size and not columns:
            return data[place]  # one entry for each record
        return [_row(value, place, size) for value in data]
    return data


def _same(one: Any, other: Any) -> bool:
    """Whether two records, or rows of them, are the same, in whatever form they come."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return all(map(_same, one, other))
    if isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        return _same_values(torch.as_tensor(one), torch.as_tensor(other))
    try:
        return type(one) is type(other) and bool(one is other or one == other or (one != one and other != other))
    except (TypeError, ValueError, RuntimeError):
        return True  # what cannot be compared is not judged


def _same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two rows agree; where they are padded to different lengths, in what both have, at either end."""
    if one.dim() != other.dim() or one.dtype != other.dtype:
        return False
    common = [min(a, b) for a, b in zip(one.shape, other.shape, strict=True)]

    def cut(value: Tensor, end: bool) -> Tensor:
        for dim, size in enumerate(common):
            value = value.narrow(dim, value.shape[dim] - size if end else 0, size)
        return value.double()

    return any(torch.allclose(cut(one, end), cut(other, end), 1e-5, 1e-8, True) for end in (False, True))

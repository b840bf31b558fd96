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

# Padding to the longest record of a batch gives that record a say in all others, whatever is masked: the number of
# places enters the bound on the rounding of everybody's norm, so that all clip factors change with it (by a whole
# clip norm with contrived tokens); and a mean over places, attention without a mask, positions counted from the end
# follow from it too. One absence then moves everybody's contribution, which no clip norm bounds, and whether a model
# masks well enough cannot be seen. So the shape of a row has to be public: always the same.
_PADDED = (
    "collate_fn pads to the longest record of the batch, so that one record decides about the places of all others, "
    f'{NO_BOUND}. Pad to one public length: of transformers\' collators padding="max_length", max_length=…'
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
        one = records[place]
        others, _ = made_with(key, lambda: collate([one] * size))  # noqa: B023
        _require_same_row(batch, (place, size), others, (place, size))
        if not draws:
            _require_same_row(batch, (place, size), collate([one]), (0, 1))
    return batch


def _require_same_row(batch: Any, at: tuple[int, int], other: Any, there: tuple[int, int]) -> None:
    """Raise if a record's row is another in two batches; each is given with its place and how many they are."""
    require_one_shape(column_shapes(batch, at[1]), column_shapes(other, there[1]))
    if not _same(_row(batch, *at), _row(other, *there)):
        raise InvalidInput(_MIXES)


def require_one_shape(one: list[torch.Size], other: list[torch.Size]) -> None:
    """Raise if rows of two batches have other shapes."""
    if one != other:
        raise InvalidInput(_PADDED)


def column_shapes(data: Any, size: int) -> list[torch.Size]:
    """What the rows of each tensor of a batch have in common, their shape."""
    if isinstance(data, Tensor | np.ndarray):
        return [torch.Size(data.shape[1:])] if data.shape[:1] == (size,) else []
    if isinstance(data, Mapping):
        data = list(data.values())
    elif not isinstance(data, list | tuple) or _by_record(data, size):
        return []
    return [shape for value in data for shape in column_shapes(value, size)]


def _by_record(data: Any, size: int) -> bool:
    """Whether a list has one entry for each record, and is none of columns."""
    columns = all(isinstance(value, Tensor | np.ndarray) and value.shape[:1] == (size,) for value in data)
    return len(data) == size and not columns


def _row(data: Any, place: int, size: int) -> Any:
    """What stands at this place of a batch, in the form that the batch has."""
    if isinstance(data, Tensor | np.ndarray):
        if data.ndim == 0 or data.shape[0] != size:
            raise InvalidInput(f"collate_fn gave an array of shape {tuple(data.shape)} for {size} records. {_MIXES}")
        return data[place]
    if isinstance(data, Mapping):
        return {key: _row(value, place, size) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return data[place] if _by_record(data, size) else [_row(value, place, size) for value in data]
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
    """Whether two rows agree in shape and, but for rounding, in what they hold."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.allclose(one.double(), other.double(), 1e-5, 1e-8, True)

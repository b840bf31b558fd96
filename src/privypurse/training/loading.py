"""The data of a batch of records, and whether putting records together keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.training.keying import key_all, keyed, keyed_apart, own_generators, states

Collate = Callable[[list[Any]], Any]

_MIXES = (
    "collate_fn gives a record another row beside other records than by itself, so clipping would bound nothing "
    "(rule 12). It must give one row for each record, in their order, made of that record alone: no statistics of "
    "the batch, no sorting, no mixing. Standardise by public constants, and pad to a public length"
)


@dataclass(frozen=True, eq=False)
class Order:
    """Records to be loaded, the key of what is random in that, and whether to look at how they are put together."""

    records: IntArray
    key: bytes | None = None
    look: bool = False


def loaded(
    dataset: Dataset[Any], orders: Iterator[Order], workers: int = 0, options: dict[str, Any] | None = None
) -> Iterator[Any]:
    """The data of each of these batches of records."""
    collate = (options or {}).get("collate_fn")
    if type(dataset) is TensorDataset and workers == 0 and collate is None:
        tensors = dataset.tensors
        for order in orders:
            index = torch.as_tensor(order.records, device=tensors[0].device)
            yield [tensor[index] for tensor in tensors]
        return
    batches = _Batches(dataset, collate or default_collate, alone=workers == 0)
    yield from DataLoader(batches, sampler=orders, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(data: Any) -> Any:
    return data


class _Batches(Dataset[Any]):
    """A data set whose items are whole batches."""

    def __init__(self, dataset: Dataset[Any], collate: Collate, alone: bool) -> None:
        """``alone``: in the run's own process, whose generators are given back as they were."""
        self._dataset, self._collate, self._alone = dataset, collate, alone
        self._own = own_generators(dataset)

    def __getitem__(self, order: Order) -> Any:
        if order.key is None:
            return self._collate(self._records(order.records.tolist()))
        with keyed_apart(self._own, order.key):
            if not self._alone:
                key_all(order.key)
                return self._made(order, order.key)
            with keyed(order.key):
                return self._made(order, order.key)

    def _records(self, numbers: list[int]) -> list[Any]:
        several = getattr(self._dataset, "__getitems__", None)
        return list(several(numbers)) if several else [self._dataset[number] for number in numbers]

    def _made(self, order: Order, key: bytes) -> Any:
        records = self._records(order.records.tolist())
        if not order.look:
            return self._collate(records)
        if hasattr(self._dataset, "__getitems__"):
            self._refuse_mixed_records(records, order)
        with keyed(key):
            before = states()
            batch = self._collate(records)
            steady = all(map(torch.equal, before, states()))
        self._refuse_mixing(records, batch, key, steady)
        return batch

    def _refuse_mixed_records(self, records: list[Any], order: Order) -> None:
        """Raise if a data set that gives many records at once gives one otherwise by itself.

        One that is drawn anew each time says nothing: alone it is asked for twice, with different numbers.
        """
        numbers = order.records.tolist()
        for place in sorted({0, len(numbers) - 1}):
            alone = []
            for turn in (b"one", b"two"):
                with keyed(turn * 8), keyed_apart(self._own, turn):
                    alone += self._records([numbers[place]])
            if _agree(*alone) and not _agree(records[place], alone[0]):
                raise InvalidInput(
                    "the data set gives a record otherwise beside other records than by itself (__getitems__, a "
                    "transform of whole batches), so clipping would bound nothing (rule 12): let it make each record "
                    "of that record alone, and pad to a public length"
                )

    def _refuse_mixing(self, records: list[Any], batch: Any, key: bytes, steady: bool) -> None:
        """Raise if a record's row changes when all others are this record too, or are not there.

        Among as many others whatever is drawn is the same; by itself it is not, so that is asked where nothing is.
        """
        size = len(records)
        if size < 2:
            return
        between = int.from_bytes(key[-4:], "big") % size
        for place in sorted({0, size - 1, between}):
            with keyed(key):
                others = self._collate([records[place]] * size)
            _compare(_row(batch, place, size), _row(others, place, size))
            if steady:
                _compare(_row(batch, place, size), _row(self._collate([records[place]]), 0, 1))


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


def _compare(one: Any, other: Any) -> None:
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key, value in one.items():
            _compare(value, other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for value, theirs in zip(one, other, strict=True):
            _compare(value, theirs)
    elif isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        if not _same(torch.as_tensor(one), torch.as_tensor(other)):
            raise InvalidInput(_MIXES)
    elif type(one) is not type(other) or not _equal(one, other):
        raise InvalidInput(_MIXES)


def _agree(one: Any, other: Any) -> bool:
    try:
        _compare(one, other)
    except InvalidInput:
        return False
    return True


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one is other or one == other or (one != one and other != other))
    except (TypeError, ValueError, RuntimeError):
        return True  # what cannot be compared is not judged


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two rows agree; where they are padded to different lengths, in what both have, at either end."""
    if one.dim() != other.dim() or one.dtype != other.dtype:
        return False
    common = [min(a, b) for a, b in zip(one.shape, other.shape, strict=True)]

    def cut(value: Tensor, end: bool) -> Tensor:
        for dim, size in enumerate(common):
            value = value.narrow(dim, value.shape[dim] - size if end else 0, size)
        return value.double()

    return any(torch.allclose(cut(one, end), cut(other, end), 1e-5, 1e-8, True) for end in (False, True))

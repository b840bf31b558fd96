"""The data of a batch of records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from privypurse.arrays import IntArray
from privypurse.training.isolation.batches import Collate, collated_apart, require_own_records
from privypurse.training.step_randomness import key_all, keyed, keyed_apart, own_generators


@dataclass(frozen=True, eq=False)
class Order:
    """Records to be loaded, the key of what is random in that, and whether to check that they are kept apart."""

    records: IntArray
    key: bytes | None = None
    check: bool = False


def loaded(
    dataset: Dataset[Any], orders: Iterator[Order], workers: int = 0, collate_fn: Collate | None = None
) -> Iterator[Any]:
    """The data of each of these batches of records."""
    if type(dataset) is TensorDataset and workers == 0 and collate_fn is None:
        tensors = dataset.tensors
        for order in orders:
            index = torch.as_tensor(order.records, device=tensors[0].device)
            yield [tensor[index] for tensor in tensors]
        return
    batches = _Batches(dataset, collate_fn or default_collate, alone=workers == 0)
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
        numbers = order.records.tolist()
        records = self._records(numbers)
        if not order.check:
            return self._collate(records)
        if hasattr(self._dataset, "__getitems__"):
            require_own_records(self._records, numbers, records, self._own)
        return collated_apart(self._collate, records, key)

"""Physical batches: records that go through the model at once, whose they are, and their data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.training.isolation.batches import Collate, collated_apart, require_own_records
from privypurse.training.model_inputs import LABELS, Inputs
from privypurse.training.setup import Setup
from privypurse.training.step_randomness import keyed, keyed_apart, own_generators


@dataclass(frozen=True, eq=False)
class Batch:
    """What a physical batch is made of. Sensitive: who was drawn is never told (rule 6)."""

    records: IntArray
    units: IntArray
    """The privacy units (people, or records where nobody has several) whose records these are."""
    owner: IntArray
    """For each record its place in ``units``; padding has the place behind the last."""
    first: bool = True
    last: bool = True
    """Whether this is the first, and the last, physical batch of its step."""
    step: int = 0
    key: bytes | None = None
    """Of what is random in loading its data; none: whatever the generators give."""
    check: bool = False
    """Whether to check, while loading, that records are kept apart."""

    @cached_property
    def one_each(self) -> bool:
        """Whether every unit has one record here."""
        return bool(np.array_equal(self.owner[: self.real], np.arange(self.units.size)))

    @cached_property
    def real(self) -> int:
        """Records that are somebody's; padding comes behind them."""
        return int(np.count_nonzero(self.owner < self.units.size))

    def places(self, setup: Setup) -> tuple[Tensor, Tensor | None]:
        """Whose each record is; where a unit has several, the units, and at which place of them each record's is.

        Padding is nobody's: it has the number behind the last unit of the plan.
        """
        missing = self.records.size - self.real
        units = np.concatenate([self.units, np.full(missing, setup.plan.people)])
        if self.one_each:
            return on_device(units, setup.device), None
        padding = self.units.size + np.arange(missing)  # each by itself: what is nobody's is not added up
        owner = np.concatenate([self.owner[: self.real], padding])
        return on_device(units, setup.device), on_device(owner, setup.device)

    def padded(self, size: int) -> Batch:
        """The same batch with stand-ins up to ``size`` records, copies of its first. They weigh nothing."""
        missing = size - self.records.size
        records = np.concatenate([self.records, np.full(missing, self.records[0] if self.records.size else 0)])
        return replace(self, records=records, owner=np.concatenate([self.owner, np.full(missing, self.units.size)]))


def on_device(numbers: IntArray, device: torch.device) -> Tensor:
    """The numbers there. A GPU is not waited for: the copy takes its turn behind the work that it has."""
    found = torch.from_numpy(numbers)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)


def few_shapes(batch_size: float, most: int | None) -> tuple[int | None, int]:
    """The most records of a physical batch on a GPU, and of how many its size is padded to a multiple, by public
    numbers alone.

    It so meets a handful of sizes, and padding is at most a sixteenth of the expected batch (from 32 records on).
    ``most`` becomes a multiple itself, smaller by an eighth at most: what is left of a step fills a last batch of
    any size, and each size has a graph to be captured.
    """
    multiple = 1 << max(0, math.frexp(batch_size / 16)[1] - 1)
    multiple = max(multiple, 2 if batch_size >= 16 else 1)
    if most is None:
        return None, multiple
    while most % multiple > most / 8:
        multiple //= 2
    return most - most % multiple, multiple


def loaded(
    dataset: Dataset[Any], batches: Iterable[Batch], workers: int = 0, collate_fn: Collate | None = None
) -> Iterator[tuple[Batch, Any]]:
    """Each of these batches with its data."""
    if type(dataset) is TensorDataset and workers == 0 and collate_fn is None:
        tensors = dataset.tensors
        for batch in batches:
            index = on_device(batch.records, tensors[0].device)
            yield batch, [tensor[index] for tensor in tensors]
        return
    loading = _Loading(dataset, collate_fn or _collated)
    yield from DataLoader(loading, sampler=batches, batch_size=None, num_workers=workers, collate_fn=tuple)


class _Loading(Dataset[Any]):
    """A data set that is asked for whole batches, and gives each with its data."""

    def __init__(self, dataset: Dataset[Any], collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate
        self._own = own_generators(dataset)

    def __getitem__(self, batch: Batch) -> tuple[Batch, Any]:
        numbers = batch.records.tolist()
        if batch.key is None:
            return batch, self._collate(self._records(numbers))
        with keyed_apart(self._own, batch.key), keyed(batch.key):
            records = self._records(numbers)
            if not batch.check:
                return batch, self._collate(records)
            if hasattr(self._dataset, "__getitems__"):
                require_own_records(self._records, numbers, records, self._own)
            return batch, collated_apart(self._collate, records, batch.key)

    def _records(self, numbers: list[int]) -> list[Any]:
        several = getattr(self._dataset, "__getitems__", None)
        return list(several(numbers)) if several else [self._dataset[number] for number in numbers]


def _collated(records: list[Any]) -> Any:
    """Put together as torch does it; a list of numbers in a dictionary, as tokenizers give it, is a row."""
    if isinstance(records[0], Mapping):
        records = [{name: _row(value) for name, value in record.items()} for record in records]
    try:
        return default_collate(records)
    except RuntimeError as error:
        if "equal size" not in str(error):  # torch's words where records have other lengths
            raise
        raise InvalidInput(
            "the records of a batch have different shapes and cannot be put together. Pad each to one public length, "
            'the same for all: of a tokenizer padding="max_length", max_length=…, truncation=True'
        ) from None


def _row(value: Any) -> Any:
    numbers = isinstance(value, list) and bool(value) and isinstance(value[0], int | float)
    return torch.tensor(value) if numbers else value


def moved(data: Any, device: torch.device) -> tuple[Inputs, Any]:
    """The inputs and the label of a batch, on the device. Of a dictionary all but the label are inputs, by name."""

    def here(part: Any) -> Any:
        return tree_map_only(Tensor, lambda value: value.to(device, non_blocking=True), part)

    if isinstance(data, Mapping):
        named = {str(name): here(part) for name, part in data.items()}
        label_name = next((name for name in LABELS if name in named), None)
        if label_name is None or len(named) < 2:
            raise InvalidInput(
                f"the dataset gives dictionaries of {', '.join(named) or 'nothing'}; beside the model's inputs, by "
                f'name, they must hold "{LABELS[0]}"'
            )
        return named, named.pop(label_name)
    if not isinstance(data, list | tuple) or len(data) < 2:
        raise InvalidInput(
            "the dataset must give (input, label), or several inputs and then a label, or a dictionary of inputs by "
            f'name and "{LABELS[0]}"'
        )
    *inputs, label = map(here, data)
    return tuple(inputs), label

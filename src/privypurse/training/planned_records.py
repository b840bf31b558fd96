"""The records of a run: whose each one is, and how they are cut into physical batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from privypurse._validate import integer
from privypurse.arrays import FloatArray, IntArray
from privypurse.errors import InvalidInput, Unsupported
from privypurse.plans import Plan
from privypurse.randomness import Randomness
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.fingerprints import fingerprint
from privypurse.training.isolation.batches import Collate
from privypurse.training.physical_batches import Batch, loaded


@dataclass(frozen=True, eq=False)
class PlannedRecords:
    """A data set, and the plan for its records (`Plan.for_records`). The plan has to fit it and to keep its promise.

    ``max_records_per_person`` takes so many of a drawn person's records at random. ``collate_fn`` puts records
    together, as in torch's DataLoader; it has to pad to a public length, not to the longest record of a batch, which
    would decide about others.
    """

    dataset: Dataset[Any]
    plan: Plan
    execution: Execution = DEFAULT
    max_records_per_person: int | None = None
    collate_fn: Collate | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.execution, Execution):
            raise InvalidInput(f"execution is {self.execution!r}; give pp.Execution(…)")
        if self.max_records_per_person is not None:
            integer(self.max_records_per_person, "max_records_per_person")
        _refuse_data(self.dataset, self.plan)
        self.plan.require_kept()  # a plan is a file, and may have been altered

    @cached_property
    def digest(self) -> str:
        """What a checkpoint remembers of the data that its run was on.

        With ids the plan knows its people, and they may have other rows, in another order (rule 13).
        """
        return "by id" if self.plan.keyed_ids is not None else fingerprint(self.dataset)

    @cached_property
    def held(self) -> FloatArray:
        """How many records each unit contributes when it is drawn; 0 for whoever is absent."""
        if self.plan.owner is None:
            return np.ones(self.plan.people)
        counts = np.bincount(self.plan.owner, minlength=self.plan.people)
        most = self.max_records_per_person
        return np.asarray(counts if most is None else np.minimum(counts, most), dtype=np.float64)

    @cached_property
    def _by_owner(self) -> tuple[IntArray, IntArray]:
        """Records in the order of their owners, and where each owner's begin."""
        owner = np.asarray(self.plan.owner)
        counts = np.bincount(owner, minlength=self.plan.people)
        return np.argsort(owner, kind="stable").astype(np.int64), np.concatenate([[0], np.cumsum(counts)])

    def batches(self, units: IntArray, source: Randomness, most: int | None, multiple: int = 1) -> list[Batch]:
        """The records of these units as physical batches of at most ``most`` records, padded to a ``multiple``.

        A person is never split, since their records are clipped as one sum (rule 12: isolation). Without any records
        there is one batch, of padding alone.
        """
        if self.plan.owner is not None:
            units = units[self.held[units] > 0]  # who has no records is in no batch
        if units.size == 0:
            return [Batch(units, units, units).padded(multiple)]
        records, owner = self._of(units, source)
        bounds = [0, units.size] if most is None or records.size <= most else _bounds(owner, units.size, most)
        found = []
        for (one, begin), (other, end) in pairwise(zip(bounds, np.searchsorted(owner, bounds), strict=True)):
            first, last = one == 0, other == units.size
            batch = Batch(records[begin:end], units[one:other], owner[begin:end] - one, first, last)
            found.append(batch.padded(-(-batch.records.size // multiple) * multiple))
        return found

    def _of(self, units: IntArray, source: Randomness) -> tuple[IntArray, IntArray]:
        """The records of these units, unit by unit, and for each its unit's place."""
        if self.plan.owner is None:
            return units, np.arange(units.size)
        by_owner, starts = self._by_owner
        counts = starts[units + 1] - starts[units]
        owner = np.repeat(np.arange(units.size), counts)
        within = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        records = by_owner[np.repeat(starts[units], counts) + within]
        if self.max_records_per_person is not None:
            order = np.lexsort((source.uniform(records.size), owner))  # shuffled within each person
            kept = order[within < self.max_records_per_person]
            records, owner = records[kept], owner[kept]
        return records, owner

    def load(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Any]]:
        """Each batch with its data. Workers ask for batches ahead."""
        return loaded(self.dataset, batches, self.execution.num_workers, self.collate_fn)


def _bounds(owner: IntArray, units: int, most: int) -> list[int]:
    """Where batches of whole units end: as many in each as have at most ``most`` records, but at least one."""
    if owner.size == units:
        return [*range(0, units, most), units]
    bounds, filled = [0], 0
    for place, count in enumerate(np.bincount(owner, minlength=units).tolist()):
        if filled and filled + count > most:
            bounds.append(place)
            filled = 0
        filled += count
    return [*bounds, units]


def _refuse_data(dataset: Any, plan: Plan) -> None:
    """Raise for what is no data set of the plan's records."""
    records = isinstance(dataset, list) and (len(dataset) == plan.records or isinstance(next(iter(dataset), 0), dict))
    if isinstance(dataset, DataLoader | list | tuple) and not records:
        raise InvalidInput(
            f"dataset is a {type(dataset).__name__}; give the Dataset itself (for tensors: TensorDataset(x, y)); "
            "batches are drawn from it by the plan"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise Unsupported(
            f"dataset is a {type(dataset).__name__}, which cannot be asked for one record: each step draws records "
            "by number. Give a map-style Dataset with __len__ and __getitem__"
        )
    if len(dataset) != plan.records:
        raise InvalidInput(
            f"dataset has {len(dataset):,} records but the plan is for {plan.records:,}; they must be the same"
        )

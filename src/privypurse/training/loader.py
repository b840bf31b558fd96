"""Batches for the ordinary loop: drawn by the plan's rates, each with its record numbers beside it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from privypurse.accounting import Progress
from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.randomness import Randomness
from privypurse.training.keying import borrowed, key_all
from privypurse.training.loading import Order, loaded
from privypurse.training.mechanism import PrivateRun
from privypurse.training.progress import shown
from privypurse.training.sampling import PoissonSampler


@dataclass(frozen=True, eq=False)
class Batch:
    """What a physical batch is made of. Sensitive: who was drawn is never told (rule 6)."""

    records: IntArray
    units: IntArray
    """The drawn units whose records these are."""
    owner: IntArray
    """For each record its place in ``units``; padding has the place behind the last."""
    first: bool = True
    last: bool = True
    """Whether this is the first, and the last, physical batch of its step."""
    step: int = 0

    @property
    def one_each(self) -> bool:
        """Whether every unit has one record here."""
        return bool(np.array_equal(self.owner[: self.real], np.arange(self.units.size)))

    @property
    def real(self) -> int:
        """Records that are somebody's; padding comes behind them."""
        return int(np.count_nonzero(self.owner < self.units.size))

    def places(self, run: PrivateRun) -> tuple[Tensor, Tensor | None]:
        """Whose each record is; where a unit has several, the units, and at which place of them each record's is."""
        padding = np.arange(self.records.size - self.real)  # each by itself: what is nobody's is not added up
        nobody = np.full(padding.size, run.plan.people)
        owner = np.concatenate([self.owner[: self.real], self.units.size + padding])
        units = torch.as_tensor(np.concatenate([self.units, nobody]), device=run.device)
        places = torch.as_tensor(owner, device=run.device)
        return (units[places], None) if self.one_each else (units, places)

    def padded(self, size: int) -> Batch:
        """The same batch with stand-ins up to ``size`` records, copies of its first. They weigh nothing."""
        missing = size - self.records.size
        records = np.concatenate([self.records, np.full(missing, self.records[0] if self.records.size else 0)])
        return replace(self, records=records, owner=np.concatenate([self.owner, np.full(missing, self.units.size)]))


class Draws:
    """Steps as physical batches of whole units: those of this process's share that the coins pick."""

    def __init__(
        self,
        run: PrivateRun,
        max_physical_batch: int | None = None,
        max_records_per_person: int | None = None,
        multiple: int = 1,
    ) -> None:
        """Batches are padded to a ``multiple`` of records, so that a device meets few shapes."""
        plan, self.run, self._multiple = run.plan, run, multiple
        self._drawn: dict[int, list[Batch]] = {}
        self._sampler = PoissonSampler(run.processes.share(plan.levels.rate[plan.level_of]))
        self.most, self._most_each = max_physical_batch, max_records_per_person
        self._whole = plan.owner is None
        if plan.owner is not None:
            self._by_owner = np.argsort(plan.owner, kind="stable").astype(np.int64)
            counts = np.bincount(plan.owner, minlength=plan.people)
            self._starts = np.concatenate([[0], np.cumsum(counts)])
            largest = min(int(counts.max()), max_records_per_person or plan.records)
            if max_physical_batch is not None and multiple == 1 and largest > max_physical_batch:
                warnings.warn(
                    f"a person has {largest:,} records, more than max_physical_batch={max_physical_batch:,}; they "
                    "are clipped as one sum, so they go through the model at once. Limit: max_records_per_person",
                    PrivyPurseWarning,
                    stacklevel=4,
                )

    def step(self, step: int) -> list[Batch]:
        """The physical batches of one step; a step that drew nobody is one batch of padding.

        A step is drawn once: until it is taken everyone who asks gets the same draw. Otherwise breaking off until
        the draw is liked would be a choice among draws, which no account knows of (rule 3).
        """
        self._drawn = {number: kept for number, kept in self._drawn.items() if number > self.run.steps_taken}
        if step not in self._drawn:
            source = self.run.source.for_step(step, self.run.processes.rank)
            drawn = self.batches(self._sampler.draw(source), source)
            self._drawn[step] = [replace(batch, step=step) for batch in drawn]
        return self._drawn[step]

    def batches(self, units: IntArray, source: Randomness) -> list[Batch]:
        """The records of these units as physical batches."""
        if not self._whole:
            units = units[self._starts[units + 1] > self._starts[units]]  # who has no records is in no batch
        if units.size == 0:
            return [Batch(units, units, units).padded(self._multiple)]
        records, owner = self._records(units, source)
        whole = [Batch(records, units, owner)]
        if self.most is not None and records.size > self.most:
            whole = self._cut(units, records, owner)
        return [batch.padded(-(-batch.records.size // self._multiple) * self._multiple) for batch in whole]

    def _records(self, units: IntArray, source: Randomness) -> tuple[IntArray, IntArray]:
        """The records of the drawn units, unit by unit."""
        if self._whole:
            return units, np.arange(units.size)
        counts = self._starts[units + 1] - self._starts[units]
        owner = np.repeat(np.arange(units.size), counts)
        within = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        records = self._by_owner[np.repeat(self._starts[units], counts) + within]
        if self._most_each is not None:
            order = np.lexsort((source.uniform(records.size), owner))  # shuffled within each person
            kept = order[within < self._most_each]
            records, owner = records[kept], owner[kept]
        return records, owner

    def _cut(self, units: IntArray, records: IntArray, owner: IntArray) -> list[Batch]:
        """Physical batches of at most ``max_physical_batch`` records, a person never split (rule 12)."""
        assert self.most is not None
        if self._whole:
            bounds = [*range(0, units.size, self.most), units.size]
        else:
            ends, filled = [], 0
            for place, count in enumerate(np.bincount(owner, minlength=units.size).tolist()):
                if filled and filled + count > self.most:
                    ends.append(place)
                    filled = 0
                filled += count
            bounds = [0, *ends, units.size]
        record_bounds = np.searchsorted(owner, bounds)
        return [
            Batch(
                records[record_bounds[k] : record_bounds[k + 1]],
                units[bounds[k] : bounds[k + 1]],
                owner[record_bounds[k] : record_bounds[k + 1]] - bounds[k],
                first=k == 0,
                last=k == len(bounds) - 2,
            )
            for k in range(len(bounds) - 1)
        ]


class Attendance(Protocol):
    """Whoever wants to know which batch is at hand."""

    def restart(self) -> None: ...
    def prepare(self) -> bool: ...
    def begin(self, batch: Batch) -> None: ...
    def require_stepped(self) -> None: ...
    def finish(self) -> None: ...


class PrivateLoader:
    """Iterates over the batches of the plan's remaining steps. Prefetch-safe: each batch keeps its own numbers.

    While a batch is in the loop's hands, the global generators of Python, NumPy and torch give secret numbers (of the
    seed, in a seeded run); afterwards they are what they were. Seeding them inside of the loop undoes that.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        draws: Draws,
        attendance: Attendance,
        workers: int = 0,
        options: dict[str, Any] | None = None,
        progress: bool | Progress = False,
    ) -> None:
        self._dataset, self._draws, self._attendance = dataset, draws, attendance
        self._workers, self._options, self._progress = workers, options or {}, progress
        self._passes, self._told = 0, False
        self._looked_at = "collate_fn" in self._options or hasattr(dataset, "__getitems__")
        self._shapes: list[torch.Size] = []

    def __len__(self) -> int:
        """Steps that are left. A step may be several batches with ``max_physical_batch``: how many tells the draw."""
        return self._draws.run.steps_left

    def __iter__(self) -> Iterator[Any]:
        run, waiting, begun = self._draws.run, deque[Batch](), False
        run.require_step()
        self._attendance.restart()
        self._passes = this = self._passes + 1

        def orders() -> Iterator[Order]:
            for step in range(run.steps_taken + 1, run.plan.all_steps + 1):
                for number, batch in enumerate(self._draws.step(step)):
                    waiting.append(batch)
                    look = self._looked_at and run.keys.due("collate_fn")
                    yield Order(batch.records, run.keys.of(step, f"load {number}"), look)

        with shown(run.plan, run.processes.first and self._progress) as bar, borrowed(run.device):
            for data in loaded(self._dataset, orders(), self._workers, self._options):
                batch = waiting.popleft()
                self._compare_shapes(data)
                if batch.first and not self._attendance.prepare():
                    break
                self._attendance.begin(batch)
                self._key(batch, first=not begun)
                begun = True
                yield data
                if this != self._passes:
                    raise InvalidInput(
                        "another pass over the loader has begun; parts of two passes would make up one step, and "
                        "somebody might be in both"
                    )
                bar.update(run.steps_taken)
            self._attendance.require_stepped()
            self._attendance.finish()

    def _key(self, batch: Batch, first: bool) -> None:
        """Key what is random in the loop's hands: once, or in a seeded run at each batch, to be repeatable."""
        run = self._draws.run
        if batch.first:
            run.keys.begin(batch.step)
        if first or not run.source.secure:
            key_all(run.keys.next(), run.device)

    def _compare_shapes(self, data: Any) -> None:
        """Say so if batches differ in shape: then somebody's record decides about that of others."""
        if "collate_fn" not in self._options or self._told:
            return
        shapes = [value.shape[1:] for value in tree_leaves(data) if isinstance(value, Tensor) and value.dim()]
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            self._told = True
            warnings.warn(
                "collate_fn gives batches of different shapes. Pad to one public length: if the longest record "
                "decides, it also decides how the norms of all others are bounded, and what a mean over places "
                "divides by (rule 12)",
                PrivyPurseWarning,
                stacklevel=4,
            )

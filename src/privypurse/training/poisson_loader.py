"""Batches by Poisson subsampling: drawn by the plan's rates, each with its data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import TensorDataset

from privypurse.arrays import AnyArray
from privypurse.errors import PrivyPurseWarning
from privypurse.training.isolation.batches import column_shapes, require_one_shape
from privypurse.training.mechanism import PrivateRun
from privypurse.training.physical_batches import Batch
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.sampling import PoissonSampler
from privypurse.training.step_randomness import borrowed, key_all


class Draws:
    """Steps as physical batches of whole units: those of this process's share that the coins pick."""

    def __init__(self, run: PrivateRun, records: PlannedRecords, most: int | None = None, multiple: int = 1) -> None:
        """Batches have at most ``most`` records (default: as the execution says), padded to a ``multiple`` of them,
        so that a device meets few shapes."""
        self.run, self.records, self.multiple = run, records, multiple
        self.most = records.execution.max_physical_batch if most is None else most
        self._drawn: dict[int, list[Batch]] = {}
        self._shapes: list[torch.Size] = []
        self._taking_part, self._sampler = self._sampled()
        largest = int(records.held.max())
        if self.most is not None and multiple == 1 and largest > self.most:
            warnings.warn(
                f"a person has {largest:,} records, more than max_physical_batch={self.most:,}; they are clipped as "
                "one sum, so they go through the model at once. Limit: max_records_per_person",
                PrivyPurseWarning,
                stacklevel=4,
            )

    def _sampled(self) -> tuple[AnyArray | None, PoissonSampler]:
        """Who takes part by the run's account, and a sampler of them."""
        account = self.run.account
        taking_part = None if account is None else account.takes_part
        return taking_part, PoissonSampler(self.run.processes.share(self.run.rates))

    def step(self, step: int) -> list[Batch]:
        """The physical batches of one step; a step that drew nobody is one batch of padding.

        A step is drawn once: until it is taken everyone who asks gets the same draw. Otherwise breaking off until
        the draw is liked would be a choice among draws, which no account knows of (rule 3).
        """
        self._drawn = {number: kept for number, kept in self._drawn.items() if number > self.run.steps_taken}
        if self.run.account is not None and self.run.account.takes_part is not self._taking_part:
            self._taking_part, self._sampler = self._sampled()
        if step not in self._drawn:
            source = self.run.source.for_step(step, self.run.processes.rank)
            drawn = self.records.batches(self._sampler.draw(source), source, self.most, self.multiple)
            self._drawn[step] = [replace(batch, step=step) for batch in drawn]
        return self._drawn[step]

    def __iter__(self) -> Iterator[tuple[Batch, Any]]:
        """The batches of the plan's remaining steps, each with its data.

        While a batch is out, the global generators of Python, NumPy and torch give secret numbers (of the seed, in a
        seeded run); afterwards they are what they were.
        """
        run, begun = self.run, False
        with borrowed(run.device):
            for batch, data in self.records.load(self._wanted()):
                if type(self.records.dataset) is not TensorDataset or self.records.collate_fn is not None:
                    shapes = column_shapes(data, batch.records.size)
                    self._shapes = self._shapes or shapes
                    require_one_shape(self._shapes, shapes)
                if batch.first:
                    run.keys.begin(batch.step)
                if not begun or not run.source.secure:  # once, or in a seeded run each time, to be repeatable
                    key_all(run.keys.next(), run.device)
                begun = True
                yield batch, data

    def _wanted(self) -> Iterator[Batch]:
        run, records = self.run, self.records
        mixable = records.collate_fn is not None or hasattr(records.dataset, "__getitems__")
        for step in range(run.steps_taken + 1, run.plan.all_steps + 1):
            for number, batch in enumerate(self.step(step)):
                checked = mixable and run.keys.due("collate_fn")
                yield replace(batch, key=run.keys.of(step, f"load {number}"), check=checked)

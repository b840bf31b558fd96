"""Norm passes: everybody's gradient norm between steps, and how often the model is right about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.arrays import FloatArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.training.gradients import norms, recorded
from privypurse.training.isolation.loss_fn import Loss, require_own_losses
from privypurse.training.isolation.model import require_isolated
from privypurse.training.isolation.replaced_records import first_rows
from privypurse.training.model_inputs import Inputs, arguments
from privypurse.training.physical_batches import Batch, moved
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.setup import Setup, modes_kept
from privypurse.training.step_randomness import keyed

# Streams of a seeded run's random numbers: none of its processes has such a rank.
_RECORD_STREAM = 2**20
_MASK_STREAM = 2**21

_ASKED = 128  # records at most, whether the model keeps them apart: it takes far more memory than a question

_MIXES = "right(output, y) of a record changes with the other records; it must see its own alone"

Right = Callable[[Any, Any], Tensor]
"""right(output, y): for each record a number from 0 to 1."""


def most_likely(output: Any, y: Any) -> Tensor:
    """Whether the largest output is that of the label."""
    right: Tensor = (output.argmax(dim=-1) == y).to(torch.float64)
    return right


@dataclass(frozen=True)
class NormPasses:
    """Passes over the data of a run between steps, with the model as it is. Nothing of the run is changed by them.

    What they measure is sensitive: a norm may only decide what its own person contributes.
    """

    setup: Setup
    records: PlannedRecords
    loss_fn: Loss

    def norms(self, steps_taken: int, units: IntArray | None = None) -> FloatArray:
        """Gradient norm of these units (default: all); 0 for the others."""
        found = self._nothing()
        with self._undisturbed(steps_taken), torch.enable_grad():
            for number, (batch, inputs, label) in enumerate(self._pieces(steps_taken, units)):
                # A loop of one's own runs this loss nowhere else, so it is asked here whether it mixes.
                tape, _ = recorded(self.setup.recorder, self.loss_fn, inputs, label, number == 0)
                who, owner = batch.places(self.setup)
                # A person's records add up before their norm is taken, as in a step.
                found[who] = norms(tape, owner, who.shape[0]).to(torch.float64)
        return self._everyone(found)

    def right(self, steps_taken: int, units: IntArray, right: Right = most_likely) -> FloatArray:
        """For these units the share of their records that the model gets right; 0 for the others."""
        found = self._nothing()
        with modes_kept(self.setup.recorder.model) as model, self._undisturbed(steps_taken), torch.no_grad():
            model.eval()
            for number, (batch, inputs, label) in enumerate(self._pieces(steps_taken, units)):
                given, options = arguments(inputs)
                output = model(*given, **options)
                each = right(output, label).to(torch.float64)
                if each.shape != (batch.records.size,):
                    raise InvalidInput("right(output, y) must give one number for each record")
                if number == 0:  # in evaluation mode, which training asks nothing of
                    few = min(batch.records.size, _ASKED)
                    first = first_rows((given, options), few, batch.records.size)
                    require_isolated(self.setup.recorder, first[0], first[1], few)
                    require_own_losses(right, output, label, each.shape[0], complaint=_MIXES, tolerance=1e-3)
                who, owner = batch.places(self.setup)
                found.index_add_(0, who if owner is None else who[owner], each.nan_to_num(0.0).clamp(0.0, 1.0))
        return np.asarray(self._everyone(found) / np.maximum(self.records.held, 1))

    def _nothing(self) -> Tensor:
        return torch.zeros(self.setup.plan.people + 1, dtype=torch.float64, device=self.setup.device)

    @contextmanager
    def _undisturbed(self, steps_taken: int) -> Iterator[None]:
        """Dropout and augmentation draw numbers that belong to the pass alone, and training goes on as without it.

        With the numbers of the next step, a person's clip norm would depend on other people's dropout masks.
        """
        setup, recorder = self.setup, self.setup.recorder
        source = setup.source.for_step(steps_taken, _MASK_STREAM + setup.processes.rank)
        before, recorder.key = recorder.key, None
        try:
            with keyed(int(source.uniform(1)[0] * 2**53).to_bytes(32, "big"), setup.device):
                yield
        finally:
            recorder.key = before

    def _pieces(self, steps_taken: int, units: IntArray | None) -> Iterator[tuple[Batch, Inputs, Any]]:
        setup, execution = self.setup, self.records.execution
        wanted = np.arange(setup.plan.people) if units is None else units
        mine = wanted[wanted % setup.processes.size == setup.processes.rank]
        if not mine.size:
            return
        rows = 4096 if setup.device.type == "cuda" else 512
        most = execution.max_physical_batch or max(1, rows // setup.recorder.views)
        batches = self.records.batches(mine, setup.source.for_step(steps_taken, _RECORD_STREAM), most)
        for batch, data in self.records.load(batches):
            yield batch, *moved(data, setup.device)

    def _everyone(self, found: Tensor) -> FloatArray:
        self.setup.processes.total([found])
        return np.asarray(found[:-1].cpu().numpy())

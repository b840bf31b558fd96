"""Looks at the whole data between steps: gradient norms and losses, and how many are predicted right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset

from privypurse.arrays import FloatArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.training.gradients import norms, recorded
from privypurse.training.isolation.loss_fn import Loss, require_own_losses
from privypurse.training.keying import keyed
from privypurse.training.loader import Batch, Draws
from privypurse.training.loading import Order, loaded
from privypurse.training.mechanism import PrivateRun

_AT_ONCE = {"cuda": 4096}
_AT_ONCE_ELSEWHERE = 512
_LOOK_STREAM = 2**20  # of a seeded run's random numbers: none of its processes has such a rank
_MASK_STREAM = 2**21

_MIXES = "right(output, y) of a record changes with the other records; it must see its own alone"

Right = Callable[[Any, Any], Tensor]
"""right(output, y): for each record a number from 0 to 1."""


def most_likely(output: Any, y: Any) -> Tensor:
    """Whether the largest output is that of the label."""
    right: Tensor = (output.argmax(dim=-1) == y).to(torch.float64)
    return right


@dataclass(frozen=True)
class Looks:
    """Passes over the data of a run, with the model as it is, in pieces. Nothing of the run is changed by them.

    What they see is sensitive: a norm may only decide what its own person contributes.
    """

    run: PrivateRun
    dataset: Dataset[Any]
    loss_fn: Loss
    at_once: int | None = None
    max_records_per_person: int | None = None
    workers: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def norms(self, units: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Gradient norm and mean loss of these units (default: all); 0 for the others."""
        found = torch.zeros((2, self.run.plan.people + 1), dtype=torch.float64, device=self.run.device)
        with self._undisturbed(), torch.enable_grad():
            for batch, inputs, label in self._pieces(units):
                tape, losses = recorded(self.run.recorder, self.loss_fn, inputs, label, False)
                who, owner = batch.places(self.run)
                whose = who if owner is None else who[owner]
                # A person's records add up before their norm is taken, as in a step.
                each = norms(tape) if owner is None else norms(tape, owner, who.shape[0])
                found[0, who] = each.to(torch.float64)
                found[1].index_add_(0, whose, losses.to(torch.float64))
        return self._everyone(found[0]), self._everyone(found[1]) / self._records_each()

    def right(self, units: IntArray, right: Right = most_likely) -> FloatArray:
        """For these units the share of their records that the model gets right; 0 for the others."""
        found = torch.zeros(self.run.plan.people + 1, dtype=torch.float64, device=self.run.device)
        model = self.run.recorder.model
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with self._undisturbed(), torch.no_grad():
                for number, (batch, inputs, label) in enumerate(self._pieces(units)):
                    output = model(*inputs)
                    each = right(output, label).to(torch.float64)
                    if each.shape != (batch.records.size,):
                        raise InvalidInput("right(output, y) must give one number for each record")
                    if number == 0:
                        require_own_losses(right, output, label, each.shape[0], complaint=_MIXES, tolerance=1e-3)
                    who, owner = batch.places(self.run)
                    found.index_add_(0, who if owner is None else who[owner], each.nan_to_num(0.0).clamp(0.0, 1.0))
        finally:
            for module, training in modes:  # one by one: a layer may have been put into evaluation mode by itself
                module.training = training
        return np.asarray(self._everyone(found) / self._records_each())

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        run, recorder = self.run, self.run.recorder
        source = run.source.for_step(run.steps_taken, _MASK_STREAM + run.processes.rank)
        before, recorder.key = recorder.key, None
        try:
            with undisturbed(int(source.uniform(1)[0] * 2**53), run.device):
                yield
        finally:
            recorder.key = before

    def _pieces(self, units: IntArray | None) -> Iterator[tuple[Batch, tuple[Any, ...], Any]]:
        run = self.run
        wanted = np.arange(run.plan.people) if units is None else units
        mine = wanted[wanted % run.processes.size == run.processes.rank]
        if not mine.size:
            return
        size = self.at_once or _AT_ONCE.get(run.device.type, _AT_ONCE_ELSEWHERE)
        draws = Draws(run, size, self.max_records_per_person)
        batches = draws.batches(mine, run.source.for_step(run.steps_taken, _LOOK_STREAM))
        data = loaded(self.dataset, (Order(batch.records) for batch in batches), self.workers, self.options)
        for batch, values in zip(batches, data, strict=True):
            *inputs, label = moved(values, run.device)
            yield batch, tuple(inputs), label

    def _everyone(self, found: Tensor) -> FloatArray:
        self.run.processes.total([found])
        return np.asarray(found[:-1].cpu().numpy())

    def _records_each(self) -> FloatArray:
        plan = self.run.plan
        if plan.owner is None:
            return np.ones(plan.people)
        counts = np.bincount(plan.owner, minlength=plan.people).clip(1)
        most = self.max_records_per_person
        return np.asarray(counts if most is None else np.minimum(counts, most), dtype=np.float64)


def undisturbed(seed: int, device: torch.device | None = None) -> AbstractContextManager[None]:
    """Layers and data that draw (dropout, augmentation) take numbers of this seed, and training goes on as if not.

    Numbers of their own: with those of the next step a level would hang on the masks of somebody else's step.
    """
    return keyed(seed.to_bytes(32, "big"), device)


def moved(data: Any, device: torch.device) -> list[Any]:
    """The inputs and the label of a batch, on the device."""
    if not isinstance(data, list | tuple) or len(data) < 2:
        raise InvalidInput("the dataset must give (input, label), or several inputs and then a label")
    return [tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), value) for value in data]

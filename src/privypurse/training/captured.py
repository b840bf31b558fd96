"""The fast path: data that stays on the GPU, batches of a few sizes, and the step as one captured graph for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from privypurse.plans import Plan
from privypurse.training.cuda_graphs import NotCapturable, capturing, require_one_pass, warmed_up
from privypurse.training.gradients import Tape, recorded
from privypurse.training.isolation.loss_fn import Loss, check_loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.mechanism import PrivateRun
from privypurse.training.physical_batches import few_shapes
from privypurse.training.poisson_loader import Draws
from privypurse.training.step_randomness import borrowed, key_cuda, keyed

_ALIKE = 64  # records of which the largest batch is a multiple
_SLOTS = 16  # host buffers in flight
_LATER = 1 / 500  # how likely a batch is checked outside of the graph, which takes as long as ten of its replays


def sizes_of(plan: Plan, most: int | None) -> tuple[int, int]:
    """Most records in a captured batch, and of how many its size is a multiple: of public numbers only.

    Where it is ours to say, a step has more about once in a billion steps.
    """
    most, multiple = few_shapes(plan.batch_size, most)
    if most is not None:
        return most, multiple
    size = plan.batch_size + 6 * math.sqrt(plan.batch_size) + 8
    return _ALIKE * math.ceil(size / _ALIKE), min(multiple, _ALIKE)


def one_record_each(plan: Plan) -> bool:
    """Whether no unit has more than one record; whoever is absent has none."""
    return plan.owner is None or bool(np.bincount(plan.owner, minlength=plan.people).max() <= 1)


def _record_of_unit(plan: Plan) -> Tensor:
    """The record of each unit, and behind them, as for whoever is absent, record 0 to stand in for nobody."""
    found = torch.zeros(plan.people + 1, dtype=torch.int64)
    records = torch.arange(plan.records)
    found[records if plan.owner is None else torch.from_numpy(plan.owner.astype(np.int64))] = records
    return found


class CapturedSteps:
    """Steps on a data set that lies on the GPU.

    A graph gathers the drawn records, runs the model forward and back, clips and adds to the run's sum. Noise is not
    part of it: it is drawn fresh for every release, after the graph. Places in a batch that nobody fills hold record
    0 with clip norm 0; a draw that is larger than any graph is split over several replays, never cut off.
    """

    def __init__(self, run: PrivateRun, dataset: TensorDataset, loss_fn: Loss, draws: Draws, checked: bool) -> None:
        """Raises `NotCapturable` if model or loss do what no graph can hold."""
        self._run, self._loss_fn, self._draws, self._checked = run, loss_fn, draws, checked
        self._tensors = dataset.tensors
        self._record_of = _record_of_unit(run.plan).to(run.device)
        self._loss = torch.zeros((), device=run.device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph | None, Tensor]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._random = False
        run.stay_in_place()
        size = min(draws.most or 1, -(-math.ceil(run.plan.batch_size) // draws.multiple) * draws.multiple)
        if checked:
            # Real records, for the check of model and loss.
            with borrowed(run.device, everything=False):
                self._check(torch.arange(size, device=run.device) % run.plan.people, first=True)
        self._graphs[size] = self._captured(size)

    def steps(self) -> Iterator[Tensor]:
        """Adds one step's clipped gradients to the run at each turn; gives the mean loss of its last batch."""
        run, people = self._run, self._run.plan.people
        host = torch.full((_SLOTS, self._draws.most or 1), people, dtype=torch.int64).pin_memory()
        used = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        run.clear()
        turn = 0
        for step in range(run.steps_taken + 1, run.plan.all_steps + 1):
            run.keys.begin(step)
            for batch in self._draws.step(step):
                size, slot = batch.records.size, turn % _SLOTS
                graph, places = self._of_size(size)
                if turn >= _SLOTS:
                    used[slot].synchronize()  # the buffer may still be on its way
                host[slot, : batch.units.size] = torch.from_numpy(batch.units)
                host[slot, batch.units.size : size] = people
                places.copy_(host[slot, :size], non_blocking=True)
                used[slot].record()
                if self._checked and run.keys.due("captured", _LATER):
                    with keyed(run.keys.next(), run.device, everything=False):
                        self._check(places)
                self._run_through(graph, places)
                turn += 1
            yield self._loss

    def _of_size(self, size: int) -> tuple[torch.cuda.CUDAGraph | None, Tensor]:
        """The graph of batches of this size, and where it looks for them; none if there is no room for one more."""
        if size not in self._graphs:
            try:
                self._graphs[size] = self._captured(size)
            except (NotCapturable, torch.OutOfMemoryError):  # others fit, this one does not: it runs as it is
                self._graphs[size] = None, torch.zeros(size, dtype=torch.int64, device=self._run.device)
        return self._graphs[size]

    def _run_through(self, graph: torch.cuda.CUDAGraph | None, places: Tensor) -> None:
        if graph is None:
            self._batch(places)
        elif not self._random:
            graph.replay()
        else:
            with borrowed(self._run.device, everything=False):
                key_cuda(self._run.keys.next(), self._run.device)  # masks of dropout: a replay reads the seed
                graph.replay()

    def _captured(self, size: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph, made with nobody's records, so that the step's sum stays what it is."""
        run = self._run
        places = torch.full((size,), run.plan.people, dtype=torch.int64, device=run.device)
        with borrowed(run.device):
            with run.recorder.captured():
                (tape, _), self._random = warmed_up(run.device, lambda: self._passes(places))
                run.add(tape, places)
            require_one_pass(run.recorder)
            with run.recorder.captured(), capturing(self._pool) as graph, graph() as made:
                self._batch(places)
        return made, places

    def _gathered(self, places: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs and labels."""
        *inputs, label = [tensor[self._record_of[places]] for tensor in self._tensors]
        return tuple(inputs), label

    def _check(self, places: Tensor, first: bool = False) -> None:
        """At a batch, outside of the graph."""
        inputs, label = self._gathered(places)
        require_isolated(self._run.recorder, inputs, {}, label.shape[0])
        check_loss(self._run.recorder.model, self._loss_fn, inputs, label)
        if first:
            self._run.require_true_gradients((inputs, {}), label.shape[0])
            recorded(self._run.recorder, self._loss_fn, inputs, label, check=True)

    def _passes(self, places: Tensor) -> tuple[Tape, Tensor]:
        inputs, label = self._gathered(places)
        return recorded(self._run.recorder, self._loss_fn, inputs, label, check=False)

    def _batch(self, places: Tensor) -> None:
        tape, losses = self._passes(places)
        self._run.add(tape, places)
        nobody = places == self._run.plan.people
        self._loss.copy_(losses.masked_fill(nobody, 0.0).sum() / (~nobody).sum().clamp(min=1))

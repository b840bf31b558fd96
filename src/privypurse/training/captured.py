"""The fast path: data that stays on the GPU, batches of one static shape, and the step as one captured graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from privypurse.errors import Unsupported
from privypurse.plans import Plan
from privypurse.training.gradients import Recorder, recorded
from privypurse.training.isolation.loss_fn import Loss, check_loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.mechanism import PrivateRun
from privypurse.training.poisson_loader import Draws
from privypurse.training.step_randomness import borrowed, key_cuda, keyed, states

_SLOTS = 16  # host buffers in flight
_WARM_UP = 3
_LATER = 1 / 500  # how likely a batch is checked outside of the graph, which takes as long as ten of its replays


def static_size(plan: Plan) -> int:
    """Records in a captured batch: of public numbers only, and exceeded about once in a billion steps."""
    size = plan.batch_size + 6 * math.sqrt(plan.batch_size) + 8
    return 64 * math.ceil(size / 64)


def one_record_each(plan: Plan) -> bool:
    """Whether no unit has more than one record; whoever is absent has none."""
    return plan.owner is None or bool(np.bincount(plan.owner, minlength=plan.people).max() <= 1)


def _record_of_unit(plan: Plan) -> Tensor:
    """The record of each unit, and behind them, as for whoever is absent, record 0 to stand in for nobody."""
    found = torch.zeros(plan.people + 1, dtype=torch.int64)
    records = torch.arange(plan.records)
    found[records if plan.owner is None else torch.from_numpy(plan.owner.astype(np.int64))] = records
    return found


def _require_capturable(recorder: Recorder) -> None:
    """Raise if the last forward pass did what no graph can hold."""
    if recorder.runs_again:
        raise Unsupported(
            "gradient checkpointing puts random states back in the backward pass, which a captured graph cannot "
            "hold; give execution=pp.Execution(capture=False), or leave checkpointing out"
        )
    if not recorder.one_shape:
        raise Unsupported(
            "a packed sequence has other shapes for every batch, which a captured graph cannot hold; give "
            "execution=pp.Execution(capture=False), or padded sequences with a mask on what is read of them"
        )


class CapturedSteps:
    """Steps on a data set that lies on the GPU.

    The graph gathers the drawn records, runs the model forward and back, clips and adds to the run's sum. Noise is
    not part of it: it is drawn fresh for every release, after the graph. Places in a batch that nobody fills hold
    record 0 with clip norm 0; a draw that does not fit is split over several replays, never cut off.
    """

    def __init__(self, run: PrivateRun, dataset: TensorDataset, loss_fn: Loss, checked: bool = True) -> None:
        self._run, self._loss_fn, self._checked = run, loss_fn, checked
        self._tensors = dataset.tensors
        self._record_of = _record_of_unit(run.plan).to(run.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._draws = True

    def steps(self, draws: Draws) -> Iterator[Tensor]:
        """Adds one step's clipped gradients to the run at each turn; gives the mean loss of its last batch."""
        run, people = self._run, self._run.plan.people
        size = draws.most
        assert size is not None
        self._places = torch.full((size,), people, dtype=torch.int64, device=run.device)
        self._loss = torch.zeros((), device=run.device)
        host = torch.full((_SLOTS, size), people, dtype=torch.int64).pin_memory()
        used = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        run.stay_in_place()
        with borrowed(run.device, everything=False):
            self._capture()
        run.clear()
        turn = 0
        for step in range(run.steps_taken + 1, run.plan.all_steps + 1):
            run.keys.begin(step)
            for batch in draws.step(step):
                slot = turn % _SLOTS
                if turn >= _SLOTS:
                    used[slot].synchronize()  # the buffer may still be on its way
                host[slot, : batch.units.size] = torch.from_numpy(batch.units)
                host[slot, batch.units.size :] = people
                self._places.copy_(host[slot], non_blocking=True)
                used[slot].record()
                if self._checked and run.keys.due("captured", _LATER):
                    self._check_again()
                self._replay()
                turn += 1
            yield self._loss

    def _replay(self) -> None:
        assert self._graph is not None
        if not self._draws:
            self._graph.replay()
            return
        with borrowed(self._run.device, everything=False):
            key_cuda(self._run.keys.next(), self._run.device)  # masks of dropout: a replay reads the seed
            self._graph.replay()

    def _capture(self) -> None:
        # Real records for the check of model and loss; what they add to the sums is cleared before the first step.
        first = min(self._places.shape[0], self._run.plan.people)
        self._places[:first] = torch.arange(first, device=self._places.device)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number in range(_WARM_UP):
                self._batch(check=self._checked and number == 0)
        torch.cuda.current_stream().wait_stream(side)
        _require_capturable(self._run.recorder)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._batch(check=False)
        before = states(self._run.device)
        self._graph.replay()  # moves the generator on if the graph has random numbers in it
        self._draws = not all(map(torch.equal, before, states(self._run.device)))

    def _gathered(self) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Which places are nobody's, and the inputs and labels of all."""
        nobody = self._places == self._run.plan.people
        rows = self._record_of[self._places]
        *inputs, label = [tensor[rows] for tensor in self._tensors]
        return nobody, tuple(inputs), label

    def _check_again(self) -> None:
        """At the batch at hand, outside of the graph."""
        _, inputs, label = self._gathered()
        with keyed(self._run.keys.next(), self._run.device, everything=False):
            require_isolated(self._run.recorder, inputs, {}, label.shape[0])
            check_loss(self._run.recorder.model, self._loss_fn, inputs, label)

    def _batch(self, check: bool) -> None:
        nobody, inputs, label = self._gathered()
        if check:
            require_isolated(self._run.recorder, inputs, {}, label.shape[0])
            self._run.require_true_gradients((inputs, {}), label.shape[0])
        tape, losses = recorded(self._run.recorder, self._loss_fn, inputs, label, check)
        self._run.add(tape, self._places)
        self._loss.copy_(losses.masked_fill(nobody, 0.0).sum() / (~nobody).sum().clamp(min=1))

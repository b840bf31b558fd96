"""Forgiving steps: whoever makes model or loss raise contributes nothing, and moves no one else's gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.training.gradients import recorded
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.mechanism import PrivateRun
from privypurse.training.model_inputs import Inputs
from privypurse.training.physical_batches import Batch
from privypurse.training.setup import Setup

_ALIKE = 64  # records: in batches of so many, or a multiple, each row is computed like any other
_FULL = (torch.float32, torch.float64)
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends the process. Whatever else is raised may be about a record, be it an `Exception` or not: a panic in a
library that is written in Rust is none."""


def require_forgivable(setup: Setup, individual: bool) -> None:
    """Raise where errors could not be kept silent, or would reach other records."""
    if individual:
        raise InvalidInput("forgiving=True cannot follow what each person spends: norm passes may raise")
    if any(value.dtype not in _FULL for value in setup.recorder.model.parameters()):
        raise InvalidInput(
            "a federated client needs a model in float32 or float64, frozen parameters too: some CPUs let a number "
            "that is not finite reach the next record in products of shorter floats"
        )


def one_shape(plan: Plan, most: int | None) -> int:
    """Records in every physical batch of a forgiving run, from public numbers: enough for most steps at once.

    A multiple of 64: the last entries of a batch that is none go through other instructions than the rest.
    """
    size = min(512, _ALIKE * math.ceil((plan.batch_size + 2 * math.sqrt(plan.batch_size)) / _ALIKE))
    return size if most is None else min(size, most // _ALIKE * _ALIKE or 1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads share a batch out among themselves, and where one ends the last entries are computed otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def add_forgivingly(run: PrivateRun, loss_fn: Loss, inputs: Inputs, label: Any, batch: Batch) -> Tensor:
    """Adds a batch without whoever makes model or loss raise.

    Only they are left out: without the whole batch one person would move the sum by as many clip norms as it has
    people (rule 12, isolation). And the others have to be what they would have been: whoever chose the parameters can
    choose them so that the last bit of a product decides a gradient, and these bits change with the shape of a batch.
    So all batches have one shape, and the halves of one that raises are repeated until they fill it, and so on.
    """
    size = batch.records.size
    if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in tree_leaves((inputs, label))):
        raise InvalidInput(
            "with forgiving=True every input and label must be a tensor with one row for each record: what is "
            "something else cannot be taken apart by person"
        )
    kept: list[Tensor] = []

    def adds(rows: Tensor | None, some: Batch) -> bool:
        """Whether these rows could be added; all of them or none."""
        mine, own = (inputs, label) if rows is None else tree_map(lambda value: value[rows], (inputs, label))
        put_back = run.recorder.remembered()
        with _one_thread(), torch.autocast(run.device.type, enabled=False):
            try:
                tape, losses = recorded(run.recorder, loss_fn, mine, own, False)
                weights = run.weights(tape, *some.places(run.setup))
            except ENDS:
                raise
            except BaseException:  # what it says is about somebody's record, and stays unsaid
                put_back()
                return False
            run.gather(tape, *weights)
        kept.append(losses[: some.real])
        return True

    # What raised may have been a stand-in: so everybody is tried once more without.
    waiting = [] if adds(None, batch) or not batch.units.size else [(0, batch.units.size)]
    while waiting:
        first, last = waiting.pop()
        rows, some = _of(batch, first, last)
        if not adds(torch.as_tensor(rows, device=run.device), some) and last - first > 1:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
    return torch.cat(kept) if kept else torch.zeros(1, device=run.device)


def _of(batch: Batch, first: int, last: int) -> tuple[IntArray, Batch]:
    """Rows of these units of a batch, repeated until there are as many as it has, and the batch that they make."""
    begin, end = np.searchsorted(batch.owner, [first, last])
    rows = np.resize(np.arange(begin, end), batch.records.size)
    owner = np.where(np.arange(rows.size) < end - begin, batch.owner[rows] - first, last - first)
    return rows, Batch(batch.records[rows], batch.units[first:last], owner)

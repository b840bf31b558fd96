"""A step is counted on disk before anything of it is released (rule 10): before ``.grad``, before the optimizer.

Killing runs at random times cannot see a count that is one step late: entries reserve steps ahead. So the optimizer
looks by itself, and the disk fails at every entry in turn.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.training import journal as journal_module
from training_tools import CUDA, steps_on_disk

torch.set_num_threads(1)
STEPS = 12


class Looking(torch.optim.SGD):
    """Reads at each of its steps what the journal says, and remembers what it left behind."""

    def __init__(self, model: nn.Module, journal: Path) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.journal, self.taken = journal, 0
        self.counted: list[int] = []
        self.weights = self._now()

    def step(self, closure: object = None) -> None:
        self.counted.append(steps_on_disk(self.journal))
        super().step()
        self.taken += 1
        self.weights = self._now()

    def _now(self) -> list[Tensor]:
        return [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def nothing_happened_since(self) -> bool:
        parameters = [p for group in self.param_groups for p in group["params"]]
        same = all(torch.equal(a, b) for a, b in zip(self.weights, parameters, strict=True))
        return same and all(p.grad is None for p in parameters)


@made_once
def planned() -> pp.Plan:
    budgets = pp.Budgets(np.full(40, 2.0), delta=1e-5)
    return pp.plan(budgets, "sample", steps=STEPS, batch_size=10, accountant="rdp")


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator))


def in_the_loop(folder: Path, device: str) -> tuple[Looking, Callable[[], None]]:
    inner = nn.Linear(4, 3).to(device)
    looking = Looking(inner, folder / "steps")

    def run() -> None:
        model, optimizer, loader = pp.make_private(inner, looking, data(), planned(), journal=folder / "steps")
        try:
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
        finally:
            optimizer.close()

    return looking, run


def by_train(folder: Path, device: str) -> tuple[Looking, Callable[[], None]]:
    model = nn.Linear(4, 3).to(device)
    looking = Looking(model, folder / "steps")
    loss = partial(F.cross_entropy, reduction="none")
    return looking, lambda: pp.train(model, looking, data(), planned(), loss, checkpoint=folder) and None


WAYS = [
    pytest.param(in_the_loop, "cpu", id="make_private"),
    pytest.param(by_train, "cpu", id="train"),
    pytest.param(in_the_loop, "cuda", marks=CUDA.marks, id="make_private on a GPU"),
    pytest.param(by_train, "cuda", marks=CUDA.marks, id="captured"),
]
Way = Callable[[Path, str], tuple[Looking, Callable[[], None]]]


@pytest.mark.parametrize("ahead", [True, False], ids=["reserved", "one by one"])
@pytest.mark.parametrize(("way", "device"), WAYS)
def test_the_optimizer_finds_its_step_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, device: str, ahead: bool
) -> None:
    if not ahead:
        monkeypatch.setattr(journal_module, "_MOST", 1)  # an entry for every step: none is hidden by the one before
    looking, run = way(tmp_path, device)
    run()
    assert len(looking.counted) == STEPS
    for number, counted in enumerate(looking.counted, 1):
        assert number <= counted <= STEPS
    if not ahead:
        assert looking.counted == list(range(1, STEPS + 1))


@pytest.mark.parametrize("entry", [1, 2, 5])
@pytest.mark.parametrize(("way", "device"), WAYS)
def test_a_step_that_cannot_be_counted_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, device: str, entry: int
) -> None:
    """The disk is full at that entry of the journal: no weight moves, and no gradient can be read."""
    monkeypatch.setattr(journal_module, "_MOST", 1)
    looking, run = way(tmp_path, device)
    written, seen, write = 0, [], os.pwrite

    def full(file: int, content: Any, place: int) -> int:
        nonlocal written
        written += place > 0 and b" 0 " not in bytes(content)  # the journal is made with none counted
        if written < entry:
            return write(file, content, place)
        seen.append(looking.nothing_happened_since())
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space left"):
        run()
    assert looking.taken == entry - 1
    assert seen
    assert all(seen)
    assert looking.nothing_happened_since()

"""Ctrl-C: a step that was counted is applied and saved before the run ends, so that none is paid for and lost."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.interruption import undivided
from training_tools import LOSS

torch.set_num_threads(1)
STEPS = 9


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell gives a command in the background one that ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(torch.optim.SGD):
    """Is interrupted in the middle of a step of its own."""

    def __init__(self, model: nn.Module, at: int | None) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.at, self.taken = at, 0

    def step(self, closure: object = None) -> None:
        if self.taken + 1 == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        super().step()
        self.taken += 1


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> object:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    plan = pp.plan(pp.Budgets(np.full(40, 2.0), delta=1e-5), steps=STEPS, batch_size=10, accountant="rdp")
    return pp.train(model, optimizer, TensorDataset(x, y), plan, LOSS, checkpoint=folder)


@pytest.mark.parametrize("at", [1, 4, STEPS])
def test_a_step_that_is_interrupted_is_finished_and_saved(tmp_path: Path, at: int) -> None:
    model = nn.Linear(4, 3)
    first = Interrupted(model, at)
    with pytest.raises(KeyboardInterrupt):
        trained(model, first, tmp_path)
    assert first.taken == at
    again = nn.Linear(4, 3)
    second = Interrupted(again, None)
    outcome = trained(again, second, tmp_path)
    # As many steps as the plan has, in the model and in the count: none was taken twice, none was lost.
    assert (outcome.resumed_from, outcome.steps, second.taken) == (at, STEPS, STEPS - at)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["parts"]["model"]
    assert torch.equal(saved["weight"], again.weight)


def test_an_interrupt_comes_at_the_end_and_once() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def twice() -> None:
        with undivided():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            seen.append("whole")

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert seen == ["whole"]
    assert signal.getsignal(signal.SIGINT) is before
    with undivided():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_come_through_and_leave_interrupts_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(OSError, match="no space"), undivided():
        raise OSError("no space left")
    assert signal.getsignal(signal.SIGINT) is before


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with undivided():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_touched(tmp_path: Path) -> None:
    outcome: list[object] = []

    def run() -> None:
        model = nn.Linear(4, 3)
        outcome.append(trained(model, Interrupted(model, None), tmp_path))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert outcome[0].steps == STEPS

"""Two trainings in threads of one process: they would key the same generators of torch, so the second waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.step_randomness import alone
from training_tools import LOSS

N = 40
PLAN = pp.plan(pp.Budgets(np.ones(N), delta=1e-5), steps=4, batch_size=10, accountant="rdp")


class Telling(pp.Callback):
    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def on_step(self, figures: pp.Figures) -> None:
        self._act()


def train(act: Callable[[], object] = lambda: None) -> int:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return pp.train(model, optimizer, data, PLAN, LOSS, callbacks=[Telling(act)]).steps


def test_a_second_training_waits_for_the_first() -> None:
    begun, steps = threading.Event(), []
    other = threading.Thread(target=lambda: steps.append(train(begun.set)))

    def first() -> None:
        if not other.is_alive():
            other.start()
        assert not begun.wait(0.2), "it steps beside this one"

    assert train(first) == 4
    other.join(60)
    assert begun.is_set()
    assert steps == [4]


def test_in_one_thread_one_may_stand_inside_another() -> None:
    inner: list[int] = []
    assert train(lambda: inner.append(train())) == 4
    assert inner == [4] * 4


def test_an_error_lets_the_next_one_begin() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stop)
    steps: list[int] = []
    other = threading.Thread(target=lambda: steps.append(train()))
    other.start()
    other.join(60)
    assert steps == [4]


def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with alone():
            held.set()
            go_on.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        free = alone().acquire(timeout=5)  # type: ignore[attr-defined]
        os._exit(0 if free else 1)
    go_on.set()
    other.join(60)
    assert os.waitpid(child, 0)[1] == 0

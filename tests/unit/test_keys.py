"""Where coins and noise come from: the operating system's generator, and nothing that could be guessed (rule 10).

A clock that stands still, and generators that begin alike, must not make two sources alike. With an operating system
that always gives the same bytes they must be alike, to the last bit: then nothing else went into them.
"""

import os
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.queries import Analyst
from privypurse.training.step_randomness import keyed
from training_tools import CUDA, Keeping

torch.set_num_threads(1)
PEOPLE = 60
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


@made_once
def planned() -> pp.Plan:
    return pp.plan(pp.Budgets(np.full(PEOPLE, 2.0), delta=1e-5), "sample", steps=3, batch_size=20, accountant="rdp")


def people() -> TensorDataset:
    """Inputs of zeros, so that gradients are noise alone; labels are who it is."""
    return TensorDataset(torch.zeros(PEOPLE, 4), torch.arange(PEOPLE))


def noise_of_a_loop(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    inner = nn.Linear(4, PEOPLE, bias=False).to(device)
    keeping = Keeping(inner)
    model, optimizer, loader = pp.make_private(inner, keeping, people(), planned())
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return keeping.seen


def noise_of_train(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, PEOPLE, bias=False).to(device)
    keeping = Keeping(model)
    pp.train(model, keeping, people(), planned(), partial(F.cross_entropy, reduction="none"))
    return keeping.seen


def coins_of_a_loop(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    inner = nn.Linear(4, PEOPLE, bias=False).to(device)
    model, optimizer, loader = pp.make_private(inner, Keeping(inner), people(), planned())
    drawn = []
    for x, y in loader:
        drawn.append(y.clone())
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return drawn


def noise_of_questions(device: str) -> list[Tensor]:
    asks = Analyst({"age": np.arange(PEOPLE)}, pp.Budgets(np.full(PEOPLE, 5.0), delta=1e-5))
    answers = asks.count(noise=40.0), asks.sum("age", lower=0, upper=60, noise=400.0)
    return [torch.tensor([float(answer.value) for answer in answers], dtype=torch.float64)]


SOURCES = [
    pytest.param(noise_of_a_loop, "cpu", id="noise of a loop"),
    pytest.param(noise_of_train, "cpu", id="noise of train"),
    pytest.param(coins_of_a_loop, "cpu", id="coins"),
    pytest.param(noise_of_questions, "cpu", id="questions"),
    pytest.param(noise_of_a_loop, "cuda", marks=CUDA.marks, id="noise of a loop on a GPU"),
    pytest.param(noise_of_train, "cuda", marks=CUDA.marks, id="noise of captured steps"),
]


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLOCKS:
        now = getattr(time, f"{name}_ns")()
        monkeypatch.setattr(time, f"{name}_ns", lambda now=now: now)
        monkeypatch.setattr(time, name, lambda now=now: now / 1e9)


def begin_alike() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - whoever uses it, uses this one
    torch.manual_seed(0)


def alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("made", "device"), SOURCES)
def test_clocks_and_seeds_decide_nothing(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[str], list[Tensor]], device: str
) -> None:
    stand_still(monkeypatch)
    begin_alike()
    one = made(device)
    begin_alike()
    assert not alike(one, made(device))


@pytest.mark.parametrize(("made", "device"), SOURCES)
def test_the_operating_systems_bytes_decide_everything(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[str], list[Tensor]], device: str
) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes((37 * k + 11) % 251 for k in range(count)))
    one = made(device)
    random.seed(1)
    time.sleep(0.02)  # a clock that somebody looked at has moved on
    assert alike(one, made(device))


def test_every_byte_of_a_key_decides_what_each_generator_gives() -> None:
    """A generator that took the first bytes alone could be tried out: torch's own seeds have 32 bits."""

    def drawn(key: bytes) -> tuple[list[float], float, float]:
        with keyed(key):
            return torch.rand(4).tolist(), random.random(), float(np.random.rand())  # noqa: NPY002

    base = bytes(32)
    keys = [base, *(base[:place] + b"\1" + base[place + 1 :] for place in range(32))]
    found = [drawn(key) for key in keys]
    for each in zip(*found, strict=True):
        assert len(set(map(repr, each))) == len(keys)
    assert [drawn(key) for key in keys] == found

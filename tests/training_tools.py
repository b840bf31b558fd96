"""What tests of training share: a loss, runs without noise, an optimizer that keeps what it is given."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from privypurse._storage import HeldFile

LOSS = partial(F.cross_entropy, reduction="none")
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
EVERYBODY, NOBODY = 1e-9, 1.0
"""Coins of `quiet`."""


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Quiet:
    """A source whose noise is zero and whose coins are given: what is left is the clipped sum."""

    secure = False

    def __init__(self, coins: float) -> None:
        self._coins = coins

    def uniform(self, count: int) -> np.ndarray:
        return np.full(count, self._coins)

    def stream(self, device: torch.device) -> None:
        return None

    def normal(self, count: int, device: str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=device)

    def for_step(self, step: int, rank: int = 0) -> Quiet:
        return self


def quiet(monkeypatch: pytest.MonkeyPatch, coins: float = EVERYBODY) -> None:
    """Runs have no noise from now on, and these coins."""
    monkeypatch.setattr("privypurse.training.setup.randomness", lambda seed: Quiet(coins))
    # The grid is seen in test_grid_noise.py, not here.
    monkeypatch.setattr("privypurse.training.grid_noise.FINENESS", 46)


def steps_on_disk(journal: Path) -> int:
    """What a run that begins now would take as counted: its first sector names the place of "plan steps"."""
    whole = journal.read_bytes() if journal.exists() else b""
    if not whole:
        return 0
    place, length = map(int, whole.split()[3:5])
    return int(whole[place : place + length].split()[1])


def count_on_disk(journal: Path, steps: int) -> None:
    """As if so many steps had been counted by a run that was killed."""
    file = HeldFile(journal, "journal", b"")
    plan, _, run = file.content.decode().split()
    file.write(f"{plan} {steps} {run}".encode())
    file.close()


class Keeping(torch.optim.SGD):
    """Keeps every gradient that it is given; moves nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__([p for p in model.parameters() if p.requires_grad], lr=0.0)
        self.seen: list[Tensor] = []

    def step(self, closure: object = None) -> None:
        super().step()
        self.seen += [p.grad.detach().cpu().clone() for group in self.param_groups for p in group["params"]]


def few_records(n: int = 60) -> TensorDataset:
    """Two classes that one feature of six tells apart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def dropout_network() -> nn.Module:
    """For those records; the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))

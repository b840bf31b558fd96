"""What people spent in a run is not replaced by what they spent in another one with the same plan."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, new_ledger
from privypurse.training.mechanism import PrivateRun
from training_tools import LOSS

N, STEPS = 12, 8
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
INDIVIDUAL = pp.Individual(every=2, grid_size=10, headroom=1.0)


class World:
    """Runs of one plan for a few people, in which everybody's gradients are large or next to nothing."""

    def __init__(self, path: Path) -> None:
        self.ledger = new_ledger(path)
        self.ledger.join(IDS, GRANTED)
        shape = {"steps": STEPS, "batch_size": 4, "noise_multiplier": 4.0, "accountant": "rdp", "at_most": 0.1}
        self.plan = pp.plan(pp.Budgets(GRANTED, delta=DELTA, person=IDS), ledger=self.ledger, **shape)

    def begun(self, scale: float, **options: Any) -> Any:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(N, 3) * scale, torch.randint(0, 2, (N,)))
        model = nn.Linear(3, 2)
        plain = torch.optim.SGD(model.parameters(), lr=1e-9)
        options = {"individual": INDIVIDUAL, "loss_fn": LOSS, "ledger": self.ledger, "person": IDS, **options}
        return pp.make_private(model, plain, data, self.plan, **options)

    def charged(self) -> np.ndarray:
        return charged(self.ledger, IDS)


def steps(model: nn.Module, optimizer: Any, loader: Any, wanted: int) -> dict[str, Any]:
    """Take so many, and give the optimizer's state."""
    for (x, y), number in zip(loader, range(1, wanted + 1), strict=False):
        optimizer.zero_grad()
        LOSS(model(x), y).mean().backward()
        optimizer.step()
        if number == wanted:
            break
    return copy.deepcopy(optimizer.state_dict())


def undercharged(world: World) -> bool:
    """Whether five large steps are charged less once the state of six small ones is loaded over them."""
    run = world.begun(1e-3)
    small = steps(*run, 6)
    run[1].close()
    run, before = world.begun(100.0), world.charged()
    steps(*run, 5)
    run[1].load_state_dict(small)
    run[1].close()
    got, before = world.charged() - before, world.charged()
    run = world.begun(100.0)
    steps(*run, 5)
    run[1].close()
    return bool((got < (world.charged() - before) * (1 - 1e-6)).any())


def test_a_state_of_another_run_is_refused_once_steps_were_taken(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match=r"another run with this plan.* has taken 5 steps"):
        undercharged(World(tmp_path))


def test_the_broken_twin_charges_less_than_was_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateRun, "_require_same_run", lambda run, name, saved: None)
    assert undercharged(World(tmp_path))


@pytest.mark.parametrize("kept", ["in a ledger", "by the run alone"])
def test_a_run_that_goes_on_with_its_journal_takes_no_state_of_another(tmp_path: Path, kept: str) -> None:
    """How many steps it took its journal knows; what they cost each person only its own states do."""
    world = World(tmp_path)
    if kept == "by the run alone":
        world.ledger, world.plan = None, replace(world.plan, ledger=None)
    run = world.begun(1e-3, journal=tmp_path / "one")
    small = steps(*run, 6)
    run[1].close()
    run = world.begun(100.0, journal=tmp_path / "two")
    large = steps(*run, 3)
    steps(*run, 2)
    run[1].close()
    _, optimizer, _ = world.begun(100.0, journal=tmp_path / "two")
    with pytest.raises(pp.InvalidInput, match=r"another run with this plan.* has taken 5 steps"):
        optimizer.load_state_dict(small)
    optimizer.load_state_dict(large)
    assert optimizer.steps_taken == 5


@pytest.mark.slow
def test_a_run_goes_back_to_states_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    run = world.begun(100.0)
    early = steps(*run, 2)
    late = steps(*run, 2)
    run[1].load_state_dict(early)
    assert run[1].steps_taken == 4
    run[1].close()
    run = world.begun(100.0)  # a new run that begins where the other was
    run[1].load_state_dict(late)
    steps(*run, 1)
    run[1].load_state_dict(early)  # of the run that it goes on with
    assert run[1].steps_taken == 5
    other = world.begun(100.0)
    other[1].load_state_dict(late)
    with pytest.raises(pp.InvalidInput, match="another run"):  # both went on from there, each by itself
        run[1].load_state_dict(steps(*other, 3))

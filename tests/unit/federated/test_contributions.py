"""What the mechanism does is what was paid for, and what is in a record decides nothing but its own contribution."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everybody_drawn import EVERYTHING, NOTHING, OFFER, ONE_STEP, made
from federation import STATE, Arrays, bits, flat, granted, losses, raises, records
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.federated import engine, silos
from privypurse.plans import TrainingShape
from privypurse.training import loop
from privypurse.training.gradients import clipping

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


UNSEEDED = pytest.mark.filterwarnings("error::privypurse.errors.PrivyPurseWarning")  # a seed would say so


@pytest.mark.parametrize("size", [1, 9])
def test_a_round_is_that_of_the_terms(tmp_path: Path, size: int) -> None:
    plan = made(tmp_path, dataset=records(size)).plan
    assert plan.shape == TrainingShape(steps=4, batch_size=7, clip_norm=0.25, noise_multiplier=1.7)
    assert plan.all_steps == 4
    assert plan.levels.clip_norm.tolist() == [0.25]
    assert plan.levels.delta.tolist() == [1e-3]
    assert plan.accountant == "rdp"
    assert plan.rates.tolist() == [1.0] * size


@pytest.mark.slow
@UNSEEDED
def test_the_noise_of_an_answer_is_what_was_certified(tmp_path: Path) -> None:
    """Everybody sits out, so an answer is noise alone: lr·σ·C·√τ / B, in every number and in every round anew."""
    state = {"weight": np.zeros((4, 74), np.float32), "bias": np.zeros(4, np.float32)}
    client = made(
        tmp_path,
        dataset=TensorDataset(torch.ones(2, 74), torch.zeros(2, dtype=torch.int64)),
        budgets=granted(NOTHING, 2),
        new_model=lambda: nn.Linear(74, 4),
        seed=None,
    )
    assert client.sitting_out == 2
    noise = np.stack([flat(client.answer(number, state)) for number in range(1, 61)])
    assert noise.shape == (60, 300)
    expected = 0.5 * 1.7 * 0.25 * np.sqrt(4) / 7
    found, six = np.sqrt((noise**2).mean()) / expected, 6 / np.sqrt(2 * noise.size)  # six deviations: 3.2 %
    assert found == pytest.approx(1.0, abs=six)
    for wrong in (1.1, 1 / 1.1):  # what it would find out
        assert found != pytest.approx(wrong, abs=six)
    assert np.abs(noise.mean(0)).max() < 6 * expected / np.sqrt(60)  # no part of it comes again
    assert np.abs(noise.mean(1)).max() < 6 * expected / np.sqrt(300)


@pytest.mark.parametrize("huge", [1, 3])
def test_a_person_moves_an_update_by_one_clip_norm(tmp_path: Path, huge: int) -> None:
    """A gradient far above the clip norm, one record or three of one person: lr·C / B, and nothing more."""
    x, y = records(1).tensors
    large, label = 1e4 * x.repeat(huge, 1), 1 - y.repeat(huge)
    person = [0] + [1] * huge
    without = made(tmp_path / "without", dataset=TensorDataset(x, y), offer=ONE_STEP, budgets=granted([EVERYTHING]))
    joined = made(
        tmp_path / "with",
        dataset=TensorDataset(torch.cat([x, large]), torch.cat([y, label])),
        offer=ONE_STEP,
        budgets=granted(EVERYTHING, 1 + huge, person=person),
        person=person,
    )
    moved = flat(joined.answer(1, STATE)) - flat(without.answer(1, STATE))
    assert np.linalg.norm(moved) == pytest.approx(0.5 * 0.25 / 7, rel=1e-3)


@UNSEEDED
def test_without_a_seed_two_clients_have_different_noise(tmp_path: Path) -> None:
    one, other = (made(tmp_path / name, seed=None).answer(1, STATE) for name in ("one", "other"))
    assert all((one[name] != other[name]).any() for name in STATE)


@UNSEEDED
def test_without_a_seed_two_clients_of_a_federation_have_different_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = silos.Federation("tiny", (silos.Silo("only", records()),), records(), lambda: nn.Linear(3, 2))
    monkeypatch.setattr(silos, "federation", lambda name, seed: tiny)
    monkeypatch.setattr(silos, "granted_in", lambda *_: [np.full(9, EVERYTHING)])
    one, other = (
        engine.new_client("tiny", "any", 0, OFFER, tmp_path / name, None).answer(1, STATE) for name in ("a", "b")
    )
    assert all((one[name] != other[name]).any() for name in STATE)


def test_an_update_does_not_tell_how_many_sit_out(tmp_path: Path) -> None:
    few, many = (
        made(tmp_path / str(size), dataset=records(size), budgets=granted(NOTHING, size)) for size in (9, 90)
    )
    assert (few.sitting_out, many.sitting_out) == (9, 90)
    assert bits(few.answer(1, STATE)) == bits(many.answer(1, STATE))


@dataclass(frozen=True)
class Trap:
    """Parameters with which a good record trains and a bad one makes the loss raise."""

    new_model: Callable[[], nn.Module]
    loss_fn: Callable[..., torch.Tensor]
    state: Arrays
    good: tuple[list[float], float]
    bad: tuple[list[float], float]

    def dataset(self, which: list[bool]) -> TensorDataset:
        """Good records, and bad ones where ``which`` says so."""
        some = [self.bad if bad else self.good for bad in which]
        x, y = (torch.tensor(part, dtype=torch.float32) for part in zip(*some, strict=True))
        return TensorDataset(x, y.long() if self.loss_fn is losses else y)


def in_between() -> nn.Module:
    """What it gives lies in (0, 0.5), until a server says otherwise."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Sigmoid(), nn.Linear(1, 1, bias=False), nn.Flatten(0))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Sigmoid(), nn.Flatten(0))


def array(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


entropies = partial(F.binary_cross_entropy, reduction="none")


TRAPS = {
    "not a number": Trap(
        deep, entropies, {"0.weight": array([1, 3e38]), "1.weight": array([0])}, ([1, 0], 0), ([1, 2], 0)
    ),
    "out of range": Trap(
        in_between, entropies, {"0.weight": array([1, 3]), "2.weight": array([2])}, ([-1, 0], 0), ([0, 1], 0)
    ),
    "no such label": Trap(
        lambda: nn.Linear(2, 2),
        losses,
        {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)},
        ([1, 0.5], 1),
        ([1, 0.5], 7),
    ),
}


def trapped(folder: Path, trap: Trap, which: list[bool], person: list[int] | None = None, **other: Any) -> np.ndarray:
    """The first answer of a client whose people all have rate 1."""
    dataset = trap.dataset(which)
    parts: dict[str, Any] = {"budgets": granted(EVERYTHING, len(which), person=person), "offer": ONE_STEP, **other}
    whose = {} if person is None else {"person": person}
    client = made(folder, dataset=dataset, new_model=trap.new_model, loss_fn=trap.loss_fn, **whose, **parts)
    return flat(client.answer(1, trap.state))


@pytest.mark.each_value_once
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_record_that_raises_contributes_nothing_and_the_others_all(tmp_path: Path, trap: Trap, place: int) -> None:
    """Else "failed" tells the server that a record is there which its parameters were made for."""
    x, y = trap.dataset([True]).tensors
    model = trap.new_model()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in trap.state.items()})
    with pytest.raises((RuntimeError, IndexError)):
        trap.loss_fn(model(x), y)
    found = trapped(tmp_path / "bad", trap, [at == place for at in range(5)])
    assert found == pytest.approx(trapped(tmp_path / "without", trap, [False] * 4), abs=1e-7)
    fewer = trapped(tmp_path / "fewer", trap, [False] * 3)
    assert np.linalg.norm(found - fewer) == pytest.approx(0.5 * 0.25 / 7, rel=0.5)  # each of them counts


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_person_with_a_record_that_raises_contributes_nothing(tmp_path: Path, trap: Trap) -> None:
    which, person = [False, True, False, False, False, False], [0, 1, 1, 0, 2, 2]
    others = [0, 0, 2, 2]
    found = trapped(tmp_path / "bad", trap, which, person)
    assert found == pytest.approx(trapped(tmp_path / "without", trap, [False] * 4, others), abs=1e-7)
    fewer = trapped(tmp_path / "fewer", trap, [False] * 2, [0, 0])
    assert np.linalg.norm(found - fewer) == pytest.approx(0.5 * 0.25 / 7, rel=0.5)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_record_that_stands_in_for_nobody_tells_nothing(tmp_path: Path, trap: Trap) -> None:
    """A step that draws nobody still has a batch; whose record is in it, and sits out, is not seen."""
    budgets = granted(NOTHING, 3)
    bad, good = (
        trapped(tmp_path / str(first), trap, [first, False, False], budgets=budgets, offer=OFFER)
        for first in (True, False)
    )
    assert bad.tobytes() == good.tobytes()


def test_a_first_record_that_is_not_finite_does_not_decide_whether_a_client_joins(tmp_path: Path) -> None:
    state = {"0.weight": array([1, 1]), "1.weight": array([1])}

    def answered(first: float) -> bytes:
        x = torch.zeros(3, 2)
        x[0] = first
        client = made(
            tmp_path / str(first),
            dataset=TensorDataset(x, torch.zeros(3)),
            new_model=deep,
            loss_fn=entropies,
            budgets=granted(NOTHING, 3),
        )
        return flat(client.answer(1, state)).tobytes()

    assert answered(float("nan")) == answered(float("inf")) == answered(0.0)


def test_whether_a_model_mixes_is_not_looked_at_with_the_parameters_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numbers large enough, rounding alone looks like mixing, and a server can aim it at one record."""
    client = made(tmp_path)
    refusal = raises(pp.InvalidInput("a record changes with the others"))
    monkeypatch.setattr(loop, "require_isolated", refusal)
    monkeypatch.setattr(clipping, "require_own_losses", refusal)
    client.answer(1, STATE)
    assert client.joined == 1
    with pytest.raises(pp.InvalidInput, match="changes with the others"):
        made(tmp_path / "other")  # it is here, with parameters and records that say nothing


class Squeeze(nn.Module):
    """Takes any number of records but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze()


def test_a_model_that_cannot_take_one_record_is_refused(tmp_path: Path) -> None:
    """Where one record raises, the others are tried alone: whoever cannot be would be left out with it."""

    def squeezed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Sigmoid(), Squeeze())

    with pytest.raises(pp.InvalidInput):
        trapped(tmp_path / "bad", replace(TRAPS["not a number"], new_model=squeezed), [False] * 9)

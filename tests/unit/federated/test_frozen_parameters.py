"""A public model that is fine-tuned: its frozen parameters stay with everybody, and only the others travel."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import TERMS, book_in, flat, made, records
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.federated import simulation
from privypurse.federated.parameters import state_of

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


def body() -> nn.Module:
    """What everybody has from the same file."""
    layer = nn.Linear(3, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 12).reshape(4, 3))
        layer.bias.copy_(torch.linspace(0, 1, 4))
    return layer.requires_grad_(False)


def fine_tuned() -> nn.Module:
    return nn.Sequential(body(), nn.Tanh(), nn.Linear(4, 2))


def head_of(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("2."): value for name, value in state.items()}


def test_it_is_training_of_the_last_layer_on_features(tmp_path: Path) -> None:
    state = state_of(fine_tuned())
    assert set(state) == {"2.weight", "2.bias"}
    x, y = records().tensors
    features = TensorDataset(torch.tanh(body()(x)), y)
    whole = made(tmp_path / "whole", new_model=fine_tuned)
    last = made(tmp_path / "last", new_model=lambda: nn.Linear(4, 2), dataset=features)
    for number in (1, 2):
        update = whole.answer(number, state)
        assert set(update) == set(state)
        expected = last.answer(number, head_of(state))
        assert flat(update) == pytest.approx(flat(expected), abs=1e-6)
        assert np.abs(flat(update)).max() > 0.01
    assert whole.spent().against_server.tolist() == last.spent().against_server.tolist()


def test_rounds_change_what_is_trained_alone(tmp_path: Path) -> None:
    clients = [made(tmp_path / str(k), new_model=fine_tuned, seed=k) for k in range(TERMS.clients)]
    begin = simulation.new_state(fine_tuned, 0)
    last = list(simulation.rounds(TERMS, begin, clients, 3))[-1].state
    model = simulation.load(fine_tuned(), last)
    assert torch.equal(model[0].weight, body().weight)
    assert not torch.equal(model[2].weight, torch.as_tensor(begin["2.weight"]))
    assert torch.equal(model[2].weight, torch.as_tensor(last["2.weight"]))


def test_a_server_does_not_choose_what_is_frozen(tmp_path: Path) -> None:
    client = made(tmp_path, new_model=fine_tuned)
    more = {**state_of(fine_tuned()), "0.weight": np.ones((4, 3), np.float32)}
    with pytest.raises(pp.InvalidInput, match=r"'0.weight' is on one side only"):
        client.answer(1, more)
    assert book_in(tmp_path)["begun"] == []


def test_parameters_can_be_put_into_a_model_that_is_no_longer_trained() -> None:
    state = state_of(fine_tuned())
    model = simulation.load(fine_tuned().requires_grad_(False), state)
    assert torch.equal(model[2].weight, torch.as_tensor(state["2.weight"]))


class WithCopy(nn.Module):
    """As peft keeps it: beside what is trained the frozen layer that it began with, which nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.original = nn.Linear(3, 2).requires_grad_(False)
        self.trained = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.trained(x)
        return out


def test_chance_that_changes_nothing_is_no_reason_to_refuse(tmp_path: Path) -> None:
    update = made(tmp_path, new_model=WithCopy).answer(1, state_of(WithCopy()))
    assert set(update) == {"trained.weight", "trained.bias"}


class RandomFeatures(nn.Module):
    """Features in a buffer, as is usual for random ones."""

    features: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(3, 4))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(x @ self.features))
        return out


def by_chance() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2))


def all_frozen() -> nn.Module:
    return nn.Linear(3, 2).requires_grad_(False)


class HalfBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = body().bfloat16(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(x.bfloat16()).float())
        return out


@pytest.mark.parametrize(
    ("new_model", "message"),
    [
        (by_chance, "another model each time"),
        (RandomFeatures, "another model each time"),
        (all_frozen, "every parameter of the model is frozen"),
        (HalfBody, "a federated client needs a model in float32"),
    ],
)
def test_what_cannot_be_alike_everywhere_is_refused_before_anything_is_paid(
    tmp_path: Path, new_model: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(pp.InvalidInput, match=message):
        made(tmp_path, new_model=new_model)
    assert not (tmp_path / "book").exists()


def with_dropout() -> nn.Module:
    return nn.Sequential(body(), nn.Dropout(0.5), nn.Linear(4, 2))


def test_dropout_is_no_chance_of_that_kind(tmp_path: Path) -> None:
    made(tmp_path, new_model=with_dropout).answer(1, state_of(with_dropout()))

"""A record's contribution must not follow from its place in the batch: who is absent moves all others (rule 12)."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.isolation import loss_fn as own_losses
from privypurse.training.isolation import model as isolation

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
PEOPLE, TOKENS, WIDTH, CLIP = 24, 5, 8, 0.5


class Positions(nn.Module):
    """As a tutorial of torch has them, for (tokens, records, features)."""

    def __init__(self) -> None:
        super().__init__()
        place = torch.arange(64).unsqueeze(1) * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        self.register_buffer("table", torch.stack([place.sin(), place.cos()], dim=2).reshape(64, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[0]]


class Network(nn.Module):
    def __init__(self, between: Callable[[Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.middle, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.positions, self.between = Positions(), between
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.between(self.first(x), self)
        return self.last(torch.tanh(self.middle(hidden)).mean(dim=1))


def signs(hidden: Tensor) -> Tensor:
    return (1.0 - 2.0 * (torch.arange(len(hidden)) % 2)).reshape(-1, 1, 1)


BY_PLACE = {
    "positions of records": lambda hidden, network: network.positions(hidden),
    "a constant for each place": lambda hidden, network: hidden * signs(hidden),
    "behind a gate that is zero": lambda hidden, network: hidden + network.gate(hidden) * 9.0 * signs(hidden),
}


def tokens_first(hidden: Tensor, network: nn.Module) -> Tensor:
    """The same positions as they are meant."""
    return network.positions(hidden.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return,operator]


def loss(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none")


def loss_by_place(output: Tensor, y: Tensor) -> Tensor:
    return loss(output, y) * signs(y).flatten()


def people() -> tuple[Tensor, Tensor]:
    return torch.randn(PEOPLE, TOKENS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(PEOPLE) % 3


@cache
def planned() -> pp.Plan:
    return pp.plan(pp.Budgets([8.0] * PEOPLE), steps=1, batch_size=PEOPLE, clip_norm=CLIP, accountant="rdp")


def made(between: Callable[..., Tensor]) -> Network:
    torch.manual_seed(0)
    return Network(between)


def trained(network: nn.Module, ordinary: bool = False, by: Callable[[Tensor, Tensor], Tensor] = loss) -> None:
    optimizer, data = torch.optim.SGD(network.parameters(), lr=0.1), TensorDataset(*people())
    if not ordinary:
        pp.train(network, optimizer, data, planned(), by, seed=1)
        return
    private, stepping, loader = pp.make_private(network, optimizer, data, planned(), seed=1)
    for x, y in loader:
        stepping.backward(by(private(x), y))
        stepping.step()


def moved_by(network: nn.Module, by: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Clip norms by which the sum moves where the first record is absent."""
    x, y = people()
    with_, without = (pp.clipped_sum(network, by, x[some:], y[some:], CLIP)[0] for some in (0, 1))
    apart = torch.cat([(with_[key] - without[key]).flatten() for key in with_])
    return float(torch.linalg.vector_norm(apart)) / CLIP


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("name", BY_PLACE)
def test_what_goes_by_the_place_in_the_batch_is_refused(name: str, ordinary: bool) -> None:
    with pytest.raises(pp.InvalidInput, match="changes with its place in the batch"):
        trained(made(BY_PLACE[name]), ordinary)


@pytest.mark.parametrize("ordinary", [True, False])
def test_positions_of_tokens_are_trained(ordinary: bool) -> None:
    trained(made(tokens_first), ordinary)


def test_a_loss_by_place_is_refused() -> None:
    with pytest.raises(pp.InvalidInput, match="loss of a record changes"):
        trained(made(tokens_first), by=loss_by_place)


@pytest.mark.parametrize("name", BY_PLACE)
def test_if_records_kept_their_places_one_absence_would_move_everybody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: others are replaced, and nobody is put elsewhere."""
    monkeypatch.setattr(isolation, "other_places", torch.arange)
    monkeypatch.setattr(own_losses, "other_places", torch.arange)
    network = made(BY_PLACE[name])
    assert moved_by(network, loss) > 1.05
    assert moved_by(made(tokens_first), loss_by_place) > 1.05
    trained(network)
    trained(made(tokens_first), by=loss_by_place)

"""A record's contribution must not follow from its place in the batch: who is absent moves all others (rule 12)."""

import math
from collections.abc import Callable
from functools import cache
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.gradients.tape import Recorder
from privypurse.training.isolation import compared
from privypurse.training.isolation import loss_fn as own_losses
from privypurse.training.isolation import model as isolation

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
PEOPLE, TOKENS, WIDTH, CLIP = 24, 5, 8, 0.5
on_each_device = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])


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
    return (1.0 - 2.0 * (torch.arange(len(hidden), device=hidden.device) % 2)).reshape(-1, 1, 1)


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


def trained(
    network: nn.Module, ordinary: bool = False, by: Callable[[Tensor, Tensor], Tensor] = loss, device: str = "cpu"
) -> None:
    optimizer = torch.optim.SGD(network.to(device).parameters(), lr=0.1)
    data = TensorDataset(*(value.to(device) for value in people()))
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


@on_each_device
@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("name", BY_PLACE)
def test_what_goes_by_the_place_in_the_batch_is_refused(name: str, ordinary: bool, device: str) -> None:
    with pytest.raises(pp.InvalidInput, match="changes with its place in the batch"):
        trained(made(BY_PLACE[name]), ordinary, device=device)


@on_each_device
@pytest.mark.parametrize("ordinary", [True, False])
def test_positions_of_tokens_are_trained(ordinary: bool, device: str) -> None:
    trained(made(tokens_first), ordinary, device=device)


@on_each_device
def test_a_loss_by_place_is_refused(device: str) -> None:
    with pytest.raises(pp.InvalidInput, match="loss of a record changes"):
        trained(made(tokens_first), by=loss_by_place, device=device)


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


class Rounded(nn.Module):
    """Rounds otherwise at every other place, as a GPU may; one record stands at the kink of one unit of many."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 2048, bias=False), nn.Linear(2048, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(torch.relu(hidden + 1e-6 * signs(hidden)[:, :, 0]))  # type: ignore[no-any-return]


def at_a_kink() -> tuple[Rounded, Tensor]:
    torch.manual_seed(0)
    model, x = Rounded(), torch.randn(PEOPLE, 3)
    with torch.no_grad():
        model.first.weight[7] = torch.linalg.cross(x[4], x[5])  # at right angles to both
    return model, x


def test_rounding_at_a_kink_is_not_taken_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = at_a_kink()
    by = cycle([2, 1])  # places from one pass to the next, so that everybody is rounded otherwise
    monkeypatch.setattr(isolation, "other_places", lambda records: torch.arange(records).roll(next(by)))
    isolation.require_isolated(Recorder(model), (x,), {}, PEOPLE)
    by = cycle([2, 1])
    monkeypatch.setattr(compared, "_AT_KINKS", 0.0)
    with pytest.raises(pp.InvalidInput, match="comes back to layer first for a record changes with its place"):
        isolation.require_isolated(Recorder(model), (x,), {}, PEOPLE)


class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weights: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        ctx.weights = weights
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.weights(gradient), None


def twice_at_the_first(gradient: Tensor) -> Tensor:
    first = torch.arange(len(gradient), device=gradient.device) == 0
    return 1.0 + first.reshape(-1, *[1] * (gradient.dim() - 1))


def a_little_at_every_other(gradient: Tensor) -> Tensor:
    share = 0.005 if gradient.device.type == "cpu" else 0.2  # what is less, a GPU's own rounding may be
    return 1.0 + share * signs(gradient)


@on_each_device
@pytest.mark.parametrize("weights", [twice_at_the_first, a_little_at_every_other])
def test_what_comes_back_by_place_is_refused(
    weights: Callable[[Tensor], Tensor], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, though all of nine comparisons have to show it."""
    if weights is a_little_at_every_other:  # at random so few may go from even places to odd ones that it is missed
        monkeypatch.setattr(isolation, "other_places", lambda records: torch.arange(records).roll(1))
    for _ in range(2):
        with pytest.raises(pp.InvalidInput, match="comes back to layer first for a record changes with its place"):
            trained(made(lambda hidden, network: Back.apply(hidden, weights)), device=device)


def test_what_differs_once_is_put_down_to_chance_and_what_differs_each_time_is_not() -> None:
    rows, gradient = torch.arange(4), torch.ones(4, 8)
    equal, changed = [("layer", gradient)], [("layer", gradient * torch.tensor([[2.0], [1.0], [1.0], [1.0]]))]
    answers = [(equal, changed)] * 7 + [(equal, equal)]
    assert compared.first_changed(equal, changed, rows, iter(answers).__next__, moved=True) is None
    assert compared.first_changed(equal, changed, rows, lambda: (equal, changed), moved=True) == "layer"
    assert compared.first_changed(equal, changed, rows, lambda: (equal, equal)) == "layer"  # a CPU repeats itself

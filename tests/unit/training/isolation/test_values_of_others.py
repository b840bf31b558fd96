"""What comes back to a record must not follow from what others are, though what it gives does not (rule 12)."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.gradients import Recorder
from privypurse.training.isolation import model as isolation

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
PEOPLE, FEATURES, CLIP = 12, 4, 0.5
LOSS = lambda output, y: F.cross_entropy(output, y, reduction="none")  # noqa: E731


class Network(nn.Module):
    """With something between its layers."""

    def __init__(self, between: Callable[[Tensor, Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8), nn.Linear(8, 3)
        self.between = between
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(torch.tanh(self.first(x)), x, self.gate) + self.gate(x))


class Scaled(torch.autograd.Function):
    """The identity, whose backward multiplies by something."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(by)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0], None


def straight_through(by: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Gives what it is given, and multiplies its gradient."""
    return lambda hidden, x, gate: hidden.detach() + (hidden - hidden.detach()) * by(x)


def of_all(x: Tensor) -> Tensor:
    return torch.sign(x[:, 0].sum())


MIXING = {
    "something detached": straight_through(of_all),
    "a function of its own": lambda hidden, x, gate: Scaled.apply(hidden, of_all(x)),
    "a statistic behind a gate that is zero": lambda hidden, x, gate: hidden + gate(x) * 9.0 * of_all(x),
}
APART = {
    "something detached": straight_through(lambda x: torch.sign(x[:, :1])),
    "a function of its own": lambda hidden, x, gate: Scaled.apply(hidden, torch.sign(x[:, :1])),
    "a statistic behind a gate that is zero": lambda hidden, x, gate: hidden + gate(x) * 9.0 * torch.sign(x[:, :1]),
}


def people() -> TensorDataset:
    """One of whom decides about the sign of a sum."""
    x = torch.randn(PEOPLE, FEATURES, generator=torch.Generator().manual_seed(0))
    x[:, 0] = -0.1
    x[0, 0] = 9.0
    return TensorDataset(x, torch.arange(PEOPLE) % 3)


@cache
def planned(batch_size: int) -> pp.Plan:
    return pp.plan(pp.Budgets([8.0] * PEOPLE), steps=2, batch_size=batch_size, clip_norm=CLIP, accountant="rdp")


def trained(network: nn.Module, ordinary: bool) -> None:
    plan = planned(PEOPLE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if not ordinary:
        pp.train(network, optimizer, people(), plan, LOSS, seed=1)
        return
    private, stepping, loader = pp.make_private(network, optimizer, people(), plan, seed=1)
    for x, y in loader:
        stepping.backward(LOSS(private(x), y))
        stepping.step()


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("name", MIXING)
def test_a_gradient_that_follows_from_what_others_are_is_refused(name: str, ordinary: bool) -> None:
    torch.manual_seed(0)
    with pytest.raises(pp.InvalidInput, match=r"comes back to layer .* for a record changes with other records"):
        trained(Network(MIXING[name]), ordinary)


@pytest.mark.parametrize("name", APART)
def test_one_that_follows_from_the_record_itself_is_not(name: str) -> None:
    torch.manual_seed(0)
    trained(Network(APART[name]), ordinary=True)


@pytest.mark.parametrize("name", MIXING)
def test_without_asking_one_absence_moves_the_sum_by_several_clip_norms(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: what others' losses weigh is asked, and what others are is not."""
    torch.manual_seed(0)
    network, (x, y) = Network(MIXING[name]), people().tensors
    with_, without = (pp.clipped_sum(network, LOSS, x[some:], y[some:], CLIP)[0] for some in (0, 1))
    apart = torch.cat([(with_[key] - without[key]).flatten() for key in with_])
    assert torch.linalg.vector_norm(apart) > 1.5 * CLIP
    monkeypatch.setattr(isolation, "with_others", lambda given, *others: given)
    trained(network, ordinary=False)


class Remembers(nn.Module):
    """Uses what it has seen once that is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 3)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if len(self.seen) >= PEOPLE:
            hidden = hidden * torch.sign(torch.stack(self.seen).sum())
        self.seen.append(x[0, 0].detach())
        return self.last(hidden)


class Counts(nn.Module):
    """Remembers how often it ran, which is of nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.passes = nn.Linear(FEATURES, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.net(x)


def one_by_one(network: nn.Module) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    pp.train(network, optimizer, people(), planned(4), LOSS, seed=1, execution=pp.Execution(max_physical_batch=1))


def test_what_is_kept_of_records_that_go_through_one_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pp.InvalidInput, match="keeps something of the records in seen"):
        one_by_one(Remembers())
    one_by_one(Counts())
    monkeypatch.setattr(isolation, "_require_nothing_kept", lambda *given: None)  # the twin
    one_by_one(Remembers())


class FedTheMean(nn.Module):
    """A layer that is zero, as an adapter's second one is at first, and is given what is made of all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.zero = nn.Linear(FEATURES, 3), nn.Linear(FEATURES, 3)
        nn.init.zeros_(self.zero.weight)
        nn.init.zeros_(self.zero.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.zero(x - x.mean(dim=0))  # type: ignore[no-any-return]


def test_what_a_layer_is_given_is_asked_though_it_gives_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pp.InvalidInput, match=r"what layer zero \(Linear\) is given for a record changes"):
        trained(FedTheMean(), ordinary=False)
    monkeypatch.setattr(isolation, "digest", lambda value: 0.0 * value)  # the twin: what it gives tells nothing
    isolation.require_isolated(Recorder(FedTheMean()), (people().tensors[0],), {}, PEOPLE)


class OneOfMany(nn.Module):
    """One of 40,000 numbers that a record has is the mean over the batch, or its own."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes, self.wide, self.head = mixes, nn.Linear(4, 40_000), nn.Linear(40_000, 2)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(x)
        one = wide[:, :1].mean(dim=0, keepdim=True).expand(len(x), 1) if self.mixes else wide[:, :1]
        out: Tensor = self.head(torch.cat([one, wide[:, 1:]], dim=1))
        return out


@pytest.mark.parametrize("mixes", [True, False])
def test_one_number_of_many_is_seen_in_sums_over_them(mixes: bool) -> None:
    """Of wide rows sums over parts are compared, not every number."""
    torch.manual_seed(0)
    recorder = Recorder(OneOfMany(mixes))
    with pytest.raises(pp.InvalidInput, match="other records") if mixes else nullcontext():
        isolation.require_isolated(recorder, (torch.randn(8, 4),), {}, 8)

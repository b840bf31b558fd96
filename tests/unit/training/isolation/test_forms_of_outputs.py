"""Whatever form a model's output has, one record's part of it, and what comes back to it, hangs on no other."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.forms import leaves
from privypurse.training.isolation import loss_fn
from privypurse.training.isolation.loss_fn import require_own_losses
from training_tools import LOSS

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
PEOPLE = 40
REFUSED = "changes with (the )?other records"


@pytest.fixture(autouse=True)
def weights() -> None:
    torch.manual_seed(0)


def people(scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PEOPLE, 5, generator=generator)
    x[7] *= scale
    return TensorDataset(x, (x[:, 0] > 0).long())


def plan(steps: int = 4) -> pp.Plan:
    return pp.plan(pp.Budgets(np.full(PEOPLE, 2.0), delta=1e-5), steps=steps, batch_size=PEOPLE, clip_norm=1.0)


def by_train(model: nn.Module, loss: Callable[..., Tensor], data: TensorDataset) -> None:
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.0), data, plan(), loss, seed=0)


def by_own_loop(model: nn.Module, loss: Callable[..., Tensor], data: TensorDataset) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = pp.make_private(model, optimizer, data, plan(), seed=0)  # type: ignore[assignment]
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).mean().backward()
        optimizer.step()


BOTH = pytest.mark.parametrize("way", [by_train, by_own_loop])


@dataclass
class Output:
    logits: Tensor


class Slotted:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class OneSlot:
    __slots__ = "logits"

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@dataclass(slots=True, weakref_slot=True)
class WeakSlots:
    logits: Tensor


class Queue(deque[Tensor]):
    @property
    def logits(self) -> Tensor:
        return self[0]


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": Output,
    "namespace": lambda logits: SimpleNamespace(logits=logits),
    "slots": Slotted,
    "deque": lambda logits: Queue([logits]),
    "weak slots": WeakSlots,
    "one slot": OneSlot,
    "deep": lambda logits: SimpleNamespace(logits=logits, more=[{"again": Output(logits)}]),
}


class Giving(nn.Module):
    def __init__(self, form: Callable[[Tensor], Any], change: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.form, self.change = nn.Linear(5, 2), form, change

    def forward(self, x: Tensor) -> Any:
        logits = self.layer(x)
        return self.form(logits if self.change is None else self.change(logits))


class ByAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / (gradient.norm() + 1.0)


def of_attribute(out: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(out.logits, y, reduction="none")


@BOTH
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_outputs_of_any_form_are_asked(way: Callable[..., None], form: Callable[[Tensor], Any]) -> None:
    way(Giving(form), of_attribute, people())
    for change in (lambda logits: logits - logits.mean(0), ByAll.apply):
        with pytest.raises(pp.InvalidInput, match=REFUSED):
            way(Giving(form, change), of_attribute, people(100.0))


@BOTH
def test_a_layer_hidden_in_a_list_is_found_behind_a_dataclass(way: Callable[..., None]) -> None:
    model = Giving(Output)
    heads = [nn.Linear(2, 2)]
    model.change = lambda logits: heads[0](logits)
    with pytest.raises(pp.InvalidInput, match="was no parameter of the model"):
        way(model, of_attribute, people())


def test_leaves_are_found_once_in_what_points_back_to_itself() -> None:
    here = SimpleNamespace(value=torch.ones(2), shape=torch.Size([2]), call=len, words="words")
    here.me, here.numbers = here, {"a": (1, 2.0, np.float32(3.0)), "b": {4}}
    found = list(leaves(here))
    assert found[0] is here.value
    assert found[1:] == ["words", 1, 2.0, 3.0, 4]


def test_what_cannot_be_copied_stays_beside_the_logits_unless_it_holds_tensors(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        for way in (by_train, by_own_loop):
            way(Giving(lambda logits: (logits, log)), lambda out, y: LOSS(out[0], y), people())

    class Alone(Output):
        def __copy__(self) -> Any:
            raise TypeError("there is but one")

    with pytest.raises(pp.InvalidInput, match="cannot be copied; use a tuple"):
        by_own_loop(Giving(Alone), of_attribute, people())


def hard(logits: Tensor) -> Tensor:
    return logits[:, 0] > logits[:, 0].mean()


def rank(logits: Tensor) -> Tensor:
    return logits[:, 0].argsort().argsort()


@BOTH
@pytest.mark.parametrize("number", [hard, rank])
def test_whole_numbers_of_each_record_that_hang_on_others_are_refused(
    way: Callable[..., None], number: Callable[[Tensor], Tensor]
) -> None:
    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out["logits"], y, reduction="none") * out["number"].float()

    with pytest.raises(pp.InvalidInput, match=REFUSED):
        way(Giving(lambda logits: {"logits": logits, "number": number(logits)}), loss, people(100.0))
    own = {hard: lambda logits: logits[:, 0] > 0.1, rank: lambda logits: logits.argmax(1)}[number]
    way(Giving(lambda logits: {"logits": logits, "number": own(logits)}), loss, people(100.0))


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "float32": lambda logits: np.float32(logits.detach().abs().max()),
    "int64": lambda logits: np.int64(logits.detach().argmax()),
    "array": lambda logits: logits.detach().abs().max().numpy(),
    "complex": lambda logits: complex(0.0, float(logits.detach().abs().max())),
    "complex tensor": lambda logits: torch.complex(torch.zeros(()), logits.detach().abs().max()),
    "rows": lambda logits: (logits / logits.abs().max()).detach().numpy(),
}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=list(NUMBERS))
def test_numbers_of_numpy_are_numbers_too(number: Callable[[Tensor], Any]) -> None:
    model = Giving(lambda logits: {"logits": logits, "number": number(logits)})
    with pytest.raises(pp.InvalidInput, match=REFUSED):
        by_train(model, lambda out, y: F.cross_entropy(out["logits"], y, reduction="none"), people(100.0))


@BOTH
@pytest.mark.parametrize(
    "constant", [2**70, -(10**400), np.float32(0.5), "word", np.array(["word"]), 1j, np.ones(())]
)
def test_what_is_always_the_same_is_not(way: Callable[..., None], constant: Any) -> None:
    model = Giving(lambda logits: {"logits": logits, "number": constant})
    way(model, lambda out, y: F.cross_entropy(out["logits"], y, reduction="none"), people(100.0))


def test_a_number_whose_gradient_goes_to_all_is_refused_though_it_never_changes() -> None:
    model = Giving(lambda logits: {"logits": logits, "number": (logits - logits.detach()).sum()})

    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out["logits"], y, reduction="none") + 0.05 * out["number"] * y

    with pytest.raises(pp.InvalidInput, match=REFUSED):
        by_train(model, loss, people())


def scaled(losses: Tensor, by: Tensor) -> Tensor:
    """The losses as they are; what comes back from them times a number."""
    return losses.detach() + (losses - losses.detach()) * by


def hooked(out: Tensor, y: Tensor) -> Tensor:
    out = out * 1.0
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient / (gradient.norm() + 1.0))
    return LOSS(out, y)


STRAIGHT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda out, y: LOSS(out, y) + (out.sum() - out.sum().detach()),
    "mean": lambda out, y: LOSS(out + (out.square().mean(0) - out.square().mean(0).detach()), y),
    "from one to one": lambda out, y: LOSS(out, y) + torch.cat([out[-1:] - out[-1:].detach(), 0 * out[1:]]).sum(1),
    "no number": lambda out, y: (
        LOSS(out, y) + ((out - out.detach()).square().sum().sqrt() if out.detach().abs().max() > 9 else 0.0)
    ),
    "own, by others": lambda out, y: scaled(LOSS(out, y), 1 - 2 * (out.detach().abs().max() > 9).float()),
    "own, by labels": lambda out, y: scaled(LOSS(out, y), 1 / (y == 1).sum()),
    "by a hook": hooked,
}


@pytest.mark.parametrize("loss", STRAIGHT.values(), ids=list(STRAIGHT))
def test_a_loss_whose_gradient_goes_to_others_is_refused_though_its_value_is_its_own(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    for _ in range(5):  # each time
        with pytest.raises(pp.InvalidInput, match="the loss of a record changes with the other records"):
            by_train(nn.Linear(5, 2), loss, people(100.0))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": LOSS,
    "straight through": lambda out, y: LOSS(out + (out.sign() - out).detach(), y),
    "masked": lambda out, y: LOSS(out.masked_fill(out > 1e9, -torch.inf), y),
    "half of them": lambda out, y: LOSS(out, y) * (y > 0),
    "of constants": lambda out, y: LOSS(out, y) + out.detach().square().sum(1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_losses_whose_gradients_are_their_own_are_let_through(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    by_train(nn.Linear(5, 2), loss, people(float("nan")))


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize(
    "loss", [LOSS, lambda out, y: -out.softmax(1).gather(1, y[:, None])[:, 0].log()], ids=["logits", "softmax"]
)
def test_gradients_at_the_ends_of_floats_are_not_refused(
    loss: Callable[[Tensor, Tensor], Tensor], label: int
) -> None:
    """A loss that is sure of a loud record sends back next to nothing, with few digits; 1 / p goes beyond all."""
    x = torch.linspace(80.0, 110.0, PEOPLE)
    out, y = torch.stack([x, -0.0 * x], 1).requires_grad_(), torch.full((PEOPLE,), label)
    for _ in range(50):
        require_own_losses(loss, out, y, PEOPLE)


def test_of_large_outputs_a_few_records_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(loss_fn, "_ENTRIES", 2 * PEOPLE // 4)  # a quarter of all
    model = Giving(lambda logits: {"logits": logits, "number": logits.sum()})

    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        if out["logits"].requires_grad:
            asked.append(len(y))
        return LOSS(out["logits"], y)

    x, y = people().tensors
    require_own_losses(loss, model(x), y, PEOPLE)
    assert asked == [PEOPLE // 4] * 4
    with pytest.raises(pp.InvalidInput, match="the loss of a record changes"):
        require_own_losses(STRAIGHT["sum"], model(x)["logits"], y, PEOPLE)


def test_a_loss_may_do_with_what_gives_no_gradient_as_it_likes() -> None:
    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        weights = torch.from_numpy(out["sure"].numpy() + 0.0)
        both = F.binary_cross_entropy_with_logits(
            out["logits"], F.one_hot(y, 2).float(), out["sure"], reduction="none"
        )
        return both.sum(1) + weights.sum(1)

    by_train(Giving(lambda logits: {"logits": logits, "sure": logits.softmax(1).detach()}), loss, people())


def test_infinities_of_another_sign_are_others() -> None:
    def loudest(out: Tensor) -> Tensor:
        return out + (torch.inf if out.abs().max() > 50 else -torch.inf)

    def hinge(out: Tensor, y: Tensor) -> Tensor:
        return torch.relu(1 - (2 * y - 1) * out[:, 0])

    for way in (by_train, by_own_loop):
        with pytest.raises(pp.InvalidInput, match=REFUSED):
            way(Giving(loudest), hinge, people(300.0))


def test_a_tensor_that_is_asked_to_be_an_ordinary_one_is_still_followed() -> None:
    by_own_loop(nn.Linear(5, 2), lambda out, y: LOSS(out.as_subclass(Tensor), y), people())
    with pytest.raises(pp.InvalidInput, match="brings what"):
        by_own_loop(
            nn.Linear(5, 2), lambda out, y: LOSS(out, y) * out.detach().as_subclass(Tensor).abs().max(), people()
        )
    with pytest.raises(pp.InvalidInput, match="is not followed"):
        by_own_loop(nn.Linear(5, 2), lambda out, y: LOSS(out.as_subclass(nn.Parameter), y), people())


class Weighing(nn.Module):
    """Gives the weights of several attentions beside its logits."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.all = nn.ModuleList(nn.MultiheadAttention(4, 1, batch_first=True) for _ in range(many))
        self.first, self.last, self.passes = nn.Linear(5, 4), nn.Linear(4, 2), [0]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.passes[0] += 1
        x = self.first(x)[:, None, :].expand(-1, 3, -1)
        beside = []
        for attention in self.all:
            x, weights = attention(x, x, x)
            beside.append(weights)
        return self.last(x.mean(1)), *beside


def test_outputs_that_no_loss_can_use_cost_no_passes_of_their_own() -> None:
    passes = []
    for many in (1, 6):
        model = Weighing(many)
        by_train(model, lambda out, y: LOSS(out[0], y), people())
        passes.append(model.passes[0])
    assert passes[0] == passes[1]

"""Rows go to people by their places in the loader's batch: in parts, in another order, once each, or not at all."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
N, STRICT = 24, 3


def dataset(with_person: bool) -> TensorDataset:
    """All gradients point the same way; the strict person's is the largest, or nothing."""
    x = 1.0 + torch.arange(N, dtype=torch.float64).view(-1, 1) / N
    x[STRICT] = 5.0 if with_person else 0.0
    y = (torch.arange(N) % 3 == 0).long()
    return TensorDataset(x, y)


def model() -> nn.Module:
    layer = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(layer.weight)
    return layer


@made_once
def plan() -> pp.Plan:
    epsilon = np.where(np.arange(N) == STRICT, 0.1, 5.0)
    return pp.plan(pp.Budgets(epsilon, delta=1e-5), "scale", steps=1, batch_size=N, clip_norm=1.0, accountant="rdp")


Loop = Callable[[nn.Module, Tensor, Tensor], None]


def released(loop: Loop, data: TensorDataset) -> Tensor:
    inner = model()
    private, optimizer, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=0.0), data, plan(), seed=1
    )
    for x, y in loader:
        loop(private, x, y)
        optimizer.step()
    return inner.weight.grad * N


def movement(loop: Loop) -> float:
    """How far the strict person moves the sum, in their own clip norm."""
    one, other = (released(loop, dataset(here)) for here in (True, False))
    return float((one - other).norm()) / float(plan().clip_norms[STRICT])


def _loss(private: nn.Module, x: Tensor, y: Tensor) -> None:
    # The same loss for both classes, so that all gradients point the same way.
    F.cross_entropy(private(x), y * 0).backward()


def _by_class(private: nn.Module, x: Tensor, y: Tensor) -> None:
    for label in (1, 0):
        _loss(private, x[y == label], y[y == label])


def _by_class_numbers(private: nn.Module, x: Tensor, y: Tensor) -> None:
    for label in (1, 0):
        some = torch.nonzero(y == label).flatten()
        _loss(private, x[some], y[some])


def _shuffled(private: nn.Module, x: Tensor, y: Tensor) -> None:
    order = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(1))
    _loss(private, x[order], y[order])


def _sorted(private: nn.Module, x: Tensor, y: Tensor) -> None:
    order = x[:, 0].argsort(descending=True)
    _loss(private, x[order], y[order])


def _reversed(private: nn.Module, x: Tensor, y: Tensor) -> None:
    order = list(reversed(range(x.shape[0])))
    _loss(private, x[order], y[order])


def _by_a_class_that_nobody_has(private: nn.Module, x: Tensor, y: Tensor) -> None:
    for label in (1, 7, 0):
        _loss(private, x[y == label], y[y == label])


def _back_and_forth(private: nn.Module, x: Tensor, y: Tensor) -> None:
    halves = x.chunk(2), y.chunk(2)
    for some, labels in zip(*map(reversed, halves), strict=True):
        _loss(private, some, labels)


def _joined(private: nn.Module, x: Tensor, y: Tensor) -> None:
    _loss(private, torch.cat([x[y == 1], x[y == 0]]), torch.cat([y[y == 1], y[y == 0]]))


@pytest.mark.parametrize(
    "loop",
    [
        _by_class,
        _by_class_numbers,
        _by_a_class_that_nobody_has,
        _shuffled,
        _sorted,
        _reversed,
        _back_and_forth,
        _joined,
        _loss,
    ],
)
def test_everyone_keeps_their_own_clip_norm(loop: Loop) -> None:
    assert movement(loop) <= 1.0
    torch.testing.assert_close(released(loop, dataset(True)), released(_loss, dataset(True)), rtol=1e-6, atol=1e-6)


def _half_twice(private: nn.Module, x: Tensor, y: Tensor) -> None:
    for _ in range(2):
        _loss(private, x[: N // 2], y[: N // 2])


def _one_missing(private: nn.Module, x: Tensor, y: Tensor) -> None:
    _loss(private, x[1:], y[1:])


def _one_twice(private: nn.Module, x: Tensor, y: Tensor) -> None:
    some = torch.arange(N)
    some[0] = 1
    _loss(private, x[some], y[some])


def _from_elsewhere(private: nn.Module, x: Tensor, y: Tensor) -> None:
    private(torch.ones(N, 1, dtype=torch.float64))


def _through_numpy(private: nn.Module, x: Tensor, y: Tensor) -> None:
    private(torch.as_tensor(x.numpy()[::-1].copy()))


def _standardised(private: nn.Module, x: Tensor, y: Tensor) -> None:
    _loss(private, (x - x.mean(dim=0)) / x.std(dim=0), y)


def _labels_of_others(private: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(private(x), y[torch.randperm(N)]).backward()


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (_half_twice, "each has to go through once"),
        (_one_missing, "each has to go through once"),
        (_one_twice, "each once"),
        (_from_elsewhere, "not from the private loader"),
        (_through_numpy, "not from the private loader"),
        (_standardised, "made of several records by"),
        (_labels_of_others, "rows of different records"),
    ],
)
def test_rows_that_are_not_each_once_the_loaders_are_refused(loop: Loop, words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        released(loop, dataset(True))


def test_a_head_outside_of_the_model_is_refused() -> None:
    """Its weights would move without clipping and noise."""
    inner = model()
    head = nn.Linear(2, 2).double()
    private, _, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=0.1), dataset(True), plan(), seed=1
    )
    before = head.weight.detach().clone()
    x, y = next(iter(loader))
    out = private(x)
    with pytest.raises(pp.InvalidInput, match="put a head or a learned weight"):
        F.cross_entropy(head(out), y).backward()
    with pytest.raises(pp.InvalidInput, match="put a head or a learned weight"):
        F.cross_entropy(head(x[:, [0, 0]]), y).backward()
    with pytest.raises(pp.InvalidInput, match="put a head or a learned weight"):
        F.cross_entropy(out * torch.ones(2, dtype=torch.float64, requires_grad=True), y)
    assert head.weight.grad is None
    assert torch.equal(head.weight, before)
    for parameter in head.parameters():
        parameter.requires_grad = False
    F.cross_entropy(head(out), y).backward()  # a frozen one is a constant


def test_one_loss_for_each_record_or_another_shape_is_refused() -> None:
    inner = model()
    private, optimizer, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=0.1), dataset(True), plan(), seed=1
    )
    x, y = next(iter(loader))
    out = private(x)
    losses = F.cross_entropy(out, y, reduction="none")
    for wrong in (losses.mean(), losses[:, None], out, losses.detach().mean(), torch.ones(N), losses[y == 1]):
        with pytest.raises(pp.InvalidInput, match="there has to be one loss for each record") as refused:
            optimizer.backward(wrong)
        assert str(len(x)) not in str(refused.value)  # how many were drawn is sensitive (rule 6)
    optimizer.backward(losses)
    optimizer.step()
    assert optimizer.steps_taken == 1


def test_several_records_of_a_person_go_through_whole_and_in_order() -> None:
    person = np.repeat(np.arange(N // 2), 2)
    budgets = pp.Budgets(np.ones(N), delta=1e-5, person=person)
    grouped = pp.plan(budgets, "uniform", steps=1, batch_size=N // 2, accountant="rdp").applied_to(person)
    for loop in (_shuffled, _by_class):
        inner = model()
        private, optimizer, loader = pp.make_private(
            inner, torch.optim.SGD(inner.parameters(), lr=0.0), dataset(True), grouped, seed=1
        )
        x, y = next(iter(loader))
        loop(private, x, y)
        with pytest.raises(pp.InvalidInput, match="whole and in the loader's order"):
            optimizer.step()


def test_what_the_loop_draws_for_records_is_not_that_of_a_public_seed() -> None:
    """torch.manual_seed is public: numbers by row would tell who was drawn before whom."""

    def drawn(of: Callable[[Any], Tensor]) -> Tensor:
        inner = model()
        _, _, loader = pp.make_private(inner, torch.optim.SGD(inner.parameters(), lr=0.0), dataset(True), plan())
        x, _ = next(iter(loader))
        torch.manual_seed(0)
        return torch.as_tensor(of(x).numpy())

    for of in (torch.randn_like, lambda x: F.dropout(x, 0.5), lambda x: torch.zeros_like(x).normal_()):
        assert not torch.equal(drawn(of), drawn(of))


class Beside(nn.Module):
    """Takes something beside the records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2).double()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.layer(x + other)


def test_what_the_model_takes_beside_records_is_the_same_for_all_of_them() -> None:
    """By position it would be another person's as soon as somebody before them is not drawn."""
    inner = Beside()
    private, _, loader = pp.make_private(inner, torch.optim.SGD(inner.parameters(), lr=0.1), dataset(True), plan())
    x, _ = next(iter(loader))
    for other in (torch.arange(N)[:, None], torch.randn(N, 1), torch.arange(N)[:, None] == 0):
        with pytest.raises(pp.InvalidInput, match="the model takes a tensor of shape"):
            private(x, other)
    private(x[: N // 2], torch.full((N // 2, 1), 2.0))
    private(x[N // 2 :], torch.ones(1, 1).expand(N // 2, 1))

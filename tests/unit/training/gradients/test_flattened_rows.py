"""Tokens of all records in one list: taken apart where it is known how they lie, and refused where it is not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.gradients import flattened_rows

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
RECORDS, TOKENS, WIDTH = 6, 4, 5


class Listed(nn.Module):
    """A layer on (records · tokens, features), record after record, as OPT has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def listed(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, WIDTH)).tanh().view(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.listed(x).mean(dim=1))


class Crossed(Listed):
    """The broken twin: word after word, so that in such a list the records of a row are not one's own."""

    def listed(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1).reshape(-1, WIDTH)).tanh().view(TOKENS, -1, WIDTH).transpose(0, 1)


def loss(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, TOKENS, WIDTH, generator=generator)
    return x * torch.arange(1, RECORDS + 1)[:, None, None], torch.arange(RECORDS) % 2


def known(monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]) -> None:
    name = f"{kind.__module__}.{kind.__qualname__}"
    monkeypatch.setattr(flattened_rows, "_LAYERS", {name: ("inner",)})


def trained(model: nn.Module) -> Any:
    plan = pp.plan(pp.Budgets([4.0] * RECORDS, delta=1e-4), steps=3, batch_size=RECORDS, accountant="rdp")
    return pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(*records()), plan, loss, seed=1)


def test_norms_are_those_of_single_records(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, Listed)
    model, (x, y) = Listed(), records()
    alone = []
    for one, label in zip(x.split(1), y.split(1), strict=True):
        parts = torch.autograd.grad(loss(model(one), label).sum(), list(model.parameters()))
        alone.append(torch.cat([part.flatten() for part in parts]).norm())
    torch.testing.assert_close(pp.per_record_norms(model, loss, x, y), torch.stack(alone), rtol=1e-4, atol=0.0)
    assert trained(model).steps == 3
    assert model.listed(x).shape == x.shape
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks


def test_a_list_that_nobody_knows_is_refused() -> None:
    with pytest.raises(pp.InvalidInput, match="must count records"):
        trained(Listed())


def test_a_list_in_another_order_is_refused_though_its_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, Crossed)
    with pytest.raises(pp.InvalidInput, match=r"what layer inner .* records"):
        trained(Crossed())

"""Gradients that are kept may be made of rounded numbers: for everybody alike, and measured as they are kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from privypurse.training.gradients import Recorder, Tape, convolution, norms, recorded, sums
from privypurse.training.gradients.weight_and_bias import ProductRule
from training_tools import LOSS

RECORDS = 14


@pytest.fixture(autouse=True)
def _short_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept gradients of convolutions are made as a GPU makes them with TensorFloat-32: of numbers of eleven bits."""
    short, product = [False], torch.bmm

    @contextmanager
    def as_short() -> Iterator[None]:
        short[0] = True
        yield
        short[0] = False

    def eleven_bits(values: Tensor) -> Tensor:
        return ((values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    def bmm(one: Tensor, other: Tensor, **options: Tensor) -> Tensor:
        return product(*map(eleven_bits, (one, other)), **options) if short[0] else product(one, other, **options)

    monkeypatch.setattr(convolution, "as_short_as_convolutions", as_short)
    monkeypatch.setattr(torch, "bmm", bmm)


def taped(trained: str = "") -> Tape:
    """The last two records have opposite gradients, but for little; of all parameters, or of one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softplus(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(64, 2))
    with torch.no_grad():
        model[-1].weight.mul_(1e-3)
        model[-1].bias.zero_()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in ("", name))
    x, y = torch.rand(RECORDS, 3, 4, 4), torch.arange(RECORDS) % 2
    x[-1] = x[-2] + 1e-3 * torch.rand(3, 4, 4)
    return recorded(Recorder(model), LOSS, x, y)[0]


def total(tape: Tape, factors: Tensor, found: Tensor) -> Tensor:
    parts = dict(sums(tape, factors, found))
    return torch.cat([parts[name].flatten() for name in sorted(parts)])


def test_somebody_s_second_record_changes_nobody_else_s_gradient() -> None:
    alone, beside = taped(), taped()
    owner = torch.cat([torch.arange(RECORDS - 1), torch.tensor([RECORDS - 2])])
    one, other = norms(alone), norms(beside, owner, RECORDS - 1)
    assert torch.equal(one[:-2], other[:-1])
    factors = torch.ones(RECORDS)
    factors[-2:] = 0.0
    assert torch.equal(total(alone, factors, one), total(beside, factors, other[owner]))


def length_in_clip_norms() -> float:
    """Of what somebody with two records adds to the sum."""
    tape, owner = taped("2.weight"), torch.cat([torch.arange(RECORDS - 1), torch.tensor([RECORDS - 2])])
    found = norms(tape, owner, RECORDS - 1)[owner]
    factors = torch.zeros(RECORDS)
    factors[-2:] = 1.0 / found[-1]
    return float(total(tape, factors, found).double().norm())


def test_two_records_are_measured_as_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.9 < length_in_clip_norms() <= 1 + 1e-6
    monkeypatch.setattr(ProductRule, "made", ProductRule.per_record)
    assert length_in_clip_norms() > 1.01

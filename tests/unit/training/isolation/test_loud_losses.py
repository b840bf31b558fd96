"""Losses that mix records only beside some that are rare, or only once a model gives more than zeros."""

from __future__ import annotations

from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.errors import InvalidInput
from privypurse.training.isolation import loss_fn
from privypurse.training.isolation.loss_fn import require_own_losses

RECORDS = 8


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_fn, "_asked", WeakSet())


def by_largest(output: Tensor, y: Tensor) -> Tensor:
    return output[:, 0].square() / y.abs().amax().clamp(min=10)


def by_mean_output(output: Tensor, y: Tensor) -> Tensor:
    return output[:, 0] * output.mean().detach()


@pytest.mark.parametrize("y", [torch.ones(RECORDS), torch.ones(RECORDS, dtype=torch.int64)])
@pytest.mark.parametrize("output", [torch.ones(RECORDS, 2), torch.zeros(RECORDS, 2)])
def test_a_loss_that_mixes_beside_rare_records_is_found_without_one(output: Tensor, y: Tensor) -> None:
    for _ in range(2):  # whoever was refused once is refused again
        with pytest.raises(InvalidInput, match="changes with the other records"):
            require_own_losses(by_largest, output, y, RECORDS)


def test_a_loss_of_zeros_is_asked_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    output = torch.zeros(RECORDS, 2)
    with pytest.raises(InvalidInput, match="changes with the other records"):
        require_own_losses(by_mean_output, output, output, RECORDS)
    monkeypatch.setattr(loss_fn, "_beside_loud", lambda *given: [])  # the twin
    require_own_losses(by_mean_output, output, output, RECORDS)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (lambda output, y: F.cross_entropy(output, y, reduction="none"), torch.arange(RECORDS) % 2),
        (lambda output, y: F.mse_loss(output[:, 0], y, reduction="none"), torch.randn(RECORDS)),
        (lambda output, y: F.binary_cross_entropy(output[:, 0], y, reduction="none"), torch.rand(RECORDS)),
        (lambda output, y: F.huber_loss(output[:, 0], y, reduction="none"), torch.randn(RECORDS)),
        (lambda output, y: -output.log()[:, 0] * y, torch.ones(RECORDS)),
    ],
)
def test_losses_of_ones_own_go_through(loss: loss_fn.Loss, y: Tensor) -> None:
    output = torch.rand(RECORDS, 2)
    before = torch.get_rng_state()
    require_own_losses(loss, output, y, RECORDS)
    assert torch.equal(before, torch.get_rng_state())


def test_a_loss_is_asked_once() -> None:
    calls = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        calls.append(len(output))
        return output[:, 0] * y

    for _ in range(2):
        require_own_losses(loss, torch.rand(RECORDS, 2), torch.rand(RECORDS), RECORDS)
    first, second = calls[: len(calls) - 5], calls[-5:]
    assert second.count(4) == 0
    assert first.count(4) == 4 * 6  # four times: quiet, and beside either half, with and without whole numbers

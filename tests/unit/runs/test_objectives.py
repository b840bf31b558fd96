"""One loss a record, worked out by hand; a record without a target pulls at nothing."""

import math

import pytest
import torch

from privypurse.datasets.encoding import Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs.objectives import losses_of

NAN = math.nan
CASES = {
    "classes": (
        Classes("y", ("a", "b")),
        [[0.0, 2.0], [1.0, 1.0]],
        torch.tensor([1, -1]),
        [math.log1p(math.exp(-2)), 0],
    ),
    "number": (Number("y", Range(0, 1)), [[0.5], [9.0]], torch.tensor([[-0.5], [NAN]]), [1.0, 0]),
    "flags": (
        Flags(("a", "b")),
        [[0.0, 3.0], [5.0, 5.0], [1.0, 2.0]],
        torch.tensor([[1.0, 0.0], [NAN, NAN], [NAN, 1.0]]),
        [math.log(2) + math.log1p(math.exp(3)), 0, math.log1p(math.exp(-2))],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_done_by_hand_and_none_without_a_target(case):
    target, outputs, targets, expected = CASES[case]
    scores = torch.tensor(outputs, requires_grad=True)
    losses = losses_of(target)(scores, targets)
    assert losses.tolist() == pytest.approx(expected)
    losses.sum().backward()
    assert scores.grad[1].tolist() == [0.0] * len(outputs[1])
    assert scores.grad.isfinite().all()


def test_a_product_with_zero_would_not_leave_a_record_out():
    """The twin: 0 · NaN is NaN, and so would the gradient of a missing target be."""
    scores = torch.tensor([[0.5], [9.0]], requires_grad=True)
    targets = torch.tensor([[-0.5], [NAN]])
    ((scores - targets).square() * ~torch.isnan(targets)).sum().backward()
    assert scores.grad[1].isnan().all()

"""What people write by mistake or by habit: it works as they mean it, or they are told what to write."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

import privypurse as pp
from training_tools import LOSS

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
RECORDS = [{"x": [1.0, 2.0, float(place)], "labels": place % 2} for place in range(20)]
PLAN = pp.plan(pp.Budgets([2.0] * 20, delta=1e-3), steps=2, batch_size=8, accountant="rdp")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def trained(records: Any = RECORDS, plan: Any = PLAN, optimizers: int = 1, **options: Any) -> Model:
    model = Model()
    made = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    optimizer: Any = made[0] if optimizers == 1 else made
    pp.train(model, optimizer, records, plan, LOSS, **options)
    return model


def test_lists_of_numbers_as_tokenizers_give_them_are_rows() -> None:
    """Torch's own way makes one tensor for each place of them, in which the first dimension is no record's."""
    tensors = [{"x": torch.tensor(record["x"]), "labels": record["labels"]} for record in RECORDS]
    one, other = trained(seed=3), trained(tensors, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.layer.weight, Model().layer.weight)


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_records_of_different_lengths_are_to_be_padded_to_a_public_one(kind: Any) -> None:
    uneven = [{**record, "x": kind(record["x"][: 1 + place % 3])} for place, record in enumerate(RECORDS)]
    with pytest.raises(pp.InvalidInput, match=r'one public length.*padding="max_length"'):
        trained(uneven, seed=3)


def test_other_errors_of_putting_records_together_stay_what_they_are() -> None:
    with pytest.raises(TypeError, match="default_collate"):
        trained([{**record, "x": None} for record in RECORDS])


def loop(training: bool, reduce: bool = False, straight: bool = False) -> None:
    model = Model().train(training)
    private, optimizer, loader = pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), RECORDS, PLAN)
    for batch in loader:
        optimizer.zero_grad()
        losses = F.cross_entropy(private(batch["x"]), batch["labels"], reduction="mean" if reduce else "none")
        if straight:
            losses.backward()
        else:
            optimizer.backward(losses)
        optimizer.step()


def test_a_model_in_evaluation_mode_is_called_that() -> None:
    with pytest.raises(pp.InvalidInput, match=r"in training mode\. Call model\.train\(\)"):
        loop(training=False)
    with pytest.raises(pp.InvalidInput, match="in training mode"):
        loop(training=False, reduce=True, straight=True)


def test_a_mean_in_place_of_losses_is_told_by_its_dimensions() -> None:
    with pytest.raises(pp.InvalidInput, match=r"one loss for each record.*has 0 dimensions.*leave labels= out"):
        loop(training=True, reduce=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plan": pp.Budgets([1.0] * 20, delta=1e-3)}, r"plan is a Budgets; make one: pp\.plan"),
        ({"plan": None}, r"plan is a NoneType; make one"),
        ({"optimizers": 2}, r"optimizer is a list; give one .*groups"),
        ({"callbacks": pp.Callback()}, "give a list of callbacks"),
        ({"scheduler": StepLR(torch.optim.SGD(Model().parameters(), lr=1.0), 1)}, "of another optimizer"),
    ],
    ids=["budgets", "no plan", "two optimizers", "one callback", "another's scheduler"],
)
def test_what_is_given_wrongly_is_named_with_what_to_write(options: dict[str, Any], words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        trained(**options)

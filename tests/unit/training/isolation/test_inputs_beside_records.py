"""Inputs of the model that are not from the loader: the same for all records, or an entry for each of them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.isolation.replaced_records import first_rows
from training_tools import Keeping, quiet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]
TOKENS, WIDTH = 4, 6
torch.set_num_threads(1)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)


class TakesMask(Layers):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf"))
        return self.last((torch.softmax(scores, -1) @ self.first(x)).mean(1))


STEPS = 4


def summed(model: nn.Module, *beside: Tensor) -> list[Tensor]:
    """The clipped sums of steps in which there are as many records as tokens, without noise.

    Of what is given ``beside`` them each step takes the next, and the others the last.
    """
    x = torch.randn(TOKENS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2))
    data, keeping = TensorDataset(x, torch.arange(TOKENS) % 2), Keeping(model)
    plan = pp.plan(pp.Budgets([8.0] * TOKENS), steps=STEPS, batch_size=2, method="sample", accountant="rdp")
    private, optimizer, loader = pp.make_private(model, keeping, data, plan)
    for step, (some, y) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(private(some, *beside[step:][:1] or beside[-1:]), y).backward()
        optimizer.step()
    return keeping.seen


class HasMask(TakesMask):
    """The same mask, a constant of the model."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, self.mask)


class AddsRows(Layers):
    """Takes something with an entry for each place in the batch, or for more places than there are."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + rows[: len(x), None]).mean(1))


@pytest.mark.parametrize("later", [0, 1], ids=["a triangle", "nothing masked"])
def test_a_mask_with_as_many_rows_as_the_first_batch_has_records_is_no_row_of_theirs(later, monkeypatch) -> None:
    """By chance: it was refused where its rows differ, and cut with the records where they do not."""
    quiet(monkeypatch)
    mask = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1 + later * TOKENS)
    for mine, buffered in zip(summed(TakesMask(), mask), summed(HasMask(mask)), strict=True):
        torch.testing.assert_close(mine, buffered)
    monkeypatch.setattr("privypurse.training.current_batch.takes_one_more", lambda *asked: False)  # the twin
    with pytest.raises((pp.InvalidInput, RuntimeError)):
        summed(TakesMask(), mask)


class ByPlace(Layers):
    """Takes whatever has entries, and gives them to places, whoever stands there."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + rows[torch.arange(len(x)) % len(rows), None]).mean(1))


def test_entries_that_go_by_place_are_refused_whenever_they_come(monkeypatch) -> None:
    """The model takes one record more beside them; so it is asked at once, and not as chance has it."""
    quiet(monkeypatch)
    same, differing = torch.ones(TOKENS + 3, WIDTH), torch.arange(1.0, TOKENS + 1)[:, None].expand(-1, WIDTH)
    with pytest.raises(pp.InvalidInput, match="changes with its place in the batch"):
        summed(ByPlace(), same, same, same, differing)
    ids = "privypurse.training.current_batch.CurrentBatch._same_for_all"
    monkeypatch.setattr(ids, lambda self, given, others, records: frozenset(map(id, others)))
    summed(ByPlace(), same, same, same, differing)  # the twin notices nothing new


def test_what_has_an_entry_for_each_place_stays_refused(monkeypatch) -> None:
    quiet(monkeypatch)
    summed(AddsRows(), torch.ones(TOKENS, WIDTH))  # the same for all
    with pytest.raises(pp.InvalidInput, match="with an entry for each record that is not from the loader"):
        summed(AddsRows(), torch.randn(TOKENS, WIDTH))
    rows = "privypurse.training.isolation.model.first_rows"
    monkeypatch.setattr(rows, lambda given, count, *of: first_rows(given, min(count, 2), *of))  # the twin asks fewer
    with pytest.raises(pp.InvalidInput) as other:
        summed(AddsRows(), torch.randn(TOKENS, WIDTH))
    assert "from the loader" not in str(other.value)

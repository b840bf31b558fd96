"""Data sets that give dictionaries, and records of different lengths."""

from collections import UserDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import privypurse as pp
from made_once import made_once
from privypurse.training import poisson_loader
from privypurse.training.isolation import batches
from training_tools import LOSS, Keeping, quiet, same

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")

RECORDS, LENGTH, WORDS = 24, 6, 11


class Texts(Dataset):
    """Texts padded to a public length: as dictionaries, or as (words, mask, label)."""

    def __init__(self, named: bool, label: str = "labels") -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, LENGTH + 1, (RECORDS, 1), generator=generator)
        self.mask = (torch.arange(LENGTH) < lengths).long()
        self.words = torch.randint(1, WORDS, (RECORDS, LENGTH), generator=generator) * self.mask
        self.named, self.label = named, label

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, place: int):
        words, mask, label = self.words[place], self.mask[place], place % 3
        if not self.named:
            return words, mask, label
        return {self.label: label, "mask": mask, "words": words}  # names decide, not the order


class Reader(nn.Module):
    """Takes words and mask, in this order or by name; the mean over a record's own words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.head = nn.Embedding(WORDS, 5), nn.Linear(5, 3)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        mask = mask.unsqueeze(-1)
        return self.head((self.table(words) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))


@made_once
def planned(records: int = RECORDS, steps: int = 4, **options: object) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(records) % 2, 3.0, 1.0), delta=1e-5)
    return pp.plan(budgets, "scale", steps=steps, batch_size=8, clip_norm=0.3, accountant="rdp", **options)


def trained(dataset: Dataset, **options: object) -> nn.Module:
    model = Reader()
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, planned(), LOSS, seed=2, **options)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"execution": pp.Execution(max_physical_batch=3)},
        {"individual": pp.Individual(every=2)},
        {"forgiving": True},
        {"collate_fn": lambda records: UserDict(torch.utils.data.default_collate(records))},
    ],
    ids=["plain", "in parts", "individual", "forgiving", "as transformers' collators give"],
)
def test_train_takes_dictionaries_by_name(options):
    """To the bit what the same data set gives with inputs by place."""
    by_place = {name: value for name, value in options.items() if name != "collate_fn"}
    assert same(trained(Texts(named=True), **options), trained(Texts(named=False), **by_place))


def test_label_is_a_name_too_and_none_at_all_is_refused():
    assert same(trained(Texts(named=True, label="label")), trained(Texts(named=True)))
    with pytest.raises(pp.InvalidInput, match=r'dictionaries of target, mask, words; .* must hold "labels"'):
        trained(Texts(named=True, label="target"))


def test_an_own_loop_takes_dictionaries():
    found = []
    for named in (True, False):
        model = Reader()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        private, optimizer, loader = pp.make_private(model, optimizer, Texts(named), planned(), seed=2)
        for batch in loader:
            optimizer.zero_grad()
            if named:
                labels = batch.pop("labels")
                optimizer.backward(pp.losses.sequence_classification(private(**batch), labels))
            else:
                words, mask, labels = batch
                LOSS(private(words, mask), labels).mean().backward()
            optimizer.step()
        found.append(model)
    assert all(map(torch.allclose, *(model.parameters() for model in found)))


def test_norms_by_name_are_those_by_place():
    texts, labels = Texts(named=True), torch.arange(RECORDS) % 3
    named = pp.per_record_norms(Reader(), LOSS, {"mask": texts.mask, "words": texts.words}, labels)
    assert torch.equal(named, pp.per_record_norms(Reader(), LOSS, (texts.words, texts.mask), labels))


# --- records of different lengths ---


class Lengths(Dataset):
    """Records of ones, each as long as this says."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> dict[str, object]:
        return {"x": torch.ones(self.lengths[place], 4), "labels": 0}


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean(dim=1)


def to_length(public: int | None):
    """A collate_fn that pads to this length, or to the longest record of the batch."""

    def collate(records: list[dict[str, object]]) -> dict[str, Tensor]:
        most = public or max(len(record["x"]) for record in records)
        rows = [F.pad(record["x"], (0, 0, 0, most - len(record["x"]))) for record in records]
        return {"x": torch.stack(rows), "labels": torch.tensor([record["labels"] for record in records])}

    return collate


def pooled_sum(lengths: list[int], public: int | None, steps: int = 1) -> Tensor:
    """What a step adds up, in clip norms: all are drawn, and there is no noise."""
    model, plan = (
        Pooled(),
        pp.plan(
            pp.Budgets([1.0] * len(lengths)), "uniform", steps=steps, batch_size=10, clip_norm=0.01, accountant="rdp"
        ),
    )
    kept = Keeping(model)
    pp.train(model, kept, Lengths(lengths), plan, LOSS, collate_fn=to_length(public))
    return torch.cat([value.flatten() for value in kept.seen[:2]]) * 10 / 0.01


@pytest.mark.parametrize("how", ["train", "make_private"])
@pytest.mark.parametrize("lengths", [[1, 2] * 10, [3] * 19 + [4]], ids=["mixed", "one longer"])
def test_padding_to_the_longest_of_a_batch_is_refused(how, lengths):
    def run(public: int | None) -> None:
        model, plan = Pooled(), planned(len(lengths), steps=30)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "train":
            pp.train(model, optimizer, Lengths(lengths), plan, LOSS, collate_fn=to_length(public), seed=0)
            return
        private, optimizer, loader = pp.make_private(
            model, optimizer, Lengths(lengths), plan, collate_fn=to_length(public), seed=0
        )
        for batch in loader:
            F.cross_entropy(private(batch["x"]), batch["labels"]).backward()
            optimizer.step()

    run(public=5)
    with pytest.raises(pp.InvalidInput, match="pads to the longest record of the batch"):
        run(public=None)


def test_padding_to_the_longest_would_let_one_record_move_all_others(monkeypatch):
    """The broken twin: with the longest of 20 records the others' sum turns by more than what one may contribute."""
    quiet(monkeypatch)
    many, without = [1] * 19 + [30], [1] * 19
    moved = pooled_sum(many, public=30) - pooled_sum(without, public=30)
    assert 0.9 < float(moved.norm()) <= 1.0  # the longest record's own contribution
    for room in (batches, poisson_loader):
        monkeypatch.setattr(room, "require_one_shape", lambda one, other: None)
    monkeypatch.setattr(batches, "_same", lambda one, other: True)
    moved = pooled_sum(many, public=None) - pooled_sum(without, public=None)
    assert float(moved.norm()) > 3.0


def test_lists_with_an_entry_for_each_record_have_no_common_shape():
    ragged = [torch.ones(length, 2) for length in (1, 3, 2)]
    assert batches.column_shapes({"x": ragged, "y": torch.zeros(3, 5)}, 3) == [torch.Size([5])]
    assert batches.column_shapes((torch.zeros(2, 4), torch.zeros(2)), 2) == [torch.Size([4]), torch.Size([])]

"""Layers that get one row for all records, or have records elsewhere than first: right where they can be trained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.gradients import Recorder, Tape, norms, per_record_norms
from privypurse.training.gradients.find_layouts import KnownLayouts
from privypurse.training.gradients.layout import Layout
from privypurse.training.isolation import model as isolation

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
TOKENS, WIDTH = 4, 6
torch.set_num_threads(1)


class Base(nn.Module):
    """Tokens with positions, to two classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.table = nn.Embedding(TOKENS, WIDTH)
        self.last = nn.Linear(WIDTH, 2)
        self.register_buffer("ids", torch.arange(TOKENS).unsqueeze(0))

    def positions(self, x: Tensor) -> Tensor:
        return self.table(self.ids)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + self.positions(x)).mean(1))


class Queries(Base):
    """One row through several layers, one of which no rule knows."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(WIDTH))

        def forward(self, x: Tensor, *, shift: Tensor) -> Tensor:
            return x * self.weight + self.weight.sin() * shift

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm, self.dense = self.Scale(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shift", torch.rand(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.dense(self.norm(self.scale(self.table(self.ids), shift=self.shift)))
        seen = torch.softmax(queries @ self.first(x).transpose(1, 2), dim=-1) @ x
        return self.last((seen + queries.expand(len(x), -1, -1)).sum(1))


class Twice(Base):
    """A table that looks up one row for all, and a row for each record."""

    def forward(self, x: Tensor) -> Tensor:
        own = self.table((x[..., 0] > 0).long())
        return self.last(torch.tanh(self.first(x) * self.table(self.ids) + own).mean(1))


class TokensFirst(Base):
    """(tokens, records, features) inside."""

    def forward(self, x: Tensor) -> Tensor:
        inside = self.first(x.transpose(0, 1)) + self.table(self.ids.T.expand(-1, len(x)))
        return self.last(torch.tanh(inside).transpose(0, 1).mean(1))


class Attending(nn.Module):
    """Attention that no rule knows, tokens first, with a mask by keyword that has no row for each record."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.last = nn.Linear(WIDTH, 2)
        self.register_buffer("mask", torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.attention.batch_first else x.transpose(0, 1)
        seen, _ = self.attention(x, x, x, attn_mask=self.mask, need_weights=False)
        return self.last((seen if self.attention.batch_first else seen.transpose(0, 1)).mean(1))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last, self.batch_first = nn.Linear(WIDTH, 2), batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        return self.last(self.encoder(x).mean(1 if self.batch_first else 0))


def quiet(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(getattr(layer, "dropout", None), float):
            layer.dropout = 0.0
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "positions": Base,
    "queries": Queries,
    "twice": Twice,
    "tokens first": TokensFirst,
    "attention, tokens first": Attending,
    "attention": lambda: Attending(batch_first=True),
    "encoder": lambda: quiet(pp.fix(Encoder(batch_first=True))),
    "encoder, tokens first": lambda: quiet(pp.fix(Encoder(batch_first=False))),
}


def loss(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none")


def data(records: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(records)
    return torch.randn(records, TOKENS, WIDTH, generator=source).double(), torch.arange(records) % 2


def alone(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Norms and gradients by autograd, of one record at a time."""
    found, named = [], dict(model.named_parameters())
    for i in range(len(x)):
        own = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        gradients = torch.autograd.grad(own, list(named.values()), materialize_grads=True)
        found.append(dict(zip(named, gradients, strict=True)))
    return torch.stack([torch.cat([g.flatten() for g in each.values()]).norm() for each in found]), found


@pytest.mark.parametrize("records", [1, 2, TOKENS, 5])
@pytest.mark.parametrize("name", MODELS)
def test_norms_and_sums_are_those_of_one_record_at_a_time(name: str, records: int) -> None:
    model, (x, y) = MODELS[name]().double(), data(records)
    true, each = alone(model, x, y)
    torch.testing.assert_close(per_record_norms(model, loss, x, y), true, rtol=1e-6, atol=0.0)
    sums, _ = pp.clipped_sum(model, loss, x, y, 0.5)
    factors = (0.5 * (1 - 1e-4) / true).clamp(max=1.0)
    for key in each[0]:
        expected = sum(factor * gradients[key] for factor, gradients in zip(factors, each, strict=True))
        torch.testing.assert_close(sums[key], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["tokens first", "encoder, tokens first"])
def test_by_shape_alone_as_many_tokens_as_records_would_be_taken_for_records(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: nobody asks which dimension counts records."""
    model, (x, y) = MODELS[name]().double(), data(TOKENS)
    monkeypatch.setattr(KnownLayouts, "run", lambda self, run, *given: run())
    found = per_record_norms(model, loss, x, y)
    assert not torch.allclose(found, alone(model, x, y)[0], rtol=1e-3)


def planned(people: int) -> Any:
    return pp.plan(pp.Budgets([8.0] * people), steps=2, batch_size=people // 2, method="sample")


def trained(model: nn.Module, x: Tensor | None = None) -> None:
    """By the ordinary loop and by train; raises where either does."""
    x = torch.randn(24, TOKENS, WIDTH) if x is None else x
    dataset = TensorDataset(x, torch.arange(len(x)) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, stepping, loader = pp.make_private(model, optimizer, dataset, planned(len(x)), seed=1)
    for some, y in loader:
        stepping.backward(loss(private(some), y))
        stepping.step()
    pp.train(model, optimizer, dataset, planned(len(x)), loss, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [*MODELS.values(), lambda: pp.fix(Encoder(batch_first=False))], ids=[*MODELS, "with dropout"]
)
def test_they_train(model: Callable[[], nn.Module]) -> None:
    trained(model())


class MeanOfRecords(Base):
    """One row for all, made of all."""

    def positions(self, x: Tensor) -> Tensor:
        return self.first(x.mean(0, keepdim=True))


class CountsRecords(Base):
    """Whole numbers that look like positions."""

    def positions(self, x: Tensor) -> Tensor:
        return self.table((x[..., 0] > 0).sum(0, keepdim=True) % TOKENS)


class QuietMean(MeanOfRecords):
    """What the layer gives does not show yet what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.context = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.context.weight)

    def positions(self, x: Tensor) -> Tensor:
        return self.context(x.mean(0, keepdim=True))


class QuietRows(Base):
    """A row for each record, made of all; the layer's weights are zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.beside.weight)

    def positions(self, x: Tensor) -> Tensor:
        return super().positions(x) + self.beside(x - x.mean(0))


class Loudest(Base):
    """One row of all, by a choice among records."""

    def positions(self, x: Tensor) -> Tensor:
        return self.first(x[x[:, 0, 0].argmax()].unsqueeze(0))


class FirstRow(Base):
    """The right values; but all records use the first one's copy of them."""

    def positions(self, x: Tensor) -> Tensor:
        return super().positions(x)[0]


class Repeats(Base):
    def positions(self, x: Tensor) -> Tensor:
        return super().positions(x).repeat(len(x), 1, 1)


class MaskOfRecords(Attending):
    """A mask without rows of records, made of them."""

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x, x, x, attn_mask=torch.einsum("ntf,nsf->ts", x, x), need_weights=False)
        return self.last(seen.mean(1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MeanOfRecords, "changes with the other records"),
        (CountsRecords, "changes with the other records"),
        (QuietMean, "changes with the other records"),
        (QuietRows, r"layer beside \(Linear\) is given for a record changes with the other records"),
        (Loudest, "changes with the other records"),
        (FirstRow, "what layer table gives is used by one record for another"),
        (Repeats, "table: such a layer gives one row for all records"),
        (lambda: MaskOfRecords(batch_first=True), "changes with the other records"),
    ],
)
def test_one_row_that_is_made_of_records_is_refused(model: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        trained(model())


class Steep(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh((self.first(x) + self.positions(x) + x).exp()).mean(1))


class SteepFirstRow(Steep, FirstRow):
    """What comes back to the first record's copy is others', and not finite where one of theirs is not."""


def test_a_record_whose_own_gradient_is_not_finite_is_no_reason_to_refuse() -> None:
    """Its loss does not count there, and 0 · ∞ is not 0."""
    x = torch.randn(24, TOKENS, WIDTH)
    x[5] = 100.0  # whose exponential is infinite, and so its slope
    trained(Steep(), x)
    x[1::2] = 100.0
    with pytest.raises(pp.InvalidInput, match="what layer table gives is used by one record for another"):
        trained(SteepFirstRow(), x)


def test_what_was_found_once_does_not_let_a_choice_among_records_through() -> None:
    """First there was one record like that in any batch, as if it were one row for all."""

    class Chooses(Base):
        def positions(self, x: Tensor) -> Tensor:
            return self.first(x[x[:, 0, 0] > 5.0][:1])

    x = torch.randn(24, TOKENS, WIDTH)
    x[:, 0, 0] = 9.0
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        trained(Chooses(), x)


def test_without_asking_one_record_would_carry_the_gradients_of_all() -> None:
    """The twin: rows that everybody uses count as the first record's."""
    model, (x, y) = FirstRow().double(), data(5)
    true, _ = alone(model, x, y)
    found = per_record_norms(model, loss, x, y)
    assert float(found[0]) > 1.001 * float(true[0]) or float(found[0]) < 0.999 * float(true[0])
    assert bool((found[1:] < 0.999 * true[1:]).all())  # they would be clipped too little


def test_a_batch_of_one_record_is_no_row_for_all() -> None:
    """Of one record alone nobody could tell; so it is asked beside copies of itself."""
    model, (x, _) = Base().double(), data(1)
    recorder = Recorder(model)
    recorder.forward(Tape(1), x)
    assert recorder.layouts.of(model.table) == Layout(one_row=True)
    assert recorder.layouts.of(model.first) == recorder.layouts.of(model.last) == Layout()
    tape, (many, labels) = Tape(5), data(5)
    torch.autograd.backward(loss(recorder.forward(tape, many), labels).sum())
    torch.testing.assert_close(norms(tape), alone(model, many, labels)[0], rtol=1e-6, atol=0.0)


def test_a_layer_that_is_called_otherwise_than_before_is_refused() -> None:
    """What is the same for all records was found by what it was given first: a mask of records is no such mask."""

    class Changes(Attending):
        later = False

        def forward(self, x: Tensor) -> Tensor:
            mask = x[..., 0] > 5 if self.later else None
            seen, _ = self.attention(x, x, x, mask, need_weights=False)
            return self.last(seen.mean(1))

    model, (x, _) = Changes(batch_first=True).double(), data(5)
    recorder = Recorder(model)
    recorder.forward(Tape(5), x)
    model.later = True
    with pytest.raises(pp.InvalidInput, match="other tensors"):
        recorder.forward(Tape(5), x)


def test_a_table_without_a_row_for_each_record_is_refused_by_name_or_frozen() -> None:
    """Relative positions: (tokens, tokens), whatever the number of records, and as many tokens as records too."""

    class Relative(Base):
        def forward(self, x: Tensor) -> Tensor:
            between = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
            scores = x @ x.transpose(1, 2) + self.table(between).sum(-1).unsqueeze(0)
            return self.last((torch.softmax(scores, -1) @ self.first(x)).mean(1))

    for records in (TOKENS, 5):
        with pytest.raises(pp.InvalidInput, match=r"layer table \(Embedding\).*requires_grad_\(False\)"):
            per_record_norms(Relative().double(), loss, *data(records))
    model = Relative()
    model.table.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x = torch.randn(24, TOKENS, WIDTH)
    pp.train(model, optimizer, TensorDataset(x, torch.arange(24) % 2), planned(24), loss, seed=1)


class TakesMask(Base):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf"))
        return self.last((torch.softmax(scores, -1) @ self.first(x)).mean(1))


def test_a_causal_mask_with_as_many_rows_as_records_is_no_row_of_theirs() -> None:
    """(tokens, tokens), known from batches of other sizes: no part of a check may take it apart."""
    model, (x, _) = TakesMask().double(), data(TOKENS)
    mask = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
    isolation.require_isolated(Recorder(model), (x, mask), {}, TOKENS, frozenset({id(mask)}))
    with pytest.raises((pp.InvalidInput, RuntimeError)):  # the twin
        isolation.require_isolated(Recorder(model), (x, mask), {}, TOKENS)

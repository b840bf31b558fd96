"""Layers that run in some passes only: where they have their records is asked, never supposed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.training.gradients import Recorder, Tape, find_layouts, norms
from privypurse.training.gradients.find_layouts import KnownLayouts
from privypurse.training.isolation.model import require_isolated

RECORDS = TOKENS = 6  # as many tokens as records: shapes alone tell nothing


class LayerDrop(nn.Module):
    """Tokens first inside, where a layer is left out at random."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.rate = rate

    def runs(self, x: Tensor) -> bool:
        return bool(torch.rand(()) >= self.rate)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).transpose(0, 1)
        if self.runs(x):
            hidden = hidden + torch.tanh(self.middle(hidden))
        return self.last(hidden.transpose(0, 1).mean(dim=1))


class ByLength(LayerDrop):
    """The layer runs in batches of so many records alone."""

    def runs(self, x: Tensor) -> bool:
        return len(x) == RECORDS


class Later(LayerDrop):
    """The layer runs once somebody says so."""

    begun = False

    def runs(self, x: Tensor) -> bool:
        return self.begun


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(RECORDS, TOKENS, 3, generator=torch.Generator().manual_seed(1))
    return x * torch.arange(1.0, RECORDS + 1).reshape(-1, 1, 1), torch.arange(RECORDS) % 2


def made(model: type[LayerDrop], rate: float = 0.5) -> LayerDrop:
    torch.manual_seed(0)
    return model(rate).double()


def found(recorder: Recorder, seed: int) -> Tensor:
    """Everybody's norm in a pass with these numbers."""
    (x, y), tape = data(), Tape(RECORDS)
    torch.manual_seed(seed)
    F.cross_entropy(recorder.forward(tape, x.double()), y, reduction="sum").backward()
    return norms(tape)


def alone(model: nn.Module, seed: int) -> Tensor:
    """The same by autograd, one record at a time."""
    x, y = data()
    each = []
    for record, label in zip(x.double(), y, strict=True):
        torch.manual_seed(seed)
        loss = F.cross_entropy(model(record[None]), label[None])
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        each.append(torch.cat([value.flatten() for value in gradients if value is not None]).norm())
    return torch.stack(each)


def test_a_layer_left_out_at_random_has_its_records_where_it_has_them() -> None:
    model = made(LayerDrop)
    recorder = Recorder(model)
    for seed in range(8):
        if seed < 2:
            require_isolated(recorder, (data()[0].double(),), {}, RECORDS)
        torch.testing.assert_close(found(recorder, seed), alone(model, seed), rtol=1e-6, atol=0.0)


def test_supposed_to_have_them_first_it_would_be_clipped_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: one turn, in which the layer does not run, and nobody asks again."""
    monkeypatch.setattr(find_layouts, "_TURNS", 1)
    monkeypatch.setattr(KnownLayouts, "require", lambda *layer: None)
    monkeypatch.setattr(LayerDrop, "runs", lambda self, x: len(x) == RECORDS)
    model = made(LayerDrop)
    off = found(Recorder(model), 0) / torch.stack([value.norm() for value in _by_record(model)])
    assert off.min() < 0.99  # a norm too small, and the contribution as much too large


def _by_record(model: nn.Module) -> list[Tensor]:
    """Everybody's gradient in the whole batch: what they would contribute."""
    x, y = data()
    losses = F.cross_entropy(model(x.double()), y, reduction="none")
    every = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    return [torch.cat([value.flatten() for value in each]) for each in every]


def test_a_layer_that_is_used_later_is_asked_for_then() -> None:
    model = made(Later)
    recorder = Recorder(model)
    torch.testing.assert_close(found(recorder, 0), alone(model, 0), rtol=1e-6, atol=0.0)
    model.begun = True
    torch.testing.assert_close(found(recorder, 0), alone(model, 0), rtol=1e-6, atol=0.0)


def test_a_layer_that_never_runs_when_it_is_asked_for_is_refused() -> None:
    recorder = Recorder(made(ByLength))
    with pytest.raises(pp.InvalidInput, match=r"layer middle \(Linear\) runs now, and did not in passes of a few"):
        found(recorder, 0)


class ByName(nn.Module):
    """A parameter of its own beside a layer, and several outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.first(x) * self.scale}


def test_a_trained_layer_that_gives_a_dictionary_says_what_to_do() -> None:
    with pytest.raises(pp.InvalidInput, match="ByName has parameters of its own and gives a dict"):
        Recorder(ByName()).forward(Tape(RECORDS), data()[0])

"""Norms from Gram matrices: tied tables, wide layers, and the kernels that take such sums on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.training.gradients import Recorder, Tape, clipping, grams, linear, norms, numerics, tied
from privypurse.training.gradients.embedding import EmbeddingRule

TOKENS, WORDS, WIDTH = 7, 5000, 12


class Speaker(nn.Module):
    """Looks words up in two places, and scores them by the same table."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.more = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)
        self.scores.weight = self.more.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.scores(torch.tanh(self.inner(self.words(words) + self.more(words.flip(1)))))


def losses(model: nn.Module, words: Tensor) -> Tensor:
    scores = model(words)
    return F.cross_entropy(scores.transpose(1, 2), words.roll(1, dims=1), reduction="none").sum(dim=1)


def alone(model: nn.Module, words: Tensor) -> Tensor:
    """The norm of each record's gradient, by autograd, in float64."""
    model = model.double()
    found = []
    for record in words:
        grads = torch.autograd.grad(losses(model, record.unsqueeze(0)).sum(), list(model.parameters()))
        found.append(torch.sqrt(sum(grad.square().sum() for grad in grads)))
    return torch.stack(found)


def measured(model: nn.Module, words: Tensor) -> Tensor:
    tape = Tape(len(words))
    scores = Recorder(model).forward(tape, words)
    F.cross_entropy(scores.transpose(1, 2), words.roll(1, dims=1), reduction="none").sum().backward()
    return norms(tape)


@pytest.mark.parametrize("padding", [None, 3])
def test_a_tied_table_is_measured_without_making_its_gradient(
    padding: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 20, (6, TOKENS))  # few, so that many meet
    words[0] = 3
    monkeypatch.setattr(clipping, "_added", None)  # what would make it
    model = Speaker(padding)
    found, truth = measured(model, words).double(), alone(model, words)
    assert torch.all(found >= truth * (1 - 1e-6))
    assert torch.all(found <= truth * 1.01)


def test_a_small_tied_table_is_made() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(3, 2)
    uses = [_call(table, torch.zeros(4, 50, dtype=torch.int64), torch.randn(4, 50, 2)) for _ in range(2)]
    assert tied.squares_of_tied(uses) is None


def _call(table: nn.Embedding, words: Tensor, gradient: Tensor) -> tuple[clipping.Call, str]:
    return clipping.Call(table, EmbeddingRule(), {"weight": "weight"}, (words,), gradient=gradient), "weight"


def test_the_looked_up_and_the_scored_must_be_added_before_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: uses that are measured apart miss what they have in common."""
    torch.manual_seed(0)
    words = torch.randint(0, 20, (6, TOKENS))
    model = Speaker()
    meeting = tied._meeting
    monkeypatch.setattr(tied, "_meeting", lambda one, other: meeting(one, other) * (one is other))
    assert not torch.allclose(measured(model, words).double(), alone(model, words), rtol=0.01)


def test_wide_products_are_added_up_in_parts() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(2, 3, 9001), torch.randn(2, 4, 9001)
    truth = torch.bmm(one.double(), other.double().transpose(1, 2))
    assert torch.allclose(grams.gram(one, other).double(), truth, atol=1e-3)
    assert torch.allclose(grams.gram(one), grams.gram(one, one.clone()))
    assert grams.added(9001) == 1024 + 9
    assert grams.added(4096) == 4096


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("tokens", [1, 5, 64, 127, 512, 600])
def test_the_kernel_of_gram_matrices(tokens: int) -> None:
    torch.manual_seed(0)
    a, g = torch.randn(9, tokens, 40), torch.randn(9, tokens, 24)
    a[2], g[3, 0, 0], a[4, -1, 0] = 0.0, float("inf"), float("nan")
    g[5] = -g[5]
    a[6] *= 1e-22
    g[6] *= 1e15
    expected = grams.from_grams(grams.gram(a), grams.gram(g), 64)
    found = grams.from_grams(grams.gram(a).cuda(), grams.gram(g).cuda(), 64).cpu()
    usual = torch.isfinite(expected)
    assert torch.equal(usual, torch.isfinite(found))
    assert not usual[3]
    assert not usual[4]
    assert torch.allclose(found[usual], expected[usual], rtol=1e-4)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("shape", [(7,), (3, 1), (5, 2047), (2, 33, 1025), (300, 17), (2, 3_000_001)])
def test_the_kernel_of_squares(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape, device="cuda")
    truth = values.double().unsqueeze(-1).flatten(1).square().sum(dim=1)
    found = numerics.square_sum(values)
    assert torch.allclose(found.double(), truth, rtol=1e-5)
    values.view(-1)[0] = float("nan")
    assert torch.isnan(numerics.square_sum(values)[0])
    values.view(-1)[-1] = float("inf")
    assert torch.isinf(numerics.square_sum(values)[-1]) or len(values) == 1
    assert torch.all(numerics.square_sum(torch.zeros(shape, device="cuda")) > 0)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_are_zeroed_and_no_others(kind: torch.dtype) -> None:
    values = torch.full((5, 3, 1000), float("nan"), device="cuda", dtype=kind)
    values[1::2] = 7.0
    from privypurse.training.gradients import kernels  # which imports Triton

    kernels.zero_rows(values, torch.tensor([True, False, True, False, True], device="cuda"))
    assert torch.all(values[::2] == 0)
    assert torch.all(values[1::2] == 7)


class Side(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) * self.k(x) + self.v(x + 1)


def test_layers_that_get_the_same_share_its_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, taken = Side(), torch.randn(3, 4, 64), []
    monkeypatch.setattr(linear, "gram", lambda values: taken.append(values) or grams.gram(values))
    tape = Tape(3)
    Recorder(model).forward(tape, x).square().sum().backward()
    found = norms(tape)
    assert len(taken) == 5  # of six: q and k get the same
    truth = []
    for record in x:
        grads = torch.autograd.grad(model(record.unsqueeze(0)).square().sum(), list(model.parameters()))
        truth.append(torch.sqrt(sum(grad.square().sum() for grad in grads)))
    assert torch.allclose(found, torch.stack(truth), rtol=1e-3)


def beyond_the_clip_norm(layer: nn.Module, x: Tensor) -> float:
    """What one record adds, in clip norms, where losses are as large as inputs are small."""
    found, _ = pp.clipped_sum(layer, lambda output, _: output.flatten(1).sum(dim=1) * 1e18, x, torch.zeros(1), 0.01)
    return float(found["weight"].double().norm()) / 0.01


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_products_below_the_smallest_number_are_not_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = {
        "linear": (nn.Linear(1000, 200, bias=False), torch.full((1, 100, 1000), 1e-23)),
        "convolution": (nn.Conv2d(256, 256, 3, padding=1, bias=False), torch.full((1, 256, 8, 8), 1e-23)),
    }[name]
    assert beyond_the_clip_norm(layer, x) <= 1
    monkeypatch.setattr(grams, "_lost", lambda terms, kind: 0.0)
    assert beyond_the_clip_norm(layer, x) > 40

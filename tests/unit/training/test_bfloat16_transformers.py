"""A transformer under bfloat16 autocast: norms of what is added, near those of float32, and never too small."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training import gradients

torch.set_num_threads(1)
RECORDS, TOKENS, WORDS, WIDTH = 24, 7, 30, 16


class LanguageModel(nn.Module):
    """Words and places, attention with a causal mask, LayerNorm and RMSNorm, a head tied to the table."""

    def __init__(self, run_again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run_again = run_again
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = pp.fix(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).layers
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(TOKENS).expand(len(tokens), -1))
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.run_again else block(x, mask)
        return self.head(self.norm(x))


def next_word(logits: Tensor, tokens: Tensor) -> Tensor:
    """One loss for each record."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2).float(), tokens[:, 1:], reduction="none").mean(dim=1)


def records(count: int = RECORDS) -> Tensor:
    return torch.randint(0, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(1))


@contextmanager
def short_floats() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def alone(model: nn.Module, tokens: Tensor) -> Tensor:
    """Every record's gradient, flat, by plain autograd."""
    found = []
    for one in tokens.split(1):
        parts = torch.autograd.grad(next_word(model(one), one).sum(), list(model.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(found)


@pytest.mark.parametrize("run_again", [False, True])
def test_norms_are_near_those_of_float32(run_again: bool) -> None:
    tokens, model = records(), LanguageModel(run_again)
    expected = alone(LanguageModel(), tokens).norm(dim=1)
    with short_floats():
        found = pp.per_record_norms(model, next_word, tokens, tokens)
    assert found.dtype == torch.float32
    error = found.double() / expected - 1
    assert float(error.abs().max()) < 0.02  # bfloat16 has 8 bits
    assert float(error.abs().max()) > 1e-6  # and autocast was on


@pytest.mark.slow
def test_what_a_record_adds_is_never_above_its_norm_or_its_clip_norm() -> None:
    """Each record by itself, added up in float64. A norm taken of what bfloat16 keeps of it would be too small."""
    tokens, model, broken = records(), LanguageModel(), 0
    recorder = gradients.Recorder(model)
    for number, one in enumerate(tokens.split(1)):
        with short_floats():
            tape, _ = gradients.recorded(recorder, next_word, one, one, False)
            norm = gradients.norms(tape)
            total: dict[str, Tensor] = {}
            for name, part in gradients.sums(tape, torch.ones(1), norm, wide=True):
                total[name] = total.get(name, 0.0) + part.double()
            limit = float(norm) * 0.05 * (number + 1)
            sums, _ = pp.clipped_sum(model, next_word, one, one, limit)
        size = math.sqrt(sum(float(value.square().sum()) for value in total.values()))
        assert size <= float(norm) * (1 + gradients.clipping.MARGIN)
        assert size >= float(norm) * 0.99
        assert all(value.dtype == torch.float32 for value in sums.values())
        assert math.sqrt(sum(float(value.double().square().sum()) for value in sums.values())) <= limit
        rough = torch.stack([value.bfloat16().float().norm() for value in total.values()]).bfloat16().float().norm()
        broken += size > float(rough.bfloat16()) * (1 + gradients.clipping.MARGIN)
    assert broken > 0


@pytest.mark.slow
def test_training_goes_the_way_of_float32() -> None:
    def trained(short: bool) -> list[Tensor]:
        model, tokens = LanguageModel(run_again=short), records(60)
        plan = pp.plan(pp.Budgets(np.full(60, 8.0), delta=1e-5), "scale", steps=3, batch_size=60, accountant="rdp")
        sgd = torch.optim.SGD(model.parameters(), lr=0.5)
        with pytest.warns(pp.PrivyPurseWarning):
            private, optimizer, loader = pp.make_private(model, sgd, TensorDataset(tokens), plan, seed=2)
        for (some,) in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=short):
                logits = private(some)
            optimizer.backward(next_word(logits, some))
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    start = LanguageModel().parameters()
    for exact, rough, first in zip(trained(False), trained(True), start, strict=True):
        assert rough.dtype == torch.float32
        assert float((exact - rough).norm()) < 0.05 * float((exact - first.detach()).norm())

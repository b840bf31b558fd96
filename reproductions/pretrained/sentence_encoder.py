"""BERT's encoder (Devlin et al. 2019, arXiv 1810.04805), as large as MiniLM-L6 (Wang et al. 2020, arXiv 2002.10957).

A sentence is the mean of its tokens' last states, as in all-MiniLM-L6-v2. Dropout is left out. What is trained is
made of linear layers and layer normalisations, whose gradients have rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproductions.pretrained.probe import probe, scaled


@dataclass(frozen=True)
class Size:
    """How large an encoder is; by default MiniLM-L6."""

    vocabulary: int = 30_522
    positions: int = 512
    width: int = 384
    inside: int = 1_536
    layers: int = 6

    @property
    def heads(self) -> int:
        return self.width // 32

    @classmethod
    def of(cls, weights: Mapping[str, np.ndarray]) -> Size:
        """That of an encoder with these weights."""
        vocabulary, width = weights["words.weight"].shape
        layers = sum(name.endswith("wider.bias") for name in weights)
        return cls(vocabulary, len(weights["positions"]), width, len(weights["layers.0.wider.bias"]), layers)


class Attention(nn.Module):
    """Tokens of one record look at one another; those that only fill it up are not looked at."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.output = (nn.Linear(size.width, size.width) for _ in range(4))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        def heads(values: Tensor) -> Tensor:
            return values.reshape(*values.shape[:2], self.heads, -1).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = query @ key.transpose(2, 3) / math.sqrt(key.shape[-1])
        weights = torch.softmax(scores.masked_fill(padding[:, None, None], -1e4), dim=-1)
        out: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention, then two linear layers for each token, each added and normalised."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.attention_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.wider, self.narrower = nn.Linear(size.width, size.inside), nn.Linear(size.inside, size.width)
        self.output_norm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, padding))
        out: Tensor = self.output_norm(x + self.narrower(F.gelu(self.wider(x))))
        return out


class SentenceEncoder(nn.Module):
    """Tokens [n, length], 0 where a record is over, to sentences [n, width]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.randn(size.positions, size.width))
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.norm(self.words(tokens.long()) + self.positions[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, padding)
        kept = (~padding).to(x.dtype)[:, :, None]
        sentences: Tensor = (x * kept).sum(1) / kept.sum(1)
        return sentences

    def load(self, weights: Mapping[str, np.ndarray]) -> SentenceEncoder:
        """Weights of the file that `reproductions.pretrained.fetch` leaves."""
        self.load_state_dict({name: torch.tensor(values).float() for name, values in weights.items()})
        return self


_OURS = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "wider",
    "output.dense": "narrower",
    "output.LayerNorm": "output_norm",
}


def renamed(published: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Published weights by the names that they have here; all tokens are of the first segment."""
    out = {
        "words.weight": published["embeddings.word_embeddings.weight"],
        "positions": published["embeddings.position_embeddings.weight"]
        + published["embeddings.token_type_embeddings.weight"][0],
        "norm.weight": published["embeddings.LayerNorm.weight"],
        "norm.bias": published["embeddings.LayerNorm.bias"],
    }
    for name, values in published.items():
        head, _, rest = name.partition("encoder.layer.")
        if rest and not head:
            number, _, place = rest.partition(".")
            theirs, _, kind = place.rpartition(".")
            out[f"layers.{number}.{_OURS[theirs]}.{kind}"] = values
    return out


class LowRank(nn.Module):
    """A frozen linear layer with a trained addition of low rank (LoRA, Hu et al. 2022, arXiv 2106.09685), 0 at first.

    Inputs of a token have about unit size each, so that with rows of length one what lies between has it too.
    """

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=frozen.in_features**-0.5)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.up(self.down(x))
        return out


def _lower_rank(layer: nn.Module, rank: int) -> None:
    """Freeze every linear layer within, and give it an addition of this rank."""
    for part in list(layer.modules()):
        for name, inner in list(part.named_children()):
            if isinstance(inner, nn.Linear):
                setattr(part, name, LowRank(inner, rank))


class FineTuned(nn.Module):
    """A classifier on sentences, with the last ``trained`` layers of the encoder trained in full or by low rank.

    Phrases are cut to ``length`` tokens in training, and read whole when it is over.
    """

    def __init__(
        self, encoder: SentenceEncoder, classes: int, trained: int, rank: int | None, length: int, scaling: str
    ) -> None:
        super().__init__()
        self.encoder, self.length, self.scaling = encoder.requires_grad_(False), length, scaling
        for layer in list(encoder.layers)[-trained:]:
            if rank is None:
                layer.requires_grad_(True)
            else:
                _lower_rank(layer, rank)
        self.classifier = probe(encoder.words.embedding_dim, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            tokens = tokens[:, : self.length]
        out: Tensor = self.classifier(scaled(self.encoder(tokens), self.scaling))
        return out

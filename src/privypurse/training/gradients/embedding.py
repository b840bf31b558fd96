"""Embedding tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privypurse.training.gradients.grams import added, from_grams, gram
from privypurse.training.gradients.numerics import (
    as_wide,
    at_least_float32,
    spread,
    square_sum,
    weighted_rows,
)
from privypurse.training.gradients.rule import Call, Rule, handles


def same_rows(one: Tensor, other: Tensor) -> Tensor:
    """(record, token, token): two tokens meet in the gradient only where they look up the same row."""
    return one.unsqueeze(2) == other.unsqueeze(1)


@handles(nn.Embedding)
class EmbeddingRule(Rule):
    features = -1
    records_anywhere = True
    takes_views = True

    def tokens(self, call: Call) -> tuple[Tensor, Tensor]:
        """Indices (record, token) and the gradient of what they looked up, 0 where the table takes none."""
        layer: nn.Embedding = call.module  # type: ignore[assignment]
        index = call.inputs[0].reshape(call.output_gradient.shape[0], -1)
        g = at_least_float32(call.output_gradient).reshape(*index.shape, -1)
        if layer.padding_idx is not None:
            g = g.masked_fill((index == layer.padding_idx).unsqueeze(-1), 0.0)
        return index, g

    def settle(self, call: Call) -> None:
        """Nothing is made: norms and sums follow from input and output gradient."""

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        tokens = call.output_gradient[0].numel() // call.output_gradient.shape[-1]
        if tokens**2 > call.module.get_parameter("weight").numel():
            call.kept = self.per_record(call)  # a small table, and many places: less than a matrix of places
            return {"weight": square_sum(call.kept["weight"])}
        index, g = self.tokens(call)
        return {"weight": from_grams(same_rows(index, index).to(g.dtype), gram(g), added(g.shape[2]) + g.shape[1])}

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        shape = call.module.get_parameter("weight").shape
        if "weight" in call.kept:
            return {"weight": weighted_rows(call.kept.pop("weight").flatten(1), weights).view(shape)}
        index, g = self.tokens(call)
        g = as_wide(g, weights)
        table = torch.zeros(shape, dtype=g.dtype, device=g.device)
        table.index_add_(0, index.flatten(), (g * spread(weights, g)).flatten(0, 1))
        return {"weight": table}

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        index, g = self.tokens(call)
        return {"weight": square_sum(g).sqrt() * index.shape[1] ** 0.5}

    def per_record(self, call: Call) -> dict[str, Tensor]:
        index, g = self.tokens(call)
        layer: nn.Embedding = call.module  # type: ignore[assignment]
        table = torch.zeros((index.shape[0], *layer.weight.shape), dtype=g.dtype, device=g.device)
        return {"weight": table.scatter_add_(1, index.unsqueeze(-1).expand_as(g), g)}

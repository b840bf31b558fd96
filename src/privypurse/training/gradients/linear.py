"""Linear layers, over any number of leading dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from privypurse.training.gradients.grams import added, from_grams, gram
from privypurse.training.gradients.numerics import PASS, as_wide, from_made, products, spread, square_sum
from privypurse.training.gradients.rule import Call, handles
from privypurse.training.gradients.weight_and_bias import ProductRule


def by_token(values: Tensor) -> Tensor:
    """As (record, token, feature)."""
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _tokens(call: Call, some: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Input and output gradient of some records, by token."""
    a, g = call.operands(some)
    return by_token(a), by_token(g)


def _sizes(call: Call) -> tuple[int, int, int]:
    """Tokens of a record, features of the input and of the output."""
    inputs, outputs = call.inputs[0].shape[-1], call.output_gradient.shape[-1]
    return call.output_gradient[0].numel() // outputs, inputs, outputs


def way_of(call: Call) -> Literal["outer", "keep", "forget", "ghost"]:
    """The cheapest way to a record's norm that needs little memory beside what the tape holds.

    One token: the norm of an outer product (Goodfellow 2015, arXiv 1510.01799). Many tokens beside few features: the
    gradient itself, kept for the sum where it is small. Few tokens: their Gram matrices (ghost norm: Li et al. 2022,
    arXiv 2110.05679).
    """
    tokens, inputs, outputs = _sizes(call)
    if tokens == 1:
        return "outer"
    if call.worth_keeping(inputs * outputs):
        return "keep"
    ghost = tokens * tokens * (inputs + outputs + 3 * PASS)
    return "ghost" if ghost < (tokens + 2 * PASS) * inputs * outputs else "forget"


def weighted_tokens(call: Call, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Input and output gradient of all tokens, (token, feature), one of them times its record's weight."""
    a, g = (as_wide(values, weights) for values in _tokens(call))
    # Weights go into the smaller of the two: that is a copy.
    if a.shape[2] < g.shape[2]:
        a = a * spread(weights, a)
    else:
        g = g * spread(weights, g)
    return a.reshape(-1, a.shape[2]), g.reshape(-1, g.shape[2])


def _made(a: Tensor, g: Tensor) -> Tensor:
    """Each record's gradient, Σ_t g_t a_tᵀ."""
    return products(g.transpose(1, 2), a)


def _gram_of_input(call: Call, a: Tensor) -> Tensor:
    """The one before, if that layer got the same: what is on the tape stays where it is while norms are taken."""
    if a.untyped_storage().data_ptr() != call.inputs[0].untyped_storage().data_ptr():
        return gram(a)  # a copy, in longer floats
    what = a.data_ptr(), a.shape, a.stride(), a.dtype
    if call.cache.last_gram is None or call.cache.last_gram[0] != what:
        call.cache.last_gram = what, gram(a)
    return call.cache.last_gram[1]


@handles(nn.Linear)
class LinearRule(ProductRule):
    features = -1
    records_anywhere = True
    takes_views = True

    def joined(self, calls: list[Call]) -> Call:
        """One use over the tokens of all."""
        inputs = torch.cat([by_token(call.inputs[0]) for call in calls], dim=1)
        gradient = torch.cat([by_token(call.output_gradient) for call in calls], dim=1)
        return replace(calls[0], inputs=(inputs,), gradient=gradient)

    def weight_squares(self, call: Call) -> Tensor:
        """‖Σ_t g_t a_tᵀ‖² for every record."""
        way = way_of(call)
        if way == "outer":
            a, g = _tokens(call)
            return square_sum(a) * square_sum(g)
        if way == "keep":
            call.kept["weight"] = self.weight(call)
            return square_sum(call.kept["weight"])
        tokens, inputs, outputs = _sizes(call)
        squares = []
        for some in call.chunks(2 * (tokens * tokens if way == "ghost" else inputs * outputs)):
            a, g = _tokens(call, some)
            if way == "ghost":
                squares.append(from_grams(_gram_of_input(call, a), gram(g), added(inputs) + added(outputs) + tokens))
            else:
                squares.append(from_made(square_sum(_made(a, g)), square_sum(a), square_sum(g), tokens))
        return squares[0] if len(squares) == 1 else torch.cat(squares)

    def weight_sum(self, call: Call, weights: Tensor) -> Tensor:
        a, g = weighted_tokens(call, weights)
        return g.T @ a

    def in_order(self, call: Call, kept: Tensor) -> Tensor:
        return kept.reshape(call.output_gradient.shape[-1], call.inputs[0].shape[-1])

    def weight(self, call: Call) -> Tensor:
        return _made(*_tokens(call))

    def over_tokens(self, g: Tensor) -> Tensor:
        g = by_token(g)
        return g.sum(dim=1) if g.shape[1] > 1 else g[:, 0]

"""Linear layers, over any number of leading dimensions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from privypurse.training.gradients.numerics import (
    PASS,
    as_wide,
    exact,
    from_grams,
    from_made,
    spread,
    square_sum,
    weighted_rows,
)
from privypurse.training.gradients.rule import Call, Rule, handles


def _tokens(values: Tensor) -> Tensor:
    """As (record, token, feature), in float32 or better."""
    return exact(values).reshape(values.shape[0], -1, values.shape[-1])


def way_of(call: Call) -> Literal["outer", "keep", "forget", "ghost"]:
    """The cheapest way to a record's norm that needs little memory beside what the tape holds.

    One token: the norm of an outer product (Goodfellow 2015). Many tokens beside few features: the gradient itself,
    kept for the sum where it is small. Few tokens: their Gram matrices (ghost norm, Li et al. 2022).
    """
    inputs, outputs = call.inputs[0].shape[-1], call.back.shape[-1]
    tokens = call.back[0].numel() // outputs
    if tokens == 1:
        return "outer"
    if call.worth_keeping(inputs * outputs):
        return "keep"
    ghost = tokens * tokens * (inputs + outputs + 3 * PASS)
    return "ghost" if ghost < (tokens + 2 * PASS) * inputs * outputs else "forget"


def _weight_squares(call: Call) -> Tensor:
    """‖Σ_t g_t a_tᵀ‖² for every record."""
    way = way_of(call)
    if way == "outer":
        return square_sum(_tokens(call.inputs[0])) * square_sum(_tokens(call.back))
    inputs, outputs = call.inputs[0].shape[-1], call.back.shape[-1]
    tokens = call.back[0].numel() // outputs
    if way == "keep":
        call.kept["weight"] = _made(_tokens(call.inputs[0]), _tokens(call.back))
        return square_sum(call.kept["weight"])
    squares = []
    for some in call.chunks(2 * (tokens * tokens if way == "ghost" else inputs * outputs)):
        a, g = _tokens(call.inputs[0][some]), _tokens(call.back[some])
        if way == "ghost":
            grams = torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2))
            squares.append(from_grams(*grams, inputs + outputs + tokens))
        else:
            squares.append(from_made(square_sum(_made(a, g)), square_sum(a), square_sum(g), tokens))
    return torch.cat(squares)


def _made(a: Tensor, g: Tensor) -> Tensor:
    """Each record's gradient, Σ_t g_t a_tᵀ."""
    return torch.bmm(g.transpose(1, 2), a)


def _bias(call: Call) -> Tensor:
    """Each record's bias gradient."""
    g = _tokens(call.back)
    return g.sum(dim=1) if g.shape[1] > 1 else g[:, 0]


@handles(nn.Linear)
class LinearRule(Rule):
    features = -1

    def settle(self, call: Call) -> None:
        """Nothing is made: norms and sums follow from input and output gradient."""

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        out = {}
        if "weight" in call.names:
            out["weight"] = _weight_squares(call)
        if "bias" in call.names:
            call.kept["bias"] = _bias(call)
            out["bias"] = square_sum(call.kept["bias"])
        return out

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        a, g = _tokens(call.inputs[0]), _tokens(call.back)
        out = {}
        if "weight" in call.names:
            kept = call.kept.pop("weight", None)
            if kept is None:
                # Weights go into the smaller of the two: that is a copy.
                less = a.shape[2] < g.shape[2]
                outer, inner = as_wide(g, weights), as_wide(a, weights)
                if less:
                    inner = inner * spread(weights, inner)
                else:
                    outer = outer * spread(weights, outer)
                out["weight"] = outer.reshape(-1, g.shape[2]).T @ inner.reshape(-1, a.shape[2])
            else:
                made = weighted_rows(kept.reshape(weights.shape[0], -1), weights)
                out["weight"] = made.reshape(g.shape[2], a.shape[2])
        if "bias" in call.names:
            each = call.kept.pop("bias", None)  # tokens first, as in the norm: they may cancel
            out["bias"] = weighted_rows(_bias(call) if each is None else each, weights)
        return out

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        a, g = square_sum(exact(call.inputs[0])).sqrt(), square_sum(exact(call.back)).sqrt()
        tokens = call.back[0].numel() // call.back.shape[-1]
        sizes = {"weight": a * g, "bias": g * tokens**0.5}
        return {name: sizes[name] for name in call.names}

    def per_record(self, call: Call) -> dict[str, Tensor]:
        a, g = _tokens(call.inputs[0]), _tokens(call.back)
        full = {"weight": lambda: _made(a, g), "bias": lambda: _bias(call)}
        return {name: full[name]() for name in call.names}

"""Linear layers with any dimensions between record and feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privypurse.training.gradients.precision import exact, spread, square_sum
from privypurse.training.gradients.registry import Call, handles


def _tokens(call: Call) -> tuple[Tensor, Tensor]:
    """Input and output gradient as (record, token, feature), in float32 or better."""
    a, g = exact(call.inputs[0]), exact(call.back)
    return a.reshape(a.shape[0], -1, a.shape[-1]), g.reshape(g.shape[0], -1, g.shape[-1])


def matrix_squared_norms(a: Tensor, g: Tensor, call: Call) -> Tensor:
    """‖Σ_t g_t aᵗ_t‖² for every record, by whichever of three ways is cheapest.

    One token: the norm of an outer product. Few tokens: Gram matrices of the tokens (ghost norm, Goodfellow 2015;
    Li et al. 2022). Many tokens: the gradient itself, which the call keeps for the sum.
    """
    tokens, size = a.shape[1], a.shape[2] * g.shape[2]
    if tokens == 1:
        return square_sum(a) * square_sum(g)
    if 2 * tokens * tokens < size:
        gram = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(g, g.transpose(1, 2)))
        return gram.sum(dim=(1, 2)).clamp_(min=0)
    call.kept["weight"] = torch.bmm(g.transpose(1, 2), a)
    return square_sum(call.kept["weight"])


def kept_sum(call: Call, weights: Tensor) -> Tensor | None:
    """Σ weight · gradient from what the norms kept, if they did."""
    full = call.kept.pop("weight", None)
    if full is None:
        return None
    each = full.reshape(weights.shape[0], -1)
    return weights.to(each.dtype) @ each


@handles(nn.Linear)
class LinearRule:
    whole_module = False

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        a, g = _tokens(call)
        out = {}
        if "weight" in call.names:
            out["weight"] = matrix_squared_norms(a, g, call)
        if "bias" in call.names:
            out["bias"] = square_sum(g.sum(dim=1))
        return out

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        a, g = _tokens(call)
        weighted = (g * spread(weights, g)).reshape(-1, g.shape[-1])
        out = {}
        if "weight" in call.names:
            kept = kept_sum(call, weights)
            made = weighted.T @ a.reshape(-1, a.shape[-1]) if kept is None else kept
            out["weight"] = made.reshape(g.shape[-1], a.shape[-1])
        if "bias" in call.names:
            out["bias"] = weighted.sum(dim=0)
        return out

    def per_record(self, call: Call) -> dict[str, Tensor]:
        a, g = _tokens(call)
        full = {"weight": lambda: torch.bmm(g.transpose(1, 2), a), "bias": lambda: g.sum(dim=1)}
        return {name: full[name]() for name in call.names}

"""A table that looks words up and, tied, scores them too: its gradient's norm without each record's gradient.

That gradient is Σ_t g_t a_tᵀ, over the scored tokens, and Σ_s e_(i_s) h_sᵀ, over those that were looked up: outer
products both, so that their norm follows from Gram matrices over all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privypurse.training.gradients.embedding import EmbeddingRule, same_rows
from privypurse.training.gradients.grams import added, from_grams, gram
from privypurse.training.gradients.linear import LinearRule, by_token
from privypurse.training.gradients.numerics import PASS
from privypurse.training.gradients.rule import Call

Factors = tuple[Tensor, Tensor]
"""Of a table's gradient: rows, whole (record, token, row) or by number (record, token); and what goes there."""


def squares_of_tied(uses: list[tuple[Call, str]]) -> Tensor | None:
    """‖G‖² of every record, never too small; None where the uses are no such, or the gradient itself is cheaper."""
    calls = [call for call, _ in uses]
    tables = (type(call.rule) is LinearRule or isinstance(call.rule, EmbeddingRule) for call in calls)
    if not all(tables) or any(local != "weight" for _, local in uses):
        return None
    rows, width = calls[0].module.get_parameter("weight").shape
    tokens = sum(_tokens(call) for call in calls)
    if tokens * tokens * (rows + width + 3 * PASS) >= (tokens + 2 * PASS) * rows * width:
        return None
    parts = calls[0].chunks(2 * tokens * (tokens + rows))
    return torch.cat([_squares([_factors(call.rows(some)) for call in calls], rows) for some in parts])


def _tokens(call: Call) -> int:
    return call.output_gradient[0].numel() // call.output_gradient.shape[-1]


def _factors(call: Call) -> Factors:
    if isinstance(call.rule, EmbeddingRule):
        return call.rule.tokens(call)
    a, g = map(by_token, call.input_and_gradient())
    return g, a


def _squares(uses: list[Factors], rows: int) -> Tensor:
    into = torch.cat([values for _, values in uses], dim=1)
    of_rows = torch.cat([torch.cat([_meeting(one, other) for other, _ in uses], dim=2) for one, _ in uses], dim=1)
    return from_grams(gram(into), of_rows.to(into.dtype), added(rows) + added(into.shape[2]) + into.shape[1])


def _meeting(one: Tensor, other: Tensor) -> Tensor:
    """By how much rows of the two are the same: (record, token of one, token of the other)."""
    if one.dim() == 2 and other.dim() == 2:
        return same_rows(one, other)
    if one.dim() == 2:
        return _meeting(other, one).transpose(1, 2)
    if other.dim() == 2:
        return one.gather(2, other.unsqueeze(1).expand(-1, one.shape[1], -1))
    return gram(one, other)

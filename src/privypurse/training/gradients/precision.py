"""Numbers in which norms and sums are taken: float32 or better, whatever the model computes in."""

from __future__ import annotations

import torch
from torch import Tensor


def exact(values: Tensor) -> Tensor:
    """The same values in float32, or in float64 if they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.to(torch.float32)


def square_sum(values: Tensor) -> Tensor:
    """For each record the sum of squares of all that is left."""
    return values.flatten(1).square().sum(dim=1)


def weighted_total(values: Tensor, weights: Tensor) -> Tensor:
    """Σ weight · value over records. Weight 0 leaves a record out even where its value is not finite (rule 12)."""
    each = spread(weights, values)
    return torch.where(each == 0, 0.0, values * each).sum(dim=0)


def spread(weights: Tensor, like: Tensor) -> Tensor:
    """One weight for each record, shaped to multiply ``like``."""
    return weights.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))

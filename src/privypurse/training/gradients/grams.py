"""Norms from Gram matrices: ‖Σ_t g_t a_tᵀ‖² = Σ_tt' ⟨a_t, a_t'⟩ ⟨g_t, g_t'⟩ (ghost norm: Li et al. 2022, arXiv
2110.05679)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from privypurse.training.gradients.numerics import has_kernels, products, rounding

_PART = 1024
_WIDE = 4096  # beyond, products of so many entries are added up in parts: rounding grows with how many follow


def gram(one: Tensor, other: Tensor | None = None) -> Tensor:
    """⟨one_t, other_s⟩ of each record: (records, tokens, tokens)."""
    other = one if other is None else other
    if one.shape[2] <= _WIDE:
        return products(one, other.transpose(1, 2))
    parts = _in_parts(one)
    others = parts if other is one else _in_parts(other)
    each = products(parts.flatten(0, 1), others.flatten(0, 1).transpose(1, 2))
    return each.reshape(*parts.shape[:2], *each.shape[1:]).sum(dim=1)


def _in_parts(values: Tensor) -> Tensor:
    """(record, part, token, entry of the part)."""
    whole = functional.pad(values, (0, -values.shape[2] % _PART))
    return whole.reshape(*whole.shape[:2], -1, _PART).transpose(1, 2).contiguous()


def added(width: int) -> int:
    """How many numbers at most follow upon each other in one entry of such a matrix."""
    return width if width <= _WIDE else _PART - (-width // _PART)


def from_grams(inputs: Tensor, outputs: Tensor, terms: int) -> Tensor:
    """Σ_tt' ⟨a_t, a_t'⟩ ⟨g_t, g_t'⟩ from two Gram matrices for each record, never too small.

    Where the tokens of a record cancel, the sum is small beside its terms, and rounding could leave nothing of it,
    while the clipped sum, which is another product, leaves more. The rounding of both is below a share of
    (Σ_t ‖a_t‖ ‖g_t‖)², which is added: then (‖G‖ + rounding)² ≤ what is returned. ``terms`` are added up in one
    product of a token with another. Products below the smallest number are lost, though what they are multiplied with
    may be large: with δ lost of one matrix's entries, at most δ · (Σ_t ‖·‖)² of the other's tokens is missing.
    """
    share, tiny = 2 * rounding(terms, inputs.dtype), torch.finfo(inputs.dtype).tiny
    lost = _lost(terms, inputs.dtype)
    if has_kernels(inputs):
        from privypurse.training.gradients import kernels

        if inputs.shape[1] <= kernels.MOST_TOKENS:
            return kernels.from_grams(inputs, outputs, share, lost, tiny)
    both = (torch.diagonal(each, dim1=1, dim2=2) for each in (inputs, outputs))
    a, g = ((each.clamp(min=0) + lost).sqrt() for each in both)
    found = inputs.mul(outputs).sum(dim=(1, 2)).clamp(min=0) + share * (a * g).sum(dim=1).square()
    missing = [(each.sum(dim=1) * lost**0.5).square() for each in (a, g)]  # in this order squares stay finite
    made: Tensor = found + missing[0] + missing[1] + inputs.shape[1] * inputs.shape[1] * tiny
    return made


def _lost(terms: int, kind: torch.dtype) -> float:
    """By how much an entry may be too small, each product in it being below the smallest number.

    There are no more of them than terms², also where they are added up in parts.
    """
    return float(terms * terms * torch.finfo(kind).tiny)

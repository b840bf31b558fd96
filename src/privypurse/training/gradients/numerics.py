"""Numbers in which norms and sums are taken: float32 or better, whatever the model computes in."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, reduce
from typing import Any, TypeVar

import torch
from torch import Tensor

_short_convolutions: list[bool] = []
"""Whether the model's own convolutions take TensorFloat-32, where full precision was asked for."""

PASS = 16  # multiply-adds of a large product in the time in which one element is read, changed and written


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, no TensorFloat-32 and no bfloat16 inside of products.

    A norm that is a little too small would let a record past its clip norm by more than the margin.
    """
    with ExitStack() as stack:
        _short_convolutions.append(device.type == "cuda" and _takes_tf32(torch.backends.cudnn))
        stack.callback(_short_convolutions.pop)
        stack.enter_context(full_products())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


@contextmanager
def full_products() -> Iterator[None]:
    """Products of float32 are taken in float32: no TensorFloat-32 and no bfloat16 inside of them."""
    backends: Any = torch.backends
    with ExitStack() as stack:
        _sums_of_bfloat16_in_float32(stack, backends.cuda.matmul)
        try:
            before = torch.get_float32_matmul_precision()
            stack.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision("highest")
        except RuntimeError:  # the user has set it kind by kind, which torch 2.9 brought
            _set(stack, backends.cuda.matmul, "fp32_precision", "ieee")
            _set(stack, backends.mkldnn.matmul, "fp32_precision", "ieee")
        if hasattr(backends.cudnn, "conv"):
            _set(stack, backends.cudnn.conv, "fp32_precision", "ieee")
            _set(stack, backends.mkldnn.conv, "fp32_precision", "ieee")
        else:
            _set(stack, backends.cudnn, "allow_tf32", False)
        yield


def _sums_of_bfloat16_in_float32(stack: ExitStack, matmul: Any) -> None:
    """Also where a product is taken in parts (split-K).

    Newer releases of torch say in the same place whether it may be: that stays as it is.
    """
    name = "allow_bf16_reduced_precision_reduction"
    parts = getattr(matmul, f"{name}_split_k", None)
    before = getattr(matmul, name)
    stack.callback(setattr, matmul, name, before if parts is None else (before, parts))
    setattr(matmul, name, False if parts is None else (False, parts))


def _takes_tf32(cudnn: Any) -> bool:
    return cudnn.conv.fp32_precision == "tf32" if hasattr(cudnn, "conv") else bool(cudnn.allow_tf32)


@contextmanager
def as_short_as_convolutions() -> Iterator[None]:
    """Inside of `full_precision`: products of float32 as the model's own convolutions take them.

    For a gradient that is kept, and measured as it was kept: however it was rounded, it is no larger than its norm.
    """
    with ExitStack() as stack:
        if _short_convolutions and _short_convolutions[0]:
            try:
                stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                torch.set_float32_matmul_precision("high")
            except RuntimeError:
                _set(stack, torch.backends.cuda.matmul, "fp32_precision", "tf32")
        yield


def _set(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set it until the stack is left."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def at_least_float32(values: Tensor) -> Tensor:
    """The same values in float32, or in float64 if they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.to(torch.float32)


def products(one: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
    """one @ other of each record, as if both were widened to float32 before, or in float64 if they are.

    Numbers of bfloat16 have 8 bits, so their products have 16, which float32 holds: a GPU may multiply them as they
    are and add up in float32. That reads half as much and is many times faster. Sums may be cut off there and not
    rounded, in fewer steps: bounds such as `rounding`, doubled wherever a norm hangs on them, hold for both.
    """
    if takes_short(one) and takes_short(other):
        return torch.bmm(one, other, out_dtype=torch.float32, out=out)
    return torch.bmm(at_least_float32(one), at_least_float32(other), out=out)


def takes_short(values: Tensor) -> bool:
    """Whether `products` takes these as they are."""
    return values.dtype == torch.bfloat16 and values.is_cuda and _adds_up_in_float32(values.device)


@cache
def _adds_up_in_float32(device: torch.device) -> bool:
    known = torch.version.hip is None and hasattr(torch.ops.aten.bmm, "dtype")
    return known and torch.cuda.get_device_capability(device) >= (8, 0)


def has_kernels(values: Tensor, *shorter: torch.dtype) -> bool:
    """Whether kernels of our own take such values: of float32 or what else they are for, on a GPU with Triton."""
    return values.is_cuda and values.dtype in (torch.float32, *shorter) and has_triton()


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def square_sum(values: Tensor) -> Tensor:
    """For each record the sum of squares of all that is left.

    On a CPU not by vector_norm or a dot product: these add up float32 one after the other and lose 5e-5 and 1e-3 of
    the sum of two million squares, where sum(), which adds in pairs, loses 1e-7. On a GPU vector_norm adds in pairs
    too, and reads the values once where squaring them first reads and writes them again.
    """
    each = at_least_float32(values).unsqueeze(-1).flatten(1)  # a parameter may be a single number
    if each.numel() and has_kernels(each) and each.is_contiguous():
        from privypurse.training.gradients import kernels

        return kernels.square_sums(each, each.shape[1] * torch.finfo(each.dtype).tiny)
    found = torch.linalg.vector_norm(each, dim=1).square() if values.is_cuda else each.square().sum(dim=1)
    # Squares below the smallest number are lost; so as never to be too small, all are counted as if they were.
    return found + each.shape[1] * torch.finfo(each.dtype).tiny


Count = TypeVar("Count", float, Tensor)


def rounding(terms: Count, dtype: torch.dtype) -> Count:
    """How much of Σ|terms| a float sum of so many products can be off, whatever the order of its additions."""
    return (terms + 8) * torch.finfo(dtype).eps / 2


def never_too_small(squares: Tensor, terms: Tensor, added: Count) -> Tensor:
    """‖Σ_t g_t‖² as computed, and its rounding: a share of Σ_t ‖g_t‖ (``terms``), of which so many are ``added``."""
    return (squares.sqrt() + 2 * rounding(added, squares.dtype) * terms).square()


def from_made(squares: Tensor, inputs: Tensor, outputs: Tensor, tokens: Count, uses: int = 1) -> Tensor:
    """‖G‖² from that of a gradient which is not kept, never too small, for the same reason.

    ``inputs`` and ``outputs`` are the squared norms of all tokens together, each of which is used ``uses`` times:
    Σ_t ‖a_t‖ ‖g_t‖ ≤ (uses · Σ‖a_t‖² · Σ‖g_t‖²)^½.
    """
    return never_too_small(squares, (uses * inputs).sqrt() * outputs.sqrt(), tokens)


def total_of(parts: Iterable[Tensor]) -> Tensor:
    """Σ parts, in their order; no more than two are there at once if they are made one by one."""
    return reduce(torch.Tensor.add, parts)


def weighted_total(values: Tensor, weights: Tensor) -> Tensor:
    """Σ weight · value over records. Weight 0 leaves a record out even where its value is not finite."""
    each = spread(weights, values)
    total = torch.promote_types(values.dtype, weights.dtype)
    return torch.where(each == 0, 0.0, values * each).sum(dim=0, dtype=total)


def as_wide(values: Tensor, weights: Tensor) -> Tensor:
    """The values in what their sum is taken in: float64 where weights are.

    What a norm was taken of is computed as it was for the norm, and widened then: where terms cancel, more digits
    would give another gradient than the one that was measured.
    """
    return values.to(torch.promote_types(at_least_float32(values[:0]).dtype, weights.dtype))


def weighted_rows(each: Tensor, weights: Tensor) -> Tensor:
    """Σ weight · row."""
    rows = as_wide(each, weights)
    return weights.to(rows.dtype) @ rows


def spread(weights: Tensor, like: Tensor) -> Tensor:
    """One weight for each record, shaped to multiply ``like``."""
    return weights.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))

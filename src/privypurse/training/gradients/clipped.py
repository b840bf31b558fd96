"""From a tape to norms, clip factors and the clipped sum; and the functional face for researchers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.training.gradients.registry import Call
from privypurse.training.gradients.tape import Recorder, Tape

MARGIN = 1e-4
"""Norms are taken in float32; a contribution is scaled to its clip norm less this share, so as never to exceed it."""
_MATERIALISED = 2**26  # elements of per-record gradients held at once where they cannot be avoided

Uses = dict[str, list[tuple[Call, str]]]
"""For each parameter of the model the calls that use it, and its name there."""


def uses_of(tape: Tape) -> Uses:
    uses: Uses = defaultdict(list)
    for call in tape.finished():
        for local, name in call.names.items():
            uses[name].append((call, local))
    return dict(uses)


def norms(tape: Tape, owner: Tensor | None = None, units: int | None = None) -> Tensor:
    """The gradient norm of every record, or of every unit where ``owner`` says which unit a record belongs to."""
    uses = uses_of(tape)
    if not uses:
        raise InvalidInput("no gradient came back to any trainable layer; was loss.backward() called?")
    apart = {name for name, calls in uses.items() if len(calls) > 1} if owner is None else set(uses)
    total: Tensor | None = None
    for call in tape.finished():
        if not set(call.names.values()) - apart:
            continue
        for local, squares in call.rule.squared_norms(call).items():
            if call.names[local] not in apart:
                total = squares if total is None else total + squares
    for name in sorted(apart):
        squares = _materialised_squares(uses[name], owner, units)
        total = squares if total is None else total + squares
    assert total is not None
    return total.sqrt()


def _materialised_squares(calls: list[tuple[Call, str]], owner: Tensor | None, units: int | None) -> Tensor:
    """‖Σ of a unit's gradients‖² where several uses or several records add up before the norm is taken."""
    size = calls[0][0].module.get_parameter(calls[0][1]).numel()
    records = calls[0][0].back.shape[0]
    if owner is None:
        chunk = max(1, _MATERIALISED // size)
        parts = [
            _added(calls, slice(begin, begin + chunk)).flatten(1).square().sum(dim=1)
            for begin in range(0, records, chunk)
        ]
        return torch.cat(parts)
    order = torch.argsort(owner, stable=True)
    assert units is not None
    full = _added(calls, slice(None))[order].flatten(1)
    sums = torch.zeros((units, full.shape[1]), dtype=full.dtype, device=full.device)
    return sums.index_add_(0, owner[order], full).square().sum(dim=1)


def _added(calls: list[tuple[Call, str]], some: slice) -> Tensor:
    total: Tensor | None = None
    for call, local in calls:
        part = call.rule.per_record(call.rows(some))[local]
        total = part if total is None else total + part
    assert total is not None
    return total


def clip_factors(norms: Tensor, clip_norms: Tensor) -> Tensor:
    """What each unit's gradient is multiplied with: at most 1, and 0 where the norm is not finite (rule 12)."""
    limit = clip_norms.to(norms) * (1 - MARGIN)
    factors = torch.clamp(limit / norms.clamp(min=torch.finfo(norms.dtype).tiny), max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def summed(tape: Tape, factors: Tensor, norms: Tensor) -> dict[str, Tensor]:
    """Σ factor · gradient over records, by parameter name. Records whose norm is not finite are left out."""
    out: dict[str, Tensor] = {}
    wild = ~torch.isfinite(norms)
    if bool(wild.any()):
        for call in tape.finished():
            _silence(call, wild)
    for call in tape.finished():
        for local, value in call.rule.weighted_sum(call, factors).items():
            name = call.names[local]
            out[name] = value if name not in out else out[name] + value
    return out


def _silence(call: Call, wild: Tensor) -> None:
    """Put zeros where these records stand: 0 · ∞ is not 0."""

    def quiet(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == wild.shape:
            return value.masked_fill(wild.reshape(-1, *[1] * (value.dim() - 1)), 0.0)
        return value

    call.kept = {}  # made from what was there before
    call.inputs = tuple(quiet(value) for value in call.inputs)
    call.gradient = quiet(call.gradient)


def _run(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], x: Any, y: Any) -> Tape:
    recorder, tape = Recorder(model), Tape()
    output = recorder.forward(tape, *(x if isinstance(x, tuple) else (x,)))
    losses = loss_fn(output, y)
    records = (x[0] if isinstance(x, tuple) else x).shape[0]
    if losses.shape != (records,):
        raise InvalidInput(
            f"loss_fn must give one loss for each of the {records} records; it gave shape {tuple(losses.shape)}. "
            'Use reduction="none" and sum over everything but the first dimension'
        )
    torch.autograd.backward(losses.sum())
    return tape


def per_record_norms(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], x: Any, y: Any) -> Tensor:
    """The gradient norm of every record's loss with respect to all trainable parameters: float[B].

    ``loss_fn(output, y)`` gives one loss a record. No parameter's ``.grad`` is touched.
    """
    return norms(_run(model, loss_fn, x, y))


def clipped_sum(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], x: Any, y: Any, clip_norms: Tensor | float
) -> tuple[dict[str, Tensor], Tensor]:
    """Σᵢ gᵢ · min(1, cᵢ/‖gᵢ‖) by parameter name, and the norms ‖gᵢ‖.

    Guarantee: no record contributes more than its clip norm (in float64 too: factors leave a margin), and a record
    whose gradient is not finite contributes nothing.
    """
    tape = _run(model, loss_fn, x, y)
    found = norms(tape)
    limits = torch.as_tensor(clip_norms, dtype=found.dtype, device=found.device).expand_as(found)
    return summed(tape, clip_factors(found, limits), found), found

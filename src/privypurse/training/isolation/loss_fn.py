"""A loss function asked: does a record's loss change with the records beside it?"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.training.forms import mapped, tensors
from privypurse.training.isolation.replaced_records import (
    NO_BOUND,
    counts_records,
    first_rows,
    halves,
    other_places,
    reordered,
    with_others,
)
from privypurse.training.model_inputs import arguments
from privypurse.training.step_randomness import made_with

Loss = Callable[[Any, Any], Tensor]
"""loss_fn(output, y): one loss for each record, which depends on no other record."""

_MIXES = (
    f"the loss of a record changes with the other records in the batch, {NO_BOUND}; loss_fn must compute each "
    "record's loss from its own output and label alone"
)


_LOUD, _FEW, _TIMES = 1000.0, 4, 4
_ENTRIES = 2**24  # of an output, at most, in what is asked about gradients
_asked: WeakSet[Loss] = WeakSet()


def require_own_losses(
    loss_fn: Loss,
    output: Any,
    y: Any,
    records: int,
    *,
    complaint: str = _MIXES,
    tolerance: float = 0.0,
) -> None:
    """Raise if a record's loss changes when others stand beside it, or nobody does, or it stands elsewhere.

    Every record is asked: half of them are kept among copies of themselves, then the other half; and beside others
    whose numbers are far larger. Whatever is drawn is the same each time, since shapes are; by itself, and at another
    place, a record is asked where nothing is drawn.
    ``tolerance`` is a difference that does not count, beside that of rounding. Where the output asks for gradients,
    what comes back to a record is asked likewise.
    """
    if records < 2:
        return
    asking, device = [value.requires_grad for value in tensors(output)], _device((output, y))
    given, key = mapped(Tensor.detach, (output, y)), os.urandom(32)

    def asked(some: Any) -> tuple[Tensor, bool]:
        with torch.no_grad():
            return made_with(key, lambda: loss_fn(*some), device)

    whole, draws = asked(given)
    pairs = [(kept, kept, asked(with_others(given, kept, records))[0]) for kept in halves(records)]
    if not draws:
        alone, order, all_places = torch.arange(1), other_places(records), torch.arange(records)
        pairs.append((alone, alone, asked(first_rows(given, 1, records))[0]))
        pairs.append((order, all_places, asked(reordered(given, order, records))[0]))
    same = [(whole[rows.to(whole.device)], other[there.to(whole.device)]) for rows, there, other in pairs]
    for mine, now in (*same, *_beside_loud(loss_fn, given, records, key)):
        bits = max(tolerance, min(1000 * max(_rounding(mine), _rounding(now)), 0.05))
        if not torch.allclose(now.double(), mine.double(), rtol=bits, atol=bits, equal_nan=True):
            raise InvalidInput(complaint)
    if not _gradients_are_own(loss_fn, given, asking, records, key):
        raise InvalidInput(complaint)
    with suppress(TypeError):
        _asked.add(loss_fn)


def _gradients(loss_fn: Loss, some: Any, asking: list[bool], weights: Tensor, key: bytes) -> list[Tensor]:
    """What comes back to each output that is ``asking``, divided by the weight of that record's loss."""
    flags = iter(asking)
    with torch.enable_grad():
        output = mapped(lambda value: value.detach().requires_grad_(next(flags)), some[0])
        asked = [value for value in tensors(output) if value.requires_grad and counts_records(value, len(weights))]
        losses, _ = made_with(key, lambda: loss_fn(mapped(Tensor.clone, output), some[1]), _device(some))
        if not (asked and losses.requires_grad):
            return []
        weighed = (losses * weights.to(losses)).sum()
        back = torch.autograd.grad(weighed, asked, allow_unused=True, materialize_grads=True)
    return [each / weights.to(each).reshape(-1, *[1] * (each.dim() - 1)) for each in back]


def _gradients_are_own(loss_fn: Loss, given: Any, asking: list[bool], records: int, key: bytes) -> bool:
    """Whether what comes back from a record's loss goes to that record alone, and hangs on no other.

    A loss may have its own value and another's gradient: by what is subtracted from itself, detached. Losses are
    weighed twice, by powers of two, which change no digit: what comes back to a record goes by the weight of its own
    loss. Then half of the records are replaced, and the other half. Where outputs are large, some records are asked.
    """
    if not any(asking):
        return True
    chosen = np.random.default_rng()
    largest = max(value.numel() for value, asks in zip(tensors(given[0]), asking, strict=True) if asks)
    few = max(2, min(records, records * _ENTRIES // max(largest, 1)))
    if few < records:
        given, records = reordered(given, torch.from_numpy(chosen.permutation(records)[:few]), records), few
    signs, powers = chosen.choice([-1.0, 1.0], (2, records)), 2.0 ** chosen.integers(-4, 5, (2, records))
    weights, other_weights = torch.from_numpy(signs * powers)
    first = _gradients(loss_fn, given, asking, weights, key)
    for kept in (None, *halves(records)):
        if kept is None:
            rows, now = torch.arange(records), _gradients(loss_fn, given, asking, other_weights, key)
        else:
            beside = with_others(given, kept, records)
            rows, now = kept, _gradients(loss_fn, beside, asking, weights, key)
        if len(now) != len(first):
            return False
        for mine, other in zip(first, now, strict=True):
            here = rows.to(mine.device)
            if not _alike(mine[here], other[here], weighed=kept is None):
                return False
    return True


def _alike(mine: Tensor, now: Tensor, weighed: bool) -> bool:
    """Whether rows are the same, each up to rounding at its own size; the smallest floats have fewer digits.

    Where losses were ``weighed`` otherwise, one may have gone beyond all floats.
    """
    bits, least = min(1000 * _rounding(mine), 0.05), min(1024 * torch.finfo(mine.dtype).tiny, 1e-6)
    mine, now = (each.reshape(len(each), -1) for each in (mine, now))
    size = torch.nan_to_num(mine, 0.0, 0.0, 0.0).abs().amax(dim=1, keepdim=True) if mine.shape[1] else mine
    beyond = ~(mine.isfinite() & now.isfinite()) & weighed
    same = beyond | (mine == now) | (mine.isnan() & now.isnan()) | ((mine - now).abs() <= bits * size + least)
    return bool(same.all())


def _device(given: Any) -> torch.device | None:
    return next((value.device for value in tensors(given)), None)


def _beside_loud(loss_fn: Loss, given: Any, records: int, key: bytes) -> list[tuple[Tensor, Tensor]]:
    """Losses of records on made-up outputs, and beside others whose numbers are far larger than any there are.

    A loss may mix by something that few records have (a largest label), or that does not show while a model gives
    zeros. On the CPU, where a loss that takes no such numbers says so and does no harm; then it is not asked. Of a
    few records, a few times, since a rank among others need not change each time, and at one batch only: nothing
    that is asked is of the data.
    """
    with suppress(TypeError):  # what has no weak reference is asked each time
        if loss_fn in _asked:
            return []
    given, records = first_rows(given, min(records, _FEW), records), min(records, _FEW)
    source = torch.Generator().manual_seed(int.from_bytes(key[:6], "big"))
    output, y = mapped(Tensor.cpu, given)
    found = []
    for integers in (False, True) * _TIMES:
        made_up = mapped(lambda value: _moved(value, source), output)
        try:
            with torch.no_grad():
                quiet, _ = made_with(key, partial(loss_fn, made_up, y), torch.device("cpu"))
                for kept in halves(records):
                    loud = mapped(partial(_loud, kept=kept, records=records, integers=integers), (made_up, y))
                    beside, _ = made_with(key, partial(loss_fn, *loud), torch.device("cpu"))
                    found.append((quiet[kept], beside[kept]))
        except Exception:
            continue
    return found


def _moved(value: Tensor, source: torch.Generator) -> Tensor:
    if not value.is_floating_point():
        return value
    return value + torch.randn(value.shape, generator=source).to(value.dtype)


def _loud(value: Tensor, kept: Tensor, records: int, integers: bool) -> Tensor:
    """The rows that are not kept a thousand times as large, whole numbers that much larger where these count too."""
    if not counts_records(value, records) or value.dtype == torch.bool:
        return value
    floats = value.is_floating_point() or value.is_complex()
    larger = value * _LOUD if floats else value + int(_LOUD) if integers else value
    larger = larger.clone()
    larger[kept] = value[kept]
    return larger


def _rounding(values: Tensor) -> float:
    return torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0


def check_loss(model: nn.Module, loss_fn: Loss, inputs: Any, y: Any) -> None:
    """Raise if the loss mixes records, with what the model gives for these."""
    given, options = arguments(inputs)
    with torch.enable_grad():
        output = model(*given, **options)
        require_own_losses(loss_fn, output, y, loss_fn(output, y).shape[0])

"""A loss function asked: does a record's loss change with the records beside it?"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.errors import InvalidInput
from privypurse.training.isolation.replaced_records import (
    NO_BOUND,
    detached,
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


def require_own_losses(
    loss_fn: Loss, output: Any, y: Any, records: int, *, complaint: str = _MIXES, tolerance: float = 0.0
) -> None:
    """Raise if a record's loss changes when others stand beside it, or nobody does, or it stands elsewhere.

    Every record is asked: half of them are kept among copies of themselves, then the other half. Whatever is drawn is
    the same each time, since shapes are; by itself, and at another place, a record is asked where nothing is drawn.
    ``tolerance`` is a difference that does not count, beside that of rounding.
    """
    if records < 2:
        return
    given, key = tree_map(detached, (output, y)), os.urandom(32)

    def asked(some: Any) -> tuple[Tensor, bool]:
        with torch.no_grad():
            return made_with(key, lambda: loss_fn(*some), device)

    device = next((leaf.device for leaf in tree_leaves(given) if isinstance(leaf, Tensor)), None)
    whole, draws = asked(given)
    pairs = [(kept, kept, asked(with_others(given, kept, records))[0]) for kept in halves(records)]
    if not draws:
        alone, order, all_places = torch.arange(1), other_places(records), torch.arange(records)
        pairs.append((alone, alone, asked(first_rows(given, 1, records))[0]))
        pairs.append((order, all_places, asked(reordered(given, order, records))[0]))
    for rows, there, other in pairs:
        mine, now = whole[rows.to(whole.device)].double(), other[there.to(whole.device)].double()
        bits = max(tolerance, min(1000 * max(_rounding(whole), _rounding(other)), 0.05))
        if not torch.allclose(now, mine, rtol=bits, atol=bits, equal_nan=True):
            raise InvalidInput(complaint)


def _rounding(values: Tensor) -> float:
    return torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0


def check_loss(model: nn.Module, loss_fn: Loss, inputs: Any, y: Any) -> None:
    """Raise if the loss mixes records, with what the model gives for these."""
    given, options = arguments(inputs)
    with torch.no_grad():
        output = model(*given, **options)
        require_own_losses(loss_fn, output, y, loss_fn(output, y).shape[0])

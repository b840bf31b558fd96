"""A look at a model before it trains: does what it computes for one record depend on the others?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.errors import InvalidInput
from privypurse.training.gradients.tape import Recorder

_CLOSE = 0.02  # of the largest output: far above the rounding of short floats, far below what mixing does


def look(recorder: Recorder, inputs: tuple[Any, ...], options: dict[str, Any], records: int) -> None:
    """Raise if half of the records, by themselves, give other outputs than among all, or other rows in some layer.

    In evaluation mode and without gradients, so that dropout and the like do not enter. A model that draws random
    numbers even then cannot be compared.
    """
    few = records // 2
    if few == 0:
        return

    def some(value: Any) -> Any:
        mine = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == records
        return value[:few] if mine else value

    fewer = tree_map(some, inputs), tree_map(some, options)
    modes = {module: module.training for module in recorder.model.modules()}
    recorder.model.eval()
    try:
        with torch.no_grad():
            all_rows, whole = _rows(recorder, inputs, options)
            few_rows, part = _rows(recorder, *fewer)
            again = recorder.model(*fewer[0], **fewer[1])
    finally:
        for module, mode in modes.items():
            module.training = mode
    for (layer, rows), (_, rows_of_few) in zip(all_rows, few_rows, strict=False):
        if rows != records or rows_of_few != few:
            raise InvalidInput(
                f"a {type(layer).__name__} layer gives {rows} rows for {records} records, {rows_of_few} for {few}: "
                "the first dimension of what every trainable layer gives must count records. Keep (records, tokens, "
                "features) instead of (records · tokens, features) or (tokens, records, features), and look up "
                "positions for every record: table(positions.expand(records, -1))"
            )
    for one, other, twin in zip(*(map(some, tree_leaves(each)) for each in (whole, part, again)), strict=False):
        if not isinstance(one, Tensor) or not one.is_floating_point() or one.shape != other.shape:
            continue
        finite = torch.isfinite(one) & torch.isfinite(other)
        size = _CLOSE * float(one[finite].abs().max()) if bool(finite.any()) else 0.0
        if not _differ(other, twin, finite, size / 10) and _differ(one, other, finite, size):
            raise InvalidInput(
                "what the model gives for a record changes with the other records in the batch, so clipping would "
                "bound nothing (rule 12): nothing may be computed over the first dimension"
            )


def _differ(one: Tensor, other: Tensor, where: Tensor, by: float) -> bool:
    return bool(((one - other).abs()[where] > by).any())


def _rows(
    recorder: Recorder, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[list[tuple[nn.Module, int]], Any]:
    """How many rows every watched layer gives, and the model's output."""
    found: list[tuple[nn.Module, int]] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        found.append((module, first.shape[0] if first.dim() else 0))

    handles = [module.register_forward_hook(note) for _, module, _ in recorder.units]
    try:
        return found, recorder.model(*inputs, **options)
    finally:
        for handle in handles:
            handle.remove()

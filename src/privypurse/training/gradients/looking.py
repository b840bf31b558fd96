"""A look at a model before it trains: does what it computes for one record depend on the others?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.errors import InvalidInput
from privypurse.training.gradients.tape import Recorder

# Two results are the same if they differ by no more than these shares: of what records differ by, and of the largest
# entry. First in full floats, then where shorter ones may enter.
_SAME = {True: (1e-3, 1e-4), False: (0.05, 1e-2)}

Seen = list[tuple[str, Tensor]]
"""What every watched layer gave, and the model at the end."""


def look(recorder: Recorder, inputs: tuple[Any, ...], options: dict[str, Any], records: int) -> None:
    """Raise if two records, by themselves, give other rows in some layer than they gave among all (rule 12).

    Without gradients, in evaluation mode, where dropout does not enter, and as the model is now. A model that draws
    random numbers cannot be compared with itself; then the rows are only counted.
    """
    few = min(2, records - 1)
    if few < 1:
        return

    def some(value: Any) -> Any:
        mine = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == records
        return value[:few] if mine else value

    fewer = tree_map(some, inputs), tree_map(some, options)
    modes = {module: module.training for module in recorder.model.modules()}
    buffers = {name: buffer.clone() for name, buffer in recorder.model.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng():  # what it draws is not missing from the run
            for evaluation in (True, False):
                for module, mode in modes.items():
                    module.training = mode and not evaluation
                before = _generators(recorder)
                whole = _seen(recorder, inputs, options)
                steady = all(map(torch.equal, before, _generators(recorder)))
                part, again = (_seen(recorder, *fewer) for _ in range(2))
                _compare(whole, part, again if steady else None, records, few)
    finally:
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in recorder.model.named_buffers():
            buffer.copy_(buffers[name])


def _generators(recorder: Recorder) -> list[Tensor]:
    """The states of torch's generators: they tell for certain whether a forward pass drew from them."""
    devices = {value.device for value in recorder.model.parameters() if value.is_cuda}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _compare(whole: Seen, part: Seen, again: Seen | None, records: int, few: int) -> None:
    """``again`` is None where numbers were drawn: then there is nothing to compare but rows."""
    for (name, one), (_, other), (_, twin) in zip(whole, part, again or part, strict=False):
        if one.shape[:1] != (records,) or other.shape[:1] != (few,):
            raise InvalidInput(
                f"{name} gives {_rows(one)} rows for {records} records and {_rows(other)} for {few}: "
                "the first dimension of what every trainable layer gives must count records. Keep (records, tokens, "
                "features) instead of (records · tokens, features) or (tokens, records, features), and look up "
                "positions for every record: table(positions.expand(records, -1))"
            )
        if again is None or one[:few].shape != other.shape or not one.is_floating_point():
            continue
        close = _tolerance(one)
        if _differ(one[:few], other, close) and not _differ(other, twin, close):
            raise InvalidInput(
                f"what {name} gives for a record changes with the other records in the batch, so clipping would "
                "bound nothing (rule 12): nothing may be computed over the first dimension, and rows must keep their "
                "order. A model that gives its own mean loss should give one loss for each record"
            )


def _rows(values: Tensor) -> int:
    return values.shape[0] if values.dim() else 0


def _tolerance(whole: Tensor) -> float:
    finite = torch.where(torch.isfinite(whole), whole, 0.0).double()
    spread = (finite - finite[:1]).abs().max()
    device = whole.device.type
    full = device == "cpu" and whole.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(device)
    of_spread, of_largest = _SAME[full]
    return max(of_spread * float(spread), of_largest * float(finite.abs().max()))


def _differ(one: Tensor, other: Tensor, by: float) -> bool:
    both = torch.isfinite(one) & torch.isfinite(other)
    return bool((torch.where(both, one - other, 0.0).abs() > by).any())


def _seen(recorder: Recorder, inputs: tuple[Any, ...], options: dict[str, Any]) -> Seen:
    found: Seen = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        found.append((f"a layer of type {type(module).__name__}", output[0] if isinstance(output, tuple) else output))

    handles = [module.register_forward_hook(note) for _, module, _ in recorder.units]
    try:
        output = recorder.model(*inputs, **options)
    finally:
        for handle in handles:
            handle.remove()
    return found + [("the model", leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.dim()]

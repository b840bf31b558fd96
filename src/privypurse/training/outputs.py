"""What a watched model returns: a tensor that refuses to enter a loss that mixes records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.errors import InvalidInput

_MEND = (
    "every record's gradient then depends on the others and clipping bounds nothing (rule 12). "
    'Use reduction="none", weigh each record\'s loss by itself, and take .mean() over records'
)


class Output(Tensor):
    """A tensor in all respects; the first function that it enters is looked at, and from there on it is plain."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOSSES:
            _refuse_mixing(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


_LOSSES = {F.cross_entropy, F.nll_loss}


def _refuse_mixing(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> None:
    """A mean over a batch whose divisor is not the number of records but a sum over what the records are."""
    if reduction != "mean":
        return
    if weight is not None:
        raise InvalidInput(f"a class-weighted mean divides by the weights of the whole batch: {_MEND}")
    if not target.is_floating_point() and bool((target == ignore_index).any()):
        raise InvalidInput(
            f"a mean that ignores label {ignore_index} divides by how many labels of the batch are not it: {_MEND}"
        )


def watched(output: Any) -> Any:
    """The model's output, looking at the loss it meets; what is not one tensor is handed on as it is."""
    return output.as_subclass(Output) if type(output) is Tensor else output

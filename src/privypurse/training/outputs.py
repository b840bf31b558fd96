"""What a watched model returns: a tensor that refuses to enter a loss that mixes records."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from privypurse.errors import InvalidInput

_MEND = (
    "every record's gradient then depends on the others and clipping bounds nothing (rule 12). "
    'Use reduction="none", weigh each record\'s loss by itself, and take .mean() over records'
)
_CLASSES = (F.cross_entropy, F.nll_loss)
_LOSSES = {
    loss: inspect.signature(loss)
    for loss in (
        *_CLASSES,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.gaussian_nll_loss,
        F.huber_loss,
        F.kl_div,
        F.l1_loss,
        F.mse_loss,
        F.multi_margin_loss,
        F.multilabel_margin_loss,
        F.multilabel_soft_margin_loss,
        F.poisson_nll_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
    )
}
_ELEMENTWISE = {F.binary_cross_entropy_with_logits, F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss}


class Output(Tensor):
    """A tensor in all respects, and so is what is made of it; on its way into a loss the loss is looked at."""

    reduction = "mean"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _LOSSES:
            _refuse_mixing(func, cls.reduction, _LOSSES[func].bind(*args, **(kwargs or {})).arguments)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class SummedOutput(Output):
    """The same for a loop that was said to sum."""

    reduction = "sum"


def _refuse_mixing(loss: Callable[..., Any], said: str, given: dict[str, Any]) -> None:
    """Raise for a loss that is not what the loop was said to do, or one whose divisor is made of the batch."""
    reduction = given.get("reduction", "mean")
    if reduction == "none":
        return
    if reduction != said:
        raise InvalidInput(
            f'this loss has reduction="{reduction}", but make_private was told loss_reduction="{said}", so gradients '
            f'would be scaled by how many were drawn; pass loss_reduction="{reduction}" to make_private'
        )
    values, target = given["input"], given.get("target")
    if loss in _ELEMENTWISE and isinstance(target, Tensor) and values.shape != target.shape:
        raise InvalidInput(
            f"the loss compares outputs of shape {tuple(values.shape)} with labels of shape {tuple(target.shape)}, "
            "which pairs records with each other's labels; give both the same shape"
        )
    if loss not in _CLASSES or reduction != "mean":
        return
    if given.get("weight") is not None:
        raise InvalidInput(f"a class-weighted mean divides by the weights of the whole batch: {_MEND}")
    ignored = given.get("ignore_index", -100)
    if isinstance(target, Tensor) and not target.is_floating_point() and bool((target == ignored).any()):
        raise InvalidInput(
            f"a mean that ignores label {ignored} divides by how many labels of the batch are not it: {_MEND}"
        )


def watched(output: Any, reduction: str) -> Any:
    """The model's output, looking at the loss it meets; what is not one tensor is handed on as it is."""
    if type(output) is not Tensor:
        return output
    return output.as_subclass(Output if reduction == "mean" else SummedOutput)

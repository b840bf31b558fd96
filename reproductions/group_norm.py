"""Group norm that keeps channels last on a GPU: torch's own turns images round, and what is behind it with them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from privypurse.training.gradients import Call, handles
from privypurse.training.gradients.normalisation import NormalisationRule
from privypurse.training.gradients.numerics import has_kernels


def _by_kernels(layer: nn.GroupNorm, x: Tensor) -> bool:
    if not (has_kernels(x) and layer.affine) or x.shape[1] != layer.num_channels:
        return False
    if torch.is_autocast_enabled(x.device.type) or torch._C._are_functorch_transforms_active():
        return False
    from reproductions import kernels

    return kernels.takes(x, layer.num_groups)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, groups: int, least: float) -> Tensor:
        from reproductions import kernels

        ctx.save_for_backward(x, scale)
        ctx.sizes = groups, least
        return kernels.group_norm(x, groups, scale, shift, least)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> Any:
        from reproductions import kernels

        (x, scale), (groups, least) = ctx.saved_tensors, ctx.sizes
        found, by_scale, by_shift = kernels.group_norm_back(x, groups, scale, back, least)
        wanted = ctx.needs_input_grad
        return (
            found,
            by_scale.sum(dim=0) if wanted[1] else None,
            by_shift.sum(dim=0) if wanted[2] else None,
            None,
            None,
        )


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, by kernels of our own where they take the images."""

    def forward(self, input: Tensor) -> Tensor:
        if not _by_kernels(self, input):
            return super().forward(input)
        found: Tensor = _Normalise.apply(input, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-untyped-call]
        return found


@handles(GroupNorm)
class GroupNormRule(NormalisationRule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        layer: GroupNorm = call.module  # type: ignore[assignment]
        x, back = call.input_and_gradient()
        if not _by_kernels(layer, x):
            return super().per_record(call)
        from reproductions import kernels

        _, by_scale, by_shift = kernels.group_norm_back(
            x, layer.num_groups, layer.weight, back, layer.eps, whole=False
        )
        found = {"weight": by_scale, "bias": by_shift}
        return {name: found[name] for name in call.names}

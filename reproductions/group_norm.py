"""Group norm that keeps channels last on a GPU: torch's own turns images round, and what is behind it with them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from privypurse.training.gradients import Call, handles
from privypurse.training.gradients.normalisation import NormalisationRule
from privypurse.training.gradients.numerics import has_kernels


def _by_kernels(layer: nn.GroupNorm, x: Tensor) -> bool:
    if not (has_kernels(x, torch.bfloat16) and layer.affine) or x.shape[1] != layer.num_channels:
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if torch.is_autocast_enabled(x.device.type) and x.dtype == torch.float32:
        return False
    from reproductions import kernels

    return kernels.takes(x, layer.num_groups)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, groups: int, least: float, relu: bool) -> Tensor:
        from reproductions import kernels

        ctx.save_for_backward(x, scale)
        ctx.options = groups, least, relu
        return kernels.group_norm(x, groups, scale, shift, least, relu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> Any:
        from reproductions import kernels

        (x, scale), (groups, least, relu) = ctx.saved_tensors, ctx.options
        found, by_scale, by_shift = kernels.group_norm_back(x, groups, scale, back, least, relu)
        wanted = ctx.needs_input_grad
        both = (by_scale, wanted[1]), (by_shift, wanted[2])
        sums = (each.sum(dim=0).to(scale) if asked else None for each, asked in both)
        return found, *sums, None, None, None


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, by kernels of our own where they take the images."""

    of_relu = False

    def forward(self, input: Tensor) -> Tensor:
        if not _by_kernels(self, input):
            return super().forward(torch.relu(input) if self.of_relu else input)
        options = self.num_groups, self.eps, self.of_relu
        found: Tensor = _Normalise.apply(input, self.weight, self.bias, *options)  # type: ignore[no-untyped-call]
        return found


class GroupNormOfRelu(GroupNorm):
    """Of the images' positive parts, which are written down nowhere by the kernels."""

    of_relu = True


@handles(GroupNorm, GroupNormOfRelu)
class GroupNormRule(NormalisationRule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        layer: GroupNorm = call.module  # type: ignore[assignment]
        x, back = call.inputs[0], call.output_gradient
        if not _by_kernels(layer, x):
            return super().per_record(replace(call, inputs=(torch.relu(x),)) if layer.of_relu else call)
        from reproductions import kernels

        given = x, layer.num_groups, layer.weight, back, layer.eps, layer.of_relu
        _, by_scale, by_shift = kernels.group_norm_back(*given, whole=False)
        found = {"weight": by_scale, "bias": by_shift}
        return {name: found[name] for name in call.names}

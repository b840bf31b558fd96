"""Convolutions in one, two and three dimensions, with groups, stride, padding and dilation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from privypurse.training.gradients.linear import kept_sum, matrix_squared_norms
from privypurse.training.gradients.precision import exact, spread, square_sum
from privypurse.training.gradients.registry import Call, handles

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _padded(layer: Conv, a: Tensor) -> Tensor:
    """The input as the kernel sees it."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(a, layer._reversed_padding_repeated_twice, mode=mode)


def _windows(layer: Conv, a: Tensor, places: torch.Size) -> Tensor:
    """What the kernel sees at each place: (record · group, place, channel · kernel)."""
    a = _padded(layer, a).contiguous()
    batch, channels = a.shape[:2]
    steps = a.stride()
    size = (batch, channels, *places, *layer.kernel_size)
    moves = [step * stride for step, stride in zip(steps[2:], layer.stride, strict=True)]
    within = [step * dilation for step, dilation in zip(steps[2:], layer.dilation, strict=True)]
    seen = a.as_strided(size, (steps[0], steps[1], *moves, *within))
    n = len(places)
    seen = seen.reshape(batch, layer.groups, channels // layer.groups, *size[2:])
    order = (0, 1, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n))
    return seen.permute(order).reshape(batch * layer.groups, places.numel(), -1)


def _matrices(call: Call) -> tuple[Tensor, Tensor]:
    """Windows and output gradient as (record · group, place, …): the convolution as a linear layer over places."""
    layer: Conv = call.module  # type: ignore[assignment]
    a, g = exact(call.inputs[0]), exact(call.back)
    back = g.reshape(g.shape[0] * layer.groups, g.shape[1] // layer.groups, -1).transpose(1, 2)
    return _windows(layer, a, g.shape[2:]), back


@handles(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule:
    whole_module = False

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        out = {}
        if "weight" in call.names:
            by_group = matrix_squared_norms(*_matrices(call), call)
            out["weight"] = by_group.reshape(call.back.shape[0], -1).sum(dim=1)
        if "bias" in call.names:
            out["bias"] = square_sum(exact(call.back).flatten(2).sum(dim=2))
        return out

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        layer: Conv = call.module  # type: ignore[assignment]
        weighted = exact(call.back) * spread(weights, call.back).to(exact(call.back).dtype)
        out = {}
        if "weight" in call.names:
            kept = kept_sum(call, weights)
            made = self._weight_sum(layer, exact(call.inputs[0]), weighted) if kept is None else kept
            out["weight"] = made.reshape(layer.weight.shape)
        if "bias" in call.names:
            out["bias"] = weighted.flatten(2).sum(dim=(0, 2))
        return out

    def _weight_sum(self, layer: Conv, a: Tensor, weighted: Tensor) -> Tensor:
        """One convolution over the batch, in full float32: TensorFloat-32 could carry a record past its clip norm."""
        none = [0] * len(layer.kernel_size)
        kernel = layer.weight.detach().to(a.dtype)
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            made: Tensor = torch.ops.aten.convolution_backward(
                weighted,
                _padded(layer, a),
                kernel,
                None,
                layer.stride,
                none,
                layer.dilation,
                False,
                none,
                layer.groups,
                [False, True, False],
            )[1]
        finally:
            torch.backends.cudnn.allow_tf32 = before
        return made

    def per_record(self, call: Call) -> dict[str, Tensor]:
        layer: Conv = call.module  # type: ignore[assignment]
        out = {}
        if "weight" in call.names:
            windows, back = _matrices(call)
            out["weight"] = torch.bmm(back.transpose(1, 2), windows).reshape(-1, *layer.weight.shape)
        if "bias" in call.names:
            out["bias"] = exact(call.back).flatten(2).sum(dim=2)
        return out

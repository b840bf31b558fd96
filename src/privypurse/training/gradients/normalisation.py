"""Layer, group, instance and RMS normalisation: their scales and shifts are small, so they are materialised."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from privypurse.training.gradients.numerics import at_least_float32
from privypurse.training.gradients.rule import Call, Rule, handles


class _ScaleAndShift(Rule):
    """Layers that end in ``normalised · weight + bias``, over channels."""

    features = 1

    @abstractmethod
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """The layer's output before scale and shift."""

    def summed(self, layer: nn.Module, values: Tensor) -> Tensor:
        """Per-position gradients summed over all but the record and the shape of the parameters."""
        return values.flatten(2).sum(dim=2) if values.dim() > 2 else values

    def per_record(self, call: Call) -> dict[str, Tensor]:
        g, out = at_least_float32(call.output_gradient), {}
        if "weight" in call.names:
            out["weight"] = self.summed(
                call.module, g * self.normalised(call.module, at_least_float32(call.inputs[0]))
            )
        if "bias" in call.names:
            out["bias"] = self.summed(call.module, g)
        return out


@handles(nn.GroupNorm)
class GroupNormRule(_ScaleAndShift):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.group_norm(a, layer.num_groups, eps=layer.eps)  # type: ignore[arg-type]


@handles(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(_ScaleAndShift):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.instance_norm(a, eps=layer.eps)  # type: ignore[arg-type]


@handles(nn.LayerNorm)
class LayerNormRule(_ScaleAndShift):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)  # type: ignore[arg-type]

    def summed(self, layer: nn.Module, values: Tensor) -> Tensor:
        middle = tuple(range(1, values.dim() - len(layer.normalized_shape)))  # type: ignore[arg-type]
        return values.sum(dim=middle) if middle else values


@handles(nn.RMSNorm)
class RMSNormRule(LayerNormRule):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.rms_norm(a, layer.normalized_shape, eps=layer.eps)  # type: ignore[arg-type]

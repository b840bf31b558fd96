"""Layer, group, instance and RMS normalisation: their scales and shifts are small, so they are materialised."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from privypurse.training.gradients.precision import exact, square_sum, weighted_total, worth_keeping
from privypurse.training.gradients.registry import Call, handles

Normalisation = nn.LayerNorm | nn.GroupNorm | nn.RMSNorm


class _ScaleAndShift(ABC):
    """Layers that end in ``normalised · weight + bias``."""

    whole_module = False

    @abstractmethod
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """The layer's output before scale and shift."""

    @abstractmethod
    def summed(self, layer: nn.Module, values: Tensor) -> Tensor:
        """Per-position gradients summed over all but the record and the shape of the parameters."""

    def settle(self, call: Call) -> None:
        made = self.per_record(call)
        if all(worth_keeping(call, value[0].numel()) for value in made.values()):
            call.keep(made)

    def per_record(self, call: Call) -> dict[str, Tensor]:
        if call.kept:
            return call.kept
        g, out = exact(call.back), {}
        if "weight" in call.names:
            out["weight"] = self.summed(call.module, g * self.normalised(call.module, exact(call.inputs[0])))
        if "bias" in call.names:
            out["bias"] = self.summed(call.module, g)
        return out

    def terms(self, call: Call) -> dict[str, Tensor]:
        return {name: square_sum(value).sqrt() for name, value in self.per_record(call).items()}

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        return {name: square_sum(value) for name, value in self.per_record(call).items()}

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        return {name: weighted_total(value, weights) for name, value in self.per_record(call).items()}


class _OverLastDimensions(_ScaleAndShift):
    def summed(self, layer: nn.Module, values: Tensor) -> Tensor:
        keep = len(layer.normalized_shape)  # type: ignore[arg-type]
        middle = tuple(range(1, values.dim() - keep))
        return values.sum(dim=middle) if middle else values


@handles(nn.LayerNorm)
class LayerNormRule(_OverLastDimensions):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)  # type: ignore[arg-type]


@handles(nn.RMSNorm)
class RMSNormRule(_OverLastDimensions):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.rms_norm(a, layer.normalized_shape, eps=layer.eps)  # type: ignore[arg-type]


class _OverChannels(_ScaleAndShift):
    def summed(self, layer: nn.Module, values: Tensor) -> Tensor:
        return values.flatten(2).sum(dim=2) if values.dim() > 2 else values


@handles(nn.GroupNorm)
class GroupNormRule(_OverChannels):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.group_norm(a, layer.num_groups, eps=layer.eps)  # type: ignore[arg-type]


@handles(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(_OverChannels):
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        return functional.instance_norm(a, eps=layer.eps)  # type: ignore[arg-type]

"""Layer, group, instance and RMS normalisation: their scales and shifts are small, so they are materialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from privypurse.training.gradients.rule import Call, Rule, handles


def _by_instance(layer: Any, a: Tensor) -> Tensor:
    return functional.instance_norm(a, eps=layer.eps)


_NORMALISED: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.GroupNorm: lambda layer, a: functional.group_norm(a, layer.num_groups, eps=layer.eps),
    nn.LayerNorm: lambda layer, a: functional.layer_norm(a, layer.normalized_shape, eps=layer.eps),
    nn.RMSNorm: lambda layer, a: functional.rms_norm(a, layer.normalized_shape, eps=layer.eps),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _by_instance),
}
"""Each layer's output before scale and shift."""


def _normalised(layer: nn.Module, a: Tensor) -> Tensor:
    return next(_NORMALISED[kind] for kind in type(layer).__mro__ if kind in _NORMALISED)(layer, a)


@handles(*_NORMALISED)
class NormalisationRule(Rule):
    """Layers that end in ``normalised · weight + bias``."""

    features = 1

    def per_record(self, call: Call) -> dict[str, Tensor]:
        layer: Any = call.module
        a, g = call.input_and_gradient()
        each = {"bias": lambda: g, "weight": lambda: g * _normalised(layer, a)}
        return {name: _summed(layer, each[name]()) for name in call.names}


@handles(nn.LayerNorm, nn.RMSNorm)
class LastDimensionsRule(NormalisationRule):
    """Over the last dimensions, whatever those before them count."""

    records_anywhere = True


def _summed(layer: Any, values: Tensor) -> Tensor:
    """Over all but records and what has a scale of its own: the last dimensions, or channels, which come second."""
    if not isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return values.flatten(2).sum(dim=2) if values.dim() > 2 else values
    middle = tuple(range(1, values.dim() - len(layer.normalized_shape)))
    return values.sum(dim=middle) if middle else values

"""fix: a model in which no layer mixes records."""

from __future__ import annotations

import copy
import math

from torch import nn


def fix(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by a GroupNorm of the same channels, scale and shift.

    The number of groups is the largest divisor of the channels that is at most ``groups``. Running statistics are
    dropped: they were taken over the batch.
    """
    fixed = copy.deepcopy(model)
    if isinstance(fixed, nn.modules.batchnorm._BatchNorm):
        return _group_norm(fixed, groups)
    for module in list(fixed.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(module, name, _group_norm(child, groups))
    return fixed


def _group_norm(layer: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    divisors = [k for k in range(1, math.isqrt(channels) + 1) if channels % k == 0]
    best = max(k for k in (*divisors, *(channels // k for k in divisors)) if k <= groups)
    new = nn.GroupNorm(best, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        new.weight.data.copy_(layer.weight.data)
        new.bias.data.copy_(layer.bias.data)
    return new.to(next((p.device for p in layer.parameters()), "cpu"))

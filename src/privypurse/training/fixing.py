"""fix: a model of layers that can be trained privately."""

from __future__ import annotations

import copy
import math

from torch import nn

from privypurse.errors import InvalidInput
from privypurse.training.attention import Attention


def fix(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every layer can be trained privately.

    Every BatchNorm becomes a GroupNorm of the same channels, scale and shift; the number of groups is the largest
    divisor of the channels that is at most ``groups``. Running statistics are dropped: they were taken over the
    batch. Every MultiheadAttention becomes `Attention`, which computes the same out of Linear layers, so that its
    dropout and masks work and no slow fallback is needed.
    """
    fixed = copy.deepcopy(model)
    whole = _fixed(fixed, groups)
    if whole is not None:
        return whole
    for module in list(fixed.modules()):
        for name, child in list(module.named_children()):
            new = _fixed(child, groups)
            if new is not None:
                setattr(module, name, new)
    for module in fixed.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
    return fixed


def _fixed(layer: nn.Module, groups: int) -> nn.Module | None:
    """What takes the layer's place, if it needs to be replaced."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return _group_norm(layer, groups)
    if isinstance(layer, nn.MultiheadAttention):
        if layer.bias_k is not None or layer.add_zero_attn:
            raise InvalidInput("a MultiheadAttention with add_bias_kv or add_zero_attn cannot be replaced")
        return Attention(layer)
    return None


def _group_norm(layer: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    divisors = [k for k in range(1, math.isqrt(channels) + 1) if channels % k == 0]
    best = max(k for k in (*divisors, *(channels // k for k in divisors)) if k <= groups)
    new = nn.GroupNorm(best, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        new.weight.data.copy_(layer.weight.data)
        new.bias.data.copy_(layer.bias.data)
    return new.to(next((p.device for p in layer.parameters()), "cpu"))

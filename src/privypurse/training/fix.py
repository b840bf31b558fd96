"""fix: a model of layers that can be trained privately, attention among them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privypurse.errors import InvalidInput


def fix(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every layer can be trained privately.

    Every BatchNorm becomes a GroupNorm of the same channels, scale and shift; the number of groups is the largest
    divisor of the channels that is at most ``groups``. Running statistics are dropped: they were taken over the
    batch. Every MultiheadAttention becomes `Attention`, which computes the same out of Linear layers, so that its
    dropout and masks work and no slow fallback is needed.

    Attention needs no way back: the ``state_dict()`` of what is made here is that of the model that was given, so
    trained weights load into the stock model, and the stock model's into this one. GroupNorm is another function than
    BatchNorm: weights trained with it are for a model that went through ``fix``, and a stock one misses the running
    statistics, as ``load_state_dict`` says.
    """
    holder = nn.Sequential(copy.deepcopy(model))  # so that the model itself is somebody's child too
    made: dict[nn.Module, nn.Module | None] = {}  # a layer with two parents stays one
    for module in list(holder.modules()):
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            if child not in made:
                made[child] = _fixed(child, groups)
            if made[child] is not None:
                setattr(module, name, made[child])
    for module in holder.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
    return holder[0]


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
        for mine, theirs in ((new.weight, layer.weight), (new.bias, layer.bias)):
            mine.data = theirs.data.clone()
            mine.requires_grad = theirs.requires_grad
    return new.train(layer.training)


class Attention(nn.Module):
    """What nn.MultiheadAttention computes, with its weights, out of Linear layers: made by `fix`.

    Masks, dropout and ``batch_first`` are as there; ``add_bias_kv`` and ``add_zero_attn`` are not supported. So is
    the ``state_dict``, whatever the layers inside are called.
    """

    # Keeps torch's encoder layers from their own fused path, which reaches past the layers.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = layer.embed_dim, layer.num_heads, layer.dropout
        self.batch_first = layer.batch_first
        if layer.in_proj_weight is not None:
            weights: Any = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        biases: Any = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(_linear, weights, biases)
        self.out_proj = _linear(layer.out_proj.weight, layer.out_proj.bias)
        self._one_size = layer._qkv_same_embed_dim
        self.register_state_dict_post_hook(_as_stock)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_stock)  # type: ignore[no-untyped-call]
        self.train(layer.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        q, k, v = self._heads(self.query(query)), self._heads(self.key(key)), self._heads(self.value(value))
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            seen = F.dropout(weights, self.dropout, self.training) @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            seen = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        out = self.out_proj(seen.transpose(1, 2).flatten(2))
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _heads(self, x: Tensor) -> Tensor:
        """(records, tokens, features) → (records, heads, tokens, features of a head)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """Both masks as one that is added to the scores, (records, heads or 1, queries, keys)."""
        total: Tensor | None = None
        if attention is not None:
            several = attention.shape[0] // self.num_heads if attention.dim() == 3 else 1
            heads = self.num_heads if attention.dim() == 3 else 1
            total = _added(attention, q).reshape(several, heads, *attention.shape[-2:])
        if padding is not None:
            keys = _added(padding, q)[:, None, None, :]
            total = keys if total is None else total + keys
        return None if total is None else total.expand(q.shape[0], -1, q.shape[2], k.shape[2])


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """True means: not seen."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))
    return mask.to(like.dtype)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device, weight.dtype)
    made.weight.data.copy_(weight.data)
    made.weight.requires_grad = weight.requires_grad
    if bias is not None:
        made.bias.data.copy_(bias.data)
        made.bias.requires_grad = bias.requires_grad
    return made


_PARTS = ("query", "key", "value")
_STOCK = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # of sizes that differ; else in_proj_weight is all three


def _as_stock(layer: Attention, state: dict[str, Any], prefix: str, _: Any) -> None:
    """What is saved has nn.MultiheadAttention's names, in its order; where a part has an adapter, its own."""
    if any(f"{prefix}{part}.weight" not in state for part in _PARTS):
        return
    weights = [state.pop(f"{prefix}{part}.weight") for part in _PARTS]
    biases = [state.pop(f"{prefix}{part}.bias", None) for part in _PARTS]
    last = {name: state.pop(name) for name in list(state) if name.startswith(f"{prefix}out_proj.")}
    if layer._one_size:
        state[f"{prefix}in_proj_weight"] = torch.cat(weights)
    else:
        state.update({f"{prefix}{name}": weight for name, weight in zip(_STOCK, weights, strict=True)})
    if biases[0] is not None:
        state[f"{prefix}in_proj_bias"] = torch.cat(biases)
    state.update(last)


def _from_stock(layer: Attention, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """What is loaded has nn.MultiheadAttention's names."""
    for kind in ("weight", "bias"):
        if f"{prefix}in_proj_{kind}" in state:
            parts = state.pop(f"{prefix}in_proj_{kind}").chunk(3)
            state.update({f"{prefix}{part}.{kind}": value for part, value in zip(_PARTS, parts, strict=False)})
    for part, name in zip(_PARTS, _STOCK, strict=True):
        if prefix + name in state:
            state[f"{prefix}{part}.weight"] = state.pop(prefix + name)

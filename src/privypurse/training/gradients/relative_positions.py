"""Tables of relative positions: looked up for every record while training.

T5 looks its table up once for the whole batch, by (places, places), and adds what it finds to the scores of all
records. Nothing there has a row for each record. While training it is looked up by (records, places, places), which
gives the same scores, and each record's gradient. Known by name, as the lookup is made inside of a layer.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_LAYERS = ("transformers.models.t5.modeling_t5.T5Attention", "transformers.models.mt5.modeling_mt5.MT5Attention")


def with_tables(model: nn.Module) -> list[tuple[Any, bool]]:
    """The layers that may have such a table, and whether it is to be trained."""
    layers: list[Any] = list(model.modules())
    known = [layer for layer in layers if f"{type(layer).__module__}.{type(layer).__qualname__}" in _LAYERS]
    return [
        (layer, layer.has_relative_attention_bias and layer.relative_attention_bias.weight.requires_grad)
        for layer in known
    ]


def look_up_for_each(layers: list[tuple[Any, bool]], undo: ExitStack, records: int) -> None:
    """Until undone these layers look their tables up for every record.

    With gradient checkpointing those without a table have zeros that ask for a gradient, which nobody reads and
    `use_reentrant=False` does not need: they are told that there is none.
    """
    for layer, trained in layers:
        if trained:
            layer.__dict__["compute_bias"] = partial(_bias, layer, records)
            undo.callback(layer.__dict__.pop, "compute_bias", None)
        if layer.gradient_checkpointing:
            layer.gradient_checkpointing = False
            undo.callback(setattr, layer, "gradient_checkpointing", True)


def _bias(
    layer: Any, records: int, query_length: int, key_length: int, device: Any = None, past_seen_tokens: int = 0
) -> Tensor:
    """What the layer's own ``compute_bias`` gives, (1, heads, queries, keys), with a row for each record."""
    device = layer.relative_attention_bias.weight.device if device is None else device
    queries = torch.arange(query_length, device=device)[:, None] + past_seen_tokens
    buckets = layer._relative_position_bucket(
        torch.arange(key_length, device=device)[None, :] - queries,
        bidirectional=not layer.is_decoder,
        num_buckets=layer.relative_attention_num_buckets,
        max_distance=layer.relative_attention_max_distance,
    )
    found: Tensor = layer.relative_attention_bias(buckets.expand(records, -1, -1))
    return found.permute(0, 3, 1, 2)

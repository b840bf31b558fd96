"""Rules for layers of models beside the private one, such as a frozen teacher: attention and recurrent layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.tracked import Rows, all_tracked, state_of, tracked

_DROPOUT_OF_ATTENTION = 4
_OF_RECURRENT = 9  # arguments of lstm, gru and rnn
_HEADS = ("query", "key", "value")


def attention(op: Operation) -> Any:
    """scaled_dot_product_attention: records go along in front of query, key, value and a mask of their own."""
    places, dims = op.one_place(), op.rows()[0][0].dim()
    if op.argument(_DROPOUT_OF_ATTENTION, "dropout_p", default=0.0):
        raise op.refusal("draws (put the model into evaluation mode)")
    for number, value in enumerate(op.tensors()):
        state = state_of(value)
        if isinstance(state, Rows) and (state.dim != 0 or value.dim() != dims or dims < 3):
            raise op.refusal("takes records first")
        if state is None and number < len(_HEADS):
            raise op.refusal("takes query, key and value of records")
        if state is None and value.dim() > 2:
            require_constant(op, value, 0)
    return op.gives(Rows(places, 0))


def attention_of_heads(op: Operation) -> Any:
    """multi_head_attention_forward, as nn.MultiheadAttention calls it: records second, and first in their padding."""
    places = op.one_place()
    padding = op.kwargs.get("key_padding_mask")
    for value, state in op.rows():
        if (state.dim, value.dim()) != ((0, 2) if value is padding else (1, 3)):
            raise op.refusal("takes records second")
    given = op.args[: len(_HEADS)]
    mask = op.kwargs.get("attn_mask")
    draws = op.kwargs.get("training", True) and op.args[10]
    fixed = op.kwargs.get("static_k") is not None or op.kwargs.get("static_v") is not None
    if draws or fixed or any(not isinstance(state_of(value), Rows) for value in given):
        raise op.refusal("draws, or takes something else than query, key and value of records")
    if isinstance(mask, Tensor) and mask.dim() > 2:
        raise op.refusal("takes a mask for each record that is not from the loader")
    if isinstance(padding, Tensor) and state_of(padding) is None:
        require_constant(op, padding, 0)
    output, weights = op.run()
    return tracked(output, Rows(places, 1)), None if weights is None else tracked(weights, Rows(places, 0))


def recurrent(op: Operation) -> Any:
    """lstm(input, states, weights, bias, layers, dropout, training, two directions, records first)."""
    value, state = op.first()
    if len(op.args) != _OF_RECURRENT or not isinstance(op.args[-1], bool):
        raise op.refusal("takes packed sequences")
    states = op.args[1] if isinstance(op.args[1], list | tuple) else (op.args[1],)
    draws = op.args[5] and op.args[6]
    if draws or state.dim != (0 if op.args[-1] else 1) or value.dim() != 3:
        raise op.refusal("draws, or takes no batch of records")
    for each in states:
        require_constant(op, each, 1)
    output, *last = op.run()
    return (tracked(output, state), *all_tracked(tuple(last), Rows(state.places, 1)))

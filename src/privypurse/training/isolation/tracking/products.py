"""Rules for products, and for layers of models beside the private one, such as a frozen teacher: attention, LSTM."""

from __future__ import annotations

from torch import Tensor

from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.record_sum import Known
from privypurse.training.isolation.tracking.states import Rows, state_of

_DROPOUT_OF_ATTENTION = 4
_OF_RECURRENT = 9  # arguments of lstm, gru and rnn
_HEADS = 3  # query, key and value


def multiplied(op: Operation) -> Rows:
    """matmul, mm, bmm, mv: records may be rows of the left or go along in front of both, and are never added up."""
    left, right = op.args[0], op.argument(1, "other", "mat2", "vec", "weight")
    if len(op.tensors) != 2:
        raise op.refusal("adds up over records")
    dims = max(left.dim(), right.dim())
    places, found = op.one_place(), set()
    for value, state in op.rows():
        from_behind = value.dim() - state.dim
        rows_of_left = value is left and from_behind == 2
        if value.dim() < 2 or not (from_behind > 2 or rows_of_left):
            raise op.refusal("adds up over records")
        if rows_of_left and right.dim() > 2:
            raise op.refusal("multiplies rows of records by a stack of matrices")
        if rows_of_left and len(op.rows()) > 1:
            raise op.refusal("multiplies records by each other")
        found.add(dims - from_behind)
    if len(found) > 1:
        raise op.refusal("multiplies tensors whose record dimensions differ")
    (dim,) = found
    for value in op.public():
        at = dim - (dims - value.dim())
        if 0 <= at < value.dim() - 2:
            require_constant(f"{op.name}()", value, at)
    return Rows(places, dim)


def einsum(op: Operation) -> Rows:
    """Records have one letter, the same in every tracked operand and in the result, and in no other."""
    equation, *operands = op.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        raise op.refusal("needs an equation with an arrow and a letter for every dimension to be followed")
    inputs, output = equation.replace(" ", "").split("->")
    places, letters, others = op.one_place(), set(), set()
    for text, value in zip(inputs.split(","), operands, strict=True):
        state = state_of(value)
        if isinstance(state, Rows):
            letters.add(text[state.dim])
            if text.count(text[state.dim]) > 1:
                raise op.refusal("takes records' diagonal")
        else:
            others |= set(text)
    (letter, *more) = letters
    if more or letter in others or letter not in output:
        raise op.refusal("adds up over records or pairs them with each other")
    return Rows(places, output.index(letter))


def attention(op: Operation) -> Rows:
    """scaled_dot_product_attention: records go along in front of query, key, value and a mask of their own."""
    places, dims = op.one_place(), op.rows()[0][0].dim()
    if op.argument(_DROPOUT_OF_ATTENTION, "dropout_p", default=0.0):
        raise op.refusal("draws (put the model into evaluation mode)")
    for number, value in enumerate(op.tensors):
        state = state_of(value)
        if isinstance(state, Rows) and (state.dim != 0 or value.dim() != dims or dims < 3):
            raise op.refusal("takes records first")
        if state is None and number < _HEADS:
            raise op.refusal("takes query, key and value of records")
        if state is None and value.dim() > 2:
            require_constant(f"{op.name}()", value, 0)
    return Rows(places, 0)


def attention_of_heads(op: Operation) -> Known:
    """multi_head_attention_forward, as nn.MultiheadAttention calls it: records second, and first in their padding."""
    places = op.one_place()
    padding, mask = op.kwargs.get("key_padding_mask"), op.kwargs.get("attn_mask")
    for value, state in op.rows():
        if (state.dim, value.dim()) != ((0, 2) if value is padding else (1, 3)):
            raise op.refusal("takes records second")
    draws = op.kwargs.get("training", True) and op.args[10]
    fixed = op.kwargs.get("static_k") is not None or op.kwargs.get("static_v") is not None
    if draws or fixed or any(not isinstance(state_of(value), Rows) for value in op.args[:_HEADS]):
        raise op.refusal("draws, or takes something else than query, key and value of records")
    if isinstance(mask, Tensor) and mask.dim() > 2:
        raise op.refusal("takes a mask for each record that is not from the loader")
    if isinstance(padding, Tensor) and state_of(padding) is None:
        require_constant(f"{op.name}()", padding, 0)
    return Known(op.result, (Rows(places, 1), Rows(places, 0)))


def recurrent(op: Operation) -> Known:
    """lstm(input, states, weights, bias, layers, dropout, training, two directions, records first)."""
    value, state = op.first()
    if len(op.args) != _OF_RECURRENT or not isinstance(op.args[-1], bool):
        raise op.refusal("takes packed sequences")
    states = op.args[1] if isinstance(op.args[1], list | tuple) else (op.args[1],)
    draws = op.args[5] and op.args[6]
    if draws or state.dim != (0 if op.args[-1] else 1) or value.dim() != 3:
        raise op.refusal("draws, or takes no batch of records")
    for each in states:
        require_constant(f"{op.name}()", each, 1)
    return Known(op.result, (state, *(Rows(state.places, 1) for _ in states)))

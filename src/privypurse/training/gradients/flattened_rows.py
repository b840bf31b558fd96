"""Layers that are given (records · tokens, features): run on (records, tokens, features) while training.

OPT lays its tokens in one list, record after record, before the second half of each block, and takes them apart again
behind it. Layers there give the same for both forms, and in the second one each record has a row of its own. Known by
name, as in which order records lie in a list cannot be told from its shape.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

_LAYERS = {"transformers.models.opt.modeling_opt.OPTDecoderLayer": ("final_layer_norm", "fc1", "fc2")}
"""The layers inside of which there are such ones, and their names."""


def in_lists(model: nn.Module) -> list[nn.Module]:
    """The layers that are given their records in one list."""
    kinds = ((layer, f"{type(layer).__module__}.{type(layer).__qualname__}") for layer in model.modules())
    return [layer.get_submodule(name) for layer, kind in kinds for name in _LAYERS.get(kind, ())]


def take_lists_apart(layers: list[nn.Module], undo: ExitStack, records: int) -> None:
    """Until undone these layers are run on a row for each record, and give a list again."""
    for layer in layers if records else ():
        listed = [False]  # whether the call under way was given a list
        undo.enter_context(layer.register_forward_pre_hook(partial(_apart, records, listed)))
        undo.enter_context(layer.register_forward_hook(partial(_together, listed)))


def _apart(records: int, listed: list[bool], _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    listed[0] = inputs[0].dim() == 2 and inputs[0].shape[0] % records == 0
    return (inputs[0].unflatten(0, (records, -1)),) if listed[0] else inputs


def _together(listed: list[bool], _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.flatten(0, 1) if listed[0] else output

"""Made-up records: random inputs in the form of a batch, of which they take shapes and dtypes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from privypurse.training.isolation.replaced_records import counts_records
from privypurse.training.model_inputs import Given

WAYS = 2
"""How many ways there are to make records up: what one model refuses, such as words that are all masked, is tried
again in another way."""

_PUBLIC = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


class CannotMakeUp(Exception):
    """Something in the batch is no tensor, and only a real record would do."""


@dataclass(frozen=True)
class MadeUp:
    """``few`` records instead of ``records``, in one of the ways to make them up."""

    records: int
    few: int
    way: int
    constants: frozenset[int]
    """The ids of tensors that are the same for all records, whatever their shape."""
    lowest: bool
    """Whether whole numbers without a name stay 0: one of the model's tables has a single row."""
    generator: torch.Generator

    def like(self, given: Given) -> Given:
        """Made-up records in the form of a batch.

        Nobody's record is looked at: plain values and tensors without a row for each record are the caller's own
        constants. Whole numbers are 0 and 1, which every vocabulary, mask and count of types has; each row begins
        with a 1, so that no mask hides all of it. A mask by its name is 1 throughout, a type 0. Truth values are all
        true or, the other way, all false.
        """
        inputs, options = given
        named = {name: self._argument(name, value) for name, value in options.items()}
        return tuple(self._argument("", value) for value in inputs), named

    def _argument(self, name: str, value: Any) -> Any:
        if isinstance(value, _PUBLIC):
            return value

        def replaced(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                raise CannotMakeUp  # a text, a list of lengths: people's
            own = counts_records(leaf, self.records) and id(leaf) not in self.constants
            return self._rows(name, leaf) if own else leaf

        return tree_map(replaced, value)

    def _rows(self, name: str, like: Tensor) -> Tensor:
        shape = (self.few, *like.shape[1:])
        if like.is_complex() or like.is_quantized:
            raise CannotMakeUp
        if like.is_floating_point():
            drawn = (torch.randn if self.way == 0 else torch.rand)(shape, generator=self.generator)
        elif like.dtype == torch.bool:
            drawn = torch.full(shape, self.way == 0)
        else:
            drawn = self._whole_numbers(name, shape)
        return drawn.to(dtype=like.dtype, device=like.device)

    def _whole_numbers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if "type" in name or (self.lowest and not name):
            return torch.zeros(shape)
        if self.way > 0 or "mask" in name:
            return torch.ones(shape)
        drawn = torch.randint(0, 2, shape, generator=self.generator)
        if drawn.dim() > 1 and drawn.numel():
            drawn[..., 0] = 1
        return drawn

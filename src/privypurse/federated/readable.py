"""Records that cannot be read, or are not like the others, become blank: no error tells the server of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


class Readable(Dataset[Any]):
    """A data set that gives a blank record wherever the one inside raises, or gives another shape than its first.

    Blank inputs are not a number, and what is not finite contributes nothing (rule 12); where inputs are whole
    numbers they are 0, and the record contributes as a made-up one would.
    """

    def __init__(self, inner: Dataset[Any]) -> None:
        self._inner = inner
        *inputs, label = default_collate([inner[0]])
        self._blank = (*(_blank(value[0]) for value in inputs), torch.zeros_like(label[0]))

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        try:
            found = tuple(part[0] for part in default_collate([self._inner[index]]))
            return found if _kinds(found) == _kinds(self._blank) else self._blank
        except Exception:  # what it says is about somebody's record, and stays unsaid
            return self._blank


def _blank(value: Tensor) -> Tensor:
    return torch.full_like(value, torch.nan if value.is_floating_point() else 0)


def _kinds(record: tuple[Tensor, ...]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in record]

"""Records without what is in them: blank ones for those that cannot be read, made-up ones to try a model on.

No error about somebody's record may reach the server, so a record that cannot be read becomes blank.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.training.failing_records import ENDS

_log = logging.getLogger("privypurse.federated")


class Readable(Dataset[Any]):
    """A data set that gives a blank record wherever the one inside raises, or is not like the example.

    Blank inputs are not a number, and what is not finite contributes nothing (rule 12: isolation); where inputs are
    whole numbers they are 0, and the record contributes as a made-up one would. Which ones are blank is logged here.
    """

    def __init__(self, inner: Dataset[Any], example: Any, rows: IntArray | None = None) -> None:
        """``rows`` are the places in ``inner`` of those that there are (None: all)."""
        if example is None:
            raise InvalidInput(
                "give example=, a made-up record like (torch.zeros(1, 28, 28), 0): it says what a record of this "
                "data set is like, and nobody's own may"
            )
        self._inner, self._told = inner, set[int]()
        self._rows = range(len(inner)) if rows is None else rows.tolist()  # type: ignore[arg-type]
        self.blank = _blank_like(example)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        row = self._rows[index]
        try:
            found = _parts(self._inner[row])
            if _kinds(found) == _kinds(self.blank):
                return found
            why = "its shape or type is not that of the example"
        except ENDS:
            raise
        except BaseException as error:  # what it says is about somebody's record: it is said here and nowhere else
            why = f"{type(error).__name__} {error}".strip()
        if row not in self._told:
            self._told.add(row)
            _log.warning("record %d is left blank: %s", row, why)
        return self.blank


def readable(dataset: Dataset[Any], example: Any, rows: IntArray | None = None) -> TensorDataset | Readable:
    """These rows of a data set (None: all of them), of which none raises."""
    if isinstance(dataset, Readable) and rows is None:
        return dataset
    if type(dataset) is not TensorDataset:
        return Readable(dataset, example, rows)
    if rows is None:
        return dataset
    return TensorDataset(*(tensor[torch.as_tensor(rows, device=tensor.device)] for tensor in dataset.tensors))


def _blank_like(example: Any) -> tuple[Tensor, ...]:
    """Of the same shapes and types, with nothing of what is in it."""
    try:
        *inputs, label = _parts(example)
        return (*map(_blank, inputs), torch.zeros_like(label))
    except Exception as error:
        why = f"{type(error).__name__} {error}".strip()
        raise InvalidInput(f"example must be inputs and a label, as tensors or numbers ({why})") from None


class _Nobodys(Dataset[Any]):
    """One record that cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise LookupError("nobody here has a record now")


def standing_in(dataset: Dataset[Any], example: Any) -> Readable:
    """For a data set in which nobody has a record now: a blank one, so that a round goes on as any other."""
    return Readable(_Nobodys(), kind_of(dataset) if type(dataset) is TensorDataset else example)


def kind_of(dataset: Dataset[Any]) -> tuple[Tensor, ...]:
    """A record of the same shapes and types as those here, of which there may be none."""
    if type(dataset) is TensorDataset:
        return tuple(tensor.new_zeros(tensor.shape[1:]) for tensor in dataset.tensors)
    return dataset.blank if isinstance(dataset, Readable) else _parts(dataset[0])


def made_up_like(record: tuple[Tensor, ...], size: int) -> TensorDataset:
    """Records of the same shape as that one, with nothing of what is in it."""
    *inputs, label = record
    made = [torch.randn(size, *x.shape).to(x.dtype) * x.is_floating_point() for x in inputs]
    return TensorDataset(*made, torch.zeros(size, *label.shape, dtype=label.dtype))


def _parts(record: Any) -> tuple[Tensor, ...]:
    return tuple(part[0] for part in default_collate([record]))


def _blank(value: Tensor) -> Tensor:
    return torch.full_like(value, torch.nan if value.is_floating_point() else 0)


def _kinds(record: tuple[Tensor, ...]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in record]

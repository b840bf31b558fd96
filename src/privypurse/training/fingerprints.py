"""Fingerprints of data sets, so that a run goes on with the people it began with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from privypurse.plans import Plan
from privypurse.training.step_randomness import keyed

_SAMPLES = 16
_TURNS = 4


def fingerprint(dataset: Dataset[Any]) -> str:
    """A hash of the data: of all of it for tensors, elsewhere of what does not change by asking in a few records."""
    digest = hashlib.sha256()
    size = len(dataset)  # type: ignore[arg-type]
    digest.update(f"{size}".encode())
    if isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            _add(digest, tensor)
        return digest.hexdigest()
    places = sorted({size * k // _SAMPLES for k in range(_SAMPLES)} | {size - 1})
    with keyed(bytes(32)):
        first, *others = [[_parts(dataset[place]) for place in places] for _ in range(_TURNS)]
    for part in range(len(first[0])):
        column = [record[part : part + 1] for record in first]
        # One that is augmented anew at each turn, in whatever record, says nothing of who it is.
        if all([record[part : part + 1] for record in turn] == column for turn in others):
            for value in column:
                digest.update(b"".join(value))
    return digest.hexdigest()


def data_of(plan: Plan, dataset: Dataset[Any]) -> str:
    """What a checkpoint remembers of the data that its run was on.

    With ids the plan knows its people, and they may have other rows, in another order (rule 13).
    """
    return "by id" if plan.keyed_ids is not None else fingerprint(dataset)


def _parts(record: Any) -> list[bytes]:
    """Of the inputs and the label of a record, one each."""
    return [_of(part) for part in record] if isinstance(record, list | tuple) else [_of(record)]


def _of(value: Any) -> bytes:
    digest = hashlib.sha256()
    if isinstance(value, Tensor):
        _add(digest, value)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            digest.update(_of(name) + _of(part))
    elif isinstance(value, list | tuple):
        for part in value:
            digest.update(_of(part))
    elif hasattr(value, "tobytes"):
        digest.update(value.tobytes())
    elif " at 0x" in repr(value):  # where it lies in memory, which is elsewhere the next time
        digest.update(type(value).__qualname__.encode())
    else:
        digest.update(repr(value).encode())
    return digest.digest()


def _add(digest: Any, tensor: Tensor) -> None:
    whole = tensor.detach().cpu().contiguous()
    digest.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
    if whole.numel():
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data)

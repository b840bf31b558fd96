"""Fingerprints of data sets, so that a run goes on with the people it began with."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

_SAMPLES = 16


def fingerprint(dataset: Dataset[Any]) -> str:
    """A hash of the data: of all of it for tensors, elsewhere of a few records (that do not change by asking)."""
    digest = hashlib.sha256()
    size = len(dataset)  # type: ignore[arg-type]
    digest.update(f"{size}".encode())
    if isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            _add(digest, tensor)
        return digest.hexdigest()
    for place in sorted({size * k // _SAMPLES for k in range(_SAMPLES)} | {size - 1}):
        once, again = (_of(dataset[place]) for _ in range(2))
        if once == again:  # a record that is augmented anew at each turn has none
            digest.update(once)
    return digest.hexdigest()


def _of(value: Any) -> bytes:
    digest = hashlib.sha256()
    if isinstance(value, Tensor):
        _add(digest, value)
    elif isinstance(value, list | tuple):
        for part in value:
            digest.update(_of(part))
    elif hasattr(value, "tobytes"):
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode())
    return digest.digest()


def _add(digest: Any, tensor: Tensor) -> None:
    whole = tensor.detach().cpu().contiguous()
    digest.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
    if whole.numel():
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data)

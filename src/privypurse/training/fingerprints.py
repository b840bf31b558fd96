"""Fingerprints of data sets, so that a run goes on with the people it began with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from privypurse.training.step_randomness import keyed

_SAMPLES = 16
_TURNS = 4


def fingerprint(dataset: Dataset[Any]) -> str:
    """A hash of the data: of all of it for tensors, elsewhere of what does not change by asking in a few records."""
    size = len(dataset)  # type: ignore[arg-type]
    if isinstance(dataset, TensorDataset):
        return _digest(size, *dataset.tensors).hex()
    places = sorted({size * k // _SAMPLES for k in range(_SAMPLES)} | {size - 1})
    with keyed(bytes(32)):
        turns = [list(zip_longest(*(_parts(dataset[place]) for place in places))) for _ in range(_TURNS)]
    # A part that is augmented anew at each turn, in whatever record, says nothing of who it is.
    lasting = [column for column, *others in zip(*turns, strict=False) if all(other == column for other in others)]
    return _digest(size, *lasting).hex()


def _parts(record: Any) -> list[bytes]:
    """Of the inputs and the label of a record, one each."""
    return [_digest(part) for part in record] if isinstance(record, list | tuple) else [_digest(record)]


def _digest(*values: Any) -> bytes:
    digest = hashlib.sha256()
    for value in values:
        for piece in _bytes_of(value):
            digest.update(piece)
    return digest.digest()


def _bytes_of(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous()
        yield f"{whole.dtype} {tuple(whole.shape)}".encode()
        yield whole.reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(value, Mapping):
        yield from (_digest(part) for item in value.items() for part in item)
    elif isinstance(value, list | tuple):
        yield from map(_digest, value)
    elif hasattr(value, "tobytes"):
        yield value.tobytes()
    elif " at 0x" in repr(value):  # where it lies in memory, which is elsewhere the next time
        yield type(value).__qualname__.encode()
    else:
        yield repr(value).encode()

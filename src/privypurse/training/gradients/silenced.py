"""Records whose gradient is not finite, silenced before sums are taken: 0 · ∞ is not 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privypurse.training.gradients.numerics import has_triton
from privypurse.training.gradients.rule import Call

_pools: list[Any] = []


@contextmanager
def own_memory(pool: Any) -> Iterator[None]:
    """What lies in this pool belongs to the graph that is being captured, and may be written over by it."""
    _pools.append(pool)
    try:
        yield
    finally:
        _pools.pop()


class Silence:
    """Puts zeros where something of a wild record is not finite; only records with weight 0 have such.

    A graph that is being captured cannot ask whether there are any, so it silences whatever may come, in place where
    the memory is its own: of records that are not wild nothing is then read or written.
    """

    def __init__(self, wild: Tensor) -> None:
        self._wild = wild
        captured = wild.is_cuda and torch.cuda.is_current_stream_capturing()
        self._needed = captured or bool(wild.any())
        self._own = _segments() if captured and has_triton() else []

    def __call__(self, call: Call) -> Call:
        if not self._needed:
            return call
        kept = {name: self._quiet(value, ours=True) for name, value in call.kept.items()}
        if set(call.names) <= set(kept):
            return replace(call, kept=kept)
        return replace(
            call, inputs=tuple(map(self._quiet, call.inputs)), gradient=self._quiet(call.gradient), kept=kept
        )

    def _quiet(self, value: Any, ours: bool = False) -> Any:
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            return value
        if self._in_place(value):
            from privypurse.training.gradients import kernels

            kernels.zero_rows(value, self._wild)
            return value
        return value.nan_to_num_(0.0, 0.0, 0.0) if ours else value.nan_to_num(0.0, 0.0, 0.0)

    def _in_place(self, value: Tensor) -> bool:
        rows = value.dim() > 0 and value.shape[0] == self._wild.shape[0] and value.is_contiguous()
        return rows and any(begin <= value.data_ptr() < end for begin, end in self._own)


def _segments() -> list[tuple[int, int]]:
    """Where the memory of the graph that is being captured lies."""
    found = torch.cuda.memory_snapshot() if _pools else []  # type: ignore[no-untyped-call]
    mine = [each for each in found if tuple(each["segment_pool_id"]) == tuple(_pools[-1])]
    return [(each["address"], each["address"] + each["total_size"]) for each in mine]

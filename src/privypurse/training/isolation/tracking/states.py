"""What a tensor's rows are: each of one record, a total over records, or made of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput


@dataclass(eq=False)
class Drawn:
    """The batch at hand, as tracked tensors know it. Sensitive: how many were drawn is never told (rule 6)."""

    records: int
    reduction: str
    """What the loop was said to do over records: "mean" or "sum"."""
    key: Callable[[], bytes]
    """A fresh secret key, for what is drawn at random for each record."""
    crossed: bool = False
    """Whether the backward pass under way began at a sum or mean over records."""

    def close(self) -> None:
        self.crossed = False


class Places:
    """The record of each row along a dimension.

    Regular: the records ``base`` (None: all of the batch, in order), ``each`` rows of one after the other. Irregular:
    ``base`` has one entry a row, and a record may come several times, or never.
    """

    def __init__(self, drawn: Drawn, base: IntArray | None = None, each: int = 1, regular: bool = True) -> None:
        self.drawn, self.base, self.each, self.regular = drawn, base, each, regular

    @property
    def records(self) -> int:
        """How many records have rows here (of irregular rows: how many there are in the batch)."""
        return self.drawn.records if self.base is None or not self.regular else self.base.size

    @property
    def size(self) -> int:
        return (self.drawn.records if self.base is None else self.base.size) * self.each

    @property
    def whole(self) -> bool:
        """Whether these are all records of the batch in their order, one row each."""
        return self.base is None and self.each == 1

    def rows(self) -> IntArray:
        """The record of each row."""
        base = np.arange(self.drawn.records) if self.base is None else self.base
        return base if self.each == 1 else np.repeat(base, self.each)

    def same(self, other: Places) -> bool:
        """Whether rows at the same position are of the same record."""
        if self is other:
            return True
        if self.drawn is not other.drawn or self.size != other.size:
            return False
        if self.base is other.base and self.each == other.each:
            return True
        return bool(np.array_equal(self.rows(), other.rows()))

    def take(self, index: Any) -> Places:
        """The rows at these positions: a slice, or an array of whole numbers."""
        rows = self.rows()
        taken = rows[index]
        if taken.size == rows.size and np.array_equal(taken, rows):
            return self
        return Places(self.drawn, taken, regular=np.unique(taken).size == taken.size)

    def spread(self, each: int) -> Places:
        """Every row ``each`` times, one after the other."""
        if each == 1:
            return self
        if self.regular:
            return Places(self.drawn, self.base, self.each * each)
        return Places(self.drawn, np.repeat(self.rows(), each), regular=False)

    def gathered(self, inner: int) -> Places | None:
        """Every ``inner`` rows taken together, where they are of one record; else None."""
        if self.regular and self.each % inner == 0:
            return Places(self.drawn, self.base, self.each // inner)
        return self if inner == 1 else None

    def followed_by(self, others: list[Places]) -> Places:
        """These rows and then those of others, as by ``cat``."""
        rows = np.concatenate([self.rows(), *(other.rows() for other in others)])
        if np.array_equal(rows, np.arange(self.drawn.records)):
            return Places(self.drawn)
        return Places(self.drawn, rows, regular=np.unique(rows).size == rows.size)

    def counts(self) -> IntArray:
        """How many rows each record of the batch has here."""
        return np.bincount(self.rows(), minlength=self.drawn.records)


@dataclass(frozen=True, eq=False)
class Rows:
    """Along ``dim`` every row is of one record, and of no other."""

    places: Places
    dim: int


@dataclass(frozen=True, eq=False)
class Total:
    """Per-record losses, added up over records: what a backward pass may begin at."""

    drawn: Drawn
    kind: str
    """"mean" or "sum", as the loop wrote it. The gradient is the sum's either way (rule 2: a public divisor)."""


@dataclass(frozen=True, eq=False)
class Mixed:
    """Made of several records, by ``origin``: to be read, but not to be trained on."""

    origin: str


State = Rows | Total | Mixed


def state_of(value: Any) -> State | None:
    """What a tensor's rows are; None for one that nothing is known of: a constant of the loop."""
    return getattr(value, "_state", None) if isinstance(value, Tensor) else None


def plain(value: Tensor) -> Tensor:
    """The same values as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return Tensor.as_subclass(value, Tensor)


def require_rows(value: Tensor, state: State) -> None:
    """Raise if a tensor has not the rows that it should have."""
    if isinstance(state, Rows) and value.shape[state.dim] != state.places.size:
        raise InvalidInput("a tensor has lost or won rows on the way; records cannot be followed through it")

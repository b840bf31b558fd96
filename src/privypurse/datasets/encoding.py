"""Columns → numbers for a model, with public constants only.

A mean, a deviation, a largest value or a list of categories taken from the private rows would tell something about
them that no budget pays for (rule 12, isolation). So ranges and categories are given, and a record's features depend
on that record alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privypurse._validate import first_where
from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

Features = npt.NDArray[np.float32]
Where = Callable[[int], str]
"""How to name the place of an entry, given its row."""


@dataclass(frozen=True)
class Range:
    """A number between two public ends; what lies beyond an end counts as that end.

    Plain numbers go to [-1, 1]. With ``log`` the distance from ``low`` goes to [0, 1] on a logarithmic scale: for
    amounts that are mostly 0 and sometimes huge.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(f"the range {self.low} … {self.high} is empty or endless; give low < high")

    @property
    def width(self) -> int:
        return 1

    def encode(self, values: AnyArray, where: Where = "record {}".format) -> Features:
        """float32[n, 1]."""
        numbers = np.asarray(values, dtype=np.float64)
        row = first_where(np.isnan(numbers))
        if row is not None:
            raise InvalidInput(f"{where(row)} is no number; fill it in")
        distance = np.clip(numbers, self.low, self.high) - self.low
        span = self.high - self.low
        scaled = np.log1p(distance) / np.log1p(span) if self.log else 2 * distance / span - 1
        return scaled.astype(np.float32)[:, None]


@dataclass(frozen=True)
class Categories:
    """One of a public list of values: a column of 0 and 1 for each."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise InvalidInput(f"the categories {list(self.values)} are none, or one of them is listed twice")

    @property
    def width(self) -> int:
        return len(self.values)

    def codes(self, values: AnyArray, where: Where = "record {}".format) -> npt.NDArray[np.int64]:
        """For each record the place of its value in the list; a value that is not listed is an error."""
        found, inverse = np.unique(np.asarray(values).astype(str), return_inverse=True)
        place = {value: code for code, value in enumerate(self.values)}
        table = np.array([place.get(str(value), -1) for value in found], dtype=np.int64)
        codes = table[inverse]
        row = first_where(codes < 0)
        if row is not None:
            raise InvalidInput(
                f"{where(row)} is {str(found[inverse[row]])!r}, which is not among the values listed for it "
                f"({', '.join(map(repr, self.values))}); list it too, or mend the record"
            )
        return codes

    def encode(self, values: AnyArray, where: Where = "record {}".format) -> Features:
        """float32[n, number of categories]."""
        codes = self.codes(values, where)
        out = np.zeros((codes.size, self.width), dtype=np.float32)
        out[np.arange(codes.size), codes] = 1.0
        return out


Encoding = Range | Categories


def encoded(columns: Mapping[str, AnyArray], encodings: Mapping[str, Encoding]) -> Features:
    """The features of all records, float32[n, d], column after column in the order of ``encodings``."""
    parts = [how.encode(columns[name], f"{name}, record {{}}".format) for name, how in encodings.items()]
    return np.concatenate(parts, axis=1)

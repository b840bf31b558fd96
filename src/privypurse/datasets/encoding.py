"""Columns → numbers for a model, with public constants only.

A mean, a deviation, a largest value or a list of categories taken from the private rows would tell something about
them that no budget pays for (rule 12, isolation). So ranges and categories are given, and a record's features depend
on that record alone. Each kind of column has a place for what is missing: a constant in the middle and a column that
says so.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privypurse.arrays import FloatArray, IntArray
from privypurse.datasets import cells
from privypurse.errors import InvalidInput

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Range:
    """A number between two public ends; what lies beyond an end counts as that end.

    Plain numbers go to [-1, 1]. With ``log`` the distance from ``low`` goes to [0, 1] on a logarithmic scale: for
    amounts that are mostly 0 and sometimes huge. Where there is no number stands the middle of the scale, and a
    second column, ``indicator``, holds 1.
    """

    low: float
    high: float
    log: bool = False
    indicator: bool = True
    kind: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(f"the range {self.low} … {self.high} is empty or endless; give low < high")

    def names(self, column: str) -> list[str]:
        return [column, *_indicator_name(column, self.indicator)]

    def scaled(self, numbers: FloatArray) -> FloatArray:
        """On the scale, NaN where there is no number."""
        distance = np.clip(numbers, self.low, self.high) - self.low
        span = self.high - self.low
        return np.log1p(distance) / np.log1p(span) if self.log else 2 * distance / span - 1

    def unscaled(self, scaled: FloatArray) -> FloatArray:
        """Back from the scale to numbers, between the ends."""
        span = self.high - self.low
        low, high = (0.0, 1.0) if self.log else (-1.0, 1.0)
        inside = np.clip(scaled, low, high)
        return self.low + (np.expm1(inside * np.log1p(span)) if self.log else (inside + 1) / 2 * span)

    def encode(self, values: Any, missing: Collection[str] = ()) -> Features:
        """float32[n, 1 or 2]."""
        scaled = self.scaled(cells.numbers(cells.cells_of(values), missing))
        return _with_indicator(scaled, 0.5 if self.log else 0.0, self.indicator)


@dataclass(frozen=True)
class Dates:
    """A day between two public ones, from -1 to 1; written as ``form`` says, with %Y, %m and %d."""

    low: datetime.date
    high: datetime.date
    form: str = cells.ISO
    indicator: bool = True
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidInput(f"the dates {self.low} … {self.high} are no span; give low < high")
        cells.day_reader(self.form)

    def names(self, column: str) -> list[str]:
        return [column, *_indicator_name(column, self.indicator)]

    def encode(self, values: Any, missing: Collection[str] = ()) -> Features:
        """float32[n, 1 or 2]."""
        low, high = ((end - datetime.date(1970, 1, 1)).days for end in (self.low, self.high))
        days = cells.days(cells.cells_of(values), self.form, missing)
        return _with_indicator(Range(low, high).scaled(days), 0.0, self.indicator)


@dataclass(frozen=True)
class Flag:
    """True or false: 1 or 0, by public words for each, in any case; in between where a cell is none of them."""

    true: tuple[str, ...] = ("true", "yes", "t", "y", "1")
    false: tuple[str, ...] = ("false", "no", "f", "n", "0")
    indicator: bool = True
    kind: ClassVar[str] = "flag"

    def __post_init__(self) -> None:
        for name in ("true", "false"):
            object.__setattr__(self, name, tuple(word.lower() for word in cells.words(getattr(self, name), name)))
        words = [*self.true, *self.false]
        if not self.true or not self.false or len(set(words)) < len(words):
            raise InvalidInput(
                f"true is {list(self.true)} and false is {list(self.false)}; give words for each, and none twice"
            )

    def names(self, column: str) -> list[str]:
        return [column, *_indicator_name(column, self.indicator)]

    def truths(self, values: Any, missing: Collection[str] = ()) -> FloatArray:
        """float64[n]: 1, 0, or NaN where a cell says neither."""
        words = dict.fromkeys(self.true, 1.0) | dict.fromkeys(self.false, 0.0)
        text = cells.texts(cells.cells_of(values), missing)
        return cells.looked_up(text, lambda word: words.get(word.lower()), np.nan)

    def encode(self, values: Any, missing: Collection[str] = ()) -> Features:
        """float32[n, 1 or 2]."""
        return _with_indicator(self.truths(values, missing), 0.5, self.indicator)


@dataclass(frozen=True)
class Categories:
    """One of a public list of values: a column of 0 and 1 for each, then one for all other values, one for none.

    Without ``other`` and ``indicator`` such a cell is 0 everywhere.
    """

    values: tuple[str, ...]
    other: bool = True
    indicator: bool = True
    kind: ClassVar[str] = "category"

    def __post_init__(self) -> None:
        plain = cells.words(self.values, "values")
        if not plain or "" in plain or len(set(plain)) != len(plain):
            raise InvalidInput(
                f"the categories {list(self.values)} are none, or one of them is empty or listed twice (space around "
                "them does not count, and 3.0 is 3); list each once"
            )
        object.__setattr__(self, "values", plain)

    def names(self, column: str) -> list[str]:
        others = [f"{column} is other"] if self.other else []
        return [*(f"{column} = {value}" for value in self.values), *others, *_indicator_name(column, self.indicator)]

    def codes(self, values: Any, missing: Collection[str] = ()) -> IntArray:
        """For each record the place of its value in the list; -1 for any other value, -2 for none."""
        place = {value: code for code, value in enumerate(self.values)}
        text = cells.texts(cells.cells_of(values), missing)
        return cells.looked_up(text, lambda word: place.get(word, -1), -2).astype(np.int64)

    def encode(self, values: Any, missing: Collection[str] = ()) -> Features:
        """float32[n, listed values and what is beside them]."""
        codes = self.codes(values, missing)
        listed = np.arange(len(self.values))
        beside = [code for code, there in ((-1, self.other), (-2, self.indicator)) if there]
        return np.asarray(codes[:, None] == np.append(listed, beside), dtype=np.float32)


Encoding = Range | Categories | Dates | Flag
KINDS: dict[str, type[Encoding]] = {kind.kind: kind for kind in (Range, Categories, Dates, Flag)}


def _indicator_name(column: str, indicator: bool) -> list[str]:
    return [f"{column} is missing"] if indicator else []


def _with_indicator(scaled: FloatArray, middle: float, indicator: bool) -> Features:
    none = np.isnan(scaled)
    columns = [np.where(none, middle, scaled), *([none] if indicator else [])]
    return np.stack(columns, axis=1).astype(np.float32)

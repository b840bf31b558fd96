"""What is to be learned of a record, as numbers: one of several classes, a number, or several flags.

Classes and ends are public, as everything that encodes is. A record whose cell says none of them has no target: it
keeps its place, its person is drawn and charged as planned, and it contributes a gradient of zero. So what it
contributes follows from that record alone (rule 12, isolation), no error tells of it (rule 6, sensitive outputs), and
a plan without ids still finds every row where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.datasets import cells
from privypurse.datasets.encoding import Categories, Flag, Range
from privypurse.errors import InvalidInput

NO_CLASS = -1
"""The class of a record without one."""


@dataclass(frozen=True)
class Classes:
    """One of a public list of classes; a model gives a score for each."""

    label: str
    classes: tuple[str, ...]
    kind: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InvalidInput(f"classes is {list(self.classes)}; it must be a list of at least two values")
        object.__setattr__(self, "classes", Categories(self.classes).values)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.label,)

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def encode(self, table: Mapping[str, Any], missing: Collection[str] = ()) -> IntArray:
        """int64[n]: 0 … classes - 1, or `NO_CLASS`."""
        codes = Categories(self.classes).codes(cells.column_of(table, self.label), missing)
        return np.where(codes < 0, NO_CLASS, codes)


@dataclass(frozen=True)
class Number:
    """A number in a public range; a model gives it on the range's scale."""

    label: str
    range: Range
    kind: ClassVar[str] = "number"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.label,)

    @property
    def outputs(self) -> int:
        return 1

    def encode(self, table: Mapping[str, Any], missing: Collection[str] = ()) -> npt.NDArray[np.float32]:
        """float32[n, 1] on the scale, capped at the ends; NaN where there is no number."""
        numbers = cells.numbers(cells.column_of(table, self.label), missing)
        return self.range.scaled(numbers).astype(np.float32)[:, None]

    def decode(self, outputs: AnyArray) -> FloatArray:
        """float64[n]: what a model's outputs [n, 1] say, between the ends."""
        return self.range.unscaled(np.asarray(outputs, dtype=np.float64)[:, 0])


@dataclass(frozen=True)
class Flags:
    """Several columns of true or false; a model gives a logit for each."""

    labels: tuple[str, ...]
    words: Flag = field(default_factory=Flag)
    kind: ClassVar[str] = "flags"

    def __post_init__(self) -> None:
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise InvalidInput(f"labels is {list(self.labels)}; it must name at least one column, and none twice")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.labels

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def encode(self, table: Mapping[str, Any], missing: Collection[str] = ()) -> npt.NDArray[np.float32]:
        """float32[n, labels]: 1, 0, or NaN where a cell says neither."""
        truths = [self.words.truths(cells.column_of(table, label), missing) for label in self.labels]
        return np.stack(truths, axis=1).astype(np.float32)


Target = Classes | Number | Flags
KINDS: dict[str, type[Target]] = {kind.kind: kind for kind in (Classes, Number, Flags)}


def known(targets: AnyArray) -> npt.NDArray[np.bool_]:
    """Which records have a target; of several flags, at least one."""
    if targets.dtype.kind == "i":
        return np.asarray(targets != NO_CLASS)
    return np.asarray(~np.isnan(targets).all(axis=1))

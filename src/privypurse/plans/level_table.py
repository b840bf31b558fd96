"""The levels of a plan: what is alike for people with equal purses, and the table that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.errors import InvalidInput
from privypurse.plans.training_shape import SMALLEST


@dataclass(frozen=True, eq=False, kw_only=True)
class LevelTable:
    """What is alike for all people of a level, one entry a level. Levels ascend in ε."""

    epsilon: FloatArray
    """The promise: the people's ε, rounded down to the ladder."""
    delta: FloatArray
    rate: FloatArray
    clip_norm: FloatArray
    capped: AnyArray
    """True where even the largest rate or clip norm leaves some of the ε unused."""

    def __post_init__(self) -> None:
        size = np.size(self.epsilon)
        for item in fields(self):
            value = np.array(getattr(self, item.name), dtype=bool if item.name == "capped" else np.float64)
            if value.shape != (size,) or size == 0:
                raise InvalidInput(f"levels.{item.name} has shape {value.shape}; every column needs {size} entries")
            object.__setattr__(self, item.name, frozen(value))
        if not ((self.rate >= 0) & (self.rate <= 1)).all():
            raise InvalidInput("levels.rate holds something that is no probability")
        for name in ("epsilon", "delta", "clip_norm"):
            column = getattr(self, name)
            if not (np.isfinite(column) & (column > 0)).all():
                raise InvalidInput(f"levels.{name} holds something that is not finite and positive")
        if not (self.delta < 1).all():
            raise InvalidInput(f"levels.delta holds {self.delta.max():g}; δ lies below 1")
        if not ((self.clip_norm >= SMALLEST) & (self.clip_norm <= 1 / SMALLEST)).all():
            raise InvalidInput(
                f"levels.clip_norm goes from {self.clip_norm.min():g} to {self.clip_norm.max():g}; single precision "
                f"holds it between {SMALLEST:g} and {1 / SMALLEST:g}"
            )

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def rows(self, people: IntArray, spent: FloatArray, most: int) -> list[LevelRow]:
        """The table in at most ``most`` lines; neighbouring levels share one where there are more."""
        if most < 1:
            raise InvalidInput(f"most is {most}; a table needs at least one line")

        def span(column: FloatArray, some: slice) -> tuple[float, float]:
            return float(column[some].min()), float(column[some].max())

        return [
            LevelRow(
                people=int(people[some].sum()),
                capped=int(people[some][self.capped[some]].sum()),
                epsilon=span(self.epsilon, some),
                certified=span(spent, some),
                rate=span(self.rate, some),
                clip_norm=span(self.clip_norm, some),
            )
            for some in _grouped(people, most)
        ]


@dataclass(frozen=True)
class LevelRow:
    """One line of a plan's table: a level, or several that lie next to each other."""

    people: int
    capped: int
    epsilon: tuple[float, float]
    certified: tuple[float, float]
    rate: tuple[float, float]
    clip_norm: tuple[float, float]


def in_every_step(rates: FloatArray) -> bool:
    """Whether everyone who takes part at all is in every step: full-batch training."""
    return bool(np.isin(rates, (0.0, 1.0)).all())


def _grouped(people: IntArray, most: int) -> Sequence[slice]:
    """At most ``most`` runs of neighbouring levels with about equally many people."""
    if people.size <= most:
        return [slice(k, k + 1) for k in range(people.size)]
    share = np.cumsum(people) - people / 2
    group = np.minimum((share / people.sum() * most).astype(np.int64), most - 1)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return [slice(a, b) for a, b in zip(starts, [*starts[1:].tolist(), people.size], strict=True)]

"""Which bin of a histogram a row falls into; bins are public."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.queries.columns import Column, Numbers, Text, Truths, comparable


def place_by_edge(column: Column, name: str, edges: Sequence[float]) -> tuple[IntArray, int]:
    """For each row its bin, -1 for none, and how many bins there are. The last bin holds its upper edge too."""
    try:
        bounds = np.asarray(edges, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"edges must be numbers, not {edges!r}") from None
    if bounds.ndim != 1 or bounds.size < 2 or np.isnan(bounds).any() or not (np.diff(bounds) > 0).all():
        raise InvalidInput("edges must be two or more numbers, each above the one before")
    if not isinstance(column, Numbers | Truths):
        raise InvalidInput(
            f"the column {name!r} holds {column.kind}, not numbers; give categories= instead of edges="
        )
    values = column.values.astype(np.float64)
    place = np.searchsorted(bounds, values, side="right") - 1
    place[values == bounds[-1]] = bounds.size - 2
    inside = (values >= bounds[0]) & (values <= bounds[-1]) & column.known()
    return np.where(inside, place, -1).astype(np.int64), int(bounds.size - 1)


def place_by_category(column: Column, name: str, categories: Sequence[Any]) -> tuple[IntArray, int]:
    """For each row the number of its category, -1 for none, and how many categories there are."""
    listed = list(categories)
    if isinstance(categories, str) or not listed:
        raise InvalidInput("categories must be a list of one or more public values")
    if len(set(listed)) < len(listed):
        raise InvalidInput("categories holds a value twice")
    if isinstance(column, Text):
        if not all(isinstance(value, str) for value in listed):
            raise InvalidInput(f"the column {name!r} holds text; give categories= as text")
        table = np.full(column.words.size + 1, -1, dtype=np.int64)  # missing words, -1, look up the end
        for place, value in enumerate(listed):
            table[:-1][column.words == value] = place
        return table[column.codes], len(listed)
    if not isinstance(column, Numbers | Truths):
        raise InvalidInput(
            f"the column {name!r} holds {column.kind}; categories= are for numbers, text, true or false"
        )
    if not all(isinstance(value, bool | int | float | np.number | np.bool_) for value in listed):
        raise InvalidInput(f"the column {name!r} holds {column.kind}; give categories= of that kind")
    values, numbers, places = _comparable(column, listed)
    if not places.size:
        return np.full(values.size, -1, dtype=np.int64), len(listed)
    order = np.argsort(numbers)
    nearest = np.minimum(np.searchsorted(numbers[order], values), numbers.size - 1)
    matches = (numbers[order][nearest] == values) & column.known()
    return np.where(matches, places[order][nearest], -1).astype(np.int64), len(listed)


def _comparable(column: Numbers | Truths, listed: list[Any]) -> tuple[AnyArray, AnyArray, IntArray]:
    """The column's values, the listed ones that it can hold, both of one kind, and the places of those.

    Whole numbers stay whole: as floats, large ones would fall together.
    """
    values = column.values
    numbers = [comparable(value, values) for value in listed]
    if any(math.isnan(number) for number in numbers if isinstance(number, float)):
        raise InvalidInput("categories holds NaN, which equals nothing")
    if values.dtype.kind not in "iu":
        return values.astype(np.float64), np.array(numbers, dtype=np.float64), np.arange(len(numbers))
    most = np.iinfo(values.dtype)
    held = {place: n for place, n in enumerate(numbers) if isinstance(n, int) and most.min <= n <= most.max}
    return values, np.array([*held.values()], dtype=values.dtype), np.array([*held], dtype=np.int64)

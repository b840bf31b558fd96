"""Frames whose reader made of cells something else than a file holds: 01 became 1, NA became nothing.

Training reads cells as text, so such cells say something else to a model than they did in training, or nothing.
"""

from __future__ import annotations

import re
from typing import Any

from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories

_FOR_MISSING = frozenset(
    ("#N/A", "#N/A N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)
"""Words that `pandas.read_csv` takes for cells in which nothing stands."""
_PADDED = re.compile(r"[+-]?0\d+")


def lost_words(frame: Any, encoder: Encoder) -> dict[str, list[str]]:
    """By column the listed words that no cell of a frame of pandas can say, by the column's type and the list."""
    found: dict[str, list[str]] = {}
    if not hasattr(frame, "iloc"):
        return found
    for name, how in encoder.columns.items():
        column = frame[name] if isinstance(how, Categories) and name in frame.columns else None
        kind = getattr(getattr(column, "dtype", None), "kind", "")
        if lost := [word for word in getattr(how, "values", ()) if kind and _lost(word, kind, encoder, column)]:
            found[name] = lost
    return found


def _lost(word: str, kind: str, encoder: Encoder, column: Any) -> bool:
    if kind == "b":
        return word.lower() in ("true", "false") and word not in ("true", "false")
    if kind in "iuf":
        return _PADDED.fullmatch(word) is not None
    return word in _FOR_MISSING and word not in encoder.missing and bool(column.isna().any())

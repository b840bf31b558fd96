"""How many cells of the people in training said nothing that the configuration knows: for the table's owner alone.

No error tells of a cell, so a column whose form is wrong (decimals with a comma, another form of dates) is missing
throughout without a word. This count shows it. It follows from people's data, and nobody paid for it (rule 6).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.targets import known
from privypurse.runs.records import Records

_ABOUT = (
    "How many cells of the people in training are missing, or other than listed. Sensitive: internal, as safe to "
    "keep as their data. Mend forms and words by it; ranges and categories from people's cells are paid for "
    "by nobody."
)


def gaps(records: Records, encoder: Encoder) -> dict[str, Any]:
    """By column, where it has a feature for that, and how many records have no target."""
    columns = by_column(records.inputs.sum(axis=0, dtype=np.float64), encoder)
    without = int((~known(records.labels)).sum())
    return {"about": _ABOUT, "records": len(records), "columns": columns, "without_target": without}


def by_column(totals: FloatArray, encoder: Encoder) -> dict[str, dict[str, int]]:
    """Of the features' sums over all rows: how many of a column's cells are missing, or other than listed."""
    counts = dict(zip(encoder.features, totals.tolist(), strict=True))
    return {
        column: {word: int(counts[name]) for word in ("missing", "other") if (name := f"{column} is {word}") in names}
        for column, how in encoder.columns.items()
        for names in (how.names(column),)
    }


def never_read(columns: dict[str, dict[str, int]], rows: int) -> list[str]:
    """Columns of which no cell says anything that is listed."""
    return [name for name, counts in columns.items() if rows and sum(counts.values()) == rows]


def unread(records: Records, encoder: Encoder) -> list[str]:
    """Columns of which no cell in training was read, and the target where no record has one; for the owner alone.

    Somebody's mistake in a configuration, by which people would pay for a model of nothing.
    """
    found = gaps(records, encoder)
    columns = never_read(found["columns"], len(records))
    assert encoder.target is not None
    return columns + ([", ".join(encoder.target.columns)] if found["without_target"] == len(records) else [])

"""How many cells of the people in training said nothing that the configuration knows: for the table's owner alone.

No error tells of a cell, so a column whose form is wrong (decimals with a comma, another form of dates) is missing
throughout without a word. This count shows it. It follows from people's data, and nobody paid for it (rule 6).
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
    counts = dict(zip(encoder.features, records.inputs.sum(axis=0, dtype=np.float64).tolist(), strict=True))
    columns = {
        column: {word: int(counts[name]) for word in ("missing", "other") if (name := f"{column} is {word}") in names}
        for column, how in encoder.columns.items()
        for names in (how.names(column),)
    }
    without = int((~known(records.labels)).sum())
    return {"about": _ABOUT, "records": len(records), "columns": columns, "without_target": without}

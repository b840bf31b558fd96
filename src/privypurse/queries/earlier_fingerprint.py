"""The fingerprint of a table as it was before columns kept the kinds that their file states.

Cells decided then: one that was empty made whole numbers floats, and a column without any was empty text. Ledgers of
rows that were made at that time state it, and go on while the table is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from privypurse.arrays import AnyArray
from privypurse.queries.rows import rows_of


def earlier_fingerprint(table: Mapping[str, Any]) -> str:
    """Of columns as Arrow arrays, as `budgets.tables.read_table` gives them."""
    return rows_of({name: _as_array(values) for name, values in table.items()}).fingerprint()


def _as_array(values: Any) -> AnyArray:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    found: AnyArray = values.to_numpy(zero_copy_only=False)
    return found

"""Tables of people from CSV and Parquet files, as columns to ask about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput


def read_table(path: str | Path) -> dict[str, AnyArray]:
    """The columns of a .csv or .parquet file.

    A column of a CSV file holds whole numbers, numbers, true or false, or dates if every cell that is not empty does,
    and text otherwise; an empty cell is missing. So one cell decides about the kind of its column, which is taken to
    be public: where that matters, use Parquet, which states kinds.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if not file.exists():
        raise InvalidInput(f"{file} does not exist; check the spelling and the folder")
    try:
        if kind == ".csv":
            table = _read_csv(file)
        elif kind in (".parquet", ".pq"):
            table = pyarrow.parquet.read_table(file)
        else:
            raise InvalidInput(f"{file} is neither .csv nor .parquet; convert it")
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}; is it UTF-8, and what its ending says?") from None
    names = table.column_names
    if len(set(names)) < len(names):
        raise InvalidInput(f"{file} has two columns of the same name; rename one")
    if table.num_rows == 0:
        raise InvalidInput(f"{file} has no rows; give at least one record")
    return {name: _as_numpy(table.column(name).combine_chunks()) for name in names}


def _read_csv(file: Path) -> Any:
    names = pyarrow.csv.open_csv(file).schema.names
    # As text first: guessing kinds from the first rows would fail on later ones.
    convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    # A blank line is a record whose cells are empty, not one to pass over.
    parse = pyarrow.csv.ParseOptions(ignore_empty_lines=False)
    table = pyarrow.csv.read_csv(file, parse_options=parse, convert_options=convert)
    columns = [_told_apart(table.column(place).combine_chunks()) for place in range(table.num_columns)]
    return pa.table(columns, names=table.column_names)


def _told_apart(text: Any) -> Any:
    cells = pc.utf8_trim_whitespace(text)
    cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us")):
        try:
            return cells.cast(kind)
        except pa.ArrowInvalid:
            continue
    return cells


def _as_numpy(values: Any) -> AnyArray:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return np.asarray(values.to_numpy(zero_copy_only=False))

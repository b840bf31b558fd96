"""Columns out of CSV and Parquet files and data frames, with errors that name file, column and row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from privypurse._validate import float_vector
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput


class Columns(Protocol):
    """A table whose columns can be asked for one at a time."""

    def numbers(self, column: str) -> FloatArray: ...
    def labels(self, column: str) -> AnyArray: ...
    def where(self, column: str) -> Callable[[int], str]: ...


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """For reading a table more than once: raise if it was written to or replaced meanwhile.

    Rows of one table with the budgets of another would go to the wrong people.
    """
    before = _state(path)
    yield
    if _state(path) != before:
        raise InvalidInput(
            f"{path} changed while it was being read, so nothing was done; try again once nobody writes to it"
        )


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def open_columns(path: Path) -> Columns:
    """The columns of a .csv or .parquet file."""
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; check the spelling and the folder")
    kind = path.suffix.lower()
    try:
        if kind == ".csv":
            return FileColumns(path, pyarrow.csv.open_csv(path).schema.names, _csv_column)
        if kind in (".parquet", ".pq"):
            return FileColumns(path, pyarrow.parquet.read_schema(path).names, _parquet_column)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}; is it UTF-8, and what its ending says?") from None
    raise InvalidInput(f"{path} is neither .csv nor .parquet; convert it, or pass arrays to Budgets(...)")


def _csv_column(path: Path, column: str) -> Any:
    # As text: whether a cell is a number is judged below, cell by cell, not by guessing from the first ones.
    options = pyarrow.csv.ConvertOptions(
        include_columns=[column], column_types={column: pa.string()}, strings_can_be_null=False
    )
    # A blank line is a record whose cells are empty, not one to pass over.
    parse = pyarrow.csv.ParseOptions(ignore_empty_lines=False)
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=options).column(column)


def _parquet_column(path: Path, column: str) -> Any:
    return pyarrow.parquet.read_table(path, columns=[column]).column(column)


class FileColumns:
    def __init__(self, path: Path, names: list[str], load: Callable[[Path, str], Any]) -> None:
        self._path, self._names, self._load = path, names, load

    def where(self, column: str) -> Callable[[int], str]:
        return lambda row: f"{self._path}: column {column!r}, row {row + 1} below the header"

    def _column(self, column: str) -> Any:
        if column not in self._names:
            found = ", ".join(map(repr, self._names))
            hint = (
                "; cells must be separated by commas"
                if any(";" in name or "\t" in name for name in self._names)
                else ""
            )
            raise InvalidInput(f"{self._path} has no column {column!r}; its columns are {found}{hint}")
        if self._names.count(column) > 1:
            raise InvalidInput(f"{self._path} has {self._names.count(column)} columns called {column!r}; rename one")
        try:
            values = self._load(self._path, column).combine_chunks()
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"{self._path} cannot be read: {error}; give every row all its cells, in UTF-8"
            ) from None
        if len(values) == 0:
            raise InvalidInput(f"{self._path} has no rows; give at least one record")
        return values

    def labels(self, column: str) -> AnyArray:
        values = self._column(column)
        empty = pc.is_null(values)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            empty = pc.or_(empty, pc.equal(values, "").fill_null(True))
        row = pc.index(empty, True).as_py()
        if row >= 0:
            raise InvalidInput(f"{self.where(column)(row)} is empty; fill it in")
        return np.asarray(values.to_numpy(zero_copy_only=False))

    def numbers(self, column: str) -> FloatArray:
        values = self._column(column)
        where = self.where(column)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = _parsed(pc.utf8_trim_whitespace(values), where)
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise InvalidInput(f"{self._path}: column {column!r} holds {values.type}, not numbers")
        numbers = values.cast(pa.float64(), safe=False)
        if numbers.null_count:
            row = pc.index(pc.is_null(numbers), True).as_py()
            raise InvalidInput(f"{where(row)} is empty; fill it in")
        return np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def _parsed(text: Any, where: Callable[[int], str]) -> Any:
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        for row, value in enumerate(text.to_pylist()):
            try:
                if "_" in value:
                    raise ValueError
                float(value)
            except (TypeError, ValueError):
                hint = " (write decimals with a point)" if value and "," in value else ""
                said = repr(value) if value else "empty"
                raise InvalidInput(f"{where(row)} is {said}, not a number; give every row one{hint}") from None
        return pa.array([float(value) for value in text.to_pylist()], pa.float64())


class FrameColumns:
    """A pandas DataFrame, or anything with ``.columns`` and ``[]`` that gives arrays."""

    def __init__(self, frame: Any) -> None:
        if not hasattr(frame, "columns"):
            raise InvalidInput(f"frame must be a pandas DataFrame, not {type(frame).__name__}")
        self._frame = frame

    def where(self, column: str) -> Callable[[int], str]:
        return lambda row: f"frame[{column!r}], row {row}"

    def labels(self, column: str) -> AnyArray:
        names = list(self._frame.columns)
        if column not in names:
            raise InvalidInput(f"frame has no column {column!r}; its columns are {', '.join(map(str, names))}")
        if names.count(column) > 1:
            raise InvalidInput(f"frame has {names.count(column)} columns called {column!r}; rename one")
        return np.asarray(self._frame[column])

    def numbers(self, column: str) -> FloatArray:
        return float_vector(self.labels(column), f"frame[{column!r}]")

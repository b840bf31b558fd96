"""Tables of people out of CSV and Parquet files and data frames; errors name file, column and row."""

import collections
import csv
import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from privypurse._validate import float_vector
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

_BLOCK_ROWS, _BLOCK_BYTES = 1 << 16, 1 << 20
_WRITTEN_AS_FLOAT = r"^\s*[0-9]+\.0+\s*$"
_NO_NAME = re.compile(r"\s*|[\s+-]*[0-9.,eE%€$:/\s-]+|nan|none|null|na|true|false", re.IGNORECASE)


def not_names(names: Sequence[str]) -> list[int]:
    """The columns, counted from 1, whose first line says something that no column is called: a cell, perhaps."""
    return [place for place, name in enumerate(names, 1) if _NO_NAME.fullmatch(name) or names.count(name) > 1]


@contextmanager
def unchanged(*paths: Path) -> Iterator[None]:
    """For reading tables more than once: raise if one was written to or replaced meanwhile.

    Rows of one table with the budgets of another would go to the wrong people.
    """
    before = [_state(path) for path in paths]
    yield
    for path, state in zip(paths, before, strict=True):
        if _state(path) != state:
            raise InvalidInput(
                f"{path} changed while it was being read, so nothing was done; try again once nobody writes to it"
            )


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_table(path: str | Path) -> dict[str, Any]:
    """All columns of a .csv or .parquet file, as Arrow arrays to ask about: they state what they hold, and keep whole
    numbers whole beside an empty cell.

    A column of a CSV file holds whole numbers, numbers, true or false, or dates if every cell that is not empty does,
    and text otherwise; an empty cell is missing. So one cell decides about the kind of its column, which is taken to
    be public: where that matters, use Parquet, which states kinds.
    """
    file = Path(path)
    _refuse_unclosed(file)
    names = _names(file)
    if len(set(names)) < len(names):
        raise InvalidInput(f"{file} has two columns of the same name; rename one")
    columns = {name: values.combine_chunks() for name, values in zip(names, _read(file).columns, strict=True)}
    return {name: _told_apart(text) for name, text in columns.items()} if _is_csv(file) else columns


def _is_csv(path: Path) -> bool:
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; check the spelling and the folder")
    if path.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InvalidInput(f"{path} is neither .csv nor .parquet; convert it")
    return path.suffix.lower() == ".csv"


def _refuse_unclosed(path: Path) -> None:
    """Raise where a quotation mark is opened and not closed: Arrow takes all rows that follow for one cell's text.

    Read byte by byte, since what the text means does not matter, and only where there is such a mark.
    """
    if not _is_csv(path):
        return
    with _readable(path, "is it a file?"), path.open("rb") as opened:
        if not opened.read(1):
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            if whole.find(b'"') < 0:
                return
    with path.open(encoding="latin-1", newline="") as file:
        if file.read(3) != "\xef\xbb\xbf":  # a byte order mark
            file.seek(0)
        try:
            collections.deque(csv.reader(file, strict=True), maxlen=0)  # all of them, and none is kept
        except csv.Error:
            raise InvalidInput(
                f"{path} cannot be read: a quotation mark opens a cell and does not close it, so that rows would be "
                'taken for text; close it, and write one inside a cell twice, as in "5"" pipe"'
            ) from None


def _names(path: Path) -> list[str]:
    with _readable(path, "is it UTF-8, with commas between cells, and what its ending says?"):
        schema = pyarrow.csv.open_csv(path).schema if _is_csv(path) else pyarrow.parquet.read_schema(path)
        return list(schema.names)  # decoded here


def _read(path: Path, columns: list[str] | None = None) -> Any:
    """Some columns or all of them; the cells of a CSV file as text."""
    with _readable(path, "give every row all its cells, with commas between them, in UTF-8"):
        if not _is_csv(path):
            table = pyarrow.parquet.read_table(path, columns=columns)
        else:
            names = _names(path) if columns is None else columns
            # Kinds guessed from the first rows would fail on later ones.
            kinds = dict.fromkeys(names, pa.string())
            convert = pyarrow.csv.ConvertOptions(include_columns=names, column_types=kinds, strings_can_be_null=False)
            # A blank line is a record whose cells are empty, not one to pass over.
            parse = pyarrow.csv.ParseOptions(ignore_empty_lines=False)
            table = pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
    _refuse_not_utf8(path, table)
    if table.num_rows == 0:
        raise InvalidInput(f"{path} has no rows; give at least one record")
    return table


def _refuse_not_utf8(path: Path, table: Any) -> None:
    """Raise where a text of a Parquet file is not UTF-8, which nobody has looked at: what fails later quotes it."""
    if _is_csv(path):
        return
    for name, values in zip(table.schema.names, table.columns, strict=True):
        if "string" in str(values.type):
            try:
                values.validate(full=True)
            except pa.ArrowInvalid:
                hint = "write its text as UTF-8, or leave the column out"
                raise InvalidInput(f"{path}: the column {name!r} cannot be read: it is not UTF-8; {hint}") from None


def column_names(path: Path) -> list[str]:
    """The names of a file's columns, each once."""
    names = _names(path)
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{path} has {names.count(name)} columns called {name!r}; rename one")
    return names


def stated_types(path: Path) -> dict[str, Any] | None:
    """The Arrow type that a Parquet file states for each column, without looking at a row; None of a CSV file."""
    if _is_csv(path):
        return None
    with _readable(path, "is it what its ending says?"):
        schema = pyarrow.parquet.read_schema(path)
    return dict(zip(schema.names, schema.types, strict=True))


def blocks(path: Path, columns: Sequence[str], rows: int = _BLOCK_ROWS) -> Iterator[dict[str, Any]]:
    """These columns of a file as Arrow arrays, so many rows at a time at most; cells of a CSV file as text."""
    _refuse_unclosed(path)
    with _readable(path, "give every row all its cells, with commas between them, in UTF-8"):
        if not _is_csv(path):
            batches = pyarrow.parquet.ParquetFile(path).iter_batches(rows, columns=list(columns))
        else:
            convert = pyarrow.csv.ConvertOptions(
                include_columns=columns, column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
            )
            parse = pyarrow.csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=True)
            # One thread: only then does an error know the number of its row.
            read = pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
            batches = pyarrow.csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)
        for batch in batches:
            _refuse_not_utf8(path, batch)
            for begin in range(0, batch.num_rows, rows):
                yield {name: batch.column(name).slice(begin, rows) for name in columns}


@contextmanager
def _readable(path: Path, hint: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {_without_cells(error)}; {hint}") from None


def _without_cells(error: Exception) -> str:
    """What is wrong with a file, without the row that Arrow quotes there."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return re.sub(r"(, got \d+): .*|(invalid value) '.*", r"\1\2", str(error), flags=re.DOTALL)


class Columns(ABC):
    """A table whose columns can be asked for one at a time."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name, self._columns = name, list(columns)

    def _require(self, column: str) -> None:
        """Raise unless there is exactly one column of this name."""
        if column not in self._columns:
            one_cell = any(";" in str(name) or "\t" in str(name) for name in self._columns)
            hint = "; cells must be separated by commas" if one_cell else ""
            found = f"its columns are {', '.join(map(repr, self._columns))}{hint}"
            if not_names(list(map(str, self._columns))):
                found = "its first line does not look like names of columns; give it one that names every column"
            raise InvalidInput(f"{self.name} has no column {column!r}; {found}")
        if (count := self._columns.count(column)) > 1:
            raise InvalidInput(f"{self.name} has {count} columns called {column!r}; rename one")

    @abstractmethod
    def where(self, column: str) -> Callable[[int], str]:
        """How to name the place of a cell, given its row."""

    @abstractmethod
    def labels(self, column: str) -> AnyArray:
        """The cells as they are; of a file, none may be empty."""

    def ids(self, column: str) -> AnyArray:
        """The cells as they are; ids that were written as floats are an error."""
        return self.labels(column)

    @abstractmethod
    def numbers(self, column: str) -> FloatArray:
        """The cells as float64; a cell that is no number is an error."""

    def has(self, column: str) -> bool:
        return column in self._columns

    def alike(self, column: str) -> str | None:
        """A column whose name is this one's but for case, space, hyphens and underscores, if there is one."""
        others = (name for name in map(str, self._columns) if name != column)
        return next((name for name in others if _letters(name) == _letters(column)), None)

    @abstractmethod
    def texts(self, column: str) -> AnyArray:
        """The cells as text; an empty one is ""."""


class FileColumns(Columns):
    """A .csv or .parquet file; each column is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        _refuse_unclosed(path)
        super().__init__(str(path), _names(path))
        self._path = path

    def where(self, column: str) -> Callable[[int], str]:
        return lambda row: f"{self._path}: column {column!r}, row {row + 1} below the header"

    def _column(self, column: str) -> Any:
        self._require(column)
        return self.cells([column])[column]

    def cells(self, columns: Sequence[str]) -> dict[str, Any]:
        """These columns, read at once, as Arrow arrays; the cells of a CSV file as text, an empty one is ""."""
        for column in columns:
            self._require(column)
        table = _read(self._path, list(dict.fromkeys(columns)))
        return {column: table.column(column).combine_chunks() for column in columns}

    def labels(self, column: str) -> AnyArray:
        values = self._column(column)
        empty = pc.is_null(values)
        if _is_text(values):
            empty = pc.or_(empty, pc.equal(values, "").fill_null(True))
        self._refuse_empty(empty, column)
        return np.asarray(values.to_numpy(zero_copy_only=False))

    def ids(self, column: str) -> AnyArray:
        values = self._column(column)
        if _is_text(values) and pc.all(pc.match_substring_regex(values, _WRITTEN_AS_FLOAT)).as_py():
            raise InvalidInput(
                f"{self._path}: column {column!r} holds ids that were written as floats: 1.0 and "
                '1 would be two people. Write them as whole numbers (in pandas: .astype("Int64"))'
            )
        return self.labels(column)

    def numbers(self, column: str) -> FloatArray:
        values = self._column(column)
        if _is_text(values):
            values = _parsed(pc.utf8_trim_whitespace(values), self.where(column))
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise InvalidInput(f"{self._path}: column {column!r} holds {values.type}, not numbers")
        numbers = values.cast(pa.float64(), safe=False)
        self._refuse_empty(pc.is_null(numbers), column)
        return np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)

    def texts(self, column: str) -> AnyArray:
        cells = self._column(column).cast(pa.string()).fill_null("")
        return np.array(pc.utf8_trim_whitespace(cells).to_pylist(), dtype=np.str_)

    def _refuse_empty(self, empty: Any, column: str) -> None:
        row = pc.index(empty, True).as_py()
        if row >= 0:
            raise InvalidInput(f"{self.where(column)(row)} is empty; fill it in")


class FrameColumns(Columns):
    """A pandas DataFrame, or anything with ``.columns`` and ``[]`` that gives arrays."""

    def __init__(self, frame: Any) -> None:
        if not hasattr(frame, "columns"):
            raise InvalidInput(f"frame must be a pandas DataFrame, not {type(frame).__name__}")
        super().__init__("frame", frame.columns)
        self._frame = frame

    def where(self, column: str) -> Callable[[int], str]:
        return lambda row: f"frame[{column!r}], row {row}"

    def labels(self, column: str) -> AnyArray:
        self._require(column)
        return np.asarray(self._frame[column])

    def numbers(self, column: str) -> FloatArray:
        return float_vector(self.labels(column), f"frame[{column!r}]")

    def texts(self, column: str) -> AnyArray:
        cells = self.labels(column).tolist()
        return np.array(["" if _is_missing(cell) else str(cell).strip() for cell in cells], dtype=np.str_)


def _letters(name: str) -> str:
    return "".join(one for one in name.casefold() if one.isalnum())


def _is_missing(cell: Any) -> bool:
    """None, NaN, or pandas' NA, which is not even comparable with itself."""
    same = cell == cell
    return cell is None or not isinstance(same, bool | np.bool_) or not same


def _is_text(values: Any) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


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
                said = "holds a text" if value else "is empty"  # no cell is shown: it may be another column's
                raise InvalidInput(f"{where(row)} {said}, not a number; give every row one{hint}") from None
        return pa.array([float(value) for value in text.to_pylist()], pa.float64())


def _told_apart(text: Any) -> Any:
    cells = pc.utf8_trim_whitespace(text)
    cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us")):
        try:
            return cells.cast(kind)
        except pa.ArrowInvalid:
            continue
    return cells

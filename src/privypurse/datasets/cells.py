"""The cells of a column, each taken by itself: a number, a text or a day, or nothing where it is none of these.

What a cell comes to never follows from other cells (rule 12, isolation): text is read by one fixed grammar, and
columns of Python objects cell by cell. A cell that cannot be read is missing, without an error: that would tell of a
row.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[iI]nf(inity)?)$"
WRITTEN_AS_FLOAT = r"^(-?[0-9]+)\.0+$"
EXACT = 2.0**53
"""Below it a float holds every integer."""
ISO = "%Y-%m-%d"
_PARTS = {"%Y": "(?P<year>[0-9]{4})", "%m": "(?P<month>[0-9]{1,2})", "%d": "(?P<day>[0-9]{1,2})"}
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def cells_of(values: Any, name: str = "values") -> Any:
    """A column as an Arrow array: of NumPy, pandas, polars or Arrow, or a list."""
    if hasattr(values, "to_arrow"):  # polars
        values = values.to_arrow()
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = _converted(values, name)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _converted(values: Any, name: str) -> Any:
    kind = getattr(values, "dtype", None)
    raw = values if kind is not None else _objects(values)
    if getattr(raw, "ndim", 1) != 1:
        raise InvalidInput(f"column {name!r} has shape {raw.shape}; give one cell for each record")
    if kind is not None and str(kind) != "object":
        return pa.array(raw, from_pandas=True)
    try:
        return pa.array(raw, type=pa.string(), from_pandas=True)
    except (pa.ArrowException, UnicodeError):  # not all is text; one kind for all would let a cell decide for others
        return pa.array([_text(cell) for cell in raw], type=pa.string())


def _objects(values: Any) -> AnyArray:
    cells = list(values)
    raw = np.empty(len(cells), dtype=object)
    raw[:] = cells
    return raw


def _text(cell: Any) -> str | None:
    """One object as the text that a file would hold."""
    if isinstance(cell, np.generic) and not isinstance(cell, np.float32):
        cell = cell.item()
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    if isinstance(cell, datetime.date | datetime.datetime):
        return None if cell != cell else cell.isoformat()  # NaT is none
    if isinstance(cell, float | np.float32):
        return None if cell != cell else _float_text(cell)
    if isinstance(cell, str | int):
        return str(cell).encode("utf-8", "replace").decode()
    return None


def _float_text(number: Any) -> str:
    """As `_float_texts` writes it."""
    if abs(number) < EXACT and number == int(number):
        return str(int(number))
    if 1e-6 <= abs(number) < 1e10:
        return np.format_float_positional(number, trim="-")
    return np.format_float_scientific(number, trim="-", exp_digits=1)


def _float_texts(cells: Any) -> Any:
    """Whole numbers as the integers that they are, and others as Arrow writes them, whole ones as 1e+10 too."""
    if pa.types.is_float16(cells.type):
        cells = cells.cast(pa.float64())
    whole = pc.and_(pc.equal(pc.floor(cells), cells), pc.less(pc.abs(cells), pa.scalar(EXACT, cells.type)))
    integers = pc.if_else(whole, cells, pa.scalar(None, cells.type)).cast(pa.int64())
    return pc.coalesce(integers.cast(pa.string()), cells.cast(pa.string()))


def texts(cells: Any, missing: Collection[str] = ()) -> Any:
    """An Arrow array of text without space around it; null where a cell is empty or says one of ``missing``.

    Whole numbers that were written as floats are what they were before: "3.0" is "3".
    """
    if pa.types.is_floating(cells.type):
        cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
    words = (cells if pa.types.is_string(cells.type) else _as_text(cells)).dictionary_encode()
    text = plain(words.dictionary)
    none = pc.is_in(text, pa.array(["", *missing], pa.string()))
    return pc.if_else(none, pa.scalar(None, pa.string()), text).take(words.indices)


def plain(text: Any) -> Any:
    """Texts as they are compared."""
    return pc.replace_substring_regex(pc.utf8_trim_whitespace(text), WRITTEN_AS_FLOAT, r"\1")


def words(given: Collection[Any], name: str) -> tuple[str, ...]:
    """Public words as cells are compared with them: True, 3 and a day become text as cells do."""
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise InvalidInput(f"{name} is {given!r}; give a list of values, of one as in ({given!r},)")
    found = [None if isinstance(word, datetime.datetime | np.datetime64) else _text(word) for word in given]
    if None in found:
        wrong = list(given)[found.index(None)]
        raise InvalidInput(f"{name} holds {wrong!r}; list texts, numbers, days, True or False")
    return tuple(plain(pa.array(found, pa.string())).to_pylist())


def _as_text(cells: Any) -> Any:
    if pa.types.is_floating(cells.type):
        return _float_texts(cells)
    try:
        return cells.cast(pa.string())
    except (pa.ArrowException, NotImplementedError):  # bytes that are no UTF-8, or a kind without a text
        return pa.array([_text(cell) for cell in cells.to_pylist()], type=pa.string())


def numbers(cells: Any, missing: Collection[str] = ()) -> FloatArray:
    """float64[n]; NaN where a cell is no number, or one of those that are ``missing``."""
    kind = cells.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found = cells
    elif pa.types.is_decimal(kind):
        found = cells.cast(pa.float64(), safe=False)
    else:
        text = texts(cells, missing)
        found = pc.if_else(pc.match_substring_regex(text, NUMBER), text, pa.scalar(None, pa.string()))
    numbers = np.array(pc.cast(found, pa.float64(), safe=False).fill_null(np.nan), dtype=np.float64)
    none = [float(word) for word in missing if re.match(NUMBER, word)]
    return np.where(np.isin(numbers, none), np.nan, numbers) if none else numbers


def days(cells: Any, form: str = ISO, missing: Collection[str] = ()) -> FloatArray:
    """Days since 1970 as float64[n]; NaN where a cell is no date. Of a point in time its day counts, as written."""
    if pa.types.is_date(cells.type):
        return np.array(pc.cast(cells.cast(pa.date32()), pa.int32()).cast(pa.float64()).fill_null(np.nan))
    if pa.types.is_timestamp(cells.type):
        local = pc.local_timestamp(cells) if cells.type.tz is not None else cells
        ticks = pc.cast(local, pa.int64()).cast(pa.float64(), safe=False).fill_null(np.nan)
        return np.floor(np.array(ticks) / _TICKS[cells.type.unit])
    read = day_reader(form)
    return looked_up(texts(cells, missing), read, np.nan)


_TICKS = {"s": 86400.0, "ms": 86400e3, "us": 86400e6, "ns": 86400e9}


def day_reader(form: str) -> Callable[[str], float | None]:
    """What reads a date in this form, made of %Y, %m and %d; a time of day after an ISO date is passed over."""
    # Between the parts as strptime reads it, by which others apply an encoder: any space, any case.
    parts = re.split(r"(%[A-Za-z%]|\s+)", form)
    pattern = "".join(r"\s+" if part.isspace() else _PARTS.get(part, re.escape(part)) for part in parts)
    if sorted(re.findall("%.?", form)) != sorted(_PARTS):
        raise InvalidInput(f'the form of dates is {form!r}; it has to hold %Y, %m and %d once each, as in "%d.%m.%Y"')
    whole = re.compile(pattern + "([T ].*)?", re.DOTALL) if form == ISO else re.compile(pattern, re.IGNORECASE)

    def read(text: str) -> float | None:
        found = whole.fullmatch(text)
        if found is None:
            return None
        try:
            day = datetime.date(*(int(found[part]) for part in ("year", "month", "day")))
        except ValueError:
            return None
        return float(day.toordinal() - _EPOCH)

    return read


def looked_up(text: Any, read: Callable[[str], float | None], otherwise: float) -> FloatArray:
    """``read`` of each cell, asked once for each different text; ``otherwise`` where there is none, or no answer."""
    words = text.dictionary_encode()
    answers = [read(word) for word in words.dictionary.to_pylist()]
    table = np.array([otherwise if answer is None else answer for answer in answers] + [otherwise], dtype=np.float64)
    return table[np.array(words.indices.fill_null(len(answers)), dtype=np.int64)]


def column_of(table: Any, name: str) -> Any:
    """A table's column as an Arrow array; an error that names it where there is none."""
    try:
        found = table[name]
    except InvalidInput:  # a file that says what it holds
        raise
    except (KeyError, IndexError, ValueError, TypeError, pa.ArrowException):
        found = None
    except Exception as error:  # polars has an error of its own
        if type(error).__name__ != "ColumnNotFoundError":
            raise
        found = None
    if found is None:
        raise InvalidInput(f"the table has no column {name!r}; give it under this name")
    return cells_of(found, name)

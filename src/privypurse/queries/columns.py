"""Columns as conditions see them: numbers, text, true or false, dates; each with its missing cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.errors import InvalidInput

Mask = npt.NDArray[np.bool_]

_EXACT = 2.0**53
_COARSE = ("Y", "M", "W", "D", "h", "m", "s", "ms")  # units that reach further than microseconds
_EARLIEST, _LATEST = np.datetime64("-290000-01-01"), np.datetime64("290000-01-01")


@dataclass(frozen=True, eq=False)
class _Values:
    """One value a row."""

    values: AnyArray
    kind: ClassVar[str]
    """As errors say it."""

    def known(self) -> Mask:
        """Which rows have a value."""
        return np.ones(self.values.shape, dtype=bool)

    def bytes_of(self) -> list[AnyArray]:
        """All that it holds, as arrays that have bytes of their own."""
        return [self.values]


@dataclass(frozen=True, eq=False)
class _Marked(_Values):
    """Of values that cannot say by themselves that they are missing."""

    missing: Mask | None = None

    def known(self) -> Mask:
        return super().known() if self.missing is None else ~self.missing

    def bytes_of(self) -> list[AnyArray]:
        return [self.values] if self.missing is None else [self.values, self.missing]


class Numbers(_Marked):
    """Missing is NaN, or marked among whole numbers: they stay what they are, or one person's empty cell would round
    everybody else's.
    """

    kind = "numbers"

    def known(self) -> Mask:
        return ~np.isnan(self.values) if self.values.dtype.kind == "f" else super().known()

    def floats(self) -> FloatArray:
        """As float64, each by itself; a missing one is NaN."""
        floats = self.values.astype(np.float64)
        return floats if self.missing is None else np.where(self.missing, np.nan, floats)

    def bytes_of(self) -> list[AnyArray]:
        if self.missing is not None and (np.abs(self.values.astype(np.float64)) < _EXACT).all():
            return [self.floats()]  # as they were kept before: purses beside a table know it by these bytes
        return super().bytes_of()


class Truths(_Marked):
    kind = "true or false"


class Dates(_Values):
    """Missing is NaT."""

    kind = "dates"

    def known(self) -> Mask:
        return ~np.isnat(self.values)

    def microseconds(self) -> AnyArray:
        """Cut to whole ones, in which any two dates can be compared: far ones would overflow nanoseconds."""
        if np.datetime_data(self.values.dtype)[0] in _COARSE:
            ends = (end.astype(self.values.dtype) for end in (_EARLIEST, _LATEST))
            return np.asarray(np.clip(self.values, *ends).astype("datetime64[us]"))
        return self.values.astype("datetime64[us]")


@dataclass(frozen=True, eq=False)
class Other(_Values):
    """A column that conditions know nothing of; callables may still use it."""

    what: str
    kind = "something else"

    def bytes_of(self) -> list[AnyArray]:
        if self.values.dtype.hasobject:
            raise InvalidInput(
                f"it holds {self.what}, so purses on disk cannot tell these data from others; convert the column to "
                "numbers or text, or leave it out"
            )
        return [self.values]


@dataclass(frozen=True, eq=False)
class Text:
    """Every different word once, and for each row which of them it is; -1 where there is none."""

    codes: IntArray
    words: AnyArray
    kind: ClassVar[str] = "text"

    def known(self) -> Mask:
        return np.asarray(self.codes >= 0)

    def where(self, words: Mask) -> Mask:
        """The rows whose word is marked. A missing word, -1, is looked up at the end."""
        return np.append(words, False)[self.codes]

    def bytes_of(self) -> list[AnyArray]:
        import pyarrow as pa

        words = [_utf8(word) for word in self.words.tolist()]
        _, offsets, letters = pa.array(words, pa.large_binary()).buffers()
        ends = np.frombuffer(offsets, np.int64, self.words.size + 1)
        text = np.frombuffer(letters, np.uint8, int(ends[-1])) if ends[-1] else np.empty(0, np.uint8)
        return [self.codes, ends, text]


Column = Numbers | Truths | Text | Dates | Other


def comparable(number: Any, values: AnyArray) -> float:
    """A number as it is compared with these: with whole numbers as one, however large it is, else as a float."""
    number = number.item() if isinstance(number, np.generic) else number
    if values.dtype.kind in "iu" and (isinstance(number, int) or float(number).is_integer()):
        return int(number)
    return as_float(number)


def as_float(number: Any) -> float:
    """∞ for a whole number that no float reaches."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def column(values: Any) -> Column:
    """A column from an array, a tensor, a pandas Series or an Arrow array. What kind it is belongs to the public
    schema: where values have a type of their own, as in Arrow, no cell decides about it.
    """
    if says_its_type(values) and (arrow := _typed(values)) is not None:
        return _of_arrow(arrow)
    array = as_array(values)
    if array.ndim != 1:
        return Other(array, "more than one number a row")
    kind = array.dtype.kind
    if kind in "iu" or (kind == "f" and array.dtype.itemsize <= 8):
        return Numbers(array)
    if kind == "b":
        return Truths(array)
    if kind == "M":
        return Dates(array)
    if kind in "OUT":
        return _of_objects(array)
    return Other(array, f"{array.dtype}")


def is_arrow(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def says_its_type(values: Any) -> bool:
    """Whether a column has a type other than NumPy's, such as pandas' nullable ones: its cells may all be missing."""
    numpys = isinstance(getattr(values, "dtype", np.dtype(object)), np.dtype)
    return is_arrow(values) or not (numpys or hasattr(values, "detach"))


def _typed(values: Any) -> Any:
    """As an Arrow array of the type that it says; None where Arrow has none for it."""
    import pyarrow as pa

    try:
        return values if is_arrow(values) else pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _cells(arrow: Any) -> AnyArray:
    """Lists and the like, as their kind says: one's empty place would make floats of everybody's whole numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds, cells = pa.types, np.empty(len(arrow), dtype=object)
    if kinds.is_list(arrow.type) or kinds.is_large_list(arrow.type) or kinds.is_fixed_size_list(arrow.type):
        flat = frozen(as_array(arrow.flatten()))
        ends = np.cumsum(_numpy(pc.list_value_length(arrow).fill_null(0)))
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        for known in np.flatnonzero(_numpy(arrow.is_valid())):
            cells[known] = flat[begins[known] : ends[known]]
    else:
        for place, cell in enumerate(arrow.to_pylist()):
            cells[place] = cell
    return cells


def _is_pandas_own(kind: Any) -> bool:
    """Periods and intervals, and categories of them: Arrow keeps them as something else."""
    import pyarrow as pa

    return isinstance(kind.value_type if pa.types.is_dictionary(kind) else kind, pa.BaseExtensionType)


def _of_objects(array: AnyArray) -> Column:
    import pyarrow as pa  # when a table is asked about, not before

    try:
        arrow = _as_arrow(array.astype(object) if array.dtype.kind == "T" else array)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return Other(array, "a mix of kinds")
    if not pa.types.is_large_binary(arrow.type):
        return _of_arrow(arrow)
    coded = _of_words(arrow)
    coded.words[:] = [word.decode("utf-8", "surrogatepass") for word in coded.words]
    return coded


def _of_arrow(arrow: Any) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow, kinds = _decoded(arrow), pa.types
    if kinds.is_null(arrow.type):
        return Text(np.full(len(arrow), -1, np.int64), np.empty(0, dtype=object))
    if str(arrow.type) in ("string", "large_string", "string_view"):
        return _of_words(arrow.cast(pa.large_string()))
    if kinds.is_boolean(arrow.type) or kinds.is_integer(arrow.type):
        missing = _numpy(pc.is_null(arrow)) if arrow.null_count else None
        held = _numpy(arrow.fill_null(pa.scalar(0).cast(arrow.type)))
        return Truths(held, missing) if kinds.is_boolean(arrow.type) else Numbers(held, missing)
    if kinds.is_floating(arrow.type):
        return Numbers(_numpy(arrow))
    if kinds.is_date(arrow.type) or kinds.is_timestamp(arrow.type):
        return Dates(_numpy(arrow))
    if arrow.null_count == len(arrow):  # without a cell whose bytes are not known
        return Other(np.full(len(arrow), -1), f"{arrow.type}")
    held = _numpy(arrow) if kinds.is_primitive(arrow.type) else np.empty(0, dtype=object)
    return Other(held, f"{arrow.type}")


def _of_words(arrow: Any) -> Text:
    coded = arrow.dictionary_encode()
    codes = _numpy(coded.indices.fill_null(-1)).astype(np.int64)
    return Text(codes, np.asarray(_numpy(coded.dictionary), dtype=object))


def _decoded(arrow: Any) -> Any:
    """One array of a value a row: none is told by its place in a dictionary or a run. Decimals are floats, JSON is
    text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_run_end_encoded(arrow.type):
        arrow = pc.run_end_decode(arrow)
    if isinstance(arrow, pa.ChunkedArray):
        arrow = arrow.combine_chunks()
    if pa.types.is_dictionary(arrow.type):
        arrow = arrow.dictionary_decode()
    if str(arrow.type) == "extension<arrow.json>":
        arrow = arrow.storage
    return arrow.cast(pa.float64(), safe=False) if pa.types.is_decimal(arrow.type) else arrow


def _numpy(arrow: Any) -> AnyArray:
    import pyarrow as pa

    try:
        return _cells(arrow) if pa.types.is_nested(arrow.type) else np.asarray(arrow.to_numpy(zero_copy_only=False))
    except (pa.ArrowException, ValueError, OverflowError):  # which quote the cell
        said = f"it holds {arrow.type} that Python cannot read; text must be UTF-8, and dates of the years 1 to 9999"
        raise InvalidInput(said) from None


def _as_arrow(array: AnyArray) -> Any:
    """As large binary where a text holds half of a surrogate pair, which is no Unicode: no cell may raise."""
    import pyarrow as pa

    try:
        return pa.array(array, from_pandas=True)
    except (UnicodeError, pa.ArrowInvalid) as error:
        if array.dtype.kind == "O" and not isinstance(error, UnicodeError):
            raise
        cells = [_utf8(cell) if isinstance(cell, str) else cell for cell in array.tolist()]
        if any(isinstance(cell, bytes) for cell in array.tolist()):
            raise TypeError("text and bytes in one column") from None
        return pa.array(cells, pa.large_binary(), from_pandas=True)


def _utf8(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def as_array(values: Any) -> AnyArray:
    """A NumPy array of an array, a list, a tensor (on any device), a Series or an Arrow array.

    Of types that know empty cells (Arrow's, pandas' nullable ones) whole numbers are floats and what is missing is
    not true, whether or not there is an empty cell.
    """
    if says_its_type(values) and (arrow := _typed(values)) is not None:
        import pyarrow as pa

        if is_arrow(values) or not _is_pandas_own(arrow.type):
            arrow = _decoded(arrow)
            if pa.types.is_integer(arrow.type):
                arrow = arrow.cast(pa.float64(), safe=False)
            elif pa.types.is_boolean(arrow.type):
                arrow = arrow.fill_null(False)
            return _numpy(arrow)
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # which NumPy does not know
            values = values.float()
    return np.asarray(values)

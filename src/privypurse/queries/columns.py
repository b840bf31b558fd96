"""Columns as conditions see them: numbers, text, true or false, dates; each with its missing cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InvalidInput

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Values:
    """One value a row."""

    values: AnyArray
    kind: ClassVar[str]
    """As errors say it."""

    def known(self) -> Mask:
        """Which rows have a value."""
        return np.ones(self.values.shape[0], dtype=bool)

    def bytes_of(self) -> list[AnyArray]:
        """All that it holds, as arrays that have bytes of their own."""
        return [self.values]


class Numbers(_Values):
    """Missing is NaN."""

    kind = "numbers"

    def known(self) -> Mask:
        return ~np.isnan(self.values) if self.values.dtype.kind == "f" else super().known()


class Dates(_Values):
    """Missing is NaT."""

    kind = "dates"

    def known(self) -> Mask:
        return ~np.isnat(self.values)


@dataclass(frozen=True, eq=False)
class Truths(_Values):
    missing: Mask | None = None
    kind = "true or false"

    def known(self) -> Mask:
        return super().known() if self.missing is None else ~self.missing

    def bytes_of(self) -> list[AnyArray]:
        return [self.values] if self.missing is None else [self.values, self.missing]


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


def column(values: Any) -> Column:
    """A column from an array, a tensor or a pandas Series. What kind it is belongs to the public schema."""
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


def _of_objects(array: AnyArray) -> Column:
    import pyarrow as pa  # when a table is asked about, not before
    import pyarrow.compute as pc

    try:
        arrow = _as_arrow(array.astype(object) if array.dtype.kind == "T" else array)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return Other(array, "a mix of kinds")
    if isinstance(arrow, pa.ChunkedArray):
        arrow = arrow.combine_chunks()
    if pa.types.is_null(arrow.type):
        return Text(np.full(array.size, -1, np.int64), np.empty(0, dtype=object))
    binary = pa.types.is_large_binary(arrow.type)  # see _as_arrow
    if binary or pa.types.is_string(arrow.type) or pa.types.is_large_string(arrow.type):
        coded = arrow.dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        words = np.asarray(coded.dictionary.to_numpy(zero_copy_only=False), dtype=object)
        if binary:
            words[:] = [word.decode("utf-8", "surrogatepass") for word in words]
        return Text(codes, words)
    if pa.types.is_boolean(arrow.type):
        missing = pc.is_null(arrow).to_numpy(zero_copy_only=False) if arrow.null_count else None
        return Truths(arrow.fill_null(False).to_numpy(zero_copy_only=False), missing)
    if pa.types.is_integer(arrow.type) or pa.types.is_floating(arrow.type) or pa.types.is_decimal(arrow.type):
        return Numbers(arrow.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if pa.types.is_date(arrow.type) or pa.types.is_timestamp(arrow.type):
        return Dates(arrow.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False))
    return Other(array, f"{arrow.type}")


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
    """A NumPy array of an array, a list, a tensor (on any device) or a Series."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # which NumPy does not know
            values = values.float()
    return np.asarray(values)

"""The data behind one face: how many rows, some of them, their columns, and public rows of the same form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from privypurse._storage import digest_of_arrays
from privypurse.arrays import AnyArray, IntArray, frozen
from privypurse.errors import InvalidInput
from privypurse.queries.columns import Column, as_array, column, says_its_type

PROBES = 7
_DAY = np.datetime64("1970-01-01")


def _bits(first: int, width: int) -> IntArray:
    """Zeros and ones for the probe rows, [PROBES, width]: all 0, all 1, alternating, in pairs, and one row twice.

    Rows differ from each other and from their mean, and one occurs twice, so that a callable is found out for which
    other rows matter.
    """
    place = first + np.arange(width)
    ones, single, pairs = np.ones_like(place), place % 2, place // 2 % 2
    return np.stack([0 * ones, ones, single, 1 - single, pairs, 1 - pairs, ones]).astype(np.int64)


class _Columns(dict[str, Any]):
    """Columns by name, each made when it is first asked for: text takes a while to sort into words."""

    def __getitem__(self, name: str) -> Column:
        found = super().__getitem__(name)
        if callable(found):
            with _about(name):
                self[name] = found = column(found())
        return found  # type: ignore[no-any-return]

    def fingerprint(self) -> str:
        parts: list[AnyArray] = []
        for name in self:
            found = self[name]
            with _about(name):
                held = found.bytes_of()
            # What kind a column is follows from the types and the number of its arrays.
            head = f"{name}\n{len(held)}".encode("utf-8", "surrogatepass")
            parts += [np.frombuffer(head, np.uint8), *held]
        return digest_of_arrays(*parts)


class FrameRows:
    """A pandas DataFrame, known by its ``columns``, ``iloc`` and ``dtypes``; pandas itself is not imported."""

    def __init__(self, frame: Any) -> None:
        names = list(frame.columns)
        if len(set(names)) < len(names):
            raise InvalidInput("the data have two columns of the same name; rename one")
        self._frame, self.count = frame, len(frame)
        self.columns = _Columns({name: partial(frame.__getitem__, name) for name in names})

    @property
    def whole(self) -> Any:
        """All rows, to be handed to a callable: what it writes into them changes no other question's rows."""
        return self._frame.copy()  # a callable may add columns to what it is given, or write into them

    def take(self, rows: Any, places: AnyArray) -> Any:
        """Some of the rows, in this order, in the same form."""
        return rows.iloc[places]

    def length(self, rows: Any) -> int:
        return len(rows)

    def probes(self) -> Any:
        """A few rows in the same form that follow from names and kinds of the columns, not from the data."""
        frame = self._frame
        try:
            made = type(frame)({name: self._probe(name, place) for place, name in enumerate(frame.columns)})
            return made.astype({name: frame.dtypes[name] for name in frame.columns})
        except Exception as error:
            raise InvalidInput(
                f"no rows to try a callable on can be made for these columns ({error}); give Analyst(example=rows) "
                "two or more made-up ones"
            ) from error

    def _probe(self, name: Any, place: int) -> Any:
        kind = self._frame.dtypes[name]
        if hasattr(kind, "categories"):
            return [kind.categories[0] if len(kind.categories) else None] * PROBES
        return _column_of_bits(getattr(kind, "kind", "O"), place)

    def fingerprint(self) -> str:
        """SHA-256 of all the data."""
        return self.columns.fingerprint()


class ArrayRows:
    """Arrays or tensors: by column name, in a tuple, or a single one; the first dimension counts records."""

    def __init__(self, data: Any) -> None:
        parts = _parts(data)
        if not parts:
            raise InvalidInput("the data have no columns")
        parts = {name: part if says_its_type(part) else _fixed(part) for name, part in parts.items()}
        lengths = {name: _length(part, name) for name, part in parts.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name}: {length:,}" for name, length in lengths.items())
            raise InvalidInput(
                f"the arrays of the data differ in length ({said}); give each an entry for every record"
            )
        self._held, self.count = _like(data, parts), next(iter(lengths.values()))
        by_name = isinstance(data, Mapping)
        self.columns = _Columns({name: partial(parts.get, name) for name in parts} if by_name else {})

    @cached_property
    def _data(self) -> Any:
        """As callables get them, made when one is asked for: of a type with empty cells they are copies."""
        made = {}
        for name, part in _parts(self._held).items():
            with _about(name):
                made[name] = _fixed(part)
        return _like(self._held, made)

    def _each(self, change: Callable[[Any], Any], rows: Any) -> Any:
        return _like(rows, {name: change(part) for name, part in _parts(rows).items()})

    @property
    def whole(self) -> Any:
        return self._each(_own, self._data)

    def take(self, rows: Any, places: AnyArray) -> Any:
        return self._each(lambda part: _read_only(_fixed(part)[places]), rows)

    def length(self, rows: Any) -> int:
        return len(next(iter(_parts(rows).values())))

    def probes(self) -> Any:
        place = itertools.count()
        return self._each(lambda part: _probe_like(part, next(place)), self._data)

    def fingerprint(self) -> str:
        if self.columns:
            return self.columns.fingerprint()
        return digest_of_arrays(*map(as_array, _parts(self._data).values()))


Rows = FrameRows | ArrayRows
"""Data as callables see them (``whole``) and as conditions do (``columns``, by name)."""


def _parts(rows: Any) -> dict[Any, Any]:
    """Arrays by name, or by place."""
    return dict(rows if isinstance(rows, Mapping) else enumerate(rows if isinstance(rows, tuple) else (rows,)))


def _like(rows: Any, parts: dict[Any, Any]) -> Any:
    """Arrays in the form of those."""
    if isinstance(rows, Mapping):
        return parts
    return tuple(parts.values()) if isinstance(rows, tuple) else parts[0]


def rows_of(data: Any) -> Rows:
    """The face of a DataFrame, a mapping of columns, an array, a tensor, or a tuple of arrays or tensors."""
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return FrameRows(data)
    arrays = _parts(data).values() or (data,)
    if isinstance(data, Mapping) or all(isinstance(part, np.ndarray) or _is_tensor(part) for part in arrays):
        return ArrayRows(data)
    raise InvalidInput(
        f"data is of type {type(data).__name__}; give a pandas DataFrame, a mapping from names to arrays, an array, "
        "a tensor, or a tuple of arrays or tensors"
    )


@contextmanager
def _about(name: Any) -> Iterator[None]:
    """What is wrong is said with the name of the column."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"the column {name!r}: {error}") from None


def _fixed(values: Any) -> Any:
    """A read-only view: a callable that writes into its rows would change the data for the next question."""
    return values if _is_tensor(values) else frozen(as_array(values))


def _own(values: Any) -> Any:
    """A copy where there is no read-only view: tensors have none."""
    return values.detach().clone() if _is_tensor(values) else values


def _read_only(values: Any) -> Any:
    """As the real rows will be, so that a callable which writes into them is found out on made-up ones."""
    return frozen(values) if isinstance(values, np.ndarray) else values


def _is_tensor(values: Any) -> bool:
    return hasattr(values, "new_tensor") and hasattr(values, "detach")


def _length(values: Any, name: Any) -> int:
    if not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
        raise InvalidInput(f"{name} of the data is a single number; the first dimension counts records")
    return len(values)


def _probe_like(values: Any, first: int) -> Any:
    """Probe rows of an array's or tensor's kind and shape."""
    shape = tuple(values.shape[1:])
    width = int(np.prod(shape, dtype=np.int64))
    if _is_tensor(values):
        return values.new_tensor(_bits(first, width).reshape(PROBES, *shape).tolist())
    if values.ndim == 1:
        made = _column_of_bits(values.dtype.kind, first)
        return made if values.dtype.kind == "O" else made.astype(values.dtype)
    return _bits(first, width).reshape(PROBES, *shape).astype(values.dtype)


def _column_of_bits(kind: str, place: int) -> AnyArray:
    bits = _bits(place, 1)[:, 0]
    if kind in "OUSTV":
        return np.full(PROBES, "", dtype=object)
    if kind == "M":
        return _DAY + bits.astype("timedelta64[D]")
    return bits

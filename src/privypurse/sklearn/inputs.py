"""scikit-learn's checks of X and y, by errors that name what is wrong and show no cell of anybody's row."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

_REAL = (Real, Decimal, np.bool_)
_NOTHING = "no validation"  # scikit-learn's word for a y that is not given
_TEXT = ("could not convert", "dtype='numeric' is not compatible")
_SAID = {
    "Complex data not supported": "Complex data not supported; give real numbers",
    "Expected 2D array": (
        "Expected 2D array, got another shape instead. Reshape your data: array.reshape(-1, 1) if it has a single "
        "feature, array.reshape(1, -1) if it is a single record"
    ),
    **dict.fromkeys(_TEXT, "X or y holds text where numbers are needed; name columns of text in categories="),
}
"""How messages of scikit-learn and NumPy that show cells begin, and what is said instead."""


def checked(estimator: Any, X: Any, y: Any = _NOTHING, *, categories: Any, reset: bool = True) -> Any:
    """`validate_data`: X, or X and y, as arrays. What is missing or not finite in X may stay so.

    ``categories`` has a key for each column, by name or place, that may hold other than numbers.
    """
    given = {} if isinstance(y, str) and y == _NOTHING else {"y": y}
    listed = categories if isinstance(categories, Mapping) else {}
    kind = None if categories else "numeric"
    if dates := _columns(X, "mM", besides=listed):
        raise InvalidInput(_no_numbers(dates))
    if flags := _columns(X, "b", among=listed):  # beside numbers scikit-learn would make 1.0 of True
        X = X.astype(dict.fromkeys(flags, object))
    try:
        return validate_data(estimator, X, **given, reset=reset, dtype=kind, ensure_all_finite=False)
    except (ValueError, TypeError) as error:
        text = [name for name in _columns(X, "OUT", besides=listed) if _no_number(X[name])]
        raise without_cells(error, text) from None


def as_numbers(cells: AnyArray, column: str | None = None) -> FloatArray:
    """float64; text is an error, which names the column where it has a name."""
    try:
        return _floats(cells)
    except (ValueError, TypeError) as error:
        raise without_cells(error, [] if column is None else [column]) from None


def targets(y: AnyArray) -> FloatArray:
    """float64. NumPy takes days and texts of digits as numbers too, so kinds are looked at before."""
    kinds = set(map(type, y.tolist())) if y.dtype == object else set()
    if y.dtype.kind not in "biufO" or not all(issubclass(kind, _REAL) for kind in kinds):
        raise InvalidInput(
            "y holds text, dates or nothing where numbers are needed; give numbers, as y.astype(float) of text that "
            "holds them or the days of a date, and leave out rows without a target"
        )
    found = np.asarray(y, dtype=np.float64)
    if not np.isfinite(found).all():
        raise InvalidInput("y holds a target that is missing or infinite; leave such rows out")
    return found


def without_cells(error: ValueError | TypeError, columns: list[Any]) -> ValueError | TypeError:
    """The same error, or one that shows no cell; ``columns`` are those of a frame that hold other than numbers."""
    if columns and (isinstance(error, TypeError) or any(each in str(error) for each in _TEXT)):
        return InvalidInput(_no_numbers(columns))
    for beginning, said in _SAID.items():
        if beginning in str(error):
            return InvalidInput(said)
    return error


def _columns(X: Any, kinds: str, among: Any = None, besides: Any = ()) -> list[Any]:
    """Of a frame of pandas, the names of columns of these kinds, by name or place; their types are public."""
    if not hasattr(X, "iloc") or not hasattr(X, "columns"):
        return []
    return [
        name
        for place, (name, kind) in enumerate(zip(X.columns, X.dtypes, strict=True))
        if getattr(kind, "kind", "O") in kinds
        and (among is None or name in among or place in among)
        and name not in besides
        and place not in besides
    ]


def _no_number(column: Any) -> bool:
    try:
        _floats(column)
    except (ValueError, TypeError):
        return True
    return False


def _floats(cells: Any) -> FloatArray:
    """float64. NA of pandas, which no number can be made of, is NaN; there is one only where pandas was imported."""
    raw, pandas = np.asarray(cells), sys.modules.get("pandas")
    if raw.dtype == object and pandas is not None:
        raw = np.where(pandas.isna(raw), np.nan, raw)
    return np.asarray(raw, dtype=np.float64)


def _no_numbers(columns: list[Any]) -> str:
    where = ", ".join(map(repr, columns))
    return (
        f"X holds text or dates where numbers are needed, in {where}; list the values of text in categories=, and "
        'give a date as a number of days, with bounds=: (frame[name] - pd.Timestamp("2015-01-01")).dt.days'
    )

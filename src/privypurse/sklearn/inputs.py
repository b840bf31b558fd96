"""scikit-learn's checks of X and y, by errors that name what is wrong and show no cell of anybody's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

_NOTHING = "no validation"  # scikit-learn's word for a y that is not given
_SAID = {
    "Complex data not supported": "Complex data not supported; give real numbers",
    "Expected 2D array": (
        "Expected 2D array, got another shape instead. Reshape your data: array.reshape(-1, 1) if it has a single "
        "feature, array.reshape(1, -1) if it is a single record"
    ),
    "could not convert": "X or y holds text where numbers are needed; name columns of text in categories=",
    "dtype='numeric' is not compatible": "X or y holds text where numbers are needed; name columns of text in "
    "categories=",
}
"""How messages of scikit-learn and NumPy that show cells begin, and what is said instead."""


def checked(estimator: Any, X: Any, y: Any = _NOTHING, **options: Any) -> Any:
    """`validate_data`: X, or X and y, as arrays. What is missing or not finite in X may stay so."""
    given = {} if isinstance(y, str) and y == _NOTHING else {"y": y}
    try:
        return validate_data(estimator, X, **given, ensure_all_finite=False, **options)
    except ValueError as error:
        raise without_cells(error) from None


def as_numbers(cells: AnyArray) -> FloatArray:
    """float64; text is an error."""
    try:
        return np.asarray(cells, dtype=np.float64)
    except ValueError as error:
        raise without_cells(error) from None


def without_cells(error: ValueError) -> ValueError:
    """The same error, or one that shows no cell."""
    for beginning, said in _SAID.items():
        if beginning in str(error):
            return InvalidInput(said)
    return error

"""The kinds of arrays that everything here is made of."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
T = TypeVar("T", bound=np.generic)


def frozen(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """The same array, read-only: what is checked at birth stays as it was checked."""
    view = array.view()
    view.flags.writeable = False
    return view


def distinct(*columns: IntArray) -> tuple[list[IntArray], IntArray]:
    """The distinct rows of these columns, column by column and in their order, and for each row its place there."""
    place = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        place = np.unique(place * values.size + which, return_inverse=True)[1]
    first = np.unique(place, return_index=True)[1]
    return [np.asarray(column)[first] for column in columns], place

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

"""Checks of arguments: each message names the argument, the value and what to do."""

import math
import numbers
import warnings
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput, PrivyPurseWarning


def is_integer(value: Any) -> bool:
    """Whether this is a whole number; True and False are none."""
    return not isinstance(value, bool | np.bool_) and hasattr(value, "__index__") and not hasattr(value, "__len__")


def is_real(value: Any) -> bool:
    """Whether this is one finite number that a float can hold; True and False are none."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def integer(value: Any, name: str, *, least: int = 1, most: int | None = None, hint: str = "") -> int:
    """``value`` as an int from ``least`` to ``most``, or an error."""
    if is_integer(value) and least <= value.__index__() and (most is None or value.__index__() <= most):
        return int(value.__index__())
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InvalidInput(f"{name} must be a whole number {span}, not {value!r}" + (f"; {hint}" if hint else ""))


def real(
    value: Any,
    name: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    hint: str = "",
) -> float:
    """``value`` as a finite float larger than ``above``, from ``least`` to ``most``, under ``below``, or an error."""
    if is_real(value) and above < value < below and least <= value <= most:
        return float(value)
    limits = {"above": above, "of at least": least, "of at most": most, "below": below}
    span = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    said = f"{name} must be a finite number {span}".rstrip() + f", not {value!r}"
    raise InvalidInput(said + (f"; {hint}" if hint else ""))


def one_of(value: Any, name: str, known: Collection[str]) -> None:
    """Raise unless ``value`` is among those that are known."""
    if value not in list(known):
        raise InvalidInput(f"{name} is {value!r}; choose one of {', '.join(map(repr, known))}")


def seed_for_tests(seed: Any, *, stacklevel: int) -> int:
    """``seed`` as an int, with a warning: whoever knows it can repeat noise and coins, so it is for tests only."""
    whole = integer(seed, "seed", least=0)
    warnings.warn(
        f"seed={whole}: whoever knows the seed can repeat noise and coins, so nothing is private; for tests only",
        PrivyPurseWarning,
        stacklevel=stacklevel,
    )
    return whole


def first_where(mask: npt.NDArray[np.bool_]) -> int | None:
    """Index of the first True, or None."""
    if not mask.any():
        return None
    return int(np.argmax(mask))


def float_vector(values: Any, name: str) -> FloatArray:
    """``values`` as a private one-dimensional float64 array, or an error that names the first offender."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise InvalidInput(f"{name}[{first_where(np.ma.getmaskarray(values))}] is masked; give every record a number")
    raw = _as_array(values, name)
    if raw.ndim != 1:
        raise InvalidInput(f"{name} must be one-dimensional, one number for each record; it has shape {raw.shape}")
    if raw.size == 0:
        raise InvalidInput(f"{name} is empty; give at least one record")
    if raw.dtype.kind in "iuf":
        return raw.astype(np.float64)
    return _parsed(raw, name)


def _as_array(values: Any, name: str) -> AnyArray:
    try:
        raw = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must be a flat sequence of numbers, one for each record: {error}") from None
    mixed = raw.ndim == 1 and isinstance(values, list | tuple)
    if mixed and (raw.dtype.kind not in "iuf" or any(type(value) is bool for value in values)):
        # NumPy makes [1.0, "x"] all text and [1.0, True] all numbers: keep each entry as it was given.
        raw = np.empty(len(values), dtype=object)
        raw[:] = values
    return raw


def _parsed(raw: AnyArray, name: str) -> FloatArray:
    """Text, booleans or objects: only real numbers pass, everything else is named."""
    out = np.empty(raw.size, dtype=np.float64)
    for row, value in enumerate(raw):
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bool | str | bytes | complex) or plain is None:
            raise InvalidInput(f"{name}[{row}] is {plain!r}, not a number; give a float for each record")
        try:
            out[row] = float(plain)
        except (TypeError, ValueError, OverflowError):
            said = f"{plain!r}"[:40]
            raise InvalidInput(f"{name}[{row}] is {said}, not a number; give a float for each record") from None
    return out


def refuse(
    mask: npt.NDArray[np.bool_],
    values: AnyArray,
    name: str,
    complaint: str,
    where: Callable[[int], str] | None = None,
    *,
    shown: bool = True,
) -> None:
    """Raise for the first entry that ``mask`` marks, saying how many there are; a cell of a table is not shown."""
    row = first_where(mask)
    if row is None:
        return
    place = where(row) if where else f"{name}[{row}]"
    count = int(mask.sum())
    more = f" ({count:,} such entries in all)" if count > 1 else ""
    said = f"is {values[row]!s}" if shown else "holds a number that is not shown"
    raise InvalidInput(f"{place} {said}, {complaint}{more}")


def require_same_order(name: str, reference: Any, **given: Any) -> None:
    """Raise where pandas says that entries are of other rows than ``name``, or in another order.

    By place, ε would go to other people than those who granted it (rule 13).
    """
    index = getattr(reference, "index", None)
    for other, each in given.items():
        own: Any = getattr(each, "index", None)
        if hasattr(index, "equals") and hasattr(own, "equals") and not own.equals(index):
            raise InvalidInput(
                f"{other} has another index than {name}: are these entries of the same rows, in the same order? Give "
                f"{other}.loc[{name}.index] if the index says whose they are, or {other}.to_numpy() if they are in "
                f"{name}'s order"
            )

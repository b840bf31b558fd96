"""Callables on rows: tried on public rows first, then run on the real ones.

An error that depended on the real rows would tell something about them that nobody paid for. So shape, finiteness and
independence of other rows are checked on rows that are made up from the schema (or given as an example). A callable
is code that runs on the real data all the same: run only what you trust.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput
from privypurse.queries.columns import Mask, as_array
from privypurse.queries.rows import Rows

T = TypeVar("T", bound=AnyArray)

_ALIKE = 1e-5  # of the largest number: what float32 may differ by between batches
_HINT = "if zeros and ones are no sensible rows for it, give Analyst(example=rows) two or more made-up ones"


def numbers_of(q: Callable[[Any], Any], rows: Rows, examples: Any, size: int) -> FloatArray:
    """What ``q`` gives for the real rows, float64[n, size], after it was tried on ``examples``."""
    return _tried(lambda some: _as_numbers(q(some), rows.length(some), size), rows, examples)


def truths_of(q: Callable[[Any], Any], rows: Rows, examples: Any) -> Mask:
    """Where ``q`` holds on the real rows, after it was tried on ``examples``."""
    return _tried(lambda some: _as_truths(q(some), rows.length(some)), rows, examples)


def _as_numbers(given: Any, count: int, size: int) -> FloatArray:
    array = as_array(given)
    if array.shape == (count,) and size == 1:
        array = array[:, None]
    if array.shape != (count, size):
        raise InvalidInput(
            f"the callable gave an array of shape {array.shape} for {count} rows; it must be ({count}, {size})"
        )
    if array.dtype.kind == "O" and hasattr(given, "to_numpy"):  # nullable columns of pandas: <NA> is NaN
        with suppress(TypeError, ValueError):
            array = np.asarray(given.to_numpy(dtype=np.float64, na_value=np.nan)).reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"the callable gave {array.dtype}; it must give numbers")
    return array.astype(np.float64)


def _as_truths(given: Any, count: int) -> Mask:
    if hasattr(given, "fillna") and str(given.dtype) != "bool":
        given = given.fillna(False)
    array = as_array(given)
    if array.shape != (count,):
        raise InvalidInput(
            f"the condition gave an array of shape {array.shape} for {count} rows; it must be ({count},)"
        )
    if array.dtype.kind == "O":
        array = array.astype(bool)
    if array.dtype.kind != "b":
        raise InvalidInput(f"the condition gave {array.dtype}; it must give True or False for each row")
    return array


def _tried(run: Callable[[Any], T], rows: Rows, examples: Any) -> T:
    """On the real rows, once every made-up one gave the same by itself, among all, in another order, among some."""

    def on(places: AnyArray) -> AnyArray:
        try:
            with np.errstate(all="ignore"):
                return run(rows.take(examples, places)).astype(np.float64)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the callable failed on made-up rows ({type(error).__name__}: {error}); {_HINT}"
            ) from error

    everywhere = np.arange(rows.length(examples))
    together = on(everywhere)
    if not np.isfinite(together).all():
        raise InvalidInput(f"the callable gave NaN or ∞ for made-up rows; {_HINT}")
    close = _ALIKE * max(1.0, float(np.abs(together).max(initial=0.0)))
    for places in (everywhere[::-1].copy(), everywhere[1::2], *everywhere[:, None]):
        if not np.allclose(on(places), together[places], rtol=0.0, atol=close):
            raise InvalidInput(
                "what the callable gives for a row depends on the other rows, on their order, or on chance; it must "
                "be a function of that row alone"
            )
    try:
        with np.errstate(all="ignore"):
            return run(rows.whole)
    except InvalidInput:
        raise
    except Exception as error:
        # Its message may quote rows.
        raise InvalidInput(
            f"the callable raised {type(error).__name__} on the real rows, although it ran on made-up ones; nothing "
            "was charged"
        ) from None

"""Checks of arguments, at their edges."""

import math
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from privypurse._validate import integer, real


@pytest.mark.parametrize("value", [1, np.int64(3), 7])
def test_whole_numbers_are_taken(value: Any) -> None:
    assert integer(value, "steps") == int(value)
    assert type(integer(value, "steps")) is int


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, "1", None, math.nan, [1], np.array([1])])
def test_other_things_are_not(value: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=r"steps must be a whole number of at least 1, not .*; take more"):
        integer(value, "steps", hint="take more")


def test_a_largest_one_is_named() -> None:
    assert integer(5, "sheets", least=0, most=5) == 5
    with pytest.raises(pp.InvalidInput, match="from 0 to 5, not 6"):
        integer(6, "sheets", least=0, most=5)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.25), np.int64(2)])
def test_numbers_are_taken(value: Any) -> None:
    assert real(value, "room", above=0) == float(value)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None, 1j, [1.0]])
def test_what_is_no_number_in_the_span_is_not(value: Any) -> None:
    with pytest.raises(pp.InvalidInput, match="room must be a finite number above 0, not"):
        real(value, "room", above=0)


def test_limits_are_named() -> None:
    with pytest.raises(pp.InvalidInput, match="of at least 1 and of at most 2, not 3"):
        real(3, "room", least=1, most=2)
    with pytest.raises(pp.InvalidInput, match="a finite number, not nan"):
        real(math.nan, "room")

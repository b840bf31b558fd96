"""Whole numbers are compared as such, however large, in conditions and in categories."""

import operator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.queries import Analyst
from privypurse.queries.columns import column
from privypurse.queries.conditions import Condition

SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EDGES = sorted({sign * 2**power + step for power in (0, 7, 53, 63, 64) for sign in (1, -1) for step in (-1, 0, 1)})
NUMBERS = [*EDGES, 10**30, -(10**400), 10**400, 0.5, -1.5, 2.0**53, -(2.0**63), 1e30]


def holds(text, **made):
    return Condition(text).holds({name: column(values) for name, values in made.items()}, len(made["x"])).tolist()


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_condition_compares_a_column_of_whole_numbers_as_python_does(dtype, missing):
    cells = [cell for cell in EDGES if np.iinfo(dtype).min <= cell <= np.iinfo(dtype).max]
    for values in (pa.array([*cells, None] if missing else cells, dtype), np.array(cells, dtype)):
        nothing = [False] * (len(values) - len(cells))
        for number in NUMBERS:
            for sign, does in SIGNS.items():
                expected = [does(cell, number) for cell in cells] + nothing
                assert holds(f"x {sign} {number}", x=values) == expected, (sign, number)
                turned = [does(number, cell) for cell in cells] + nothing
                assert holds(f"{number} {sign} x", x=values) == turned, (sign, number)
            assert (
                holds(f"x in ({number}, -(-{number}), +{number})", x=values)
                == [cell == number for cell in cells] + nothing
            )


def test_a_column_of_floats_is_compared_with_numbers_beyond_floats():
    for dtype in (np.float64, np.float32, np.float16):
        values = np.array([1.0, -np.inf, np.inf, np.nan], dtype)
        assert holds(f"x < {10**400}", x=values) == [True, True, False, False]
        assert holds(f"x > -{10**400}", x=values) == [True, False, True, False]
        assert holds(f"x + {10**400} > 0", x=values) == [True, False, True, False]
        assert holds(f"x * -{10**400} < 0", x=values) == [True, False, True, False]


def test_categories_are_compared_as_conditions_are():
    big = 2**53
    whole = pa.array([big, big + 1, -big, 3, None])
    for values, categories, expected in (
        (whole, [big, big + 1, 0.5, 3.0], [1, 1, 0, 1]),
        (whole, [10**400, -(10**400), big + 1, 1e300], [0, 0, 1, 0]),
        (pd.array([3, None], "UInt8"), [-1, 3, 256, np.int64(3 - 256)], [0, 1, 0, 0]),
        (np.array([1.0, 2.0, np.nan]), [10**400, 1], [0, 1]),
        (np.array([1.0, 2.0], np.float32), [np.float64(1), -(10**400)], [1, 0]),
        (np.array([True, True, False]), [True, False, 10**400], [2, 1, 0]),
    ):
        asks = silenced(Analyst({"x": values}, pp.Budgets([50.0] * len(values))))
        assert asks.histogram("x", categories=categories, noise=1.0).value.tolist() == expected
        for unknown in (np.nan, np.float32(np.nan)):
            with pytest.raises(pp.InvalidInput, match="NaN"):
                asks.histogram("x", categories=[1, unknown], noise=1.0)

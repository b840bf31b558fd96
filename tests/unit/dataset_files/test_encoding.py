"""Columns → numbers by public constants, against arithmetic done by hand."""

import math

import numpy as np
import pytest

import privypurse as pp
from privypurse.datasets.encoding import Categories, Range, encoded


def test_a_range_goes_to_minus_one_and_one_and_is_capped_there():
    got = Range(10, 30).encode(np.array([10, 20, 25, 30, 31, -np.inf, 1e300]))
    assert got.dtype == np.float32
    assert got.tolist() == [[-1.0], [0.0], [0.5], [1.0], [1.0], [-1.0], [1.0]]


def test_a_logarithmic_range_goes_to_zero_and_one():
    got = Range(5, 104, log=True).encode(np.array([0, 5, 14, 104, 1e9]))
    assert got[:, 0] == pytest.approx([0, 0, math.log(10) / math.log(100), 1, 1], rel=1e-6)


def test_categories_have_a_column_each_in_the_order_of_the_list():
    kinds = Categories(("b", "a", "7"))
    assert kinds.encode(np.array(["a", "b", "7", "a"])).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert kinds.codes(np.array([7, 7])).tolist() == [2, 2]  # a column of whole numbers


def test_columns_stand_in_the_order_of_the_encodings():
    columns = {"x": np.array([0.0, 1.0]), "kind": np.array(["n", "y"]), "unused": np.array([9, 9])}
    got = encoded(columns, {"kind": Categories(("y", "n")), "x": Range(0, 1)})
    assert got.tolist() == [[0, 1, -1], [1, 0, 1]]


def test_a_record_is_encoded_alike_in_any_company():
    """Rule 12: a version that takes its range from the rows, beside it, is not."""
    values = np.array([3.0, 17.0, 40.0])
    assert Range(0, 50).encode(values)[:1].tolist() == Range(0, 50).encode(values[:1]).tolist()
    estimated = Range(values.min(), values.max()).encode(values)
    assert estimated[1] != Range(values[:2].min(), values[:2].max()).encode(values[:2])[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Range(1, 1), "low < high"),
        (lambda: Range(2, 1), "low < high"),
        (lambda: Range(0, math.inf), "endless"),
        (lambda: Range(math.nan, 1), "low < high"),
        (lambda: Categories(()), "none"),
        (lambda: Categories(("a", "b", "a")), "twice"),
        (lambda: Range(0, 1).encode(np.array([0.5, np.nan])), "record 1 is no number"),
        (lambda: Categories(("a", "b")).encode(np.array(["a", "c"])), r"record 1 is 'c'.*'a', 'b'.*list it"),
        (lambda: encoded({"sex": np.array(["x"])}, {"sex": Categories(("f", "m"))}), "sex, record 0 is 'x'"),
    ],
)
def test_what_cannot_be_encoded_is_named(make, words):
    with pytest.raises(pp.InvalidInput, match=words):
        make()

"""Columns → numbers by public constants, against arithmetic done by hand."""

import datetime
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import privypurse as pp
from privypurse.datasets import Encoder, cells
from privypurse.datasets.encoding import Categories, Dates, Flag, Range

YEAR = Dates(datetime.date(2020, 1, 1), datetime.date(2021, 1, 1))  # 366 days


def test_a_range_goes_to_minus_one_and_one_and_is_capped_there():
    got = Range(10, 30).encode(np.array([10, 20, 25, 30, 31, -np.inf, 1e300]))
    assert got.dtype == np.float32
    assert got[:, 0].tolist() == [-1.0, 0.0, 0.5, 1.0, 1.0, -1.0, 1.0]
    assert not got[:, 1].any()
    assert Range(10, 30, indicator=False).encode(np.array([25])).tolist() == [[0.5]]


def test_a_logarithmic_range_goes_to_zero_and_one_and_back():
    values = np.array([0, 5, 14, 104, 1e9])
    got = Range(5, 104, log=True).encode(values)
    assert got[:, 0] == pytest.approx([0, 0, math.log(10) / math.log(100), 1, 1], rel=1e-6)
    for how in (Range(5, 104, log=True), Range(5, 104)):
        assert how.unscaled(how.scaled(values)) == pytest.approx([5, 5, 14, 104, 104])
        assert how.unscaled(np.array([-7.0, 7.0])) == pytest.approx([5, 104])


def test_what_is_no_number_is_missing_and_says_so():
    cells = [
        "20",
        " 25 ",
        "",
        None,
        "n/a",
        "1_0",
        "0x14",
        "1e999",
        "+2.5e1",
        "nan",
        "20,5",
        ".2e2",
        "-inf",
        "2 0",
        "٣",
    ]
    got = Range(10, 30).encode(cells)
    none = [False, False, True, True, True, True, True, False, False, True, True, False, False, True, True]
    assert got[:, 1].tolist() == none
    assert got[:, 0].tolist() == [0, 0.5, 0, 0, 0, 0, 0, 1, 0.5, 0, 0, 0, -1, 0, 0]
    assert Range(0, 9, log=True).encode(["x"]).tolist() == [[0.5, 1.0]]


def test_without_an_indicator_a_missing_cell_is_the_middle():
    """The twin: two records, one of which says nothing, look alike. With the indicator they do not."""
    cells = ["20", "?"]
    alike = Range(10, 30, indicator=False).encode(cells)
    assert alike[0].tolist() == alike[1].tolist()
    for how in (Range(10, 30), Categories(("20",)), Flag(("20",)), Dates(*(YEAR.low, YEAR.high), form="%Y%m%d")):
        apart = how.encode([cells[0] if how.kind != "date" else "20200702", ""])
        assert apart[0].tolist() != apart[1].tolist()
        assert apart[:, -1].tolist() == [0, 1]


def test_categories_have_a_column_each_then_other_then_none():
    kinds = Categories(("b", "a", "7"))
    got = kinds.encode(["a", "b", "7.0", " a", "c", "", None, "A"])
    a, b, other, none = [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]
    assert got.tolist() == [a, b, [0, 0, 1, 0, 0], a, other, none, none, other]
    assert kinds.codes(np.array([7, 8])).tolist() == [2, -1]  # a column of whole numbers
    assert kinds.codes(np.array([7.0, np.nan])).tolist() == [2, -2]  # as pandas has them beside a gap
    bare = Categories(("b", "a"), other=False, indicator=False)
    assert bare.encode(["a", "c", ""]).tolist() == [[0, 1], [0, 0], [0, 0]]


def test_listed_values_become_text_as_cells_do():
    """So that True and 1e10 are found: Arrow writes 12345678901.0 as 1.2345678901e+10, and Python True."""
    day = datetime.date(2020, 7, 2)
    listed = Categories((True, 1, 2.5, np.int64(7), day, "x"))
    assert listed.values == ("true", "1", "2.5", "7", "2020-07-02", "x")
    assert listed.codes([day, "x", 1.0, True]).tolist() == [4, 5, 1, 0]
    assert Categories((True, False)).codes(np.array([False, True])).tolist() == [1, 0]
    assert Categories(("12345678901",)).codes(np.array([12345678901.0, np.nan])).tolist() == [0, -2]
    assert Categories((2**53 - 1,)).codes(np.array([2.0**53 - 1, -1e300, np.inf])).tolist() == [0, -1, -1]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_float_has_the_same_text_in_a_column_of_floats_and_of_objects(kind):
    rng = np.random.default_rng(0)
    edges = [0.0, -0.0, 1e-6, 9.9e-7, 9999999999.5, 1e10, 1e10 + 0.5, 2.0**53, np.inf, -np.inf, 1e300, 5e-324]
    with np.errstate(over="ignore"):
        some = np.concatenate([edges, rng.normal(size=500) * 10.0 ** rng.integers(-20, 20, 500)]).astype(kind)
    apart = np.empty(some.size, dtype=object)
    apart[:] = list(some)
    one, other = (cells.texts(cells.cells_of(each)).to_pylist() for each in (some, apart))
    assert one == other
    assert np.array_equal(np.array(one, dtype=kind), some)


def test_dates_are_counted_in_days():
    cells = ["2020-01-01", "2020-07-02", "2021-01-01T23:59:59Z", "2019-01-01", "2020-02-30", "02.07.2020", "", "soon"]
    got = YEAR.encode(cells)
    assert got[:, 0] == pytest.approx([-1, 0, 1, -1, 0, 0, 0, 0])  # 2 July is day 183 of 366
    assert got[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    german = Dates(YEAR.low, YEAR.high, form="%d.%m.%Y")
    assert german.encode(["2.7.2020", "2020-07-02"]).tolist() == [[0, 0], [0, 1]]
    stamps = pd.Series(pd.to_datetime(["2020-07-02 23:59", None]))
    zoned = pa.array(stamps).cast(pa.timestamp("ms", "UTC"))
    for column in (stamps, zoned, np.array(["2020-07-02", "NaT"], "M8[D]"), [datetime.date(2020, 7, 2), None]):
        assert YEAR.encode(column).tolist() == [[0, 0], [0, 1]]


def test_days_before_1970_are_days_too():
    old = Dates(datetime.date(1900, 1, 1), datetime.date(2000, 1, 1))
    text = old.encode(["1969-12-31"])
    assert text.tolist() == old.encode(np.array(["1969-12-31T23:00"], "M8[ns]")).tolist()
    assert text[0, 0] == pytest.approx(2 * (70 * 365 + 17 - 1) / 36524 - 1, abs=1e-6)


def test_flags_have_words_in_any_case():
    got = Flag().encode(["Yes", "FALSE", "1.0", "0", "maybe", "", None, True])
    assert got.tolist() == [[1, 0], [0, 0], [1, 0], [0, 0], [0.5, 1], [0.5, 1], [0.5, 1], [1, 0]]
    assert Flag(("ja",), ("nein",)).encode(["JA", "nein", "yes"])[:, 0].tolist() == [1, 0, 0.5]
    assert Flag().encode(np.array([True, False])).tolist() == [[1, 0], [0, 0]]


def test_a_cell_is_encoded_alike_in_any_company():
    """Rule 12: beside it, a range from the rows and kinds that are guessed for a whole column fail the same test."""
    cells = ["3", 17, 40.5, None, True, "x", 7.0, datetime.date(2020, 7, 2), float("nan"), np.int64(1), b"3", pd.NA]
    for how in (Range(0, 50), Categories(("3", "7", "true", "1", "2020-07-02")), YEAR, Flag()):
        alone = [how.encode([cell]).tolist()[0] for cell in cells]
        assert how.encode(cells).tolist() == alone
        assert how.encode(pd.Series(cells, dtype=object)).tolist() == alone
    values = np.array([3.0, 17.0, 40.0])
    estimated = Range(values.min(), values.max()).encode(values)
    assert estimated[1, 0] != Range(values[:2].min(), values[:2].max()).encode(values[:2])[1, 0]
    guessed = [np.array(some).astype(str)[0] for some in ([10**17], [10**17, 0.5])]
    assert guessed[0] != guessed[1]
    assert Categories((str(10**17),)).codes([10**17, 0.5]).tolist() == [0, -1]


def test_all_forms_of_a_column_come_to_the_same():
    texts = ["3", "", "44", "9"]
    forms = [
        np.array(texts, dtype=object),
        pa.array(["3", None, "44", "9"]),
        pa.chunked_array([["3"], ["", "44", "9"]]),
        pa.array(["3", "", "44", "9"]).dictionary_encode(),
        pa.array([3, None, 44, 9], pa.int16()),
        pd.Series([3, None, 44, 9]),
        pd.Series([3, None, 44, 9], dtype="Int64"),
        pd.Series(texts, dtype="category"),
    ]
    for how in (Range(0, 50), Categories(("3", "44"))):
        first, *others = (how.encode(form).tolist() for form in (texts, *forms))
        assert others == [first] * len(forms)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Range(1, 1), "low < high"),
        (lambda: Range(2, 1), "low < high"),
        (lambda: Range(0, math.inf), "endless"),
        (lambda: Range(math.nan, 1), "low < high"),
        (lambda: Categories(()), "none"),
        (lambda: Categories(("a", "b", "a ")), "twice"),
        (lambda: Categories(("3", "3.0")), "twice"),
        (lambda: Categories(("a", " ")), "empty"),
        (lambda: Categories("abc"), "values is 'abc'; give a list"),
        (lambda: Categories(3), "values is 3; give a list"),
        (lambda: Categories(("a", None)), "values holds None; list texts"),
        (lambda: Categories((pd.Timestamp("2020-07-02 10:00"),)), "list texts, numbers, days"),
        (lambda: Categories((True, "true")), "twice"),
        (lambda: Encoder({"a": Range(0, 1)}, missing="NA"), "missing is 'NA'; give a list"),
        (lambda: Flag("yes", ("no",)), "true is 'yes'; give a list"),
        (lambda: Dates(YEAR.high, YEAR.low), "low < high"),
        (lambda: Dates(YEAR.low, YEAR.high, form="%d.%m"), "%Y, %m and %d once each"),
        (lambda: Dates(YEAR.low, YEAR.high, form="%d.%m.%Y %H"), "once each"),
        (lambda: Flag(("yes",), ("YES",)), "none twice"),
        (lambda: Flag((), ("no",)), "give words for each"),
        (lambda: Range(0, 1).encode(np.zeros((2, 2))), "one cell for each record"),
    ],
)
def test_constants_that_mean_nothing_are_named(make, words):
    with pytest.raises(pp.InvalidInput, match=words):
        make()


@pytest.mark.parametrize("form", ["%d %m %Y", "%d.%m.%Y", "%Yy%mm%dd", "%m/%d/%Y"])
def test_dates_in_other_forms_are_those_that_strptime_reads(form):
    """Programs that apply encoder.json read them so."""
    texts = ["2  7 2020", "2\t7\t2020", "2 7 2020", "2.7.2020", "02.07.2020", "2020Y07m2D", "7/2/2020", "30.2.2020"]
    for text in [*texts, "2.7.20", "2020-07-02"]:
        try:
            day = (datetime.datetime.strptime(text, form) - datetime.datetime(1970, 1, 1)).days
        except ValueError:
            day = None
        assert cells.day_reader(form)(text) == day

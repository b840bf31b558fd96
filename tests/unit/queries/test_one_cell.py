"""What one person's cell holds, or that it is empty, changes no other row, no error and no kind (rule 12)."""

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.budgets.tables import read_table
from privypurse.queries import Analyst
from privypurse.queries.columns import column
from privypurse.queries.conditions import Condition

BIG = 2**53 + 1  # no float

TYPES = {
    "int64": (pa.int64(), 3, "x == 3"),
    "uint64": (pa.uint64(), 3, "x == 3"),
    "float16": (pa.float16(), np.float16(3), "x == 3"),
    "float64": (pa.float64(), 3.0, "x == 3"),
    "bool": (pa.bool_(), True, "x"),
    "decimal128": (pa.decimal128(9, 2), decimal.Decimal("3.00"), "x == 3"),
    "decimal256": (pa.decimal256(50, 2), decimal.Decimal("3.00"), "x == 3"),
    "string": (pa.string(), "a", "x == 'a'"),
    "large_string": (pa.large_string(), "a", "x == 'a'"),
    "string_view": (pa.string_view(), "a", "x == 'a'"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "a", "x == 'a'"),
    "dictionary of numbers": (pa.dictionary(pa.int8(), pa.int64()), 3, "x == 3"),
    "date32": (pa.date32(), dt.date(2020, 1, 2), "x == '2020-01-02'"),
    "date64": (pa.date64(), dt.date(2020, 1, 2), "x == '2020-01-02'"),
    "timestamp": (pa.timestamp("ns"), dt.datetime(2020, 1, 2), "x == '2020-01-02'"),
    "timestamp with a zone": (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 2, tzinfo=dt.UTC), "x == '2020-01-02'"),
    "time": (pa.time64("us"), dt.time(3), "x == 3"),
    "duration": (pa.duration("s"), dt.timedelta(3), "x == 3"),
    "list": (pa.list_(pa.int64()), [3], "x == 3"),
    "struct": (pa.struct([("a", pa.int64())]), {"a": 3}, "x == 3"),
    "binary": (pa.binary(), b"a", "x == 'a'"),
}


def written(tmp_path, values, kind):
    pyarrow.parquet.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / "table.parquet")
    return read_table(tmp_path / "table.parquet")


def outcome(table, text):
    """The rows for which a condition holds, or what the error says."""
    try:
        columns = {name: column(values) for name, values in table.items()}
        return Condition(text).holds(columns, len(table["x"])).tolist()
    except pp.InvalidInput as error:
        return str(error)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("others", ["known", "missing"])
def test_a_persons_cell_says_nothing_but_for_their_row(tmp_path, name, others):
    kind, value, text = TYPES[name]
    rest = [value if others == "known" else None] * 4
    with_cell = outcome(written(tmp_path, [*rest, value], kind), text)
    without = outcome(written(tmp_path, [*rest, None], kind), text)
    if isinstance(with_cell, str):
        assert with_cell == without
    else:
        assert with_cell == [others == "known"] * 4 + [True]
        assert without == [others == "known"] * 4 + [False]


@pytest.mark.parametrize(
    "dtype", ["boolean", "bool[pyarrow]", "Int64", "Float64", "string", "datetime64[ns, UTC]", "category"]
)
def test_pandas_kinds_are_those_of_the_dtype(dtype):
    value = {"string": "a", "datetime64[ns, UTC]": pd.Timestamp("2020-01-02", tz="UTC")}.get(dtype, 1)
    dtype = pd.CategoricalDtype([1, 2]) if dtype == "category" else dtype
    text = {str: "x == 'a'", pd.Timestamp: "x == '2020-01-02'"}.get(type(value), "x == 1")
    text = "x" if "bool" in str(dtype) else text
    for others in (value, None):
        frames = [pd.DataFrame({"x": pd.Series([others] * 4 + [last], dtype=dtype)}) for last in (value, None)]
        for made in ({"x": frames[0]["x"]}, frames[0]):  # a mapping of series, and a frame
            asks = silenced(Analyst(made, pp.Budgets([50.0] * 5)))
            assert float(asks.count(text, noise=1.0)) == (5 if others is not None else 1)
        assert outcome(frames[1], text) == [others is not None] * 4 + [False]


@pytest.mark.parametrize("last", [5, None])
def test_large_whole_numbers_stay_whole_beside_an_empty_cell(tmp_path, last):
    (tmp_path / "table.csv").write_text("x,y\n" + f"{BIG},1\n" * 4 + f"{'' if last is None else last},1\n")
    for table in (written(tmp_path, [BIG] * 4 + [last], pa.int64()), read_table(tmp_path / "table.csv")):
        assert outcome(table, f"x == {BIG}") == [True] * 4 + [False]
        assert outcome(table, f"x == {BIG - 1}") == [False] * 5
        assert outcome(table, f"x in ({BIG}, 5)") == [True] * 4 + [last == 5]
        assert outcome(table, "x not in (5, 6)") == [True] * 4 + [False]
        assert outcome(table, "x != 5") == [True] * 4 + [False]
        assert outcome(table, "x + 0 < 6") == [False] * 4 + [last == 5]
        asks = silenced(Analyst(table, pp.Budgets([50.0] * 5)))
        counts = asks.histogram("x", categories=[BIG - 1, 5, BIG, 10**30], noise=1.0)
        assert counts.value.tolist() == [0, last == 5, 4, 0]
        assert float(asks.sum("x", lower=0, upper=10, noise=10.0)) == 10 * 4 + (last or 0)


def test_callables_meet_one_kind_whether_or_not_a_cell_is_empty(tmp_path):
    for last in (5, None):
        asks = Analyst(written(tmp_path, [1, 2, last], pa.int64()), pp.Budgets([50.0] * 3))
        kinds = []

        def above_one(rows, seen=kinds):
            seen.append(rows["x"].dtype)
            return rows["x"] > 1

        asks.count(above_one, noise=1.0)
        assert kinds[-1] == np.float64
        asks = silenced(Analyst(written(tmp_path, [True, True, last and True], pa.bool_()), pp.Budgets([50.0] * 3)))
        assert float(asks.count(lambda rows: rows["x"], noise=1.0)) == 2 + (last is not None)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_far_away_do_not_wrap_around(unit):
    born = np.array(["1970-01-01", "NaT", "2100-05-06"], dtype=f"datetime64[{unit}]")
    table = {"x": born, "until": np.array(["9999-12-31"] * 3, dtype="datetime64[us]")}
    for text in ("x < '9999-12-31'", "x > '1600-01-01'", "x < until", "x != '9999-12-31'", "x < '290001-01-01'"):
        assert outcome(table, text) == [True, False, True], text
    assert outcome(table, "x == '1970-01-01'") == [True, False, False]
    assert outcome(table, "until < x or x == '9999-12-31'") == [False] * 3
    days = {"x": np.array([2**31 - 1, -(2**31), 0], dtype="datetime64[D]")}
    assert outcome(days, "x > '2020-01-01'") == [True, False, False]
    assert outcome(days, "x < '1600-01-01T00:00:01'") == [False, True, False]


def test_the_fingerprint_of_a_table_is_what_it_was(tmp_path):
    """Purses of rows beside a table are found by it. These digests are those of version 0.1's arrays."""
    from privypurse._storage import digest_of_arrays
    from privypurse.queries.rows import rows_of

    head = np.frombuffer(b"x\n1", np.uint8)
    for values, kind, before in (
        ([3, None], pa.int64(), np.array([3.0, np.nan])),
        ([3, 4], pa.int32(), np.array([3, 4], np.int32)),
        ([1.5, None], pa.float64(), np.array([1.5, np.nan])),
        ([dt.date(2020, 1, 2), None], pa.date32(), np.array(["2020-01-02", "NaT"], "datetime64[D]")),
    ):
        assert rows_of(written(tmp_path, values, kind)).fingerprint() == digest_of_arrays(head, before)
    one, other = (rows_of(written(tmp_path, [big, None], pa.int64())).fingerprint() for big in (BIG, BIG - 1))
    assert one != other

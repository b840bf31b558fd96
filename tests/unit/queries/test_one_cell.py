"""What one person's cell holds, or that it is empty, changes no other row, no error and no kind (rule 12)."""

import datetime as dt
import decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.budgets.tables import read_table
from privypurse.queries import Analyst, columns
from privypurse.queries.columns import column
from privypurse.queries.conditions import Condition
from privypurse.queries.rows import rows_of

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


def as_a_callable_sees(values):
    return rows_of({"x": values}).whole["x"]


def by_hand(name):
    """A column as somebody may give it: arrays by hand, and of pandas."""
    one = {"runs": pc.run_end_encode, "dictionary": pc.dictionary_encode}
    if name in one:
        return 2, lambda cells: one[name](pa.array(cells, pa.int64()))
    if name == "chunks of dictionaries":
        return "a", lambda cells: pa.chunked_array([pa.array([x], pa.string()).dictionary_encode() for x in cells])
    if name == "chunks of runs":
        return 2, lambda cells: pa.chunked_array([pc.run_end_encode(pa.array([x], pa.int64())) for x in cells])
    value = {"string": "a", "boolean": True}.get(name, 2)
    dtype = {"category": pd.CategoricalDtype([1, 2]), "category of text": pd.CategoricalDtype(["a"])}.get(name, name)
    return "a" if name == "category of text" else value, lambda cells: pd.array(cells, dtype=dtype)


HANDED = ["runs", "dictionary", "chunks of dictionaries", "chunks of runs", "boolean", "bool[pyarrow]", "Int64"]
HANDED += ["Float64", "string", "category", "category of text", "int64[pyarrow]"]


@pytest.mark.parametrize("name", [*TYPES, *HANDED])
def test_a_callable_sees_others_cells_the_same_whether_or_not_one_is_empty(tmp_path, name):
    if name in TYPES:
        kind, value, _ = TYPES[name]
        made = partial(written, tmp_path, kind=kind)
    else:
        value, made = by_hand(name)
    for others in (value, None):
        with_cell, without = (made([others] * 4 + [last]) for last in (value, None))
        if name in TYPES:
            with_cell, without = with_cell["x"], without["x"]
        seen, unseen = as_a_callable_sees(with_cell), as_a_callable_sees(without)
        assert seen.dtype == unseen.dtype
        assert seen.dtype.kind not in "iu"
        assert repr(seen[:4].tolist()) == repr(unseen[:4].tolist())
    known = as_a_callable_sees(made([value, None]) if name not in TYPES else made([value, None])["x"]).tolist()
    assert repr(known[1]) in ("None", "nan", "False") or np.isnat(np.datetime64(known[1]))
    assert known[0] not in (None, False)


BEYOND = [BIG] * 4  # beside which a whole number and an empty cell must be told from each other, and change nothing


@pytest.mark.parametrize(
    ("made", "rest", "q"),
    [
        (lambda cells: pa.array(cells).dictionary_encode(), BEYOND, lambda rows: rows["x"] == BIG - 1),
        (lambda cells: pc.run_end_encode(pa.array(cells)), BEYOND, lambda rows: rows["x"] == BIG - 1),
        (lambda cells: pd.array(cells, "Int64"), BEYOND, lambda rows: rows["x"] == BIG - 1),
        (lambda cells: pd.array(cells, "boolean"), [True] * 4, lambda rows: rows["x"]),
        (lambda cells: pd.array(cells, "string"), ["a"] * 4, lambda rows: rows["x"] == "a"),
        (lambda cells: pd.Series(cells, dtype="category"), [7] * 4, lambda rows: rows["x"] == 7),
        (
            lambda cells: pa.chunked_array([pa.array(cells).dictionary_encode()]),
            ["b", "b", "b", "a"],
            lambda rows: np.array([cell in ("a", "b") for cell in rows["x"]]),
        ),
        (lambda cells: pa.array(cells), [decimal.Decimal(3)] * 4, lambda rows: rows["x"] > 2),
    ],
)
def test_an_empty_cell_moves_the_count_of_a_callable_by_its_own_row(made, rest, q):
    for last in (rest[0], None):
        asks = silenced(Analyst({"x": made([*rest, last])}, pp.Budgets([50.0] * 5), example={"x": np.array(rest)}))
        assert float(asks.count(q, noise=1.0)) == 4 + (last is not None)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 1), pa.large_list(pa.int64())])
def test_an_empty_place_in_a_persons_list_rounds_nobody_elses(kind):
    seen, unseen = (as_a_callable_sees(pa.array([[BIG], None, [last]], kind)) for last in (5, None))
    assert [cell.dtype for cell in (seen[0], seen[2], unseen[0], unseen[2])] == [np.float64] * 4
    assert seen[0].tolist() == unseen[0].tolist()
    assert seen[1] is unseen[1] is None
    inside = pa.struct([("a", pa.int64()), ("b", kind)])
    cells = [{"a": BIG, "b": [BIG]}, {"a": None, "b": [None]}]
    assert as_a_callable_sees(pa.array(cells, inside)).tolist() == cells
    nested = as_a_callable_sees(pa.array([[[1, 2], None], [[3]]], pa.list_(pa.list_(pa.int64()))))
    assert [[None if one is None else one.tolist() for one in cell] for cell in nested] == [[[1, 2], None], [[3]]]
    pairs = as_a_callable_sees(pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())))
    assert pairs.tolist() == [[("a", 1)], None]


def test_example_rows_may_be_of_a_typed_column():
    for made in (pa.array, partial(pd.array, dtype="Int64")):
        asks = silenced(Analyst({"x": made([3, None, 4])}, pp.Budgets([50.0] * 3), example={"x": made([5, 6])}))
        assert float(asks.count(lambda rows: rows["x"] > 3, noise=1.0)) == 1


def test_periods_and_intervals_stay_what_they_are_for_callables():
    for values in (pd.period_range("2020", periods=3, freq="Y"), pd.interval_range(0, 3), pd.cut([1, 2, 3], 2)):
        held = pd.array(values)
        assert as_a_callable_sees(held).tolist() == list(held)


def test_typed_columns_are_made_into_arrays_only_for_callables(monkeypatch):
    made = []
    monkeypatch.setattr(columns, "_decoded", lambda arrow, was=columns._decoded: made.append(arrow) or was(arrow))
    data = {"x": pa.array([1, 2, None]), "y": pa.array(["a", "b", None]), "z": pd.array([1, 2, None], "Int64")}
    asks = silenced(Analyst(data, pp.Budgets([50.0] * 3)))
    assert not made
    assert float(asks.count("x >= 1", noise=1.0)) == 2
    assert len(made) == 1
    assert float(asks.count(lambda rows: rows["z"] >= 1, noise=1.0)) == 2
    assert len(made) == 4
    assert float(asks.count(lambda rows: rows["x"] >= 1, noise=1.0)) == 2
    assert len(made) == 4


def test_text_that_is_not_utf_8_is_not_shown():
    """Of an array by hand; a file with such a cell is refused when it is read."""
    ends = pa.array([0, 1, 7, 8], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 3, [None, ends, pa.py_buffer(b"aHIV+\xffab")])
    for given in (text, pa.chunked_array([text]), text.dictionary_encode(), pd.Series(text, dtype="string[pyarrow]")):
        asks = silenced(Analyst({"x": given, "y": np.arange(3)}, pp.Budgets([50.0] * 3)))
        for q in ("x == 'a'", lambda rows: rows["x"] == "a"):
            with pytest.raises(pp.InvalidInput, match=r"the column 'x': .* UTF-8") as caught:
                asks.count(q, noise=1.0)
            assert "HIV" not in str(caught.value)
            assert caught.value.__suppress_context__
        assert float(asks.count("y >= 1", noise=1.0)) == 2


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

"""A ledger of rows by number goes on where only the form of its table's fingerprint has changed since."""

import datetime
import decimal
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.queries.rows import rows_of
from privypurse.queries.table_ledger import DATA_SET, opened, table_ledger

pytestmark = pytest.mark.usefixtures("empty_folder")
N = 30
LARGE = [2**60 + 512 * place for place in range(N - 1)]
NONE = np.array([None] * N, dtype=object)
BEFORE = {
    "large": (pa.array([*LARGE, None], pa.int64()), np.array([*map(float, LARGE), np.nan])),
    "unsigned": (pa.array([*LARGE, None], pa.uint64()), np.array([*map(float, LARGE), np.nan])),
    "truths": (pa.nulls(N, pa.bool_()), NONE),
    "decimals": (pa.nulls(N, pa.decimal128(5, 2)), NONE),
    "lists": (pa.nulls(N, pa.list_(pa.int64())), NONE),
    "structs": (pa.nulls(N, pa.struct([("a", pa.int64())])), NONE),
    "times": (pa.nulls(N, pa.time64("us")), NONE),
    "bytes": (pa.nulls(N, pa.binary()), NONE),
    "json": (pa.array(['{"a": 1}'] * N, pa.json_()), np.array(['{"a": 1}'] * N, dtype=object)),
}
"""Columns as a file has them, and what the former fingerprint was made of."""


def query(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["query", *shlex.split("rows.parquet --epsilon 1 --ledger none count --noise 9")])
    return code, capsys.readouterr().err


def write(column: pa.Array) -> None:
    pq.write_table(pa.table({"age": np.arange(N), "x": column}), "rows.parquet")


def made_before(values: np.ndarray) -> Path:
    """The table's own ledger, as former code stated its fingerprint."""
    stated = rows_of({"age": np.arange(N), "x": values}).fingerprint()
    identity = {"people": "rows by number", DATA_SET: stated, "ε": "1.0", "δ": "1e-05"}
    table_ledger(Path("rows.parquet.ledger"), pp.Budgets(np.ones(N)), identity)
    return Path("rows.parquet.ledger")


@pytest.mark.parametrize("kind", BEFORE)
def test_the_former_fingerprint_is_known(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    column, values = BEFORE[kind]
    write(column)
    ledger = made_before(values)
    assert query(capsys) == (0, "")
    assert len(opened(ledger).runs()) == 1
    changed = pa.table({"age": np.arange(N)[::-1], "x": column})
    pq.write_table(changed, "rows.parquet")
    code, err = query(capsys)
    assert code == 2
    assert "the table is not what it was" in err
    assert len(opened(ledger).runs()) == 1


@pytest.mark.parametrize("kind", ["large", "truths", "lists"])
def test_its_purses_can_be_moved(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    column, values = BEFORE[kind]
    write(column)
    ledger = made_before(values)
    assert query(capsys) == (0, "")
    for ending in ("", ".key", ".anchor"):
        Path(f"{ledger}{ending}").rename(f"old.ledger{ending}")
    moving = "ledger import --purses old.ledger --table rows.parquet --person age --epsilon 1"
    assert cli.main(shlex.split(moving)) == 0, capsys.readouterr().err
    assert "what was spent from it is charged" in capsys.readouterr().out


@pytest.mark.parametrize("kind", BEFORE)
def test_a_new_ledger_can_be_made(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(BEFORE[kind][0])
    for _ in range(2):
        assert query(capsys) == (0, "")


@pytest.mark.parametrize(
    "cells",
    [[[1]], [{"a": 1}], [datetime.time(12)], [b"a"]],
    ids=["lists", "structs", "times", "bytes"],
)
def test_cells_that_have_no_bytes_are_refused(cells: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    write(pa.array([*cells, *[None] * (N - 1)]))
    code, err = query(capsys)
    assert code == 2
    assert "the column 'x': it holds" in err


def test_one_cell_does_not_change_the_kind_of_other_columns() -> None:
    """Whether a question about a column is refused follows from what the file states, not from who has a value."""
    for column in (pa.nulls(2, pa.list_(pa.int64())), pa.array([None, [1]])):
        assert rows_of({"x": column}).columns["x"].kind == "something else"
    for column in (pa.nulls(2, pa.decimal128(5, 2)), pa.array([None, decimal.Decimal("1.5")])):
        assert rows_of({"x": column}).columns["x"].kind == "numbers"
    for column in (pa.nulls(2, pa.json_()), pa.array([None, "1"], pa.json_())):
        assert rows_of({"x": column}).columns["x"].kind == "text"

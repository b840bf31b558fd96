"""No cell of a file that cannot be read is shown, whatever is wrong with it."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.budgets.tables import FileColumns, read_table


@pytest.mark.parametrize("row", ["SECRET", "SECRET,1,SECRET", '"SECRET', "SECRET,\xff".encode("latin-1")])
def test_a_row_of_another_length_is_not_shown(tmp_path, row):
    file = tmp_path / "people.csv"
    file.write_bytes(b"name,age\nA,1\n" + (row if isinstance(row, bytes) else row.encode()) + b"\n")
    for read in (lambda: read_table(file), lambda: FileColumns(file).cells(["name", "age"])):
        with pytest.raises(
            pp.InvalidInput, match=r"people.csv cannot be read: .*; (give every row|is it UTF-8)"
        ) as caught:
            read()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__  # no traceback shows Arrow's own words


def test_some_columns_are_read_at_once(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("name,age,sex\nA,1,\nB,,F\n", encoding="utf-8")
    cells = FileColumns(file).cells(["sex", "age", "sex"])
    assert {name: each.to_pylist() for name, each in cells.items()} == {"sex": ["", "F"], "age": ["1", ""]}
    assert np.array_equal(FileColumns(file).labels("name"), ["A", "B"])
    with pytest.raises(pp.InvalidInput, match="no column 'agee'"):
        FileColumns(file).cells(["agee"])

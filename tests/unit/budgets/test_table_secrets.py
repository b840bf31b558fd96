"""No cell of a file that cannot be read is shown, whatever is wrong with it."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import privypurse as pp
from privypurse.budgets.tables import FileColumns, blocks, read_table


@pytest.mark.parametrize("row", ["SECRET", "SECRET,1,SECRET", '"SECRET', "SECRET,\xff".encode("latin-1")])
def test_a_row_of_another_length_is_not_shown(tmp_path, row):
    file = tmp_path / "people.csv"
    file.write_bytes(b"name,age\nA,1\n" + (row if isinstance(row, bytes) else row.encode()) + b"\n")
    for read in (lambda: read_table(file), lambda: FileColumns(file).cells(["name", "age"])):
        with pytest.raises(
            pp.InvalidInput, match=r"people.csv cannot be read: .*; (give every row|is it UTF-8|close it)"
        ) as caught:
            read()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__  # no traceback shows Arrow's own words


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary", "list"])
def test_text_of_a_parquet_file_that_is_not_utf_8_is_not_shown(tmp_path, kind):
    """Parquet does not look at it, and what fails later would quote it."""
    cells = pa.array([b"a", b"SECRET\xff", b"b"])
    buffers = cells.cast(pa.large_binary()).buffers() if kind == pa.large_string() else cells.buffers()
    text = pa.Array.from_buffers(kind if kind == pa.large_string() else pa.string(), 3, buffers)
    if kind == "list":
        text = pa.ListArray.from_arrays([0, 1, 2, 3], text)
    elif kind == "dictionary":
        text = text.dictionary_encode()
    elif kind == pa.string_view():
        text = pa.Array.from_buffers(kind, 3, cells.cast(pa.binary_view()).buffers())
    file = tmp_path / "people.parquet"
    pyarrow.parquet.write_table(pa.table({"age": [1, 2, 3], "said": text}), file)
    for read in (
        lambda: read_table(file),
        lambda: FileColumns(file).labels("said"),
        lambda: list(blocks(file, ["age", "said"])),
    ):
        with pytest.raises(pp.InvalidInput, match=r"people.parquet: the column 'said' .* UTF-8") as caught:
            read()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__
    assert FileColumns(file).numbers("age").tolist() == [1, 2, 3]


def test_some_columns_are_read_at_once(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("name,age,sex\nA,1,\nB,,F\n", encoding="utf-8")
    cells = FileColumns(file).cells(["sex", "age", "sex"])
    assert {name: each.to_pylist() for name, each in cells.items()} == {"sex": ["", "F"], "age": ["1", ""]}
    assert np.array_equal(FileColumns(file).labels("name"), ["A", "B"])
    with pytest.raises(pp.InvalidInput, match="no column 'agee'"):
        FileColumns(file).cells(["agee"])


@pytest.mark.parametrize(
    ("cells", "asked"),
    [
        (("0.5", "SECRET"), {}),
        (("0.5", "-1234.5"), {}),
        (("0.5", "inf"), {}),
        (("0.5", "7e-77"), {}),
        (("0.5", "SECRET"), {"level": "epsilon", "levels": {"0.5": 1.0}}),
        (("0.5", "1.5"), {"delta": "epsilon"}),
        (("0.25", "0.75"), {"person": "same"}),
        (("1.0", "2.0"), {"person": "epsilon"}),
    ],
)
def test_no_cell_of_what_people_granted_is_shown(tmp_path, cells, asked):
    """The column may be another one than meant, and an ε is its owner's alone (rule 6)."""
    file = tmp_path / "people.csv"
    file.write_text("epsilon,same\n" + "".join(f"{cell},A\n" for cell in cells), encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match=r"row 2 below the header|record 1 |written as floats") as caught:
        pp.Budgets.read(file, **asked)
    without_place = str(caught.value).replace(str(file), "")
    for cell in cells[1:] if "level" in asked else cells:  # levels are listed as they were given
        assert cell not in without_place.replace("1.0 and 1 would", "")


@pytest.mark.parametrize("first", ["0285580,west,no", "SECRET,,no", "SECRET,2019-08-20,no", "SECRET,no,no"])
def test_a_first_line_without_names_is_not_shown(tmp_path, first):
    file = tmp_path / "people.csv"
    file.write_text(f"{first}\nB,1,2\n", encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match="does not look like names") as caught:
        FileColumns(file).labels("age")
    assert not any(cell in str(caught.value) for cell in first.split(",") if len(cell) > 2)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_names_in_another_encoding_are_an_error_in_words(tmp_path, encoding):
    file = tmp_path / "people.csv"
    file.write_text("âge,région\n1,2\n", encoding=encoding)
    with pytest.raises(pp.InvalidInput, match=r"cannot be read: .*UTF-8"):
        FileColumns(file)


UNCLOSED = {
    "in the last row": 'a,b\n1,x\n2,"SECRET\n',
    "rows before others": 'a,b\n1,"SECRET\n2,y\n3,z\n',
    "up to the next one": 'a,b\n1,"SECRET\n2,y\n3,"z"\n4,w\n',
    "after a byte order mark": '\ufeff"a",b\n1,"SECRET\n2,y\n',
}
CLOSED = {
    "two lines in a cell": ('a,b\n1,"x\ny"\n2,z\n', ["x\ny", "z"]),
    "one inside, twice": ('a,b\n1,"5"" pipe"\n2,z\n', ['5" pipe', "z"]),
    "one inside without any around": ('a,b\n1,5" pipe\n2,z\n', ['5" pipe', "z"]),
    "a header in quotes": ('\ufeff"a","b"\r\n1,x\r\n2,z\r\n', ["x", "z"]),
}


@pytest.mark.parametrize("text", UNCLOSED.values(), ids=UNCLOSED)
def test_a_quotation_mark_that_is_not_closed_swallows_nobody(tmp_path, text):
    file = tmp_path / "people.csv"
    file.write_text(text, encoding="utf-8")
    for read in (lambda: read_table(file), lambda: FileColumns(file), lambda: list(blocks(file, ["a", "b"]))):
        with pytest.raises(pp.InvalidInput, match=r"people.csv cannot be read: a quotation mark opens") as caught:
            read()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__
    # The twin: Arrow alone, which reads fewer rows than there are, and says nothing.
    assert pyarrow.csv.read_csv(file).num_rows < text.count("\n") - 1 or text == UNCLOSED["in the last row"]


@pytest.mark.parametrize(("text", "cells"), CLOSED.values(), ids=CLOSED)
def test_quotation_marks_that_are_closed_are_read(tmp_path, text, cells):
    file = tmp_path / "people.csv"
    file.write_bytes(text.encode())
    assert FileColumns(file).cells(["b"])["b"].to_pylist() == cells
    assert [each for block in blocks(file, ["b"]) for each in block["b"].to_pylist()] == cells

"""`privypurse predict`: a row of answers for each row of a file, in blocks, and nothing of a row on the terminal."""

import csv
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from command_line import done, run
from privypurse.budgets import tables
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs.config import Model
from privypurse.runs.folder import RunFolder
from privypurse.runs.models import mlp
from privypurse.runs.predictor import add_network
from privypurse.runs.training_run import add_model

TARGETS = {
    "classes": Classes("answer", ("no", "yes, but")),
    "number": Number("income", Range(1000, 5000)),
    "flags": Flags(("a", "b")),
}
# Cells that would be known again anywhere.
SECRETS = ["zebra-7731", "Quux Åse", "41.123457", "=1+1", 'née "Ζωή", twice', "xyzzy\nplugh"]
HEADER = ["who", "town", "age", "answer"]
TABLE = [
    ["zebra-7731", "Oslo", "41.123457", "no"],
    ["Quux Åse", 'née "Ζωή", twice', "", ""],
    ["=1+1", "", "not a number", "yes, but"],
    ["0007", "Rome", "150", "xyzzy\nplugh"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of three runs, for reading."""
    where = tmp_path_factory.mktemp("runs")
    for name, target in TARGETS.items():
        encoder = Encoder({"age": Range(0, 100), "town": Categories(("Oslo", "Rome"))}, target)
        folder = RunFolder.begin(where / name, "train")
        model = mlp((encoder.width,), target.outputs)
        add_network(folder, Model("mlp"), (encoder.width,), target.outputs, encoder, public=True)
        add_model(folder, model, public=True)
    return where


@pytest.fixture(autouse=True)
def folder(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    for name in TARGETS:
        (tmp_path / name).symlink_to(runs / name)
    write("new.csv", HEADER, TABLE)
    return tmp_path


def write(name, header, rows):
    with open(name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read(name):
    with open(name, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows


def columns():
    return dict(zip(HEADER, zip(*TABLE, strict=True), strict=True))


def test_classes_with_ids_as_they_are(capsys):
    said = done(capsys, "predict classes new.csv --id who -o out.csv")
    assert said == "4 rows answered, written to out.csv\n"
    header, rows = read("out.csv")
    assert header == ["who", "prediction", "probability_no", "probability_yes, but"]
    assert [row[0] for row in rows] == [row[0] for row in TABLE]
    loaded = pp.load("classes")
    assert [row[1] for row in rows] == loaded.predict(columns()).tolist()
    assert (np.array([row[2:] for row in rows], np.float32) == loaded.predict_proba(columns())).all()


def test_a_number_without_ids(capsys):
    done(capsys, "predict number new.csv -o out.csv")
    header, rows = read("out.csv")
    assert header == ["prediction"]
    assert (np.array(rows, np.float32)[:, 0] == pp.load("number").predict(columns())).all()


def test_flags(capsys):
    done(capsys, "predict flags new.csv -o out.csv")
    header, rows = read("out.csv")
    assert header == ["prediction_a", "prediction_b", "probability_a", "probability_b"]
    loaded = pp.load("flags")
    assert [[cell == "true" for cell in row[:2]] for row in rows] == loaded.predict(columns()).tolist()
    assert (np.array([row[2:] for row in rows], np.float32) == loaded.predict_proba(columns())).all()


def test_parquet_in_and_out(capsys):
    ages = pd.array([41.5, None, 7.0], dtype="Float64")
    pq.write_table(pa.table({"n": [7, 8, 9], "age": ages, "town": ["Oslo", None, "Bonn"]}), "new.parquet")
    done(capsys, "predict classes new.parquet --id n -o out.parquet")
    found = pq.read_table("out.parquet")
    assert found["n"].to_pylist() == [7, 8, 9]
    expected = pp.load("classes").predict({"age": [41.5, None, 7.0], "town": ["Oslo", None, "Bonn"]})
    assert found["prediction"].to_pylist() == expected.tolist()


def test_answers_are_for_their_owners_eyes(capsys):
    done(capsys, "predict classes new.csv -o out.csv")
    assert stat.S_IMODE(os.stat("out.csv").st_mode) == 0o600


def test_blocks_give_what_the_whole_gives(capsys, monkeypatch):
    """Also where a cell holds the end of a line, which is no end of a row."""
    towns = ("Oslo", "Rome", "x\ny")
    write("long.csv", HEADER, [[f"{i}\n{i}", towns[i % 3], str(i % 120), "no"] for i in range(300)])
    done(capsys, "predict classes long.csv --id who -o whole.csv")
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 600)
    parts = list(tables.blocks(tables.Path("long.csv"), ["who"]))
    assert len(parts) > 5
    done(capsys, "predict classes long.csv --id who -o parts.csv")
    whole, blocks = read("whole.csv")[1], read("parts.csv")[1]
    assert [row[:2] for row in blocks] == [row[:2] for row in whole]
    assert [row[0] for row in blocks] == [f"{i}\n{i}" for i in range(300)]
    assert np.allclose(np.array([r[2:] for r in blocks], float), np.array([r[2:] for r in whole], float), atol=1e-6)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table():
    for number in (400_000, 1_000_000):
        with open(f"{number}.csv", "w", encoding="utf-8") as file:
            file.write("who,age,town,note\n")
            file.writelines(f"{i},{i % 120},{('Oslo', 'Rome', '')[i % 3]},{'-' * 100}\n" for i in range(number))
    code = (
        "import resource\nfrom privypurse import cli\n"
        "for number in (400_000, 1_000_000):\n"
        "    assert not cli.main(['predict', 'classes', f'{number}.csv', '--id', 'who', '-o', f'{number}.out.csv'])\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    few, many = int(said[1]), int(said[3])
    assert many < 1.05 * few  # where the second table is 120 MB, the first 50
    with open("1000000.out.csv", encoding="utf-8") as file:
        assert sum(1 for _ in file) == 1_000_001


REFUSED = {
    "no folder": ("predict nothing new.csv -o out.csv", ["nothing is no run's folder", "run.json"]),
    "no table": ("predict classes nothing.csv -o out.csv", ["nothing.csv does not exist"]),
    "no such ids": ("predict classes new.csv --id name -o out.csv", ["--id is 'name'", "no such column"]),
    "another ending": ("predict classes new.csv -o out.txt", ["--out out.txt", ".csv"]),
    "no folder for it": ("predict classes new.csv -o no/out.csv", ["--out no/out.csv", "existing folder"]),
    "over the table": ("predict classes new.csv -o ./new.csv", ["the table itself"]),
    "almost such ids": ("predict classes new.csv --id Who -o out.csv", ["--id is 'Who'", "(but 'who')"]),
    "no column": ("predict classes short.csv -o out.csv", ["short.csv has no column 'age'", "encoder.json"]),
    "no header": ("predict classes bare.csv -o out.csv", ["bare.csv has no column 'age'", "first line"]),
    "ragged": ("predict classes ragged.csv -o out.csv", ["ragged.csv", "Row #3", "Expected 4 columns, got 3"]),
    "not UTF-8": ("predict classes latin.csv -o out.csv", ["latin.csv", "UTF"]),
    "two of a name": ("predict classes twice.csv -o out.csv", ["twice.csv has 2 columns called 'age'"]),
    "header alone": ("predict classes empty.csv -o out.csv", ["no rows"]),
    "nothing at all": ("predict classes void.csv -o out.csv", ["void.csv", "Empty"]),
    "ids as answers": ("predict number odd.csv --id prediction -o out.csv", ["--id is 'prediction'", "rename"]),
    "there already": ("predict classes new.csv -o out.csv", ["--out out.csv exists", "--overwrite"]),
    "changed": ("predict changed new.csv -o out.csv", ["model.pt was changed"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_argument_and_the_mend_and_no_cell(capsys, folder, case):
    write("short.csv", ["who", "town"], [row[:2] for row in TABLE])
    write("ragged.csv", HEADER, [TABLE[0], TABLE[1][:3], *TABLE[2:]])
    write("twice.csv", ["who", "town", "age", "age"], TABLE)
    write("odd.csv", ["prediction", *HEADER[1:]], TABLE)
    write("empty.csv", HEADER, [])
    write("bare.csv", TABLE[0], TABLE[1:])
    (folder / "void.csv").write_text("", encoding="utf-8")
    (folder / "latin.csv").write_bytes("who,town,age,answer\nzebra-7731,\xc5se,1,no\n".encode("latin-1"))
    done(capsys, "predict classes new.csv -o out.csv")
    before = (folder / "out.csv").read_bytes()
    shutil.copytree("classes", "changed")
    (folder / "changed" / "model.pt").write_bytes(b"other")
    line, words = REFUSED[case]
    code, out, error = run(capsys, line if case == "there already" else f"{line} --overwrite")
    assert (code, out) == (2, "")
    for word in words:
        assert word in error
    assert not cells_in(error)
    assert (folder / "out.csv").read_bytes() == before  # what was there is there


def cells_in(said):
    """Cells of the table that are part of what was said, but for words of one or two signs."""
    cells = {cell for row in TABLE for cell in row if len(cell) > 3} | set(SECRETS)
    return {cell for cell in cells if re.sub(r"\s+", "", cell) in re.sub(r"\s+", "", said)}


def test_a_column_of_which_nothing_was_read_is_named(capsys):
    rows = ["who,age,town", *(f'{who},"41,{who}",Oslo' for who in range(5))]
    Path("commas.csv").write_text("\n".join(rows), encoding="utf-8")
    words = done(capsys, "predict classes commas.csv -o out.csv")
    assert "Of 'age' no cell could be read" in " ".join(words.split())
    assert "'town' no cell" not in words


def test_the_search_for_cells_finds_one():
    assert cells_in("cannot be read: Expected 4 columns, got 3: Quux Åse,née") == {"Quux Åse"}


def test_what_goes_well_says_nothing_of_a_row(capsys):
    for kind in TARGETS:
        assert not cells_in(done(capsys, f"predict {kind} new.csv --id who -o {kind}.csv"))


def test_a_file_is_replaced_where_that_is_asked_for(capsys):
    done(capsys, "predict classes new.csv -o out.csv")
    done(capsys, "predict number new.csv -o out.csv --overwrite")
    assert read("out.csv")[0] == ["prediction"]


def test_without_torch_the_command_says_what_it_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, error = run(capsys, "predict classes new.csv -o out.csv")
    assert code == 2
    assert "privypurse predict needs torch: pip install '.[training]' in a clone" in error

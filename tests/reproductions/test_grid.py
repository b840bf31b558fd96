"""Experiments as files: what they say, how cells are merged, and errors that name what is wrong."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from privypurse.errors import InvalidInput
from reproductions import catalogue, grid

SMALL = """
title = "t"
paper = "p"
table = "Table 0"
data = "mnist"
model = "logistic"
delta = 1e-5
[training]
epochs = 2
batch_size = 64
learning_rate = 0.1
clip_norm = 1.0
[budgets]
kind = "same"
epsilon = 1.0
[[rows]]
name = "a"
[[rows]]
name = "b"
training = { steps = 7, clip_norm = 2.0 }
[[columns]]
name = "one"
method = "uniform"
[[columns]]
name = "two"
method = "pdp-sgd"
budgets = { kind = "skewed", skew = 0.0 }
[paper_figures.accuracy."a"]
"two" = [90.0, 1.0]
"""


def small(tmp_path: Path, text: str = SMALL) -> grid.Grid:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    read = catalogue.read(path)
    assert isinstance(read, grid.Grid)
    return read


def test_cells_take_from_the_top_then_the_row_then_the_column(tmp_path: Path) -> None:
    read = small(tmp_path)
    assert (read.name, read.rows, read.columns, read.seeds) == ("small", ("a", "b"), ("one", "two"), 3)
    assert read.cells["a", "one"].training.epochs == 2
    late = read.cells["b", "one"].training
    assert (late.steps, late.epochs, late.clip_norm, late.learning_rate) == (7, None, 2.0, 0.1)
    assert read.cells["a", "two"].budgets == {"kind": "skewed", "skew": 0.0}
    assert read.figure("accuracy", "a", "two") == [90.0, 1.0]
    assert read.figure("accuracy", "b", "two") is None


def test_steps_and_epochs_say_the_same() -> None:
    training = grid.Training(learning_rate=0.1, clip_norm=1.0, batch_size=64, epochs=2)
    assert (training.steps_for(640), training.epochs_for(640)) == (20, 2)
    whole = grid.Training(learning_rate=0.1, clip_norm=1.0, batch_size="all", steps=5)
    assert (whole.batch(640), whole.steps_for(640), whole.epochs_for(640)) == (640, 5, 5.0)


def test_a_cell_is_another_as_soon_as_anything_about_it_changes(tmp_path: Path) -> None:
    read = small(tmp_path)
    keys = {job.key for job in read.jobs()}
    assert len(keys) == 12
    assert {job.key for job in small(tmp_path).jobs()} == keys
    assert not keys & {job.key for job in read.quickened().jobs()}
    changed = replace(read, cells={**read.cells, ("a", "one"): replace(read.cells["a", "one"], delta=2e-5)})
    assert len(keys - {job.key for job in changed.jobs()}) == 3


def test_as_published_keeps_the_columns_with_rounds_and_their_figures(tmp_path: Path) -> None:
    read = small(tmp_path).as_published()
    assert read.columns == ("two, as published",)
    assert all(cell.as_published for cell in read.cells.values())
    assert read.figure("accuracy", "a", "two, as published") == [90.0, 1.0]
    alone = small(tmp_path).only(None, ["one"])
    with pytest.raises(InvalidInput, match="bookkeeping of its own"):
        alone.as_published()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('method = "uniform"', 'method = "unifrom"', "unifrom"),
        ("epochs = 2", "epochs = 2\nsteps = 3", "one of steps and epochs"),
        ("batch_size = 64", 'batch_size = "some"', "batch_size"),
        ('title = "t"', "", "title is missing"),
        ('name = "b"', 'name = "a"', "all different"),
        ('data = "mnist"', 'data = "mnist"\nshow = ["accurracy"]', "accurracy"),
        ('data = "mnist"', 'data = "mnist"\nplot = "pie"', "pie"),
        ('data = "mnist"', 'data = "mnist"\nlearning_rate = 1', "learning_rate"),
        ("clip_norm = 1.0", "clip_norm = 0.0", "clip_norm"),
        ('kind = "same"', "", "kind"),
        ("[training]", "[training", "not TOML"),
        ("epochs = 2", 'epochs = "2"', "epochs must be a finite number above 0, not '2'"),
        (
            "epochs = 2",
            "epochs = 2\nmomentum = 5",
            "momentum must be a finite number of at least 0 and below 1, not 5",
        ),
        ("epochs = 2", "epochs = 2\nlearnig_rate = 5", "[training] has no 'learnig_rate'"),
        ("clip_norm = 1.0", "", "[training] needs clip_norm"),
        ("batch_size = 64", "batch_size = true", "batch_size must be a whole number of at least 1, not True"),
        ("epochs = 2", "epochs = 2\nstop = { every = 3 }", "stop needs"),
        ("epochs = 2", "epochs = 2\nindividual = { look_per_epoch = 3 }", "has no 'look_per_epoch'"),
        ("epochs = 2", "epochs = 2\nindividual = true", "individual is True"),
        ("delta = 1e-5", "delta = 1e-5\nseeds = 2.7", "seeds must be a whole number of at least 1, not 2.7"),
        ("delta = 1e-5", "delta = 1e-5\nrecords = 0", "records must be a whole number of at least 1, not 0"),
        ("delta = 1e-5", "delta = 1e-5\npixels = [1.0]", "pixels are [1.0]"),
        ("delta = 1e-5", "delta = 1e-5\noptions = [1]", "options is [1]"),
        ("delta = 1e-5", 'delta = 1e-5\nshow = "accuracy"', "show is 'accuracy'"),
        ("delta = 1e-5", "delta = 2", "delta must be a finite number above 0 and below 1, not 2"),
        ('title = "t"', "title = 3", "title is 3"),
        ('name = "b"', "name = 3", "a name each"),
        ('name = "b"', 'name = "b"\nx = "a"', "x must be a finite number, not 'a'"),
        ('accuracy."a"', 'accuracy."c"', "the row 'c', which is not there"),
        ('"two" = [90.0, 1.0]', '"tow" = [90.0, 1.0]', "the column 'tow', which is not there"),
        ('"two" = [90.0, 1.0]', '"two" = "ninety"', "a figure is a number"),
        ("paper_figures.accuracy", "paper_figures.acuracy", "the measure 'acuracy', which is not there"),
    ],
)
def test_errors_name_the_file_and_what_is_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=r"small\.toml") as error:
        small(tmp_path, SMALL.replace(old, new, 1))
    assert said in str(error.value)


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="heo-table-1-mnist"):
        catalogue.load("no-such-table")
    with pytest.raises(InvalidInput, match="cannot be read"):
        catalogue.load(str(tmp_path / "missing.toml"))
    with pytest.raises(InvalidInput, match="no row 'c'"):
        small(tmp_path).only(["c"], None)


GRIDS = [path for path in catalogue.available() if isinstance(catalogue.read(path), grid.Grid)]


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_table_can_be_read_and_its_figures_belong_to_cells(path: Path) -> None:
    read = catalogue.read(path)
    assert isinstance(read, grid.Grid)
    assert read.paper
    assert len(read.about) > 40
    for measure, rows in read.figures.items():
        assert measure in grid.MEASURES
        assert set(rows) <= set(read.rows)
        assert all(set(columns) <= set(read.columns) for columns in rows.values())
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(read.cells) == {(r["name"], c["name"]) for r in raw["rows"] for c in raw["columns"]}


def test_the_tables_that_are_promised_are_there() -> None:
    names = {path.stem for path in catalogue.available()}
    assert names >= {
        *(f"heo-table-1-{data}" for data in ("mnist", "fashion-mnist", "svhn")),
        *(f"boenisch-table-2-{data}" for data in ("mnist", "cifar10", "svhn")),
        *(f"boenisch-table-{number}" for number in (3, 8, 9, 12)),
        *("heo-table-2", "liu-table-3", "liu-table-4", "feldman-section-5-1", "feldman-figure-1", "yu-tables-2-3"),
    }

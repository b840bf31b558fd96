"""Tables whose trainings have views, averages of weights, and may be broken off."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privypurse.errors import InvalidInput
from reproductions import catalogue, results, running, train_cell
from reproductions.cell import Cell, Training
from reproductions.grid import Grid
from reproductions.running import Where
from reproductions.train_cell import BrokenOff, Until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))


def table(name: str = "yu-table-3-cifar10") -> Grid:
    found = catalogue.load(name)
    assert isinstance(found, Grid)
    return found


def small(**training: Any) -> Cell:
    """A quick cell with another network, for its speed: what is tried is the training."""
    cell = table().cells["16 views", "Individual"].quickened()
    individual = {"norm_passes_per_epoch": 1, "clip": True}
    made = replace(cell.training, **{"individual": individual, "augmented": True, **training})
    return replace(cell, model="logistic", records=16, training=made)


def scores(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("accuracy", "classes", "epsilon", "loss_correlation")}


def test_the_table_of_the_paper_trains_with_views_and_an_average() -> None:
    grid = table()
    cell = grid.cells["16 views", "Individual"]
    assert (cell.model, cell.training.views, cell.training.augmented) == ("wrn-16-4", 16, True)
    assert cell.training.steps_for(50_000) == 3662
    quick = cell.quickened()
    assert (quick.model, quick.training.views) == ("wrn-16-1", 2)
    assert grid.figure("accuracy", "as in the paper", "Maximum") == [74.1, 0.24]


def test_a_small_one_is_trained_on_a_cpu() -> None:
    quick = table().cells["16 views", "Individual"].quickened()
    quick = replace(quick, records=8, training=replace(quick.training, steps=2, batch_size=4))
    line = train_cell.outcome(quick, 0)
    assert line["steps"] == 2
    assert line["overdrawn"] == 0
    assert len(line["epsilon"]) == 6


@pytest.mark.parametrize("changed", [{"views": 1}, {"augmented": False}, {"average": None}])
def test_views_augmentation_and_average_each_change_what_comes_out(changed: dict[str, Any]) -> None:
    long = {"steps": 8, "average": 0.9}
    assert scores(train_cell.outcome(small(**long), 0)) != scores(train_cell.outcome(small(**long | changed), 0))


def test_a_training_that_is_broken_off_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    cell = small(average=0.9, steps=6)
    whole = train_cell.outcome(cell, 0)
    folder = tmp_path / "unfinished"
    for turn in range(1, 4):
        with pytest.raises(BrokenOff, match=f"after {turn} of 6 steps"):
            train_cell.outcome(cell, 0, until=Until(folder, time.monotonic() - 1))
    parts = train_cell.outcome(cell, 0, until=Until(folder, time.monotonic() + 600))
    assert scores(parts) == scores(whole)


@pytest.mark.parametrize("minutes", [10.0, None])
def test_minutes_break_off_a_training_which_the_next_call_ends(
    minutes: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = replace(table().quickened(), rows=("here",), columns=("now",), cells={("here", "now"): small(steps=3)})
    assert list(running.run(grid, Where(tmp_path, minutes=0.0))) == []
    assert "broken off: here / now, seed 0, after 1 of 3 steps" in capsys.readouterr().out
    assert len(list(tmp_path.glob(f"{grid.name}.*/checkpoint.pt"))) == 1
    resumed, train = [], train_cell.pp.train
    monkeypatch.setattr(train_cell.pp, "train", lambda *a, **k: resumed.append(train(*a, **k)) or resumed[-1])
    assert len(list(running.run(grid, Where(tmp_path, minutes=minutes)))) == 1
    assert [done.resumed_from for done in resumed] == [1]  # and not from the beginning
    assert [path.name for path in tmp_path.iterdir()] == [f"{grid.name}.jsonl"]
    assert not grid.left(results.read(results.path_of(grid, tmp_path)))


def test_trainings_from_before_there_were_views_keep_their_names() -> None:
    """A line of the results names its settings in full; what came later must not be among them unless it is used."""
    settings = table("yu-tables-2-3").cells["MNIST", "Maximum"].plain()["training"]
    assert not settings.keys() & {"views", "augmented", "average"}
    bias = table("bias-of-sample")
    assert not bias.left(results.read(catalogue.RESULTS / "bias-of-sample.jsonl"))
    assert table().cells["16 views", "Maximum"].plain()["training"]["views"] == 16


@pytest.mark.parametrize("wrong", [{"views": 0}, {"average": 1.0}, {"augmented": "yes"}])
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Training(learning_rate=1.0, clip_norm=1.0, batch_size=4, steps=1, **wrong)

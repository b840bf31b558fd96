"""Pre-training on public records: which records those are, and what is told of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from privypurse.errors import InvalidInput
from reproductions import catalogue, train_cell
from reproductions.cell import Cell, Federation
from reproductions.cell_data import Inputs, inputs_of
from reproductions.grid import Grid


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))


def cell(public: int | None = 20) -> Cell:
    table = catalogue.load("heo-table-3-mnist")
    assert isinstance(table, Grid)
    found = table.quickened().cells["34-43-23 %", "Sample"]
    asked = found.training.public
    assert asked is not None
    shown = None if public is None else {**asked, "records": public}
    return replace(found, training=replace(found.training, public=shown))


def records(inputs: Inputs, part: str) -> set[bytes]:
    return {image.numpy().tobytes() for image in getattr(inputs, part).tensors[0]}


def test_public_records_are_those_of_the_test_file_that_are_not_tested_on() -> None:
    cpu = torch.device("cpu")
    whole, shared, other = (inputs_of(each, seed, cpu) for each, seed in ((cell(None), 0), (cell(), 0), (cell(), 1)))
    assert whole.public is None
    assert len(records(shared, "public")) == 20
    assert not records(shared, "public") & records(shared, "test")
    assert records(shared, "public") | records(shared, "test") == records(whole, "test")
    assert records(shared, "train") == records(whole, "train")
    assert records(shared, "public") != records(other, "public")
    assert inputs_of(cell(), 0, cpu).test.tensors[1].tolist() == shared.test.tensors[1].tolist()


def test_what_public_records_teach_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the new model's accuracy nor that after private training, with steps so long that it forgets."""
    found = cell()
    public = {**(found.training.public or {}), "steps": 400, "learning_rate": 0.01}
    found = replace(found, training=replace(found.training, public=public, learning_rate=100.0))
    x, y = inputs_of(found, 0, torch.device("cpu")).test.tensors
    seen = []
    ordinary = train_cell.train_ordinarily

    def watched(model, optimizer, tensors, losses, **how) -> None:  # type: ignore[no-untyped-def]
        assert len(tensors[0]) == 20
        seen.append(100 * float((model(x).argmax(1) == y).float().mean()))
        ordinary(model, optimizer, tensors, losses, **how)
        seen.append(100 * float((model(x).argmax(1) == y).float().mean()))

    monkeypatch.setattr(train_cell, "train_ordinarily", watched)
    line = train_cell.outcome(found, 0)
    new, after = seen
    assert line["public_accuracy"] == pytest.approx(after)
    assert after > max(new, line["accuracy"]) + 10
    assert "public_accuracy" not in train_cell.outcome(cell(None), 0)


def test_training_accuracy_is_of_the_training_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every label of the training records is another class's: who learns them is wrong about the test records."""

    def moved(*what: Any) -> Inputs:
        inputs = inputs_of(*what)
        x, y = inputs.train.tensors
        return replace(inputs, train=TensorDataset(x, (y + 1) % 10))

    monkeypatch.setattr(train_cell, "inputs_of", moved)
    plain = cell(None)
    learnt = replace(plain, method="none", training=replace(plain.training, steps=400, learning_rate=0.1))
    line = train_cell.outcome(learnt, 0)
    assert line["training_accuracy"] > 90
    assert line["accuracy"] < 10


@pytest.mark.parametrize("records", [0, -1, 50, 2.5])
def test_there_must_be_public_records_and_others(records: float) -> None:
    wrong = cell()
    public = {**(wrong.training.public or {}), "records": records}
    with pytest.raises(InvalidInput, match="public records"):
        train_cell.outcome(replace(wrong, training=replace(wrong.training, public=public)), 0)


@pytest.mark.parametrize(("name", "value"), [("steps", -1), ("batch_size", 0), ("learning_rate", 0.0)])
def test_numbers_of_a_public_training_are_checked_before_anything_runs(name: str, value: float) -> None:
    right = cell().training
    with pytest.raises(InvalidInput, match=f"public {name}"):
        replace(right, public={**(right.public or {}), name: value})


def test_what_a_public_training_needs_is_said() -> None:
    wrong = cell()
    with pytest.raises(InvalidInput, match="steps"):
        replace(wrong.training, public={"records": 5, "batch_size": 3, "learning_rate": 0.1})
    with pytest.raises(InvalidInput, match="clients"):
        replace(wrong, method="personalised", federation=Federation(rounds=2))


def test_budgets_do_not_depend_on_public_records() -> None:
    lines = [train_cell.outcome(cell(public), 3) for public in (None, 20)]
    assert lines[0]["groups"] == lines[1]["groups"]
    assert np.isclose(lines[0]["noise_multiplier"], lines[1]["noise_multiplier"], rtol=0)

"""Running experiments: every kind once, resuming, side by side, and reports that say what was run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privypurse.errors import InvalidInput
from reproductions import grid as specs
from reproductions import grid_report as report
from reproductions import grid_running as running
from reproductions import inputs
from reproductions.__main__ import main
from reproductions.cells import check, run_cell
from reproductions.inputs import epsilon_of

pytestmark = pytest.mark.slow  # of the papers' tables, which no promise hangs on

# One of each kind: plans, rounds, groups, full batches with a filter, individual accounting, plain training.
KINDS = [
    "heo-table-1-mnist",
    "boenisch-table-12",
    "feldman-figure-1",
    "yu-tables-2-3",
    "liu-table-4",
    "liu-table-2-heart",
]


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))


def quick(name: str) -> specs.Experiment:
    return specs.find(name).quickened()


def finished(experiment: specs.Experiment, folder: Path, **options: int) -> list[bool]:
    asked = {"seeds": 1, "jobs": 1, **options}
    return [before for _, before in running.run(experiment, device="cpu", folder=folder, **asked)]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_runs_and_reports(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", name, "--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "MADE-UP DATA" in table
    assert "ε promised and spent" in said
    for path in ("plot.svg", "plot.png", "results.json"):
        assert (tmp_path / path).stat().st_size > 1000
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    outcomes = [outcome for cell in kept["cells"] for outcome in cell["outcomes"]]
    assert outcomes
    for outcome in outcomes:
        if outcome.get("promise") in ("data", "presence"):
            assert outcome["overspent"] == 0
            assert all(group["spent"] <= group["epsilon"] for group in outcome["groups"])


@pytest.mark.slow
@pytest.mark.parametrize("path", specs.available(), ids=lambda path: path.stem)
def test_all_of_them_run_quickly(path: Path, tmp_path: Path) -> None:
    assert main(["run", path.stem, "--quick", "--out", str(tmp_path)]) == 0


def test_finished_cells_are_not_run_again_and_changed_ones_are(tmp_path: Path) -> None:
    experiment = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD", "Sampling"])
    assert finished(experiment, tmp_path) == [False, False]
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert finished(experiment, tmp_path) == [True, True]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == stamps
    assert finished(experiment, tmp_path, seeds=2) == [True, True, False, False]
    changed = {place: replace(cell, delta=2e-5) for place, cell in experiment.cells.items() if place[1] == "DP-SGD"}
    assert finished(replace(experiment, cells={**experiment.cells, **changed}), tmp_path) == [True, False]


def test_a_made_up_cell_is_trained_again_once_its_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = quick("liu-table-2-mnist")
    assert not any(finished(experiment, tmp_path))
    assert all(finished(experiment, tmp_path))
    images, labels = np.zeros((60, 1, 28, 28), np.uint8), np.arange(60) % 10
    monkeypatch.setattr(inputs, "_parts", lambda *_: (images, labels, images, labels))
    assert not any(finished(experiment, tmp_path))
    assert not any(
        outcome["made_up"] for task in running.tasks(experiment, 1, tmp_path) if (outcome := task.finished)
    )
    assert all(finished(experiment, tmp_path))


def test_the_table_shows_what_other_calls_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(task: running.Task, device: str, threads: int) -> None:
        outcome = {"seed": task.seed, "accuracy": 90.0, "seconds": 1.0, "made_up": False}
        content = {"digest": task.settings.digest, "outcome": outcome, "versions": running.versions(device)}
        task.path.write_text(json.dumps(content), encoding="utf-8")

    monkeypatch.setattr(running, "_execute", told)
    for column in ("DP-SGD", "Sample"):
        some = ["--columns", column, "--rows", "54-37-9 %", "--seeds", "1", "--out", str(tmp_path)]
        assert main(["run", "boenisch-table-2-mnist", *some]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines()[::-1] if line.startswith("| 54-37-9 % | **"))
    assert row.count("**90.00**") == 2
    assert "| paper 97.54 ± 0.09 |" in row  # Scale, which was never run


def test_quick_leaves_out_columns_that_differ_by_numbers_alone() -> None:
    assert quick("boenisch-table-2-mnist").columns == ("DP-SGD", "Sample", "Scale")
    assert quick("yu-tables-2-3").columns == ("Maximum", "Individual")  # they differ in what is clipped


def test_a_file_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    experiment = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD"])
    assert finished(experiment, tmp_path) == [False]
    (path,) = (tmp_path / "cells").iterdir()
    path.write_text(path.read_text(encoding="utf-8")[:50], encoding="utf-8")
    assert finished(experiment, tmp_path) == [False]


def test_side_by_side_gives_what_one_after_another_gives(tmp_path: Path) -> None:
    experiment = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD", "Sampling"])
    finished(experiment, tmp_path / "one")
    finished(experiment, tmp_path / "two", jobs=2)

    def accuracies(folder: Path) -> list[float]:
        found = running.collected(experiment, 1, folder)
        return [found[place][0]["accuracy"] for place in sorted(found)]

    assert accuracies(tmp_path / "one") == accuracies(tmp_path / "two")


def test_the_same_seed_gives_the_same_and_another_one_another() -> None:
    cell = _first(quick("boenisch-table-9"))
    one, again, other = run_cell(cell, 0), run_cell(cell, 0), run_cell(cell, 1)
    assert one["groups"] == again["groups"]
    assert one["classes"] == again["classes"]
    assert one["groups"] != other["groups"]


def _first(experiment: specs.Experiment) -> specs.Settings:
    return next(cell for cell in experiment.cells.values() if cell.method == "sample")


def test_as_published_says_that_nothing_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = ["--rows", "k = -0.2", "--columns", "PDP-SGD, adaptive"]
    arguments = ["--quick", "--as-published", *some, "--out", str(tmp_path)]
    assert main(["run", "heo-table-1-mnist", *arguments]) == 0
    said = capsys.readouterr().out
    assert "no promise" in said
    assert "an upper bound" in said
    assert "PDP-SGD, adaptive, as published" in said


def test_the_plot_says_what_was_really_spent_where_no_promise_is_kept(tmp_path: Path) -> None:
    some = ["--quick", "--rows", "k = 0", "--columns", "Sampling", "--out", str(tmp_path)]
    for more, said in (([], False), (["--as-published"], True)):
        assert main(["run", "heo-table-1-mnist", *some, *more]) == 0
        assert ("No promise is kept" in (tmp_path / "plot.svg").read_text(encoding="utf-8")) == said


def test_a_method_that_cannot_is_a_result_and_not_the_end(tmp_path: Path) -> None:
    experiment = quick("boenisch-table-9")
    cell = _first(experiment)
    hopeless = replace(cell, budgets={"kind": "same", "epsilon": 1e-4}, delta=1e-7)
    row, column = experiment.rows[0], experiment.columns[-1]
    tried = replace(experiment.only([row], [column]), cells={(row, column): hopeless})
    assert finished(tried, tmp_path) == [False]
    found = running.collected(tried, 1, tmp_path)
    assert "ε = 0.0001" in found[row, column][0]["impossible"]
    text = report.markdown(tried, found, running.versions_of(tried, 1, tmp_path))
    assert "impossible" in text


def test_the_table_has_mean_deviation_and_the_papers_figure_beside_it() -> None:
    experiment = specs.find("heo-table-1-mnist").only(["k = 0"], ["DP-SGD"])
    outcomes = [{"accuracy": value, "made_up": False, "seed": k} for k, value in enumerate((90.0, 92.0))]
    text = report.markdown(experiment, {("k = 0", "DP-SGD"): outcomes}, [])
    assert "**91.00** ± 1.41 (paper 90.42 ± 2.78, +0.58)" in text


def test_a_class_without_test_records_leaves_the_others_in_their_place() -> None:
    experiment = specs.find("boenisch-table-9").only(None, ["Sample"])
    outcomes = [{"classes": [90.0, None, 80.0], "made_up": False, "seed": k} for k in range(2)]
    text = report.markdown(experiment, {("MNIST", "Sample"): outcomes}, [])
    assert "| MNIST | Sample | 90.00 | – | 80.00 |" in text
    assert "Seeds of each cell: 0, 1;" in text


def test_the_gap_between_classes_is_that_of_their_means() -> None:
    experiment = specs.find("boenisch-table-9").only(None, ["Sample"])
    outcomes = [{"classes": [90.0, None, 80.0 + 8 * k], "made_up": False, "seed": k} for k in range(2)]
    text = report.markdown(experiment, {("MNIST", "Sample"): outcomes}, [])
    assert "| MNIST | **6.00** (paper 0.39, +5.61) |" in text


def test_the_largest_spending_of_all_seeds_is_shown_with_its_delta() -> None:
    experiment = specs.find("heo-table-1-mnist").only(["k = 0"], ["DP-SGD"])

    def outcome(seed: int, spent: float) -> dict[str, Any]:
        groups = [{"epsilon": 1.0, "people": 5, "spent": spent}]
        more = {"accuracy": 90.0, "made_up": False, "promise": "data", "accountant": "pld", "overspent": seed}
        return {"seed": seed, "groups": groups, **more}

    text = report.markdown(experiment, {("k = 0", "DP-SGD"): [outcome(0, 0.9), outcome(3, 1.1)]}, [])
    assert "| k = 0 | DP-SGD | 1e-05 | 1 | 1.100 | 3 | pld |" in text


def test_budgets_by_class_are_as_many_as_the_data_has_classes() -> None:
    (cell, *_) = quick("heo-table-1-mnist").cells.values()
    two = {"kind": "classes", "epsilon": [1.0, 2.0]}
    check(replace(cell, data="heart", model="logistic", method="sample", options={}, budgets=two))
    with pytest.raises(InvalidInput):
        check(replace(cell, method="sample", options={}, budgets=two))


def test_budgets_follow_from_the_seed() -> None:
    labels = np.arange(200) % 10
    levels = {"kind": "levels", "epsilon": [1.0, 2.0], "shares": [0.5, 0.5]}
    assert epsilon_of(levels, labels, 0).tolist() == epsilon_of(levels, labels, 0).tolist()
    assert epsilon_of(levels, labels, 0).tolist() != epsilon_of(levels, labels, 1).tolist()


def test_a_cell_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = quick("heo-table-1-mnist")
    experiment = replace(experiment, columns=experiment.columns[:1])
    assert finished(experiment, tmp_path) == [False]
    (path,) = (tmp_path / "cells").glob("*.json")
    before = path.read_bytes()

    def broken(source: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(running.os, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        running._execute(running.tasks(experiment, 1, tmp_path)[0], "cpu", 1)
    assert path.read_bytes() == before


def test_a_quick_report_says_that_it_is_quick() -> None:
    experiment = quick("heo-table-1-mnist")
    row, column = experiment.rows[0], experiment.columns[0]
    found = {(row, column): [{"accuracy": 50.0, "made_up": False, "seed": 0}]}
    assert "QUICK" in report.markdown(experiment, found, [])
    assert "QUICK" not in report.markdown(specs.find("heo-table-1-mnist"), found, [])


def test_names_that_look_alike_on_disk_are_different_cells(tmp_path: Path) -> None:
    """And so are quick cells and others: what is finished stays."""
    experiment = specs.find("heo-table-1-mnist")
    some = next(iter(experiment.cells.values()))
    rows = ("k = 0.2", "k = −0.2", "ε = 1", "δ = 1")
    tried = replace(experiment, rows=rows, columns=("DP-SGD",), cells={(row, "DP-SGD"): some for row in rows})
    paths = [task.path for task in running.tasks(tried, 2, tmp_path)]
    assert len(set(paths)) == 8
    assert not set(paths) & {task.path for task in running.tasks(tried.quickened(), 2, tmp_path)}


@pytest.mark.parametrize(
    "content", [b"[]", b"{}", b"\xff\xfe", b'{"digest": "%s"}', b'{"digest": "%s", "outcome": {}}']
)
def test_a_damaged_cell_is_trained_again(content: bytes, tmp_path: Path) -> None:
    task = running.tasks(quick("heo-table-1-mnist"), 1, tmp_path)[0]
    task.path.parent.mkdir(parents=True)
    task.path.write_bytes(content.replace(b"%s", task.settings.digest.encode()))
    assert task.finished is None


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("uniform", {"data": "minst"}, "minst"),
        ("uniform", {"model": "resnet"}, "resnet"),
        ("uniform", {"accountant": "magic"}, "magic"),
        ("uniform", {"options": {"threshold": 1}}, "has no options"),
        ("uniform", {"budgets": {"kind": "same"}}, "budgets"),
        ("uniform", {"budgets": {"kind": "same", "epsilon": "a"}}, "budgets"),
        ("exclude", {"options": {"threshold": "median"}}, "threshold is 'median'"),
        ("exclude", {"options": {"treshold": 1.0}}, "treshold"),
        ("groups", {"options": {"order": "random"}}, "random"),
        ("groups", {"options": {"rounds": 3}}, "rounds"),
        ("sampling", {"options": {"rounds": 3}}, "rounds"),
        ("pdp-sgd", {"options": {"weights": [1, 2, 3]}, "loss": "fixed"}, "two numbers"),
    ],
)
def test_what_no_cell_can_be_made_of_is_refused_before_any_is_trained(
    method: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    experiment = quick("heo-table-1-mnist")
    (place, cell), *_ = experiment.cells.items()
    if changes.pop("loss", None):
        changes["options"] = {**changes["options"], "loss": "fixed"}
    broken = replace(experiment, cells={**experiment.cells, place: replace(cell, method=method, **changes)})
    with pytest.raises(InvalidInput, match=re.escape(place[1])) as error:
        list(running.run(broken, seeds=1, device="cpu", jobs=1, folder=tmp_path))
    assert said in str(error.value)
    assert not list(tmp_path.rglob("*.json"))


def test_missing_data_is_an_error_that_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))
    some = ["--rows", "k = 0", "--columns", "DP-SGD", "--out", str(tmp_path)]
    assert main(["run", "heo-table-1-mnist", *some]) == 2
    assert "PRIVYPURSE_DATA" in capsys.readouterr().err


def test_wrong_options_are_errors(tmp_path: Path) -> None:
    experiment = quick("heo-table-1-mnist")
    for options in ({"seeds": 0}, {"jobs": 0}):
        with pytest.raises(InvalidInput, match="at least 1"):
            finished(experiment, tmp_path, **options)
    with pytest.raises(InvalidInput, match="device"):
        list(running.run(experiment, seeds=1, device="cuda:99", jobs=1, folder=tmp_path))


def test_budgets_of_every_kind() -> None:
    labels = np.arange(200) % 10
    assert set(epsilon_of({"kind": "same", "epsilon": 2.0}, labels, 0)) == {2.0}
    spaced = epsilon_of({"kind": "spaced", "low": 0.5, "high": 0.9, "groups": 5}, labels, 0)
    np.testing.assert_allclose(np.unique(spaced), [0.5, 0.6, 0.7, 0.8, 0.9])
    by_class = epsilon_of({"kind": "classes", "epsilon": [float(k + 1) for k in range(10)]}, labels, 0)
    np.testing.assert_array_equal(by_class, labels + 1.0)
    levels = {"kind": "levels", "epsilon": [1.0, 2.0], "shares": [0.25, 0.75]}
    assert sorted(np.unique(epsilon_of(levels, labels, 0), return_counts=True)[1].tolist()) == [50, 150]
    assert (epsilon_of(levels, labels, 0) != epsilon_of(levels, labels, 1)).any()
    for wrong in ({"kind": "some"}, {"kind": "levels", "epsilon": [1.0]}, {"kind": "pareto", "heavy": 1}):
        with pytest.raises(InvalidInput, match="kind"):
            epsilon_of(wrong, labels, 0)


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert all(path.stem in said for path in specs.available())

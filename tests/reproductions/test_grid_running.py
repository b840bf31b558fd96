"""Running tables: every kind once, resuming, side by side, and reports that say what was run."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privypurse.errors import InvalidInput
from reproductions import catalogue, data, report, results, running, train_cell
from reproductions.__main__ import main
from reproductions.cell import Cell
from reproductions.grid import Grid
from reproductions.plans import epsilon_of
from reproductions.running import Where

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


GRIDS = [path for path in catalogue.available() if isinstance(catalogue.read(path), Grid)]


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))


def load(name: str) -> Grid:
    table = catalogue.load(name)
    assert isinstance(table, Grid)
    return table


def quick(name: str) -> Grid:
    return load(name).quickened()


def finished(grid: Grid, folder: Path, jobs: int = 1) -> list[bool]:
    """Runs what is left; of each job, whether it had been finished before."""
    run = {job.key for job, _ in running.run(grid, Where(folder, jobs=jobs))}
    return [job.key not in run for job in grid.jobs()]


def found(grid: Grid, folder: Path) -> dict[tuple[str, str], list[results.Line]]:
    return grid.found(results.read(results.path_of(grid, folder)))


def budgets(kind: dict[str, Any], labels: np.ndarray, seed: int) -> np.ndarray:
    return epsilon_of(kind, labels, np.random.default_rng(seed))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_runs_and_reports(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", name, "--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    table = (tmp_path / f"{name}-quick.md").read_text(encoding="utf-8")
    assert "MADE-UP DATA" in table
    assert "ε promised and spent" in said
    for ending in ("svg", "png", "jsonl"):
        assert (tmp_path / f"{name}-quick.{ending}").stat().st_size > 1000
    outcomes = results.read(tmp_path / f"{name}-quick.jsonl")
    assert outcomes
    for outcome in outcomes:
        if outcome.get("promise") in ("data", "presence"):
            assert outcome["overspent"] == 0
            assert all(group["spent"] <= group["epsilon"] for group in outcome["groups"])


@pytest.mark.slow
@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_all_of_them_run_quickly(path: Path, tmp_path: Path) -> None:
    assert main(["run", path.stem, "--quick", "--out", str(tmp_path)]) == 0


def test_finished_cells_are_not_run_again_and_changed_ones_are(tmp_path: Path) -> None:
    grid = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD", "Sampling"])
    assert finished(grid, tmp_path) == [False, False]
    before = results.path_of(grid, tmp_path).read_bytes()
    assert finished(grid, tmp_path) == [True, True]
    assert results.path_of(grid, tmp_path).read_bytes() == before
    assert finished(replace(grid, seeds=2), tmp_path) == [True, True, False, False]
    changed = {place: replace(cell, delta=2e-5) for place, cell in grid.cells.items() if place[1] == "Sampling"}
    assert finished(replace(grid, cells={**grid.cells, **changed}), tmp_path) == [True, False]


def test_a_made_up_cell_is_trained_again_once_its_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = quick("liu-table-2-mnist")
    assert not any(finished(grid, tmp_path))
    assert all(finished(grid, tmp_path))
    images, labels = np.zeros((60, 1, 28, 28), np.uint8), np.arange(60) % 10
    part = data.Part(images, labels)
    monkeypatch.setattr(data, "parts", lambda *_: {"train": part, "test": part})
    assert not any(finished(grid, tmp_path))
    assert not any(line["made_up"] for lines in found(grid, tmp_path).values() for line in lines)
    assert all(finished(grid, tmp_path))


def test_the_table_shows_what_other_calls_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"accuracy": 90.0, "seconds": 1.0, "made_up": False}
    monkeypatch.setattr(train_cell, "outcome", lambda cell, seed, device, until: made)
    for column in ("DP-SGD", "Sample"):
        some = ["--columns", column, "--rows", "54-37-9 %", "--seeds", "1", "--out", str(tmp_path)]
        assert main(["run", "boenisch-table-2-mnist", *some]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines()[::-1] if line.startswith("| 54-37-9 % | **"))
    assert row.count("**90.00**") == 2
    assert "| paper 97.54 ± 0.09 |" in row  # Scale, which was never run


def test_quick_leaves_out_columns_that_differ_by_numbers_alone() -> None:
    assert quick("boenisch-table-2-mnist").columns == ("DP-SGD", "Sample", "Scale")
    assert quick("yu-tables-2-3").columns == ("Maximum", "Individual")  # they differ in what is clipped


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    grid = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD"])
    assert finished(grid, tmp_path) == [False]
    path = results.path_of(grid, tmp_path)
    path.write_text(path.read_text(encoding="utf-8")[:50], encoding="utf-8")
    assert finished(grid, tmp_path) == [False]
    assert finished(grid, tmp_path) == [True]  # the new line stands behind the torn one, not in it


def test_side_by_side_gives_what_one_after_another_gives(tmp_path: Path) -> None:
    grid = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD", "Sampling"])
    finished(grid, tmp_path / "one")
    finished(grid, tmp_path / "two", jobs=2)
    one, two = found(grid, tmp_path / "one"), found(grid, tmp_path / "two")
    assert {place: one[place][0]["accuracy"] for place in one} == {place: two[place][0]["accuracy"] for place in two}
    assert len(one) == 2


def test_the_same_seed_gives_the_same_and_another_one_another() -> None:
    cell = _first(quick("boenisch-table-9"))
    one, again, other = train_cell.outcome(cell, 0), train_cell.outcome(cell, 0), train_cell.outcome(cell, 1)
    assert one["groups"] == again["groups"]
    assert one["classes"] == again["classes"]
    assert one["groups"] != other["groups"]


def test_what_was_spent_counts_extra_steps() -> None:
    """Whoever goes on after the fixed steps, which use up the strictest level, spends more than those cost."""
    cell = next(iter(quick("liu-figure-7").cells.values()))
    assert cell.training.extra_steps > 0
    done = train_cell.outcome(cell, 0)
    strictest, *_, most_generous = done["groups"]
    assert strictest["spent"] <= strictest["epsilon"]
    assert strictest["epsilon"] < most_generous["spent"] <= most_generous["epsilon"]
    assert most_generous["spent"] >= done["epsilon"][-1]  # what nine in ten of all stay below


def test_the_hinge_loss_is_what_other_classes_come_within_one_by_over_the_number_of_classes() -> None:
    torch.manual_seed(0)
    outputs, labels = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 4, (20,))
    wanted = [
        sum(max(0.0, 1 - float(row[right]) + float(row[k])) for k in range(4) if k != right) / 4
        for row, right in zip(outputs, labels.tolist(), strict=True)
    ]
    assert train_cell.hinge(outputs, labels).tolist() == pytest.approx(wanted)


def test_another_loss_is_another_training_and_cross_entropy_keeps_its_name() -> None:
    cell = next(iter(quick("yu-tables-2-3").cells.values()))
    assert "loss" not in cell.plain()["training"]
    cell = replace(cell, training=replace(cell.training, clip_norm=100.0))  # above all norms, which then tell
    hinge = replace(cell, training=replace(cell.training, loss="hinge"))
    one, other = (train_cell.outcome(each, 0) for each in (cell, hinge))
    assert one["epsilon"] != other["epsilon"]
    assert len(other["by_class"]) == 10
    assert 0 <= other["at_largest"] <= 100


def test_what_was_spent_stands_beside_what_the_same_seed_was_promised() -> None:
    """Of budgets that are drawn by the seed, another seed's most generous may spend more than this one's granted."""
    grid = load("liu-table-3").only(["Individual-1000"], ["BinarySearch"])
    place = ("Individual-1000", "BinarySearch")
    lines = [
        {"groups": [{"epsilon": most, "spent": most}], "overspent": 0, "accountant": "rdp", "promise": "data"}
        for most in (6.0, 6.2)
    ]
    (row,) = report._promises(grid, {place: lines})[2:]
    assert "| 6 | 6.000 | 0 |" in row


def test_mean_epsilon_by_class_is_in_the_order_of_classes() -> None:
    line = {"by_class": [[2, 0.5], [0, 1.5], [1, 2.5]], "made_up": False, "seed": 0}
    assert report.mean_of([line, line], "class_epsilon") == ([1.5, 2.5, 0.5], [0, 0, 0])


def test_a_look_on_the_way_changes_nothing_and_ends_with_the_end() -> None:
    cell = _first(quick("boenisch-figure-7"))
    assert cell.training.course == 3
    plain = replace(cell, training=replace(cell.training, course=0))
    looked, other = train_cell.outcome(cell, 0), train_cell.outcome(plain, 0)
    assert "course" not in other
    assert "course" not in plain.plain()["training"]  # trainings from before keep their names
    assert looked["classes"] == other["classes"] == looked["course_classes"][-1]
    assert looked["accuracy"] == other["accuracy"] == looked["course"][-1]
    early = replace(cell, training=replace(cell.training, course=0, steps=1))
    assert len(looked["course"]) == 3
    assert train_cell.outcome(early, 0)["classes"] != looked["classes"]  # so that it matters when it is looked at


def test_accuracy_by_class_on_the_way_is_told_class_by_class(tmp_path: Path) -> None:
    grid = quick("boenisch-figure-7")
    line = {"course_classes": [[1.0, 2.0], [3.0, 4.0], [5.0, None]], "made_up": False, "seed": 0}
    text = "\n".join(report._long(grid, {("MNIST", "Sample"): [line]}, "course_classes"))
    assert "| MNIST | Sample, class 0 | 1.00 | 3.00 | 5.00 |" in text
    assert "| MNIST | Sample, class 1 | 2.00 | 4.00 | – |" in text


def _first(grid: Grid) -> Cell:
    return next(cell for cell in grid.cells.values() if cell.method == "sample")


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
        name = "heo-table-1-mnist" + ("-as-published" if said else "") + "-quick.svg"
        assert ("No promise is kept" in (tmp_path / name).read_text(encoding="utf-8")) == said


def test_a_method_that_cannot_is_a_result_and_not_the_end(tmp_path: Path) -> None:
    grid = quick("boenisch-table-9")
    cell = _first(grid)
    hopeless = replace(cell, budgets={"kind": "same", "epsilon": 1e-4}, delta=1e-7)
    row, column = grid.rows[0], grid.columns[-1]
    tried = replace(grid.only([row], [column]), cells={(row, column): hopeless})
    assert finished(tried, tmp_path) == [False]
    lines = found(tried, tmp_path)
    assert "ε = 0.0001" in lines[row, column][0]["impossible"]
    assert "impossible" in report.markdown(tried, lines)


def test_the_table_has_mean_deviation_and_the_papers_figure_beside_it() -> None:
    grid = load("heo-table-1-mnist").only(["k = 0"], ["DP-SGD"])
    outcomes = [{"accuracy": value, "made_up": False, "seed": k} for k, value in enumerate((90.0, 92.0))]
    text = report.markdown(grid, {("k = 0", "DP-SGD"): outcomes})
    assert "**91.00** ± 1.41 (paper 90.42 ± 2.78, +0.58)" in text


def test_a_class_without_test_records_leaves_the_others_in_their_place() -> None:
    grid = load("boenisch-table-9").only(None, ["Sample"])
    outcomes = [{"classes": [90.0, None, 80.0], "made_up": False, "seed": k} for k in range(2)]
    text = report.markdown(grid, {("MNIST", "Sample"): outcomes})
    assert "| MNIST | Sample | 90.00 | – | 80.00 |" in text
    assert "Seeds of each cell: 0, 1;" in text


def test_the_gap_between_classes_is_that_of_their_means() -> None:
    grid = load("boenisch-table-9").only(None, ["Sample"])
    outcomes = [{"classes": [90.0, None, 80.0 + 8 * k], "made_up": False, "seed": k} for k in range(2)]
    text = report.markdown(grid, {("MNIST", "Sample"): outcomes})
    assert "| MNIST | **6.00** (paper 0.39, +5.61) |" in text


def test_the_largest_spending_of_all_seeds_is_shown_with_its_delta() -> None:
    grid = load("heo-table-1-mnist").only(["k = 0"], ["DP-SGD"])

    def outcome(seed: int, spent: float) -> dict[str, Any]:
        groups = [{"epsilon": 1.0, "people": 5, "spent": spent}]
        more = {"accuracy": 90.0, "made_up": False, "promise": "data", "accountant": "pld", "overspent": seed}
        return {"seed": seed, "groups": groups, **more}

    text = report.markdown(grid, {("k = 0", "DP-SGD"): [outcome(0, 0.9), outcome(3, 1.1)]})
    assert "| k = 0 | DP-SGD | 1e-05 | 1 | 1.100 | 3 | pld |" in text


def test_budgets_by_class_are_as_many_as_the_data_has_classes() -> None:
    (cell, *_) = quick("heo-table-1-mnist").cells.values()
    two = {"kind": "classes", "epsilon": [1.0, 2.0]}
    train_cell.check(replace(cell, data="heart", model="logistic", method="sample", options={}, budgets=two))
    with pytest.raises(InvalidInput, match="2 ε for the 10 classes"):
        train_cell.check(replace(cell, method="sample", options={}, budgets=two))
    three = {"kind": "classes", "epsilon": [1.0, 2.0, 3.0]}
    with pytest.raises(InvalidInput, match="3 ε for the 2 classes"):
        train_cell.check(replace(cell, data="heart", model="logistic", method="sample", options={}, budgets=three))


def test_budgets_follow_from_the_seed() -> None:
    labels = np.arange(200) % 10
    levels = {"kind": "levels", "epsilon": [1.0, 2.0], "shares": [0.5, 0.5]}
    assert budgets(levels, labels, 0).tolist() == budgets(levels, labels, 0).tolist()
    assert budgets(levels, labels, 0).tolist() != budgets(levels, labels, 1).tolist()


def test_a_line_that_cannot_be_written_leaves_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = quick("heo-table-1-mnist").only(["k = -0.2"], ["DP-SGD", "Sampling"])
    assert finished(grid.only(None, ["DP-SGD"]), tmp_path) == [False]
    before = results.path_of(grid, tmp_path).read_bytes()

    def broken(path: Path, line: results.Line) -> None:
        with path.open("ab") as file:
            file.write(b'{"row": "k = -0.2", "col')
        raise OSError("no space left")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(results, "append", broken)
        with pytest.raises(OSError, match="no space"):
            finished(grid, tmp_path)
    assert results.path_of(grid, tmp_path).read_bytes().startswith(before)
    assert finished(grid, tmp_path) == [True, False]
    assert finished(grid, tmp_path) == [True, True]


def out_of_memory_once(cell: Cell, seed: int, device: str, until: object) -> results.Line:
    """Stands for `train_cell.outcome`."""
    if cell.method == "sampling" and seed == 0:
        raise MemoryError("out of memory")
    return {"accuracy": 90.0, "made_up": False}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_training_that_fails_leaves_the_others_and_is_told_at_the_end(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_cell, "outcome", out_of_memory_once)
    monkeypatch.setattr(running, "_pool", lambda jobs: nullcontext(None if jobs == 1 else ThreadPoolExecutor(jobs)))
    some = ["--rows", "k = 0", "--columns", "DP-SGD", "Sampling", "AdaPDP", "--seeds", "2", "--jobs", str(jobs)]
    assert main(["run", "heo-table-1-mnist", *some, "--out", str(tmp_path)]) == 2
    lines = results.read(tmp_path / "heo-table-1-mnist.jsonl")
    done = {(line["column"], line["seed"]) for line in lines}
    assert done == {(c, s) for c in ("DP-SGD", "Sampling", "AdaPDP") for s in (0, 1)} - {("Sampling", 0)}
    assert len(lines) == 5
    said = capsys.readouterr()
    assert "1 trainings of heo-table-1-mnist failed" in said.err
    assert "k = 0 / Sampling, seed 0: out of memory" in said.err
    assert said.out.count("failed: ") == 1
    monkeypatch.setattr(train_cell, "outcome", lambda cell, seed, device, until: {"accuracy": 1.0, "made_up": False})
    assert main(["run", "heo-table-1-mnist", *some, "--out", str(tmp_path)]) == 0
    assert len(results.read(tmp_path / "heo-table-1-mnist.jsonl")) == 6


def test_a_quick_report_says_that_it_is_quick() -> None:
    grid = quick("heo-table-1-mnist")
    row, column = grid.rows[0], grid.columns[0]
    lines = {(row, column): [{"accuracy": 50.0, "made_up": False, "seed": 0}]}
    assert "QUICK" in report.markdown(grid, lines)
    assert "QUICK" not in report.markdown(load("heo-table-1-mnist"), lines)


def test_names_that_look_alike_are_different_cells() -> None:
    """And so are quick cells and others: what is finished stays."""
    grid = load("heo-table-1-mnist")
    some = next(iter(grid.cells.values()))
    rows = ("k = 0.2", "k = −0.2", "ε = 1", "δ = 1")
    tried = replace(grid, rows=rows, columns=("DP-SGD",), cells={(row, "DP-SGD"): some for row in rows}, seeds=2)
    assert len({job.key for job in tried.jobs()}) == 8


@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff\xfe", b"%s", b'{"accuracy": 3}'])
def test_a_damaged_line_is_trained_again(content: bytes, tmp_path: Path) -> None:
    grid = quick("heo-table-1-mnist")
    path, identity = tmp_path / f"{grid.name}.jsonl", json.dumps(grid.jobs()[0].plain()).encode()
    path.write_bytes(content.replace(b"%s", identity) + b"\n")
    assert len(grid.left(results.read(path))) == len(grid.jobs())
    path.write_bytes(identity[:-1] + b', "made_up": true}\n' + content.replace(b"%s", identity[:-9]) + b"\n")
    assert len(grid.left(results.read(path))) == len(grid.jobs()) - 1


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("uniform", {"data": "minst"}, "minst"),
        ("uniform", {"model": "resnet"}, "resnet"),
        ("uniform", {"accountant": "magic"}, "magic"),
        ("uniform", {"options": {"threshold": 1}}, "has no option 'threshold'"),
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
    grid = quick("heo-table-1-mnist")
    (place, cell), *_ = grid.cells.items()
    if changes.pop("loss", None):
        changes["options"] = {**changes["options"], "loss": "fixed"}
    broken = replace(grid, cells={**grid.cells, place: replace(cell, method=method, **changes)})
    with pytest.raises(InvalidInput, match=re.escape(place[1])) as error:
        list(running.run(broken, Where(tmp_path)))
    assert said in str(error.value)
    assert not list(tmp_path.rglob("*.json*"))


def test_missing_data_is_an_error_that_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))
    some = ["--rows", "k = 0", "--columns", "DP-SGD", "--out", str(tmp_path)]
    assert main(["run", "heo-table-1-mnist", *some]) == 2
    assert "PRIVYPURSE_DATA" in capsys.readouterr().err


def test_wrong_options_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = quick("heo-table-1-mnist")
    with pytest.raises(InvalidInput, match="at least 1"):
        finished(grid, tmp_path, jobs=0)
    assert main(["run", "heo-table-1-mnist", "--seeds", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="device"):
        list(running.run(grid, Where(tmp_path, "cuda:99")))
    with pytest.raises(InvalidInput, match="minutes"):
        list(running.run(grid, Where(tmp_path, minutes=-1.0)))


def test_show_writes_nothing_and_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = tmp_path / "nowhere"
    assert main(["show", "heo-table-1-mnist", "--out", str(nowhere)]) == 2
    assert f"{nowhere / 'heo-table-1-mnist.jsonl'} has no trainings" in capsys.readouterr().err
    assert not nowhere.exists()
    (tmp_path / "heo-table-1-mnist.jsonl").write_text(
        '{"row": "k = 0", "column": "gone", "settings": {}, "seed": 0}\n'
    )
    assert main(["show", "heo-table-1-mnist", "--out", str(tmp_path)]) == 2
    assert "1 trainings, none of them with the settings of the table now" in capsys.readouterr().err
    assert main(["show", "boenisch-table-7-svhn", "--out", str(catalogue.RESULTS / "papers")]) == 0
    assert not (catalogue.RESULTS / "papers" / "boenisch-table-7-svhn.md").exists()


def test_columns_are_compared_with_the_first_by_the_same_seeds() -> None:
    grid = load("heo-table-3-mnist").only(["34-43-23 %"], None)
    first, second = grid.columns

    def lines(*pairs: tuple[int, float, float]) -> list[results.Line]:
        kept = {"made_up": False}
        return [{"seed": seed, "accuracy": found, "public_accuracy": before, **kept} for seed, found, before in pairs]

    # Given in another order, and with a seed that only one of them has.
    ours = {("34-43-23 %", first): lines((0, 90.0, 89.0), (1, 80.0, 77.0), (2, 5.0, 5.0))}
    theirs = {("34-43-23 %", second): lines((1, 81.0, 80.0), (0, 93.0, 90.0))}
    told = report.markdown(grid, {**ours, **theirs})
    # Differences 3 and 1: mean 2, half 12.7062 · √2 / √2. Of the public ones 3 and 1 too, and 1, 3, 0.
    assert f"less that of {first}" in told
    assert f"| 34-43-23 % | {second} | +2.00 [-10.71, +14.71] |" in told
    assert f"| 34-43-23 % | {first} | +1.33 [-2.46, +5.13] |" in told
    assert told.count(f"| 34-43-23 % | {second} | +2.00 [-10.71, +14.71] |") == 2


def test_budgets_of_every_kind() -> None:
    labels = np.arange(200) % 10
    assert set(budgets({"kind": "same", "epsilon": 2.0}, labels, 0)) == {2.0}
    spaced = budgets({"kind": "spaced", "low": 0.5, "high": 0.9, "groups": 5}, labels, 0)
    np.testing.assert_allclose(np.unique(spaced), [0.5, 0.6, 0.7, 0.8, 0.9])
    by_class = budgets({"kind": "classes", "epsilon": [float(k + 1) for k in range(10)]}, labels, 0)
    np.testing.assert_array_equal(by_class, labels + 1.0)
    levels = {"kind": "levels", "epsilon": [1.0, 2.0], "shares": [0.25, 0.75]}
    assert sorted(np.unique(budgets(levels, labels, 0), return_counts=True)[1].tolist()) == [50, 150]
    assert (budgets(levels, labels, 0) != budgets(levels, labels, 1)).any()
    for wrong in ({"kind": "some"}, {"kind": "levels", "epsilon": [1.0]}, {"kind": "pareto", "heavy": 1}):
        with pytest.raises(InvalidInput, match="kind"):
            budgets(wrong, labels, 0)


def test_the_list_names_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert all(path.stem in said for path in catalogue.available())

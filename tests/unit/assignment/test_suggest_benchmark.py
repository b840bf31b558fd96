"""The benchmark of suggest: a grid of forty, nothing trained twice, and a verdict that can fall out badly."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import suggest as benchmark
from benchmarks.suggest import Cell, Trained, Verdict

OWN = Cell(3, 4, 1.0, 0.4)
RESULTS = Path(benchmark.__file__).parent / "results"
PAGE = Path(benchmark.__file__).parents[1] / "docs" / "suggest.md"


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """Accuracy by formula instead of training: best at the middle length, suggest's cell a point behind."""
    asked = []

    def trained(name, cell, seed, device, folder):
        asked.append((cell, seed))
        accuracy = 90.0 + seed - (1.0 if cell == OWN else abs(cell.learning_rate * cell.clip_norm - 0.32))
        return Trained(name, cell, seed, accuracy, 1.0, 0.1)

    monkeypatch.setattr(benchmark, "trained", trained)
    monkeypatch.setattr(benchmark, "make_plans", lambda *_: None)
    monkeypatch.setattr(benchmark, "suggested", lambda name: "as suggested")
    monkeypatch.setattr(benchmark, "cell_of", lambda suggestion: OWN)
    return asked, tmp_path / "kept.jsonl"


def test_forty_cells_each():
    for task in benchmark.TASKS.values():
        assert len(set(benchmark.grid(task))) == 40


def test_what_is_kept_is_not_trained_again(made_up, capsys):
    asked, path = made_up
    call = ["--data", "adult", "--seeds", "2", "--out", str(path)]
    assert benchmark.main(call) == 0
    assert len(asked) == 2 * 41
    lines = path.read_text().splitlines()
    other = json.dumps({**json.loads(lines[0]), "data": "mnist"})
    path.write_text("\n".join([other, *lines[2:-1], lines[-1][:30]]) + "\n")  # two gone, one broken off
    asked.clear()
    assert benchmark.main(call) == 0
    assert len(asked) == 3
    assert "+1.00 |" in capsys.readouterr().out


def test_the_bar_is_a_bar(made_up):
    call = ["--seeds", "1", "--out", str(made_up[1]), "--bars"]
    assert benchmark.main(["--data", "adult", *call]) == 1  # a point behind, and half a point is the bar
    assert benchmark.main(["--data", "cifar10", *call]) == 0


def test_a_best_cell_at_the_edge_is_said():
    cells = benchmark.grid(benchmark.TASKS["adult"])
    by_length = {(cell, 0): Trained("adult", cell, 0, cell.learning_rate * cell.clip_norm, 1, 1) for cell in cells}
    found = {**by_length, (OWN, 0): Trained("adult", OWN, 0, 1.0, 1, 1)}
    verdict = Verdict.of(found, cells, OWN, 1)
    assert verdict.at_edge
    assert verdict.behind == pytest.approx(1.0)
    inside = {
        key: Trained(**{**asdict(each), "cell": each.cell, "accuracy": -abs(each.accuracy - 0.32)})
        for key, each in found.items()
    }
    assert not Verdict.of(inside, cells, OWN, 1).at_edge


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "mnist", "cifar10"])
def test_what_is_suggested_today_was_measured_within_its_bar_and_is_told(name, monkeypatch, capsys):
    """A rule that answers otherwise has no line in the files: it has to be trained, and the page told."""
    monkeypatch.setattr(benchmark, "make_plans", lambda *_: pytest.fail("not everything was trained"))
    path = RESULTS / f"suggest-{name}.jsonl"
    assert benchmark.main(["--data", name, "--out", str(path), "--bars"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {name} |"))
    assert row in PAGE.read_text(encoding="utf-8")

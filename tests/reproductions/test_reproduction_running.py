"""A whole table at a tiny size, broken off and gone on with, and the headline built from its file."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from privypurse.errors import InvalidInput
from reproductions import catalogue, data, features, headline, results
from reproductions.__main__ import main
from reproductions.choice import Rivals
from reproductions.running import Where, run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]

RAW = """
title = "Tiny"
about = ""
data = "mnist"
delta = 1e-3
seeds = 2
methods = ["uniform", "exclude", "exclude@2", "sample", "scale", "none"]
paper = { "Somebody" = 50.0 }
budgets = { kind = "levels", epsilon = [1.0, 2.0], shares = [0.5, 0.5] }
settings = { network = "linear", steps = 3, batch_size = 20, decays = [0.0, 0.9] }

[choice]
lead = "sample"
validation = 40
seeds = [1000]

[[choice.stages]]
grid = { walk = [0.05, 0.5] }

[[choice.stages]]
methods = ["uniform", "exclude", "exclude@2", "scale", "none"]
grid = {}
"""


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A table's file, and images and features that need no files and no kymatio."""
    random = np.random.default_rng(0)

    def part(n: int) -> data.Part:
        labels = np.arange(n) % 10
        images = (random.integers(0, 100, (n, 1, 28, 28)) + 15 * labels[:, None, None, None]).astype(np.uint8)
        return data.Part(images, labels)

    whole = {"train": part(140), "test": part(30)}
    monkeypatch.setattr(data, "parts", lambda name, *_: whole)

    def pooled(images, view, device):
        small = images.reshape(len(images), -1, 7, 4, 7, 4).mean((3, 5)) / 255
        return np.repeat(small, 27, axis=1).astype(np.float32)

    monkeypatch.setattr(features, "scattered", pooled)
    (tmp_path / "tiny.toml").write_text(RAW)
    monkeypatch.setattr(catalogue, "TABLES", tmp_path)
    return tmp_path


def by_hand(lines, method: str) -> tuple[str, str, str]:
    """Mean and interval of a method less uniform over two seeds: Student's t with one degree of freedom."""
    scores = {(x["method"], x["seed"]): next(iter(x["accuracy"].values())) for x in lines if x["purpose"] == "final"}
    first, second = (scores[method, seed] - scores["uniform", seed] for seed in (0, 1))
    mean, half = (first + second) / 2, 12.7062 * abs(first - second) / 2
    mean, low, high = (f"{round(each, 2) + 0.0:+.2f}" for each in (mean, mean - half, mean + half))
    return mean, low, high


def test_a_table_from_file_to_headline(tables, capsys) -> None:
    where, out = ["--device", "cpu", "--features", str(tables / "features")], tables / "results"
    command = ["run", "tiny", "--out", str(out), *where]
    assert main([*command, "--minutes", "0"]) == 3  # one training, then the time is over
    path = out / "tiny.jsonl"
    assert len(results.read(path)) == 1
    assert main(["show", "tiny", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "sample: validation" in told
    assert "trainings left: 19, 7 of them to choose by" in told
    assert main(command) == 0
    lines = results.read(path)
    # Three walks for Sample, one score for each of the others; then every row with every seed.
    assert [line["purpose"] for line in lines] == ["choice"] * 8 + ["final"] * 12
    assert all(set(line["versions"]) >= {"privypurse", "torch", "device"} for line in lines)
    assert {line["records"] for line in lines} == {100, 140}
    assert main(command) == 0
    assert len(results.read(path)) == len(lines)  # nothing twice

    assert main(["show", "tiny", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    for method in ("sample", "scale", "none"):
        mean, low, high = by_hand(lines, method)
        assert f"\n{method} less uniform: {mean} [{low}, {high}]\n" in told

    assert main(["check", "--out", str(out)]) == 1  # not built yet
    assert main(["table", "--out", str(out)]) == 0
    assert main(["check", "--out", str(out)]) == 0
    text = (out / "headline.md").read_text()
    assert "| Tiny | 50.00 (Somebody) |" in text
    (out / "headline.md").write_text(text.replace("50.00", "50.01"))
    assert main(["check", "--out", str(out)]) == 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    assert main(["check", "--out", str(out)]) == 2
    assert "no result for none, seed 1" in capsys.readouterr().err

    assert main(["show", "tiny", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "none: 1 of 2 seeds" in told
    assert "trainings left: 1, 0 of them to choose by" in told
    _, low, high = by_hand(lines, "sample")
    assert f"[{low}, {high}] over 2 seeds" in told

    (out / "unfinished").mkdir()
    path.rename(out / "unfinished" / path.name)  # where a later run goes on, and check does not look
    (out / "headline.md").unlink()
    assert main(["table", "--out", str(out)]) == 0
    assert main(["check", "--out", str(out)]) == 0
    assert main(["run", "tiny", "--out", str(out / "unfinished"), *where]) == 0
    assert len(results.read(out / "unfinished" / "tiny.jsonl")) == len(lines)


def test_a_table_with_fewer_methods_and_one_seed_is_told(tables, capsys) -> None:
    """Without Scale the preferred one is Sample; without both there is none; one seed has no interval."""
    where = ["--seeds", "1", "--device", "cpu", "--features", str(tables / "features"), "--out", str(tables)]
    every = 'methods = ["uniform", "exclude", "exclude@2", "sample", "scale", "none"]'
    assert every in RAW
    for name, methods, choose in (
        ("two", '["uniform", "sample"]', '["uniform"]'),
        ("rivals", '["uniform", "exclude"]', '["uniform", "exclude"]'),
    ):
        text = RAW.replace(every, f"methods = {methods}")
        text = text.replace('methods = ["uniform", "exclude", "exclude@2", "scale", "none"]', f"methods = {choose}")
        (tables / f"{name}.toml").write_text(text)
        assert main(["run", name, *where]) == 0
        told = capsys.readouterr().out
        assert "±" not in told
        row = next(line for line in told.splitlines() if line.startswith("| Tiny"))
        lines = results.read(tables / f"{name}.jsonl")
        final = {
            line["method"]: next(iter(line["accuracy"].values())) for line in lines if line["purpose"] == "final"
        }
        if name == "two":
            assert f"| **{final['sample']:.2f}** |" in row
            assert f"| {final['sample'] - final['uniform']:+.2f} | – |" in row
        else:
            assert "**" not in row
            assert row.endswith("| – | – |")


def test_a_line_that_was_cut_off_is_trained_again(tables) -> None:
    table = catalogue.load_rivals("tiny")
    where = Where(tables / "results", features=tables / "features")
    assert len(list(run(table, where))) == 20
    path = results.path_of(table, where.out)
    whole = path.read_text()
    path.write_text(whole[:-40])
    assert len(list(run(table, where))) == 1
    strip = [{**line, "wall": 0, "seconds": 0} for line in results.read(path)]
    assert strip == [{**json.loads(text), "wall": 0, "seconds": 0} for text in whole.splitlines()]


def test_quickly_everything_runs_once_and_leaves_the_real_results_alone(tables, capsys) -> None:
    out = tables / "results"
    assert main(["run", "tiny", "--quick", "--out", str(out), "--features", str(tables / "features")]) == 0
    assert [path.name for path in out.iterdir()] == ["tiny-quick.jsonl"]
    lines = results.read(out / "tiny-quick.jsonl")
    assert {line["purpose"] for line in lines} == {"choice", "final"}
    assert {line["settings"]["steps"] for line in lines} == {3}
    assert main(["show", "tiny", "--quick", "--out", str(out)]) == 0
    assert "| Tiny | 50.00 (Somebody) |" in capsys.readouterr().out
    assert main(["run", "tiny", "--quick", "--rows", "a"]) == 2
    assert "no rows and columns" in capsys.readouterr().err


NEEDS_NO_KYMATIO = [
    path
    for path in catalogue.available()
    if isinstance(table := catalogue.read(path), Rivals) and table.features != "scattering"
]


@pytest.mark.parametrize("path", NEEDS_NO_KYMATIO, ids=lambda path: path.stem)
def test_every_table_runs_quickly_without_its_files(path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))
    where = ["--device", "cpu", "--out", str(tmp_path), "--features", str(tmp_path / "features")]
    assert main(["run", str(path), "--quick", *where]) == 0
    lines = results.read(tmp_path / f"{path.stem}-quick.jsonl")
    table = catalogue.load_rivals(path.stem).quickened()
    assert Counter(line["method"] for line in lines if line["purpose"] == "final") == dict.fromkeys(table.methods, 2)
    assert all(set(line["versions"]) >= {"torch"} and 0 <= min(line["accuracy"].values()) <= 100 for line in lines)


def test_the_interval_is_that_of_paired_differences() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 5), rng.normal(0, 1, 5)
    mean, low, high = headline.interval(a - b)
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert mean == pytest.approx((a - b).mean())
    with pytest.raises(InvalidInput, match="at least two seeds"):
        headline.interval(np.array([1.0]))

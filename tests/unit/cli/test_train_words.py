"""What `privypurse train` says: of columns that nobody could read, and of a test in the target's units."""

import csv
import json
import re
from pathlib import Path

import pytest

import privypurse as pp
from privypurse import cli
from privypurse.runs.config import read_config
from privypurse.runs.private_ranges import with_ranges

CONFIG = """
[data]
table = "people.csv"
person = "id"
held_out = {{ share = 0.3 }}
{target}
[data.features]
age = {{ low = 18, high = 90 }}
town = ["Oslo", "Rome"]
since = {{ low = 2015-01-01, high = 2025-12-31 }}
[budgets]
epsilon = "epsilon"
[plan]
steps = 2
batch_size = 10
accountant = "rdp"
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 0.1
"""


@pytest.fixture(autouse=True)
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        [f"p{i}", 18 + i, ("Oslo", "Rome")[i % 2], "2020-01-02", ("no", "yes")[i % 2], 10 * i, 1 + i % 2]
        for i in range(60)
    ]
    with Path("people.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "age", "town", "since", "left", "cost", "epsilon"], *rows])


def said(capsys, target, *changes):
    text = Path("people.csv").read_text(encoding="utf-8")
    for old, new in changes:
        text = text.replace(old, new)
    Path("people.csv").write_text(text, encoding="utf-8")
    Path("config.toml").write_text(CONFIG.format(target=target), encoding="utf-8")
    assert cli.main(["train", "config.toml"]) == 0
    return " ".join(capsys.readouterr().out.split())


CLASSES = 'label = "left"\nclasses = ["no", "yes"]'


@pytest.mark.parametrize(
    ("column", "target", "changes"),
    [
        (None, CLASSES, ()),
        (None, CLASSES, [(f"p{i},{18 + i},", f"p{i},,") for i in range(1, 60)]),  # one cell is enough
        ("since", CLASSES, [("2020-01-02", "02.01.2020")]),
        ("town", CLASSES, [("Oslo", "oslo"), ("Rome", "rome")]),
        ("left", CLASSES.replace("no", "No").replace("yes", "Yes"), ()),
    ],
)
def test_a_column_that_nothing_was_read_of_is_told_before_the_first_step(capsys, column, target, changes):
    words = said(capsys, target, *changes)
    assert re.findall(r"Of '(\w+)' no cell", words) == ([] if column is None else [column])
    if column is not None:
        assert words.index("no cell of the people") < words.index("steps taken")


def test_a_test_is_told_in_the_targets_own_units(capsys):
    words = said(capsys, 'label = "cost"\nrange = { low = 0, high = 600 }')
    test = json.loads(Path("privypurse-run/test.json").read_text(encoding="utf-8"))
    assert f"test error {test['mean_absolute_error']:.4g} on average, R² {test['r_squared']:.3f}, test loss" in words


def test_every_flag_has_its_accuracy(capsys):
    words = said(capsys, 'labels = ["left", "cost"]')
    test = json.loads(Path("privypurse-run/test.json").read_text(encoding="utf-8"))
    assert test["labels"]["cost"] is None  # no flag
    assert f"test accuracy left {in_words(test['labels']['left'])}, test loss" in words


def in_words(found):
    always = f"{found['accuracy']:.2%} (always the commonest class: {found['accuracy_without_a_model']:.2%})"
    return f"{always}, AUC {found['auc']:.3f}"


def test_what_no_model_is_needed_for_stands_beside_the_figures(capsys):
    words = said(capsys, CLASSES)
    test = json.loads(Path("privypurse-run/test.json").read_text(encoding="utf-8"))
    without = f"test loss {test['loss']:.4f} (always the classes' shares: {test['loss_without_a_model']:.4f})"
    assert f"test accuracy {in_words(test)}, {without}" in words


def test_a_date_in_quotes_is_told_from_a_number(capsys):
    Path("config.toml").write_text(
        CONFIG.format(target=CLASSES).replace("low = 2015-01-01", 'low = "2015-01-01"'), encoding="utf-8"
    )
    assert cli.main(["train", "config.toml"]) == 2
    assert "since low is a date in quotes; write it without them" in capsys.readouterr().err


def test_a_dry_run_says_the_same_and_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setattr("privypurse.runs.training_run.train", None)  # not called
    Path("config.toml").write_text(CONFIG.format(target=CLASSES.replace("no", "No")), encoding="utf-8")
    before = sorted(Path().iterdir())
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "noise multiplier" in words
    assert "numbers of each row: the first of `suggest --layers`" in words
    assert "They are made of age, town, since. `predict` needs these columns too" in words
    assert "nothing was trained, charged or written" in words
    assert sorted(Path().iterdir()) == before


def test_a_dry_run_under_a_ledger_charges_nobody_and_keeps_no_plan(capsys):
    ledger = pp.Ledger.create("sqlite:///p.db", epsilons=[1, 2], delta=1e-5, key="l.key")
    ledger.import_table("people.csv", person="id", dry_run=False)
    entries = ledger.show().entries
    text = CONFIG.format(target=CLASSES).replace("steps = 2", "steps = 2\nat_most = 0.5\nnoise_multiplier = 9.0")
    Path("config.toml").write_text(text + '[training]\ncheckpoint = "kept"\n', encoding="utf-8")
    assert cli.main(["train", "config.toml", "--dry-run", "--ledger", "sqlite:///p.db", "--key", "l.key"]) == 0
    assert not Path("kept").exists()
    assert ledger.show().entries == entries


@pytest.mark.slow
def test_a_dry_run_says_its_piece_beside_a_run_that_is_there(capsys):
    """It writes nothing, so nothing can be in its way; a run is still refused."""
    said(capsys, CLASSES)
    before = {path: path.read_bytes() for path in Path("privypurse-run").iterdir()}
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    assert cli.main(["train", "config.toml"]) == 2
    assert "already holds the model.pt of a run" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("privypurse-run").iterdir()} == before


ESTIMATED = {
    "{{ low = 18, high = 90 }}": '{{ range = "estimated", within = [0, 200] }}',
    '["Oslo", "Rome"]': '{{ values = "estimated" }}',
}


def with_estimates(more="", at_most=""):
    text = CONFIG
    for old, new in ESTIMATED.items():
        assert old in text
        text = text.replace(old, new)
    text = text.format(target=CLASSES).replace("steps = 2", f"steps = 2{at_most}")
    Path("config.toml").write_text(f"{text}[private_ranges]\nshare = 0.25\n{more}", encoding="utf-8")


@pytest.mark.slow
def test_a_dry_run_says_what_would_be_estimated_and_asks_nobody(capsys, monkeypatch):
    """Whatever stands in those cells, it says the same."""
    monkeypatch.setattr("privypurse.runs.private_ranges._asked", lambda *_: pytest.fail("somebody was asked"))
    with_estimates()
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    words = capsys.readouterr().out
    plain = " ".join(words.split())
    assert "To be estimated: ends of 'age', between 0 and 200" in plain
    assert "To be estimated: values of 'town'" in plain
    assert "would cost everyone at most 0.25 of their ε and δ; nobody was asked" in plain
    assert "nothing was trained, charged or written" in plain
    assert re.search(r"\b0\.75\b.*\b1\.5\b", plain)  # what the plan is left of ε = 1 and 2
    assert not Path("privypurse-run").exists()
    lines = Path("people.csv").read_text(encoding="utf-8").splitlines()
    rows = [lines[0].split(","), *([*line.split(",")[:1], "x", "", *line.split(",")[3:]] for line in lines[1:])]
    with Path("people.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == words


def test_a_dry_run_names_a_column_to_be_estimated_that_is_not_there(capsys):
    with_estimates()
    text = Path("config.toml").read_text(encoding="utf-8").replace("town =", "twon =")
    Path("config.toml").write_text(text, encoding="utf-8")
    assert cli.main(["train", "config.toml", "--dry-run"]) == 2
    assert "twon" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_estimated_before_is_not_told_as_still_to_come(capsys):
    """A run with a checkpoint asks once; a dry run of it shows the plan by what it was told."""
    with_estimates('[training]\ncheckpoint = "kept"\n', "\nat_most = 0.5")
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    assert "nobody more than ε = 0.125" in " ".join(capsys.readouterr().out.split())
    assert not Path("kept").exists()
    with_ranges(read_config("config.toml"), None)  # asked, and then broken off
    assert cli.main(["train", "config.toml", "--dry-run"]) == 0
    plain = " ".join(capsys.readouterr().out.split())
    assert "To be estimated" not in plain
    assert "people were asked" in plain
    assert [path.name for path in Path("kept").iterdir()] == ["ranges.json"]


@pytest.mark.slow
def test_a_dry_run_refuses_what_a_ledger_could_not_charge(capsys):
    ledger = pp.Ledger.create("sqlite:///p.db", epsilons=[1, 2], delta=1e-5, key="l.key")
    ledger.import_table("people.csv", person="id", dry_run=False)
    entries = ledger.show().entries
    with_estimates(at_most="\nat_most = 0.5\nnoise_multiplier = 9.0")
    assert cli.main(["train", "config.toml", "--dry-run", "--ledger", "sqlite:///p.db", "--key", "l.key"]) == 2
    assert "a part of δ that a ledger cannot charge" in capsys.readouterr().err
    assert ledger.show().entries == entries

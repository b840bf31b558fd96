"""Messages of the library as commands say them: flags where there are flags, keys where a file has them."""

import argparse
from pathlib import Path

import pytest

from command_line import run
from privypurse.cli.arguments import in_flags

PLAN = argparse.Namespace(table="t.csv", steps=1, people=None, batch_size=1, noise_multiplier=None, at_most=None)
TRAIN = argparse.Namespace(config="config.toml", dry_run=False, ledger=None)


@pytest.mark.parametrize(
    ("said", "by_plan", "by_train"),
    [
        ("batch_size must be 1", "--batch-size must be 1", "batch_size must be 1"),
        ("steps must be 1", "--steps must be 1", "steps must be 1"),
        ("so many steps must be 1", "so many steps must be 1", "so many steps must be 1"),
        ("Give people=, or steps=", "Give --people, or --steps", "Give people, or steps"),
        (
            "earlier runs (at_most=) took all. Give noise_multiplier=.",
            "earlier runs (--at-most) took all. Give --noise-multiplier.",
            "earlier runs (at_most) took all. Give noise_multiplier.",
        ),
        ("record 3: give noise_multiplier= too", "record 3: give --noise-multiplier too", None),
        ("table is gone", "table is gone", "table is gone"),
    ],
)
def test_arguments_are_named_as_they_are_typed(said: str, by_plan: str, by_train: str | None) -> None:
    assert in_flags(said, PLAN) == by_plan
    assert by_train is None or in_flags(said, TRAIN) == by_train


@pytest.mark.parametrize(
    "said",
    [
        "column 'batch_size' is empty",
        'column "steps=" is empty',
        "batch_size.csv does not exist",
        "data/at_most is no file",
        "at_most/people.csv is no file",
        "--batch-size is given twice",
        "strict=1,people=2 is not of the form",
        'write ledger = "none"',
        "sqlite:///purses.db?mode=ro",
        "`noise_multiplier` is a key",
        "my_noise_multiplier is a name",
    ],
)
def test_names_of_somebodys_own_stay(said: str) -> None:
    assert in_flags(said, PLAN) == said
    assert in_flags(said, TRAIN) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("query people.csv sum age --lower 5 --upper 1 --noise 5", "--lower is 5 and --upper is 1"),
        ("query people.csv count --noise 5 --at-delta 2", "--at-delta must be"),
        ("ledger import people.csv --level age --ledger sqlite:///l.db --key l.key", "given is --level\n"),
        ("plan people.csv --steps 2 --batch-size 9", "or give --noise-multiplier and let --batch-size be"),
        ("plan people.csv --steps 2 --batch-size 1 --people 9", "leave it out beside --steps"),
    ],
)
def test_likely_mistakes_are_said_without_a_word_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIVYPURSE_LEDGER", raising=False)
    Path("people.csv").write_text("epsilon,age\n1,3\n2,4\n", encoding="utf-8")
    code, _, error = run(capsys, line)
    assert code == 2
    assert said in error
    assert "None" not in error

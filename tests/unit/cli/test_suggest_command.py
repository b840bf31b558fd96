"""privypurse suggest: what pp.suggest says, in words, JSON and TOML; a table only as grants, a ledger not at all."""

import json
import tomllib
from pathlib import Path

import pytest

import privypurse as pp
from command_line import done, run

GUESS = "--people 400 --shares 0.5=0.6,2=0.4 --layers 20,4,2 --method uniform --accountant rdp"


@pytest.fixture(scope="module")
def expected() -> pp.Suggestion:
    weights = 21 * 4 + 5 * 2
    how = {"method": "uniform", "accountant": "rdp"}
    return pp.suggest(people=400, levels={0.5: 0.6, 2.0: 0.4}, parameters=weights, **how)


def test_words_json_and_toml_say_the_same(capsys: pytest.CaptureFixture[str], expected: pp.Suggestion) -> None:
    words = done(capsys, f"suggest {GUESS}")
    assert words == f"{expected}\n\n{expected.toml()}"
    assert done(capsys, f"suggest {GUESS} --toml") == expected.toml()
    assert json.loads(done(capsys, f"suggest {GUESS} --json")) == expected.to_dict()
    assert tomllib.loads(expected.toml())["plan"]["steps"] == expected.steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "of_number"),
    [
        ("--layers 20,4,1", True),
        ("--layers 20,4,1 --target flags", False),
        ("--layers 20,4,2", False),
        ("--parameters 89", False),
        ("--parameters 89 --target number", True),
    ],
)
def test_the_sections_for_a_number_hold_no_learning_rate_for_classes(
    capsys: pytest.CaptureFixture[str], size: str, of_number: bool
) -> None:
    guess = f"--people 400 --shares 0.5=0.6,2=0.4 {size} --method uniform --accountant rdp"
    written = done(capsys, f"suggest {guess} --toml")
    found = tomllib.loads(written)
    assert ((found["optimizer"]["lr"], found["optimizer"]["momentum"]) == (0.1, 0.0)) is of_number
    assert ("learning rate is for classes" in written) is not of_number
    told = json.loads(done(capsys, f"suggest {guess} --json"))
    sigma, sizes = told["noise_multiplier"], found["plan"]
    length = found["optimizer"]["lr"] / (1 - found["optimizer"]["momentum"]) * sizes["clip_norm"]
    walk = length * sigma * sizes["steps"] ** 0.5 / sizes["batch_size"]  # as the page has it
    assert told["walk"] == pytest.approx(walk, rel=0.06)  # the rate of the rule is rounded to two digits


def test_a_table_is_looked_at_for_its_grants_and_says_what_that_means(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, expected: pp.Suggestion
) -> None:
    table = tmp_path / "people.csv"
    table.write_text("epsilon\n" + "0.5\n" * 240 + "2\n" * 160)
    line = f"suggest {table} --layers 20,4,2 --method uniform --accountant rdp"
    words = done(capsys, line)
    assert "internal" in words
    assert words.splitlines()[0] == str(expected).splitlines()[0]
    code, out, error = run(capsys, f"{line} --ledger sqlite:///purses.db")
    assert (code, out) == (2, "")
    assert "what people have left" in error
    assert run(capsys, f"{line} --fixed-noise")[0] == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--parameters 9", "--people or --shares is missing"),
        ("--people 9 --parameters 9", "--people or --shares is missing"),
        ("--people 9 --shares 1=1 --parameters 9 --epsilon budget", "--epsilon is about a table"),
        ("--people 9 --shares 1=1 --parameters 9 --delta column", "--delta is 'column'"),
        ("--people 9 --shares 1=1 --parameters 9 --ledger sqlite:///x.db", "--ledger is given"),
        ("people.csv --parameters 9 --fixed-noise", "--fixed-noise is given beside a table"),
        ("--people 0 --shares 1=1 --parameters 9", "--people must be a whole number of at least 1"),
        ("--people 9 --shares 1=1 --parameters 9 --batch-size 0", "--batch-size must be a whole number"),
        ("people.csv --people 9 --parameters 9", "beside a table"),
        ("--people 9 --shares 1=0.5 --parameters 9", "add up to 0.5"),
    ],
)
def test_errors_name_the_option(capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    code, _, error = run(capsys, f"suggest {line}")
    assert code == 2
    assert said in error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--people 9 --shares 1 --parameters 9", "'1' is not of the form"),
        ("--people 9 --shares 1=0.5,1=0.5 --parameters 9", "ε = 1 is given twice"),
        ("--people 9 --shares 1=1 --layers 91", "is not a list of widths"),
        ("--people 9 --shares 1=1 --layers 91,0,2", "is not a list of widths"),
    ],
)
def test_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    with pytest.raises(SystemExit):
        run(capsys, f"suggest {line}")
    assert said in capsys.readouterr().err

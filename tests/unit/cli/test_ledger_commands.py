"""privypurse ledger and privypurse receipt: from a table of consents to a receipt, and what goes wrong on the way."""

import json
import re
import shlex
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from command_line import done, run
from page_checks import complaints
from privypurse import cli
from privypurse.accounting.releases import Gaussian
from privypurse.cli import ledger_upkeep

URL = "sqlite:///purses.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PRIVYPURSE_LEDGER", URL)
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    Path("people.csv").write_text("id,epsilon\nC1,0.5\nC2,1\nC3,2\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def ledger(capsys: pytest.CaptureFixture[str]) -> pp.Ledger:
    done(capsys, "ledger init --epsilons 0.5,1,2 --delta 1e-5 --key ledger.key")
    done(capsys, "ledger import people.csv --person id --purpose 'to plan bus lines'")
    return pp.Ledger.open(URL)


def charge(ledger: pp.Ledger, run_id: str, noise: float = 20.0) -> None:
    members, charges = ledger.members(["C1", "C2"]), ledger.charges_of([Gaussian(noise, 1)])
    ledger.charge(run_id, members, charges, np.zeros(2, dtype=int), at_most=0.4, purpose="how many")


def test_a_large_delta_is_said_when_a_ledger_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert "all about one person in 10;" in done(capsys, "ledger init --epsilons 1 --delta 0.1 --key ledger.key")
    assert "one person in" not in done(capsys, "ledger init --epsilons 1 --ledger sqlite:///other.db")


def test_a_dry_run_shows_the_difference_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    Path("next.csv").write_text("person,epsilon\nC1,1\nC2,0.5\nC3,2\nC4,2\n", encoding="utf-8")
    before = ledger.anchor()
    out = done(capsys, "ledger import next.csv --dry-run --list")
    assert "1 join, 0 come back, 1 raise, 1 lower, 0 renew, 1 stay as they are" in out
    assert "joining: C4" in out
    assert "raising: C1" in out
    assert "lowering: C2" in out
    assert "C3" not in out
    assert ledger.anchor() == before
    assert "C4" not in done(capsys, "ledger import next.csv")
    assert ledger.receipt("C4").rung.epsilon == ledger.receipt("C3").rung.epsilon == 2.0
    assert ledger.receipt("C1").rung.epsilon == 1.0
    assert "4 stay as they are" in done(capsys, "ledger import next.csv")


def test_one_person_joins_raises_lowers_withdraws_and_comes_back(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    for said, epsilon, told in (
        ("--epsilon 1 --join", 1.0, "joined with ε = 1"),
        ("--epsilon 2 --recorded-by 'desk 4'", 2.0, "raised from ε = 1 to 2"),
        ("--epsilon 0.5", 0.5, "lowered from ε = 2 to 0.5: what was spent stays spent"),
    ):
        out = done(capsys, f"ledger consent --person N1 {said} --valid-until 2999-12-31")
        assert out.strip() == told
        assert ledger.receipt("N1").rung.epsilon == epsilon
    assert "as before" in done(capsys, "ledger consent --person N1 --epsilon 0.5 --valid-until 2998-12-31")
    done(capsys, "ledger consent --person N1 --epsilon 1")
    assert f"{ledger.receipt('N1').consents[-1].valid_until:%Y-%m-%d}" == "2998-12-31"
    done(capsys, "ledger consent --person N1 --epsilon 1 --valid-until 'until withdrawn'")
    assert ledger.receipt("N1").consents[-1].valid_until is None
    done(capsys, "ledger consent --person N1 --withdraw")
    assert ledger.receipt("N1").state == "withdrawn"
    assert "came back" in done(capsys, "ledger consent --person N1 --epsilon 1 --returning")
    assert ledger.receipt("N1").state == "active"
    assert len(ledger.receipt("N1").consents) == 8
    done(capsys, "ledger forget --person N1")
    assert ledger.receipt("N1").state == "forgotten"
    assert len(ledger.receipt("N1").consents) == 1


def shown_alike(capsys: pytest.CaptureFixture[str], ledger: pp.Ledger) -> bool:
    """Whether show and runs print the same of a ledger with other people, on other rungs, charged otherwise."""
    other = pp.Ledger.create("sqlite:///other.db", epsilons=[0.5, 1, 2], delta=1e-5, key="ledger.key")
    other.join([f"D{number}" for number in range(7)] + ["C1", "C2"], 2.0)
    charge(ledger, "q")
    charge(other, "q", noise=2000.0)  # another cost at the same public cap
    said = [
        [without_names(done(capsys, f"{command} --ledger {url}"), of) for command in ("ledger show", "ledger runs")]
        for url, of in ((URL, ledger), ("sqlite:///other.db", other))
    ]
    return said[0] == said[1]


def test_what_is_shown_tells_nobodys_balance(capsys: pytest.CaptureFixture[str], ledger: pp.Ledger) -> None:
    assert shown_alike(capsys, ledger)  # rule 15
    out = done(capsys, "ledger runs")
    assert "0.4" in out
    assert "how many" in out
    assert not {"C1", "C2"} & set(out.split())


def balances_of_two(ledger: pp.Ledger) -> str:
    return str(ledger.balances(ledger.members(["C1", "C2"])))


@pytest.mark.parametrize("told", [balances_of_two, lambda ledger: str(ledger.verify().people)], ids=["left", "count"])
def test_a_command_that_showed_balances_or_counts_would_be_seen(
    capsys: pytest.CaptureFixture[str],
    ledger: pp.Ledger,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[pp.Ledger], str],
) -> None:
    with_key = partial(pp.Ledger.open, key="ledger.key")
    monkeypatch.setattr(ledger_upkeep, "open_ledger", lambda options: with_key(options.ledger or URL))
    monkeypatch.setattr(ledger_upkeep, "_show_rungs", lambda ledger, console: console.print(told(ledger)))
    assert not shown_alike(capsys, ledger)


def without_names(text: str, ledger: pp.Ledger) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "…", text.replace(ledger.id, "…"))


def test_a_run_that_died_is_recovered_and_all_is_verified(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    members, charges = ledger.members(["C1"]), ledger.charges_of([Gaussian(30.0, 1)])
    ledger.reserve("died", members, charges, np.zeros(1, dtype=int), at_most=0.3)
    assert "not yet" in done(capsys, "ledger runs")
    assert "not settled: 1" in done(capsys, "ledger show")
    assert re.search(r"still .*\n +running$", done(capsys, "receipt --person C1"), re.MULTILINE)
    done(capsys, "ledger recover died")
    assert "not yet" not in done(capsys, "ledger runs")
    assert "nobody's purse is overdrawn" in done(capsys, "ledger verify")


def test_a_run_is_named_whole_and_by_how_it_begins(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a line has 80 columns, as in a pipe."""
    monkeypatch.setenv("COLUMNS", "80")
    members, charges = ledger.members(["C1"]), ledger.charges_of([Gaussian(90.0, 1)])
    names = ["train-534ad0c1-6f0e-4b55-9d3c-00000000a1b2", "train-534ad0c1-77", "train-6"]
    for name in names:
        ledger.reserve(name, members, charges, [0], at_most=0.1, purpose="to plan bus lines in the whole county")
    shown = done(capsys, "ledger runs")
    first = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert all(name in first for name in names)
    assert [run["run_id"] for run in json.loads(done(capsys, "ledger runs --json"))] == names
    code, _, error = run(capsys, "ledger recover train-534ad")
    assert code == 2
    assert "'train-534ad' is how 2 names begin: train-534ad0c1-6f0e-4b55" in error
    assert f"run {names[0]} is settled" in done(capsys, "ledger recover train-534ad0c1-6f")
    assert "not settled: 2" in done(capsys, "ledger show")


def test_an_old_copy_is_refused_by_its_anchor_and_recovered(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    done(capsys, "ledger backup old.db")
    charge(ledger, "later")
    ledger.write_anchor("anchor.json")
    done(capsys, "ledger export entries.jsonl")
    code, _, error = run(capsys, "ledger verify --ledger sqlite:///old.db --anchor anchor.json")
    assert code == 2
    assert "ledger recover" in error
    done(capsys, "ledger recover --ledger sqlite:///old.db --anchor anchor.json --export entries.jsonl")
    assert pp.Ledger.open("sqlite:///old.db").receipt("C1").used == ledger.receipt("C1").used > 0
    code, _, error = run(capsys, "ledger recover")
    assert code == 2
    assert "--anchor" in error


def test_a_ledger_that_does_not_fit_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(ledger.verify(), problems=["entry 2 is not what its digest says"])
    monkeypatch.setattr(pp.Ledger, "verify", lambda self: found)
    code, _, error = run(capsys, "ledger verify")
    assert code == 1
    assert "entry 2 is not what its digest says" in error


def test_an_anchor_is_begun_on_purpose_and_a_run_folder_has_one(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    code, _, error = run(capsys, "ledger verify --anchor last.anchor")
    assert code == 2
    assert "last.anchor is not there" in error
    assert "--new-anchor" in error
    assert not Path("last.anchor").exists()
    assert "--anchor FILE" in run(capsys, "ledger verify --new-anchor")[2]
    done(capsys, "ledger verify --anchor last.anchor --new-anchor")
    done(capsys, "ledger backup old.db")
    table = "query people.csv --person id --out"
    done(capsys, f"{table} runs/first --anchor last.anchor count --noise 30")
    for anchor in ("last.anchor", "runs/first"):
        done(capsys, f"ledger verify --anchor {anchor}")
        code, _, error = run(capsys, f"ledger verify --ledger sqlite:///old.db --anchor {anchor}")
        assert code == 2
        assert "old or forked copy" in error
    # The next run notices by the folder of the one before, without being told.
    Path("old.db").replace("purses.db")
    code, out, error = run(capsys, f"{table} runs/second count --noise 30")
    assert (code, out) == (2, "")
    assert "runs/first/anchor.json" in error
    done(capsys, f"{table} elsewhere/second count --noise 30")  # nothing there tells


def test_a_ledger_that_was_tampered_with_is_not_verified(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    charge(ledger, "q")
    with sqlite3.connect("purses.db") as database:
        triggers = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE entry SET classes = zeroblob(length(classes)) WHERE run = 'q'")
    code, out, error = run(capsys, "ledger verify")
    assert code == 1
    assert "overdrawn" not in out
    assert "entry" in error


def test_a_receipt_is_printed_or_written_for_ones_own_eyes(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    charge(ledger, "q [bold]1[/bold]")
    out = done(capsys, "receipt --person C1 --contact 'desk [4]'")
    assert "You allowed ε = 0.5" in out
    assert "[bold]1[/bold]" in out
    assert "Say so to: desk [4]." in out
    out = done(capsys, "receipt --person C1 --html a.html --json a.json")
    assert "ε" not in out  # nothing personal where only files are asked for
    assert complaints(Path("a.html").read_text(encoding="utf-8")) == []
    assert json.loads(Path("a.json").read_text(encoding="utf-8"))["pii_principal_id"] == "C1"
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in ("a.html", "a.json")} == {0o600}


@pytest.mark.parametrize(
    "line", ["receipt --person C1", "ledger consent --person C1 --epsilon 1", "ledger forget --person C1"]
)
def test_without_the_key_a_command_says_which_and_does_nothing(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    before = ledger.anchor()
    monkeypatch.delenv("PRIVYPURSE_LEDGER_KEY")
    code, out, error = run(capsys, line)
    assert (code, out) == (2, "")
    assert "PRIVYPURSE_LEDGER_KEY" in error
    assert "--key" in error
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ff" * 32)
    code, out, error = run(capsys, line)
    assert (code, out) == (2, "")
    assert "not that of the ledger" in error
    assert ledger.anchor() == before
    assert run(capsys, f"{line} --key ledger.key")[0] == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ledger init --epsilons 2,1 --ledger sqlite:///new.db", "must rise"),
        ("ledger init --epsilons 1", "is there already"),
        ("ledger import people.csv", "no column 'person'"),
        ("ledger import absent.csv", "does not exist"),
        ("ledger consent --person C1 --epsilon 0.7", "no rung of this ledger; choose one of 0.5, 1, 2"),
        ("ledger consent --person C1 --epsilon 1 --valid-until soon", "2030-12-31"),
        ("ledger consent --person C1 --epsilon 1 --valid-until 2020-02-29", "2020-02-29 23:59 UTC, which is past"),
        (
            "ledger consent --person C9 --epsilon 1",
            "--person 'C9' never joined this ledger; check the id, or add --join",
        ),
        ("ledger consent --person C1 --epsilon 1 --join", "in this ledger already, with ε = 0.5; leave --join out"),
        ("ledger consent --person C1 --withdraw --join", "--join goes with --epsilon"),
        ("ledger consent --person C1 --withdraw --returning", "--returning goes with --epsilon"),
        ("ledger consent --person C1 --epsilon 1 --returning", "has not left this ledger; leave --returning out"),
        ("ledger consent --person C9 --withdraw", "'C9' never joined this ledger; check the id"),
        ("ledger forget --person C9", "'C9' never joined this ledger; check the id"),
        ("ledger consent --person C1 --merge C2", "'C1' and 'C2' cannot be merged: what two ids spent"),
        ("receipt --person C9", "'C9' never joined this ledger; check the id"),
        ("ledger recover nothing", "nothing was reserved here; `privypurse ledger runs`"),
        ("ledger show --ledger sqlite:///absent.db", "is not there"),
        ("ledger show --ledger sqlite:///absent.db", "make a new one with `privypurse ledger init`"),
        ("receipt --person C1 --key absent.key", "name the key file by --key, or set"),
        ("ledger form --purpose ' '", "purpose is empty"),
        ("ledger form --purpose x --valid-until 2020-01-01", "2020-01-01 23:59 UTC, which is past"),
        ("ledger form --purpose x --valid-until 31.12.2099", "--valid-until is '31.12.2099'; write a date as"),
        ("ledger form --purpose x --names a,b", "names has 2 entries for 3 rungs"),
        ("ledger backup purses.db", "is there already"),
        ("ledger export people.csv", "people.csv is there already"),
        ("ledger export no/such/file", "no/such/file cannot be written"),
        ("ledger form --purpose x -o no/such/file", "no/such/file cannot be written"),
        ("receipt --person C1 --html no/such/file", "no/such/file cannot be written"),
    ],
)
def test_wrong_input_is_named(capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, line: str, said: str) -> None:
    before = ledger.anchor()
    code, _, error = run(capsys, line)
    assert code == 2
    assert said in error
    assert ledger.anchor() == before
    assert not Path("new.db").exists()


@pytest.mark.parametrize("leaving", ["forget --person C2", "consent --person C2 --withdraw"])
@pytest.mark.parametrize("joining", ["", "--join"])
def test_a_mistyped_id_brings_nobody_back(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, leaving: str, joining: str
) -> None:
    done(capsys, f"ledger {leaving}")
    before = ledger.anchor()
    code, _, error = run(capsys, f"ledger consent --person C2 --epsilon 1 {joining}")
    assert code == 2
    assert "'C2' has withdrawn or been forgotten; check the id, or add --returning" in error
    assert ledger.anchor() == before
    assert "came back" in done(capsys, "ledger consent --person C2 --epsilon 1 --returning")
    assert ledger.receipt("C2").state == "active"


@pytest.mark.parametrize("line", ["receipt", "ledger forget", "ledger consent --withdraw"])
def test_an_empty_id_is_named(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with pytest.raises(SystemExit):
        cli.main([*line.split(), "--person", " "])
    assert "--person: the id is empty" in capsys.readouterr().err


def test_a_word_among_numbers_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["ledger", "init", "--epsilons", "1,zwei"])
    assert "0.5,1,2: 'zwei' is no number" in capsys.readouterr().err


def test_no_ledger_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVYPURSE_LEDGER")
    code, _, error = run(capsys, "ledger show")
    assert code == 2
    assert "PRIVYPURSE_LEDGER" in error


def test_help_teaches_with_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    """Every example in the help of a command is taken by the parser."""
    with pytest.raises(SystemExit):
        cli.main(["ledger", "--help"])
    commands = re.findall(r"^    ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    assert {"init", "import", "consent", "show", "runs", "recover", "verify", "export", "forget"} <= set(commands)
    for words in [["receipt"], ["ledger"], *(["ledger", name] for name in commands)]:
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        examples = re.findall(r"^  (privypurse .+)$", capsys.readouterr().out, re.MULTILINE)
        assert examples
        for example in examples:
            cli._parser().parse_args(shlex.split(example)[1:])


def test_choices_need_what_they_are_worth(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.csv").write_text("person,consent\nA,much\n", encoding="utf-8")
    where = ["--ledger", "sqlite:///p.db", "--key", "l.key"]
    assert cli.main(["ledger", "init", *where, "--epsilons", "1,4", "--delta", "1e-5"]) == 0
    for said in (
        ["--level", "consent"],
        ["--levels", "much=4"],
        ["--level", "consent", "--levels", "much=4", "--epsilon", "e"],
    ):
        assert cli.main(["ledger", "import", "f.csv", *where, *said]) == 2
        assert "give --epsilon, a column of ε, or --level" in capsys.readouterr().err
    assert cli.main(["ledger", "import", "f.csv", *where, "--level", "consent", "--levels", "much=4"]) == 0
    assert "1 join" in capsys.readouterr().out

"""Old copies of a ledger on the command line: noticed where no anchor is named, and recovered with open eyes."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.accounting.releases import Gaussian

URL = "sqlite:///purses.db"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = cli.main(shlex.split(line))
    said = capsys.readouterr()
    return code, said.out, said.err


def done(capsys: pytest.CaptureFixture[str], line: str) -> str:
    code, out, error = run(capsys, line)
    assert (code, error) == (0, "")
    return out


@pytest.fixture(autouse=True)
def ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pp.Ledger:
    """Three people, an anchor, and old.db, which is one question behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PRIVYPURSE_LEDGER", URL)
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    monkeypatch.delenv("PRIVYPURSE_LEDGER_ANCHOR", raising=False)
    Path("data").mkdir()
    Path("data/people.csv").write_text("person,epsilon\nC1,0.5\nC2,1\nC3,2\n", encoding="utf-8")
    done(capsys, "ledger init --epsilons 0.5,1,2 --key ledger.key --anchor anchor.json")
    done(capsys, "ledger import data/people.csv --anchor anchor.json")
    done(capsys, "ledger backup old.db")
    made = pp.Ledger.open(URL, anchor="anchor.json")
    charge(made, "later")
    return made


def charge(ledger: pp.Ledger, run_id: str) -> None:
    members, charges = ledger.members(["C1", "C2"]), ledger.charges_of([Gaussian(20.0, 1)])
    ledger.charge(run_id, members, charges, np.zeros(2, dtype=int), at_most=0.4)


QUESTION = "query data/people.csv --person person count --noise 30"


@pytest.mark.parametrize("where", ["run-june", "data/run-june"])
def test_questions_look_around_for_runs_without_being_told(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, where: str
) -> None:
    Path(where).mkdir()
    ledger.write_anchor(f"{where}/anchor.json")
    done(capsys, QUESTION)
    shutil.copy("old.db", "purses.db")
    code, out, error = run(capsys, QUESTION)
    assert (code, out) == (2, "")
    assert f"{where}/anchor.json names entry" in error
    assert pp.Ledger.open(URL).show().runs == 0


def test_to_verify_looks_around_and_says_what_it_cannot_tell(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    unknown = "Whether this is the latest copy of the ledger cannot be told"
    assert unknown in done(capsys, "ledger verify --ledger sqlite:///old.db")
    assert unknown not in done(capsys, "ledger verify --anchor anchor.json")
    Path("run-june").mkdir()
    ledger.write_anchor("run-june/anchor.json")
    assert "run-june/anchor.json" in run(capsys, "ledger verify --ledger sqlite:///old.db")[2]
    assert unknown in done(capsys, "ledger verify")  # there may be later ones than that run


def test_the_anchor_is_named_once_for_all(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVYPURSE_LEDGER_ANCHOR", "anchor.json")
    assert "cannot be told" not in done(capsys, "ledger verify")
    before = Path("anchor.json").read_bytes()
    done(capsys, QUESTION)
    assert Path("anchor.json").read_bytes() != before  # it follows
    shutil.copy("old.db", "purses.db")
    for line in (QUESTION, "ledger verify", "receipt --person C1", "ledger consent --person C1 --epsilon 1"):
        code, out, error = run(capsys, line)
        assert (code, out) == (2, "")
        assert "anchor anchor.json names entry" in error
    monkeypatch.setenv("PRIVYPURSE_LEDGER_ANCHOR", "second.json")
    done(capsys, "ledger init --ledger sqlite:///second.db --key second.key --epsilons 1,2")
    assert Path("second.json").exists()

"""Old copies of a ledger on the command line: noticed where no anchor is named, and recovered with open eyes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from command_line import done, run
from privypurse.accounting.releases import Gaussian

URL = "sqlite:///purses.db"


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


RECOVER = "ledger recover --ledger sqlite:///old.db --anchor"


@pytest.mark.parametrize("joining", [False, True])
def test_who_is_frozen_is_said_before_and_done_by_yes(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, joining: bool
) -> None:
    if joining:
        ledger.join(["C4"], 1.0)
    files = ("old.db", "anchor.json")
    before = [Path(file).read_bytes() for file in files]
    code, out, error = run(capsys, f"{RECOVER} anchor.json")
    assert (code, out) == (2, "")
    said = f"{1 + joining} later entries are lost with this copy, and all 3 people in it are frozen"
    assert said in error
    assert ("nobody new can join" in error) == joining
    assert "--yes" in error
    assert [Path(file).read_bytes() for file in files] == before
    assert said in done(capsys, f"{RECOVER} anchor.json --yes")
    copy = pp.Ledger.open("sqlite:///old.db", anchor="anchor.json")
    assert not copy.balances(copy.members(["C1", "C2", "C3"])).any()
    assert copy.verify().sound
    raised = done(capsys, "ledger consent --ledger sqlite:///old.db --person C1 --epsilon 2")
    assert "raised from ε = 0.5 to 2\nbut frozen" in raised
    assert "frozen" not in done(capsys, "ledger consent --person C1 --epsilon 2")
    done(capsys, "ledger forget --ledger sqlite:///old.db --person C1")
    back = done(capsys, "ledger consent --ledger sqlite:///old.db --person C1 --epsilon 2 --returning")
    assert "stays spent\nbut frozen" in back, "what was frozen before somebody was forgotten stays so"


@pytest.mark.parametrize("own", [1, 2])
def test_a_copy_that_was_written_on_is_not_taken_for_a_whole_one(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, own: int
) -> None:
    """It may have as many entries as the ledger itself, and they are others."""
    copy = pp.Ledger.open("sqlite:///old.db")
    for _ in range(own):
        copy.change(["C2"], 1.0, purpose="another")
    code, out, error = run(capsys, f"{RECOVER} anchor.json")
    assert (code, out) == (2, "")
    assert "all 3 people in it are frozen" in error
    assert "--yes" in error
    assert copy.consenting(copy.members(["C1", "C2", "C3"])).all()
    assert "all 3 people in it are frozen" in done(capsys, f"{RECOVER} anchor.json --yes")


def test_an_anchor_takes_one_of_the_two_after_a_recovery(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    Path("june").mkdir()
    ledger.write_anchor("june/anchor.json")
    assert "put it away: anchor.json is this copy's now" in done(capsys, f"{RECOVER} anchor.json --yes")
    done(capsys, "ledger verify --ledger sqlite:///old.db --anchor anchor.json")
    code, _, error = run(capsys, "ledger verify --anchor anchor.json")
    assert code == 2
    assert "another copy was recovered by this anchor since" in error
    assert "put this one away" in error
    for url in (URL, "sqlite:///old.db"):  # as the docs say: that of a run cannot tell
        done(capsys, f"ledger verify --ledger {url} --anchor june")


def test_by_the_folder_of_a_run_both_are_taken_and_that_is_said(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    Path("june").mkdir()
    ledger.write_anchor("june/anchor.json")
    assert "put it away: june tells the two no longer apart" in done(capsys, f"{RECOVER} june --yes")


def test_where_an_export_has_all_nobody_is_frozen(capsys: pytest.CaptureFixture[str], ledger: pp.Ledger) -> None:
    done(capsys, "ledger export entries.jsonl")
    assert "nobody is frozen" in done(capsys, f"{RECOVER} anchor.json --export entries.jsonl")
    copy = pp.Ledger.open("sqlite:///old.db", anchor="anchor.json")
    assert (copy.balances(copy.members(["C1"])) == ledger.balances(ledger.members(["C1"]))).all()

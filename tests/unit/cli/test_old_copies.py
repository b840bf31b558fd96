"""Old copies of a ledger on the command line: noticed where no anchor is named, and recovered with open eyes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from command_line import done, run
from page_checks import Page, complaints
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


SHOWN_OR_SAID = [
    "receipt --person C1",
    "ledger consent --person C1 --withdraw",
    "ledger consent --person C1 --epsilon 1",
    "ledger import data/people.csv",
    "ledger import data/people.csv --dry-run",
    "ledger import --purses earlier.ledger --table data/people.csv --person person",
    "ledger forget --person C1",
]


@pytest.fixture
def earlier(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Purses of rows from before the ledger, in earlier.ledger."""
    with monkeypatch.context() as alone:
        alone.delenv("PRIVYPURSE_LEDGER")
        done(capsys, "query data/people.csv count --noise 30")
    for ending in ("", ".key", ".anchor"):
        Path(f"data/people.csv.ledger{ending}").rename(f"earlier.ledger{ending}")


@pytest.mark.parametrize("line", SHOWN_OR_SAID)
def test_nothing_is_shown_of_an_old_copy_nor_recorded_in_it(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, earlier: None, line: str
) -> None:
    """A receipt would show a fuller purse, and a withdrawal would be lost with the copy."""
    Path("run-june").mkdir()
    ledger.write_anchor("run-june/anchor.json")
    shutil.copy("old.db", "purses.db")
    before = pp.Ledger.open(URL).anchor()
    code, out, error = run(capsys, line)
    assert (code, out) == (2, "")
    assert error == run(capsys, QUESTION)[2], "in the words in which a question is refused"
    assert "run-june/anchor.json names entry" in error
    assert pp.Ledger.open(URL).anchor() == before


@pytest.mark.parametrize("line", SHOWN_OR_SAID)
def test_of_the_latest_copy_they_go_on_as_before(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, earlier: None, line: str
) -> None:
    Path("run-june").mkdir()
    ledger.write_anchor("run-june/anchor.json")
    assert done(capsys, line)


@pytest.mark.parametrize("line", ["receipt --person C1", "ledger verify", QUESTION])
def test_runs_beside_the_ledger_are_looked_at_from_elsewhere(
    capsys: pytest.CaptureFixture[str],
    ledger: pp.Ledger,
    line: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("run-june").mkdir()
    ledger.write_anchor("run-june/anchor.json")
    shutil.copy("old.db", "purses.db")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree("data", elsewhere / "data")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PRIVYPURSE_LEDGER", f"sqlite:///{tmp_path}/purses.db")
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", str(tmp_path / "ledger.key"))
    code, out, error = run(capsys, line)
    assert (code, out) == (2, "")
    assert "run-june/anchor.json names entry" in error


def test_consents_look_beside_their_table(capsys: pytest.CaptureFixture[str], ledger: pp.Ledger) -> None:
    Path("data/run-june").mkdir()
    ledger.write_anchor("data/run-june/anchor.json")
    shutil.copy("old.db", "purses.db")
    assert "data/run-june/anchor.json names entry" in run(capsys, "ledger import data/people.csv")[2]


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


def test_the_anchor_of_a_tables_own_ledger_is_asked_unnamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PRIVYPURSE_LEDGER", "PRIVYPURSE_LEDGER_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.chdir("data")
    done(capsys, "query people.csv --person person count --noise 30")
    shutil.copy("people.csv.ledger", "old.db")
    done(capsys, "query people.csv --person person count --noise 30")
    verify = "ledger verify --ledger sqlite:///people.csv.ledger"
    assert "cannot be told" not in done(capsys, verify), "its anchor lies beside it"
    latest = Path("people.csv.ledger").read_bytes()
    shutil.copy("old.db", "people.csv.ledger")
    assert "people.csv.ledger.anchor names entry" in run(capsys, verify)[2]
    Path("people.csv.ledger").write_bytes(latest)
    Path("people.csv.ledger.anchor").unlink()
    assert "cannot be told" in done(capsys, verify)


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


@pytest.mark.parametrize("person", ["C2", "C3"])  # who was charged in the copy, and who was not
@pytest.mark.parametrize("after", ["", "consent --withdraw", "forget"])
def test_receipts_of_who_is_frozen_tell_nothing_that_is_left(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger, person: str, after: str
) -> None:
    """Later uses are lost: a purse that looks nearly full may be empty."""
    done(capsys, "ledger backup newer.db")
    for number in range(3):
        charge(ledger, f"lost {number}")
    recover = RECOVER.replace("old.db", "newer.db")
    done(capsys, f"{recover} anchor.json --yes")
    at = f"--ledger sqlite:///newer.db --person {person}"
    if after:
        done(capsys, f"ledger {after} {at}")
    receipt = f"receipt {at}"
    done(capsys, f"{receipt} --html receipt.html --json receipt.json")
    html = Path("receipt.html").read_text(encoding="utf-8")
    texts = [" ".join(text.split()) for text in (done(capsys, receipt), Page.of(html).texts["main"][0])]
    for text in texts:
        assert "later entries are lost" in text
        assert "Up to all of your purse may have been used" in text
        assert "% is left" not in text
        assert "has been used" not in text.replace("nobody can say how much of it has been used", "")
        assert "Nothing has been made with your data" not in text
        assert "all together" not in text
    assert complaints(html) == []
    assert "<meter" not in html
    [process] = json.loads(Path("receipt.json").read_text(encoding="utf-8"))["pii_processing"]
    assert process["uses_lost"] is True
    assert not {"units_left", "units_used"} & set(process)
    assert (process["units_used_at_least"] > 0) == (person == "C2")


def test_receipts_of_whoever_joins_after_a_recovery_have_lost_nothing(
    capsys: pytest.CaptureFixture[str], ledger: pp.Ledger
) -> None:
    done(capsys, f"{RECOVER} anchor.json --yes")
    done(capsys, "ledger consent --ledger sqlite:///old.db --person C9 --epsilon 1 --join")
    assert "0.00 % of it has been used, 100.00 % is left" in done(
        capsys, "receipt --ledger sqlite:///old.db --person C9"
    )

"""On the command line: what somebody said since is not undone by the next import of a table, or question about it."""

from pathlib import Path

import pytest

from command_line import done
from privypurse.queries.table_ledger import opened

ASK = "query people.csv --person who --epsilon epsilon --ledger none count --noise 20"
OWN = "--ledger sqlite:///people.csv.ledger --key people.csv.ledger.key --anchor people.csv.ledger.anchor"
LEAVING = {"withdraw": "ledger consent --withdraw", "forget": "ledger forget"}


@pytest.fixture(autouse=True)
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rows = "".join(f"p{number},{(0.5, 4)[number % 2]}\n" for number in range(40))
    Path("people.csv").write_text(f"who,epsilon\n{rows}", encoding="utf-8")


def held() -> float:
    ledger = opened(Path("people.csv.ledger"))
    assert ledger.verify().problems == []
    return ledger.rungs[int(ledger.members(["p1"]).rung[0])].epsilon


@pytest.mark.parametrize("leaving", LEAVING.values(), ids=LEAVING)
def test_a_question_raises_nobody_who_came_back_with_less(leaving: str, capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, ASK)
    done(capsys, f"{leaving} --person p1 {OWN}")
    assert "raised" not in done(capsys, ASK)
    done(capsys, f"ledger consent --person p1 --epsilon 0.5 --returning --recorded-by 'desk 4' {OWN}")
    assert "not raised above what was recorded by another way: 1" in done(capsys, ASK)
    assert held() == 0.5
    done(capsys, f"ledger consent --person p1 --epsilon 4 {OWN}")
    assert "raised" not in done(capsys, ASK)
    assert held() == 4


@pytest.mark.parametrize("recorder", ["", "--recorded-by clinic"])
@pytest.mark.parametrize("leaving", [*LEAVING.values(), ""], ids=[*LEAVING, "stays"])
def test_nor_does_an_import(leaving: str, recorder: str, capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, ASK)
    reading = f"ledger import people.csv --person who {recorder} {OWN}"
    done(capsys, reading)
    if leaving:
        done(capsys, f"{leaving} --person p1 {OWN}")
    back = "--returning" if leaving else ""
    done(capsys, f"ledger consent --person p1 --epsilon 0.5 {back} {recorder} {OWN}")
    shown = done(capsys, f"{reading} --list")
    assert "0 raise, 0 lower" in shown
    assert "1 not raised above a change that is not marked as this table's" in shown
    assert "kept: p1" in shown
    assert held() == 0.5
    assert "1 raise" in done(capsys, f"{reading} --raising")
    assert held() == 4


def test_the_pages_example_read_again_lowers_and_raises_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/receipts.md says of its own example."""
    Path("people.csv").write_text("customer,epsilon\nC0431,1\nC0432,0.5\nC0433,2\n", encoding="utf-8")
    url = "--ledger sqlite:///purses.db --key ledger.key"
    done(capsys, f"ledger init --epsilons 0.5,1,2 --delta 1e-5 {url}")
    reading = f"ledger import people.csv --person customer --purpose 'to plan bus lines' {url} --list"
    done(capsys, reading)
    done(capsys, f"ledger consent --person C0432 --epsilon 1 --recorded-by 'desk 4' {url}")
    done(capsys, f"ledger consent --person C0433 --withdraw {url}")
    shown = done(capsys, reading)
    assert "0 join, 0 come back, 0 raise, 1 lower" in shown
    assert "lowering: C0432" in shown

"""What people wrote is printed as they wrote it: no mark-up, no commands to the terminal, no pictures."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import privypurse as pp
from privypurse import cli
from privypurse.cli.showing import as_it_is

BAD = [r"\[/x]", ":cat:"]
WRITTEN = [*BAD, r"a\[bold]b", r"\\[/x] and \\\[#x]", "[/x]", "x[", r"\[2J", "[link=https://example.org]c"]


def printed(text: str) -> str:
    out = io.StringIO()
    Console(file=out, highlight=False, emoji=False, width=10_000).print(as_it_is(text), soft_wrap=True, end="")
    return out.getvalue()


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_is_printed_as_it_was_written(text: str) -> None:
    assert printed(text) == text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="[]\\/ab#@=:", max_size=12))
def test_no_text_is_mark_up(text: str) -> None:
    if text.endswith("\\") or not text.strip():
        return
    assert printed(text) == text


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b2J", "C\u202e1", "C\u20671"])
def test_nothing_gives_the_terminal_commands_or_turns_what_follows(text: str) -> None:
    assert text[-2:] in printed(text) or text[-1] in printed(text)
    assert "\ufffd" in printed(text)
    assert not set("\x1b\x9b\u202e\u2067") & set(printed(text))


@pytest.mark.parametrize("purpose", BAD)
def test_every_receipt_and_every_list_can_be_printed(
    purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A purpose that ends what was never begun broke the receipts of all whom it concerned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("PRIVYPURSE_LEDGER", "sqlite:///purses.db")
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    assert cli.main(["ledger", "init", "--epsilons", "1", "--key", "ledger.key"]) == 0
    (tmp_path / "people.csv").write_text(f'person,epsilon,purpose\n"{purpose}",1,"{purpose}"\n', encoding="utf-8")
    assert cli.main(["ledger", "import", "people.csv", "--list"]) == 0
    assert f"joining: {purpose}\n" in capsys.readouterr().out
    assert cli.main(["receipt", "--person", purpose]) == 0
    assert purpose in capsys.readouterr().out


def test_a_person_whose_id_is_no_text_gets_a_receipt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVYPURSE_LEDGER", "sqlite:///purses.db")
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    assert cli.main(["ledger", "init", "--epsilons", "1", "--key", "ledger.key"]) == 0
    pp.Ledger.open("sqlite:///purses.db").join([b"\xff"], 1.0)
    assert cli.main(["receipt", "--person", "\udcff", "--html", "r.html", "--json", "r.json"]) == 0
    assert r"\udcff" in (tmp_path / "r.html").read_text("utf-8")
    assert "\udcff" in json.loads((tmp_path / "r.json").read_text("utf-8")).values()

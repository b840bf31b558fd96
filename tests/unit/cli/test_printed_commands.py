"""Commands that are printed to be copied run as they stand, whatever folders are called."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import privypurse as pp
from command_line import done
from privypurse.cli import federate
from privypurse.ledger import private_ledger


def test_the_commands_for_a_silos_ledger_run_in_any_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    person, silo = "row 0 of abc", "Oslo & [Bergen] 100%"
    ledgers = Path("our purses?")
    private_ledger(ledgers / silo, pp.Budgets([1.0], delta=1e-5, person=[person]))
    trial: Any = SimpleNamespace(clients=[SimpleNamespace(name=silo, first_id=person)])
    options: Any = SimpleNamespace(ledgers=ledgers, at_most=None)
    printed = io.StringIO()
    federate._show_ledgers(trial, options, Console(file=printed, highlight=False, emoji=False))
    runs, receipt = [line.strip() for line in printed.getvalue().splitlines() if line.startswith("  privypurse ")]
    assert "settled" in done(capsys, runs.removeprefix("privypurse "))
    assert f"this receipt is for  {person}" in done(capsys, receipt.removeprefix("privypurse "))

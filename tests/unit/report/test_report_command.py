"""privypurse report: what its flags ask for is written, or refused before anything is."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import privypurse as pp
from command_line import done
from command_line import run as typed
from components import require

require("report")
sys.path.insert(0, str(Path(__file__).parent))
from test_report_page import PRESENCE, audit  # noqa: E402

from privypurse.report.card import model_card  # noqa: E402
from privypurse.report.facts import public_facts  # noqa: E402


def test_flags_that_would_do_nothing_are_refused_before_anything_is_written(
    runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed, solved, out = runs("all", PRESENCE), runs("all", ""), tmp_path / "one.html"
    audit().save(tmp_path / "audit")
    (tmp_path / "table.csv").write_text("id\n1\n", encoding="utf-8")
    fixed_noise = "Leave it out, or choose --edition internal; where noise was fixed beforehand"
    for words, said in {
        f"{fixed} --card {out} --edition internal": "--edition internal is of the page",
        f"{fixed} --registry {out} --audit {tmp_path / 'audit'}": "--audit stands in the page and the card",
        f"{fixed} -o {out} --card {out}": "-o and --card both name",
        f"{fixed} --card {out} --audit {tmp_path / 'table.csv'}": "table.csv: this is no audit.json",
        f"{solved} -o {out} --card {tmp_path / 'c.md'} --audit {tmp_path / 'audit'}": fixed_noise,
    }.items():
        code, _, error = typed(capsys, f"report {words}")
        assert code == 2
        assert said in " ".join(error.split())
    assert not out.exists()
    assert not (tmp_path / "c.md").exists()


def test_a_public_audit_stands_in_the_card_with_a_warning(
    runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit().save(tmp_path / "audit")
    run, card = runs("all", PRESENCE), tmp_path / "card.md"
    said = done(capsys, f"report {run} --card {card} --audit {tmp_path / 'audit'}")
    assert "an audit of the run's own plan tells which levels people hold" in " ".join(said.split())
    assert "| Audit | canaries, on made-up records: nothing was found against the claim" in card.read_text("utf-8")
    with pytest.raises(pp.InvalidInput, match="attacked people in training"):
        model_card(public_facts(run), audit(data="members"))

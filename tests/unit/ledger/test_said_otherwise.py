"""A table from before undoes nothing that was said since: nobody is raised above it, whatever lies between."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import privypurse as pp
from privypurse.ledger import consents, entries, people
from privypurse.ledger.consent_tables import Difference
from privypurse.ledger.consents import Consent

Read = Callable[..., Difference]
DAY = 86_400 * 10**6


@pytest.fixture
def read(ledger: pp.Ledger, tmp_path: Path) -> Read:
    """Takes in a table in which "a" allows so much; it says 4 to begin with."""

    def table(epsilon: float, more: str = "", **said: object) -> Difference:
        column, _, cell = more.partition("=")
        path = tmp_path / "people.csv"
        path.write_text(f"person,epsilon{column and ','}{column}\na,{epsilon}{cell and ','}{cell}\n")
        return ledger.import_table(path, dry_run=False, **said)

    table(4)
    return table


def held(ledger: pp.Ledger) -> float:
    return ledger.rungs[int(ledger.members(["a"]).rung[0])].epsilon


def require_kept(ledger: pp.Ledger, found: Difference, epsilon: float) -> None:
    assert (found.raising, found.kept, held(ledger)) == ((), ("a",), epsilon)
    assert ledger.verify().problems == []


@pytest.mark.parametrize("recorder", ["", "clinic"])
@pytest.mark.parametrize("leaving", ["withdraw", "forget"])
def test_whoever_left_and_came_back_with_less_is_not_raised(
    ledger: pp.Ledger, read: Read, leaving: str, recorder: str
) -> None:
    getattr(ledger, leaving)(["a"])
    ledger.join(["a"], 0.5, recorded_by=recorder)
    require_kept(ledger, read(4), 0.5)
    assert read(4, raising=True).raising == ("a",)
    assert held(ledger) == 4


def test_somebody_else_may_join_in_the_same_entry(ledger: pp.Ledger, read: Read, tmp_path: Path) -> None:
    ledger.withdraw(["a"])
    ledger.join(["a", "new"], 0.5)
    (tmp_path / "both.csv").write_text("person,epsilon\na,4\nnew,4\n")
    found = ledger.import_table(tmp_path / "both.csv", dry_run=False)
    assert (found.raising, found.kept, held(ledger)) == (("new",), ("a",), 0.5)  # who has just joined follows it


def test_a_consent_that_ended_and_was_given_anew_is_not_raised(
    ledger: pp.Ledger, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = entries.now()
    soon = datetime.fromtimestamp(now / 1e6 + 86_400, tz=UTC)
    ledger.change(["a"], 4.0, valid_until=soon)
    monkeypatch.setattr(entries, "now", lambda: now + 2 * DAY)
    ledger.join(["a"], 0.5)
    require_kept(ledger, read(4, "valid_until=2199-01-01"), 0.5)
    ends = ledger.history("a")[-1].meta["valid_until"]
    assert datetime.fromtimestamp(ends / 1e6, tz=UTC).year == 2199  # a table may always end sooner, never later
    require_kept(ledger, read(4, "valid_until=2299-01-01"), 0.5)
    assert ledger.history("a")[-1].meta["valid_until"] == ends


@pytest.mark.parametrize("more", ["", "purpose=care"])
def test_who_records_both_alike_is_not_taken_for_the_table(ledger: pp.Ledger, read: Read, more: str) -> None:
    read(4, more, recorded_by="clinic")
    ledger.change(["a"], 0.5, recorded_by="clinic")
    require_kept(ledger, read(4, more, recorded_by="clinic"), 0.5)


def test_a_renewal_by_the_table_does_not_wipe_it_out(ledger: pp.Ledger, read: Read) -> None:
    ledger.change(["a"], 0.5)
    assert read(0.5, "purpose=care").renewing == ("a",)
    require_kept(ledger, read(4), 0.5)


def test_nor_does_a_lowering_by_the_table(ledger: pp.Ledger, read: Read) -> None:
    ledger.change(["a"], 1.0)
    assert read(0.5).lowering == ("a",)
    require_kept(ledger, read(4), 0.5)
    assert read(1).raising == ("a",)  # as far as was said
    require_kept(ledger, read(4), 1)


@pytest.mark.parametrize("leaving", ["withdraw", "forget"])
def test_a_table_brings_nobody_back_with_more_than_was_said(ledger: pp.Ledger, read: Read, leaving: str) -> None:
    ledger.change(["a"], 1.0)
    getattr(ledger, leaving)(["a"])
    found = read(4, returning=True)
    assert (found.returning, found.kept, held(ledger)) == (("a",), ("a",), 1)
    assert "1 come back" in str(found)
    assert "1 not raised above a change" in str(found)
    getattr(ledger, leaving)(["a"])
    found = read(4, returning=True, raising=True)
    assert (found.returning, found.kept, held(ledger)) == (("a",), (), 4)
    assert ledger.verify().problems == []


def test_what_was_raised_on_purpose_is_not_lowered_by_the_next_table(ledger: pp.Ledger, read: Read) -> None:
    ledger.change(["a"], 0.5)
    assert read(1, raising=True).raising == ("a",)
    assert read(1).unchanged == 1
    require_kept(ledger, read(4), 1)


def test_the_table_raises_whom_it_lowered_itself_and_nobody_below_what_a_form_said(
    ledger: pp.Ledger, read: Read
) -> None:
    read(0.5)
    assert read(4).raising == ("a",)
    read(0.5, "recorded_by=consent form")
    require_kept(ledger, read(4), 0.5)


def test_words_are_true_of_whoever_raised_themselves_too(ledger: pp.Ledger, read: Read) -> None:
    read(0.5)
    ledger.change(["a"], 1.0)
    found = read(4)
    require_kept(ledger, found, 1)
    assert "less" not in str(found)


def written_before(ledger: pp.Ledger, epsilon: float, recorder: str) -> None:
    """A change by a table as it was recorded when there was no mark."""
    said = Consent.of(None, None, recorder)
    with ledger._writing() as connection:
        assert ledger._key is not None
        people.grant(connection, ledger.lifetime, ["a"], epsilon, said, ledger._key, joining=False)


def test_of_a_table_of_former_code_only_that_of_a_private_ledger_is_known(ledger: pp.Ledger, read: Read) -> None:
    written_before(ledger, 0.5, consents.BY_TABLE)
    assert read(4, recorded_by=consents.BY_TABLE).raising == ("a",)
    written_before(ledger, 0.5, "clinic")
    found = read(4, recorded_by="clinic")
    require_kept(ledger, found, 0.5)
    assert "not marked as this table's" in str(found)

"""Before every step a run asks whether anybody's consent has changed: cheaply, and no change is missed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import privypurse as pp
from privypurse.ledger import database, entries

KEY = bytes(range(32))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the database was asked."""
    calls, count = [], entries.consent_counter

    def counting(connection: Any) -> int:
        calls.append(1)
        return count(connection)

    monkeypatch.setattr(entries, "consent_counter", counting)
    return calls


def rest(ledger: pp.Ledger) -> None:
    """As if the last write was a minute ago."""
    path = ledger._database.path
    for file in (path, Path(f"{path}-wal")):
        if file.exists():
            then = file.stat().st_mtime_ns - 60 * 10**9
            os.utime(file, ns=(then, then))


def test_a_ledger_at_rest_is_not_asked_again(ledger, asked):
    ledger.join(["ada", "bea"], 1.0)
    ledger.consent_counter()
    rest(ledger)
    first = ledger.consent_counter()
    asked.clear()
    assert [ledger.consent_counter() for _ in range(100)] == [first] * 100
    assert not asked


@pytest.mark.parametrize("reader_open", [False, True], ids=["log removed", "log kept"])
def test_every_change_is_seen_at_once(ledger, tmp_path, reader_open):
    """By whoever it is made; with the log beside the file, and without."""
    ledger.join(["ada", "bea"], 1.0)
    other = pp.Ledger.open(f"sqlite:///{tmp_path / 'purses.db'}", key=KEY)

    def act() -> None:
        for change in (other.withdraw, lambda ids: other.join(ids, 1.0), lambda ids: other.change(ids, 4.0)) * 3:
            rest(ledger)
            before = ledger.consent_counter()
            change(["ada"])
            assert ledger.consent_counter() > before

    if not reader_open:
        act()
        return
    with other._database.reader() as connection:
        entries.last(connection)
        act()


def writes_in_one_tick(ledger: pp.Ledger) -> tuple[int, int]:
    """Two consents change while the file system's clock stands still; what is counted after each."""
    path = ledger._database.path
    now = path.stat().st_mtime_ns
    ledger.withdraw(["ada"])
    os.utime(path, ns=(now, now))
    first = ledger.consent_counter()
    ledger.withdraw(["bea"])
    os.utime(path, ns=(now, now))
    return first, ledger.consent_counter()


def test_writes_that_bear_the_same_time_are_seen(ledger):
    ledger.join(["ada", "bea"], 1.0)
    first, second = writes_in_one_tick(ledger)
    assert second > first


def test_the_twin_that_trusts_fresh_times_is_seen(fresh: Callable[..., pp.Ledger], monkeypatch):
    monkeypatch.setattr(database, "_FRESH", 0)
    ledger = fresh()
    ledger.join(["ada", "bea"], 1.0)
    first, second = writes_in_one_tick(ledger)
    assert second == first


def test_another_file_in_its_place_is_asked(ledger, tmp_path, asked):
    ledger.join(["ada"], 1.0)
    rest(ledger)
    ledger.consent_counter()
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "purses.db").read_bytes())
    copy.replace(tmp_path / "purses.db")
    rest(ledger)
    asked.clear()
    ledger.consent_counter()
    assert asked

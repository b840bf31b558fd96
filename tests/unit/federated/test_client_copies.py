"""Copies and crashes of a client under a ledger: no round is given for nothing, whatever becomes of folders."""

from __future__ import annotations

import contextlib
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, PowerFailure, bits, book_in, raises
from paying_client import IDS, KEY, TERMS, client, rounds, taken

import privypurse as pp
from privypurse.federated.book import Book
from privypurse.federated.client import Client, Declined
from privypurse.federated.ledger_account import LedgerAccount
from privypurse.ledger import private_ledger
from privypurse.ledger.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
NewLedger = Callable[..., pp.Ledger]


def opened(ledger: pp.Ledger) -> pp.Ledger:
    """As another process would."""
    return pp.Ledger.open(str(ledger._database), key=KEY)


def begun_from_copies(tmp_path: Path, ledger: pp.Ledger, *, live: bool) -> tuple[int, int]:
    """How many new answers two copies of one folder gave in all, and how many rounds the ledger has charged."""
    first = client(tmp_path / "a", ledger=ledger, seed=None)
    given = {bits(first.answer(1, STATE))["bias"]}
    if not live:
        first.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    if not live:
        first = client(tmp_path / "a", ledger=opened(ledger), seed=None)
    second: Client | None = None
    for number in (2, 3, 4):
        for folder in "ab":
            if folder == "b" and second is None:
                second = client(tmp_path / "b", ledger=opened(ledger), seed=None)
            one = first if folder == "a" else second
            assert one is not None
            with contextlib.suppress(pp.InvalidInput, Declined):  # it went on elsewhere, or all rounds are spent
                given.add(bits(one.answer(number, STATE))["bias"])
    for one in (first, second):
        if one is not None:
            assert bits(one.answer(1, STATE))["bias"] in given  # what is answered costs nothing
            one.close()
    [run] = ledger.runs()
    begun = ledger.begun(run.run_id)
    return len(given), 0 if begun is None else begun.count


@pytest.mark.parametrize("live", [False, True])
def test_of_two_copies_of_a_folder_one_goes_on(tmp_path: Path, new_ledger: NewLedger, live: bool) -> None:
    """Each answer has noise of its own; three rounds are paid for, so there are three answers, whoever gives them.

    A copy that was made while the client was at work may take the run over, and then has the rest of the rounds.
    """
    given, charged = begun_from_copies(tmp_path, new_ledger(), live=live)
    assert given == charged == TERMS.cap == 3


@pytest.mark.parametrize("live", [False, True])
def test_counted_in_the_folder_alone_the_copies_would_give_more_than_is_paid_for(
    tmp_path: Path, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    """The twins: the ledger hands out no rounds; or it does, and the cap is that of each copy's own count."""
    monkeypatch.setattr(LedgerAccount, "begun", lambda self: self._book.joined)
    if not live:
        monkeypatch.setattr(LedgerAccount, "begin_round", lambda self: None)
        monkeypatch.setattr(LedgerAccount, "_require_latest", lambda self: None)
    assert begun_from_copies(tmp_path, new_ledger(), live=live)[0] > TERMS.cap


def test_two_processes_may_take_turns_on_one_folder(tmp_path: Path, new_ledger: NewLedger) -> None:
    """One after the other, as Flower's nodes do; both know what the book knows."""
    ledger = new_ledger()
    first = client(tmp_path / "a", ledger=ledger)
    first.answer(1, STATE)
    first.close()
    second = client(tmp_path / "a", ledger=opened(ledger))
    second.answer(2, STATE)
    second.close()
    first.reopen()
    first.answer(3, STATE)
    with pytest.raises(Declined, match="all 3 rounds"):
        first.answer(4, STATE)
    first.settle()
    assert rounds(ledger, 3) <= taken(ledger, "P4") <= rounds(ledger, 3) * (1 + 1e-6)
    first.close()


def test_an_older_copy_does_not_settle_for_less(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger = new_ledger()
    ours = client(tmp_path / "a", ledger=ledger)
    ours.answer(1, STATE)
    ours.close()
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    ours.reopen()
    ours.answer(2, STATE)
    old = client(tmp_path / "old", ledger=opened(ledger))
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        old.settle()
    ours.settle()
    ours.settle()  # twice does no harm
    assert rounds(ledger, 2) <= taken(ledger, "P4") <= rounds(ledger, 2) * (1 + 1e-6)
    old.settle()  # it is
    ours.close()
    old.close()


def test_an_older_copy_of_the_ledger_is_noticed_also_by_a_kept_client(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger = new_ledger()
    ours = client(tmp_path / "a", ledger=ledger)
    ours.answer(1, STATE)
    ledger.backup(tmp_path / "old.db")
    before = (tmp_path / "a" / "anchor.json").read_text()
    ours.answer(2, STATE)
    ours.close()
    old = pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY)
    with pytest.raises(pp.InvalidInput, match="old or forked copy"):
        client(tmp_path / "a", ledger=old)
    (tmp_path / "a" / "anchor.json").write_text(before)
    with pytest.raises(pp.InvalidInput, match=r"2 rounds of run .* more than the ledger has handed out"):
        client(tmp_path / "a", ledger=old)
    (tmp_path / "a" / "anchor.json").unlink()
    with pytest.raises(pp.InvalidInput, match=r"anchor\.json is not there"):
        client(tmp_path / "a", ledger=ledger)
    (tmp_path / "a" / "anchor.json").write_text(before)
    ledger.backup(tmp_path / "new.db")
    shutil.copy(tmp_path / "old.db", str(ledger._database.path))
    for _ in range(2):  # nor does it keep the book to itself
        with pytest.raises(pp.PrivyPurseError, match="not the one it was"):
            ours.reopen()
    shutil.copy(tmp_path / "new.db", str(ledger._database.path))
    ours.reopen()
    ours.answer(3, STATE)
    ours.close()


CRASHES = {
    "before the ledger has the holder": (Ledger, "take_over"),
    "before the book has it alone": (Book, "keep_holders"),
    "before the ledger hands out the round": (Ledger, "begin"),
    "before the book counts it": (Book, "begin"),
    "before the answer is kept": (Book, "keep"),
}


@pytest.mark.parametrize("when", CRASHES)
def test_a_crash_locks_nobody_out_and_gives_nothing_for_nothing(
    tmp_path: Path, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ledger, (owner, name) = new_ledger(), CRASHES[when]
    ours = client(tmp_path / "a", ledger=ledger, seed=None)
    with monkeypatch.context() as patch:
        real, calls = getattr(owner, name), []

        def fails(*arguments: object, **named: object) -> object:
            calls.append(name)
            if name == "keep_holders" and len(calls) < 2:
                return real(*arguments, **named)
            raise PowerFailure

        patch.setattr(owner, name, fails)
        with pytest.raises(PowerFailure):
            ours.answer(1, STATE)
    ours.close()
    again = client(tmp_path / "a", ledger=opened(ledger), seed=None)
    again.answer(1, STATE)
    begun = book_in(tmp_path / "a")["begun"]
    assert begun == ([1, 1] if when == "before the answer is kept" else [1])
    again.settle()
    paid = 2 if when in ("before the book counts it", "before the answer is kept") else 1
    assert rounds(ledger, paid) <= taken(ledger, "P4") <= rounds(ledger, paid) * (1 + 1e-6)
    assert ledger.verify().problems == []
    again.close()


@pytest.mark.slow
def test_a_killed_client_has_paid_in_its_private_ledger(tmp_path: Path) -> None:
    """For real, after the round was trained and before its answer is kept or leaves."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[2])]!r}
from pathlib import Path
from typing import Any
import privypurse as pp
from federation import STATE
from paying_client import IDS, client
from privypurse.federated.book import Book
from privypurse.ledger import private_ledger
ledger = private_ledger({str(tmp_path / "purses")!r}, pp.Budgets([1.0] * 9, delta=1e-3, person=IDS))
ours = client(Path({str(tmp_path / "a")!r}), ledger=ledger, seed=None)
ours.answer(1, STATE)
Book.keep = lambda *_: os.kill(os.getpid(), 9)
ours.answer(2, STATE)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == -9, done.stderr
    ledger = private_ledger(tmp_path / "purses", pp.Budgets(np.ones(9), delta=1e-3, person=IDS))
    again = client(tmp_path / "a", ledger=ledger, seed=None)
    assert again.joined == 2
    again.settle()
    again.close()
    [rung] = ledger.rungs
    two_rounds = rung.order * 2 * 2 / (2 * 20.0**2) * 2**40
    charged = {event.run: event.charged[0] for event in ledger.history("P4") if event.charged is not None}
    assert [two_rounds <= units <= two_rounds * (1 + 1e-6) for units in charged.values()] == [True]
    assert ledger.verify().problems == []


def test_a_disk_that_is_full_stops_the_round_before_it_begins(
    tmp_path: Path, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = client(tmp_path / "a", ledger=new_ledger())
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", raises(pp.PrivyPurseError("disk full")))
        with pytest.raises(pp.PrivyPurseError, match="disk full"):
            ours.answer(1, STATE)
    assert book_in(tmp_path / "a")["begun"] == []
    ours.answer(1, STATE)
    ours.close()


@pytest.mark.parametrize(
    "place", ["privypurse.federated.client.train", "privypurse.federated.ledger_account.LedgerAccount.begin_round"]
)
def test_a_client_that_is_closed_while_it_answers_gives_nothing_that_is_not_paid_for(
    tmp_path: Path, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As a signal handler might: the round has begun in the ledger, its answer is not given."""
    ledger = new_ledger()
    first = client(tmp_path / "a", ledger=ledger)
    real = pkgutil.resolve_name(place)

    def closing(*arguments: Any, **options: Any) -> Any:
        first.close()
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(place, closing)
        with pytest.raises(pp.InvalidInput, match="closed"):
            first.answer(1, STATE)
    [run] = ledger.runs()
    begun = ledger.begun(run.run_id)
    charged = 0 if begun is None else begun.count
    assert charged == 1
    again = client(tmp_path / "a", ledger=ledger)
    for number in range(1, TERMS.cap - charged + 1):
        again.answer(number, STATE)
    with pytest.raises(Declined):
        again.answer(TERMS.cap, STATE)
    again.close()

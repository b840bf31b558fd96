"""Each rule of charging, and a version that breaks it: what the twin writes, the independent check finds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import begun, entries, people, runs, standing
from privypurse.ledger.begun import Begun
from privypurse.ledger.lifetime import CEILING, Lifetime
from privypurse.ledger.standing import Standing


def flat(*units: int) -> np.ndarray:
    return np.repeat(np.array(units)[:, None], 3, axis=1)


def many_small_charges(ledger: pp.Ledger) -> None:
    """A purse filled but for ten units, then charges of five."""
    who = ledger.members(["bea"])
    ledger.charge("large", who, flat(ledger.rungs[1].limit - 10), [0])
    for number in range(5):
        ledger.charge(f"small {number}", who, flat(5), [0])


def two_open_runs(ledger: pp.Ledger) -> None:
    who = ledger.members(["bea"])
    for number in range(2):
        ledger.reserve(f"run {number}", who, flat(ledger.rungs[1].limit - 10), [0])


def after_leaving(ledger: pp.Ledger) -> None:
    who = ledger.members(["bea"])
    ledger.withdraw(["bea"])
    ledger.charge("late", who, flat(5), [0])


def above_the_rung_above(ledger: pp.Ledger) -> None:
    ledger.charge("one", ledger.members(["ada"]), np.array([[1, 1, ledger.rungs[2].limit + 1]]), [0])


def above_the_cap(ledger: pp.Ledger) -> None:
    ledger.charge("one", ledger.members(["bea"]), flat(ledger.rungs[1].limit), [0], at_most=0.1)


def settling_beyond(ledger: pp.Ledger) -> None:
    run = ledger.reserve("one", ledger.members(["bea"]), flat(5), [0])
    try:
        run.settle(flat(6), [0])
    except pp.PrivyPurseError:
        run.settle()


def giving_back(ledger: pp.Ledger) -> None:
    with contextlib.suppress(pp.InvalidInput):
        ledger.charge("one", ledger.members(["bea"]), flat(-100), [0])


def clock_going_back(ledger: pp.Ledger) -> None:
    ledger.charge("one", ledger.members(["bea"]), flat(5), [0])
    later = entries.now()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(entries, "now", lambda: later - 10**10)
        ledger.charge("two", ledger.members(["bea"]), flat(5), [0])


def emptied_snapshots(ledger: pp.Ledger) -> None:
    """Somebody writes zeros over the cached sums, and says that they go up to the latest entry."""
    import sqlalchemy as sa

    who = ledger.members(["bea"])
    ledger.charge("one", who, flat(ledger.rungs[1].limit - 10), [0])
    empty = Standing(np.array([0]), ledger.lifetime)
    empty.rung[:3] = [0, 1, 2]
    with ledger._writing() as connection:
        head = entries.last(connection)
        connection.execute(sa.text("DELETE FROM snapshot"))
        connection.execute(
            sa.text("INSERT INTO snapshot (number, entry, payload, mark) VALUES (0, :entry, :payload, :mark)"),
            {"entry": head.seq, "payload": empty.packed(0), "mark": bytes(16)},
        )
    ledger.charge("two", who, flat(ledger.rungs[1].limit - 10), [0])
    with ledger._writing() as connection:
        connection.execute(sa.text("DELETE FROM snapshot"))  # so that only what was charged is judged


def steps_for_two(ledger: pp.Ledger) -> None:
    ledger.reserve("one", ledger.members(["bea"]), flat(5), [0])
    for holder, count in (("ann", 5), ("bob", 7)):
        ledger.take_over("one", holder, known=["ann"])
        ledger.begin("one", holder, count)


def from_the_first_step_on(connection: Any, run: str, own: Begun) -> None:
    entries.append(connection, "begin", {"run": run, "holder": own.holder, "since": 0, "count": own.count})


def float32_sums(sums: Any, charges: Any) -> Any:
    return (sums.astype(np.float32) + charges.astype(np.float32)).astype(np.int64)


def own_rung_only(self: Standing, column: int) -> Any:
    return np.where(self.rung == column, Lifetime.limits.func(self.lifetime)[column, column], CEILING)


def without_caps(self: Lifetime, charges: Any, at_most: float | None) -> Any:
    return np.full((len(self.rungs), self.columns), CEILING)


def unchecked(charges: Any, columns: int) -> Any:
    return np.asarray(charges, dtype=np.int64)


def any_mark(key: Any, number: int, seq: int, hashed: bytes, payload: bytes) -> bytes:
    return bytes(16)


TWINS: dict[str, tuple[Callable[[pp.Ledger], None], list[tuple[Any, str, Any]], str]] = {
    "float32 sums": (
        many_small_charges,
        [(runs, "added", float32_sums), (standing, "added", float32_sums)],
        "beyond their purse",
    ),
    "a lost reservation": (two_open_runs, [(entries, "open_runs", lambda connection: [])], "beyond their purse"),
    "charging who has left": (
        after_leaving,
        [(Standing, "active", lambda self, time: np.ones(self.rung.size, dtype=bool))],
        "has left",
    ),
    "one's own rung only": (above_the_rung_above, [(Standing, "limits", own_rung_only)], "beyond their purse"),
    "no cap": (above_the_cap, [(Lifetime, "caps", without_caps)], "the cap at rung"),
    "settling at more": (
        settling_beyond,
        [(runs.Entry, "charged", lambda self, values, columns: [np.full(values.shape[1], CEILING)] * columns)],
        "than was reserved",
    ),
    "a negative charge": (giving_back, [(runs, "checked_charges", unchecked)], "a charge that is none"),
    "steps handed out twice": (steps_for_two, [(begun, "_write", from_the_first_step_on)], "hands out"),
    "the machine's clock": (
        clock_going_back,
        [(entries, "not_before", lambda latest: entries.now())],
        "dated earlier",
    ),
    "snapshots that are believed": (emptied_snapshots, [(standing, "_mark", any_mark)], "beyond their purse"),
}


@pytest.mark.parametrize("name", TWINS)
def test_nobody_is_overdrawn_and_the_twin_is_caught(
    name: str, fresh: Callable[..., pp.Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, patches, said = TWINS[name]
    sound, broken = fresh("sound.db"), fresh("broken.db")
    for ledger in (sound, broken):
        ledger.join(["ada", "bea", "cy"], [0.5, 1.0, 4.0])
    history(sound)
    assert sound.verify().problems == []
    for where, what, twin in patches:
        monkeypatch.setattr(where, what, twin)
    history(broken)
    assert said in " ".join(broken.verify().problems)


def rush(ledger: pp.Ledger, writers: int = 6) -> list[bool]:
    """Several at once, each for the whole purse."""
    who = ledger.members(["bea"])
    begin = threading.Barrier(writers)
    paid: list[bool] = []

    def use(number: int) -> None:
        begin.wait()
        run = ledger.charge(f"run {number}", who, flat(ledger.rungs[1].limit), [0])
        paid.append(bool(run.admitted[0]))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return paid


def test_of_many_writers_at_once_one_is_paid(
    fresh: Callable[..., pp.Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, broken = fresh("sound.db"), fresh("broken.db")
    for ledger in (sound, broken):
        ledger.join(["bea"], 1.0)
    assert sorted(rush(sound)) == [False] * 5 + [True]
    assert sound.verify().sound
    # The twin looks before it has the lock.
    with broken._reading() as connection:
        before = standing.load(connection, broken.lifetime, np.array([0]), None)
    monkeypatch.setattr(runs.standing, "load", lambda *_: before)
    assert sum(rush(broken)) > 1
    assert "beyond their purse" in " ".join(broken.verify().problems)


def test_a_purse_is_not_reset_by_leaving_and_coming_back(ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.join(["bea"], 1.0)
    ledger.charge("one", ledger.members(["bea"]), flat(1000), [0])
    spent = ledger.rungs[1].limit - 1000
    for leave in (ledger.withdraw, ledger.forget):
        leave(["bea"])
        assert ledger.balances(ledger.members(["bea"])).tolist() == [0]
        ledger.join([" bea"], 1.0)
        assert ledger.balances(ledger.members(["bea"])).tolist() == [spent]
    # The twin takes whoever has left for a stranger: the list of people refuses a second purse for the same id.
    ledger.forget(["bea"])
    monkeypatch.setattr(people, "numbers_of", lambda connection, keyed: np.full(len(keyed), -1))
    with pytest.raises(pp.PrivyPurseError, match="could not be written"):
        ledger.join(["bea"], 1.0)


def test_public_balances_are_never_above_real_ones(ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def above() -> bool:
        who = ledger.members(["ada", "bea", "cy"])
        return bool((ledger.public_room(who) > ledger.room(who)).any())

    ledger.join(["ada", "bea", "cy"], [0.5, 1.0, 4.0])
    charges = np.array([[10**9, 10**8, 10**7], [10**9, 10**9, 10**9]])
    ledger.charge("one", ledger.members(["cy", "ada"]), charges, [0, 1], at_most=0.3)
    ledger.reserve("two", ledger.members(["cy", "bea"]), charges, [1, 1], at_most=0.3).settle(charges, [0, 0])
    ledger.change(["cy", "ada"], [1.0, 4.0])
    assert not above()
    # The twin takes a cap off at the person's own order alone: a raise finds the others untouched.
    monkeypatch.setattr(Standing, "_cap", own_order_only)
    assert above()


def own_order_only(self: Standing, entry: Any, at: Any, values: Any) -> None:
    for column in range(self.lifetime.columns):
        own = (self.rung[at] == column) & (values[0] != 65535)
        self.capped[column, at] += np.where(own, entry.meta["caps"][column][column], 0)

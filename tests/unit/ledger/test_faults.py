"""Faults planted in the code that charges, and the check that finds each; beside those of `test_twins`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crashes
import numpy as np
import pytest

import privypurse as pp
from privypurse.accounting.releases import Gaussian
from privypurse.ledger import lifetime, runs, standing
from privypurse.ledger.blocks import NOTHING, UNLISTED
from privypurse.ledger.database import Database
from privypurse.ledger.lifetime import CEILING, Lifetime
from privypurse.ledger.standing import Standing

KEY = bytes(range(32))
IDS = ["ada", "bea", "cy"]
EPSILONS = [0.5, 1.0, 4.0]


def flat(*units: int) -> np.ndarray:
    return np.repeat(np.array(units)[:, None], 3, axis=1)


@pytest.fixture
def pair(fresh: Callable[..., pp.Ledger]) -> tuple[pp.Ledger, pp.Ledger]:
    """Two ledgers with the same people."""
    ledgers = fresh("sound.db"), fresh("broken.db")
    for ledger in ledgers:
        ledger.join(IDS, EPSILONS)
    return ledgers


class TestOneOrderForLife:
    """Rule 14: the order is the grant's, chosen once, and a charge fits at each that counts."""

    @staticmethod
    def cheap_at_one_order(ledger: pp.Ledger) -> list[str]:
        """Each run is cheap at some order; together they are cheap at none but the last."""
        who, (first, second, _) = ledger.members(["ada"]), (rung.limit for rung in ledger.rungs)
        for number, row in enumerate(([first // 2, second, 1], [first, second // 2, 1])):
            ledger.charge(f"run {number}", who, np.array([row]), [0])
        return ledger.verify().problems

    def test_the_best_order_in_the_end_is_seen(
        self, pair: tuple[pp.Ledger, pp.Ledger], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sound, broken = pair
        assert self.cheap_at_one_order(sound) == []
        # The twin lets people go on while the cheapest of their orders pays.
        cheapest = [CEILING, CEILING, broken.rungs[2].limit]
        monkeypatch.setattr(Standing, "limits", lambda self, column: np.full(self.rung.size, cheapest[column]))
        assert "beyond their purse" in " ".join(self.cheap_at_one_order(broken))

    def test_a_later_version_with_other_orders_keeps_those_that_were_written_down(
        self, pair: tuple[pp.Ledger, pp.Ledger], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger, _ = pair
        before, charges = ledger.rungs, ledger.charges_of([Gaussian(20.0)])
        monkeypatch.setattr(lifetime, "lifetime_order", lambda epsilon, delta: 40.0)
        again = pp.Ledger.open(str(ledger._database), key=KEY)
        assert again.rungs == before
        assert (again.charges_of([Gaussian(20.0)]) == charges).all()
        # The twin chooses again.
        assert Lifetime.of([(rung.epsilon, rung.delta) for rung in before]).rungs != before


class TestNoPurseIsFilledAgain:
    @staticmethod
    def coming_back(ledger: pp.Ledger) -> list[str]:
        who, limit = ledger.members(["bea"]), ledger.rungs[1].limit
        ledger.charge("one", who, flat(limit - 5), [0])
        ledger.forget(["bea"])
        ledger.join(["bea"], 1.0)
        ledger.charge("two", who, flat(limit - 5), [0])
        ledger.change(["bea"], 4.0)
        ledger.charge("three", who, flat(limit - 5), [0])
        ledger.change(["bea"], 1.0)
        ledger.charge("four", who, flat(limit - 5), [0])
        return ledger.verify().problems

    def test_a_purse_reset_by_a_new_grant_is_seen(
        self, pair: tuple[pp.Ledger, pp.Ledger], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sound, broken = pair
        assert self.coming_back(sound) == []
        honest = Standing._grant

        def full_again(self: Standing, at: Any, values: Any, until: int) -> None:
            honest(self, at, values, until)
            for column in self.spent:
                column[at] = np.where(values != UNLISTED, 0, column[at])

        monkeypatch.setattr(Standing, "_grant", full_again)
        assert "beyond their purse" in " ".join(self.coming_back(broken))


class TestChargedBeforeItIsReleased:
    def test_a_ledger_that_writes_late_is_seen_by_who_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The twin answers a reservation at once, and writes it when it is settled."""
        honest = pp.Ledger.reserve

        def late(self: pp.Ledger, run_id: str, members: Any, *arguments: Any, **more: Any) -> Any:
            def settle(*charged: Any) -> None:
                honest(self, run_id, members, *arguments, **more).settle(*charged)

            return SimpleNamespace(admitted=np.ones(len(members), dtype=bool), settle=settle)

        url = f"sqlite:///{tmp_path / 'purses.db'}"
        pp.Ledger.create(url, [(8.0, 1e-5)], key=crashes.KEY)
        monkeypatch.setattr(pp.Ledger, "reserve", late)
        with pytest.raises(AssertionError, match="released"):
            crashes.survive(url, 60, check_every=2)


class TestWritersWithoutALock:
    def test_the_numbers_of_entries_keep_them_apart(
        self, pair: tuple[pp.Ledger, pp.Ledger], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even so nobody is charged twice: who wrote on an old view is told that nothing was written."""
        ledger, _ = pair
        who, begin = ledger.members(["bea"]), threading.Barrier(5)
        paid: list[bool] = []

        def use(number: int) -> None:
            begin.wait()
            try:
                paid.append(bool(ledger.charge(f"run {number}", who, flat(ledger.rungs[1].limit), [0]).admitted[0]))
            except pp.PrivyPurseError as error:
                assert "could not be" in str(error)  # noqa: PT017

        monkeypatch.setattr(Database, "writer", Database.reader)
        threads = [threading.Thread(target=use, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert paid.count(True) == 1
        assert ledger.verify().problems == []


def shown(ledger: pp.Ledger) -> list[Any]:
    """All that is seen of a run without its admitted people: what comes of asking, sizes, caps, public balances."""
    who, said = ledger.members(IDS), []
    for use in (
        lambda: ledger.charge("question", who, flat(10, 20), [0, 1, 0], at_most=0.1),
        lambda: ledger.reserve("run", who, flat(10, 20), [1, 1, 0]).settle(),
        lambda: ledger.recover("open"),
    ):
        try:
            use()
        except pp.PrivyPurseError as error:
            said.append(str(error))
    said.append(ledger.public_room(who).tolist())
    with closing(sqlite3.connect(str(ledger._database.path))) as file:
        sizes = "SELECT seq, kind, length(meta), length(classes), number, length(payload) FROM entry LEFT JOIN block "
        return [*said, file.execute(f"{sizes} ON entry.seq = block.entry ORDER BY seq, number").fetchall()]


def lived(ledger: pp.Ledger, units: int) -> pp.Ledger:
    """A run at the whole of everybody's purse, which really took so many units."""
    who, limit = ledger.members(IDS), ledger.rungs[0].limit
    ledger.reserve("open", ledger.members(IDS[1:]), flat(5), [0, 0], at_most=0.1)
    run = ledger.reserve("before", who, flat(limit - 9), [0, 0, 0])
    run.settle(flat(units), [0, 0, 0])
    return ledger


def telling(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant one."""
    encoded, reserve, room = runs.encoded, runs.reserve, standing.room

    def who_pays(numbers: Any, values: Any) -> Any:
        pays = values[0] != NOTHING
        return encoded(numbers[pays], values[:, pays])

    def aloud(*arguments: Any) -> Any:
        if not (reserved := reserve(*arguments)).admitted.all():
            raise pp.PrivyPurseError("somebody cannot pay")
        return reserved

    match twin:
        case "lists who pays":
            monkeypatch.setattr(runs, "encoded", who_pays)
        case "refuses aloud":
            monkeypatch.setattr(runs, "reserve", aloud)
        case "public balances are real ones":
            monkeypatch.setattr(standing, "room", lambda stand, places, *, public: room(stand, places, public=False))


@pytest.mark.parametrize("twin", ["", "lists who pays", "refuses aloud", "public balances are real ones"])
def test_nothing_tells_who_is_empty(
    twin: str, pair: tuple[pp.Ledger, pp.Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    rich, poor = lived(pair[0], 0), lived(pair[1], pair[1].rungs[0].limit - 9)
    telling(twin, monkeypatch)
    assert (shown(rich) == shown(poor)) == (twin == "")
    if not twin:
        assert rich.reservation("run").admitted.all()
        assert not poor.reservation("run").admitted.all()

"""What was released without the ledger is charged afterwards: nobody is passed over, and it is charged once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ledger_tools
import privypurse as pp
from privypurse.accounting.releases import Gaussian
from privypurse.ledger import past

IDS = ["ada", "bea", "cyd", "dov"]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = ledger_tools.new_ledger(tmp_path)
    made.join(IDS, [0.5, 1.0, 2.0, 1.0])
    return made


def table(ledger: pp.Ledger, *noises: float) -> np.ndarray:
    return ledger.charges_of([Gaussian(noise) for noise in noises])


def test_all_is_charged_and_whoever_does_not_hold_it_has_nothing_left(ledger: pp.Ledger) -> None:
    members, charges = ledger.members(IDS), table(ledger, 5.0, 40.0)
    assert ledger.room(members)[0, 0] < charges[0, 0]  # 28/50 nats, of 0.23
    ledger.charge("earlier", ledger.members(["cyd"]), table(ledger, 2.3), [0])
    assert ledger.charge_past("past", members, charges, [0, 1, 0, -1])
    before = [[0, 0, 0], [0, 0, 0], table(ledger, 2.3)[0].tolist(), [0, 0, 0]]
    owed = [charges[0].tolist(), charges[1].tolist(), charges[0].tolist(), [0, 0, 0]]
    assert ledger.spent(members).tolist() == np.add(before, owed).tolist()
    assert ledger.balances(members)[0] == 0
    assert not ledger.charge("later", ledger.members(["ada"]), table(ledger, 1e6), [0]).admitted.any()
    ledger.change(["ada"], 2.0)  # whoever raises has what the new rung holds, less all that was spent
    assert ledger.balances(ledger.members(["ada"]))[0] == max(0, ledger.rungs[2].limit - int(charges[0, 2]))
    assert ledger.verify().problems == []


def test_twice_charges_once_whatever_happened_between(ledger: pp.Ledger) -> None:
    members, charges = ledger.members(IDS), table(ledger, 20.0)
    assert ledger.charge_past("past", members, charges, [0, 0, 0, 0], what="earlier questions")
    ledger.charge("question", members, charges, [0, 0, 0, 0])
    before = ledger.spent(members)
    assert not ledger.charge_past("past", members, charges, [0, 0, 0, 0])
    assert (ledger.spent(members) == before).all()
    said = ledger.run("past")
    assert said is not None
    assert (said.what, said.at_most) == ("earlier questions", None)
    assert ledger.run("never") is None


@pytest.mark.parametrize("other", ["an ordinary charge", "other people", "some more people", "other charges"])
def test_under_a_name_that_there_is_nobody_else_is_passed_over_in_silence(ledger: pp.Ledger, other: str) -> None:
    first, second, costs = ledger.members(IDS[:2]), ledger.members(IDS[:2]), table(ledger, 20.0)
    if other == "an ordinary charge":
        ledger.charge("2025", first, costs, [0, 0])
    else:
        ledger.charge_past("2025", first, costs, [0, 0])
    if other == "other people":
        second = ledger.members(IDS[2:])
    if other == "some more people":
        second = ledger.members(IDS[1:3])
    if other == "other charges":
        costs = table(ledger, 10.0)
    before = ledger.spent(ledger.members(IDS))
    with pytest.raises(pp.InvalidInput, match="for another use or without some of these members"):
        ledger.charge_past("2025", second, costs, [0, 0])
    assert (ledger.spent(ledger.members(IDS)) == before).all()
    assert ledger.charge_past("2026", second, costs, [0, 0])


def test_public_balances_are_gone_unless_the_cap_is_named(ledger: pp.Ledger) -> None:
    members, charges = ledger.members(IDS), table(ledger, 20.0)
    ledger.charge_past("past", members, charges, [0, -1, -1, -1], at_most=0.2)
    assert (ledger.public_balances(members) > 0).all()
    assert (ledger.public_balances(members) <= ledger.balances(members)).all()
    ledger.charge_past("more", members, charges, [0, -1, -1, -1])
    assert not ledger.public_balances(members).any()
    assert (ledger.balances(members) > 0).all()
    assert ledger.verify().problems == []


@pytest.mark.parametrize("leaving", ["withdraw", "forget"])
def test_nobody_is_passed_over(ledger: pp.Ledger, leaving: str) -> None:
    """The broken twin, an ordinary charge, passes over whoever has left or does not hold all of it: a full purse."""
    members, charges = ledger.members(IDS), table(ledger, 5.0)
    getattr(ledger, leaving)(["bea"])
    twin = ledger.charge("twin", members, charges, [0, 0, -1, -1])
    assert not twin.admitted.any()
    assert ledger.charge_past("past", members, charges, [0, 0, 0, -1])
    assert ledger.spent(members).tolist() == [charges[0].tolist()] * 3 + [[0, 0, 0]]
    ledger.join(["bea"], 1.0)
    assert ledger.balances(ledger.members(["bea"]))[0] == ledger.rungs[1].limit - charges[0, 1]
    assert ledger.verify().problems == []


def test_an_open_run_has_to_be_settled_before_whoever_pays_in_it(ledger: pp.Ledger, monkeypatch) -> None:
    """It would go on with ada, whose purse the past has emptied. Who is in it by the list, whoever can pay."""
    members, charges = ledger.members(IDS), table(ledger, 5.0)
    run = ledger.reserve("open", ledger.members(["ada", "bea"]), table(ledger, 20.0), [-1, 0])
    for owing in ([0, -1, -1, -1], [-1, -1, 0, 0], [-1, -1, -1, -1]):
        with pytest.raises(pp.InvalidInput, match=r"run 'open' is open and lists some of .*settle it first"):
            ledger.charge_past("past", members, charges, owing)
    assert ledger.charge_past("others", ledger.members(["cyd", "dov"]), charges, [0, 0])
    run.settle(table(ledger, 20.0), [-1, -1])
    assert ledger.charge_past("past", members, charges, [0, -1, -1, -1])
    assert ledger.balances(members)[0] == 0
    assert ledger.verify().problems == []
    ledger.reserve("again", members, table(ledger, 40.0), [-1, -1, 0, -1])
    monkeypatch.setattr(past, "_refuse_open_runs", lambda *_: None)  # the broken twin
    ledger.charge_past("twin", members, charges, [0, -1, -1, -1])
    assert any("for whom a run is open" in problem for problem in ledger.verify().problems)


@pytest.mark.parametrize("at_most", [None, 0.35, 3.0])
@pytest.mark.parametrize(("owing", "spent"), [([1, 0, 0, 0], 0.0), ([2, 0, 0, 0], 0.9), ([-1, 2, 2, 2], 0.9)])
def test_nothing_public_follows_from_what_people_owe_or_have_left(tmp_path, at_most, owing, spent) -> None:
    """The same caps, public table and absence of errors as in a ledger where nobody owes or has spent anything."""
    said = []
    for name, owed, share in (("one", owing, spent), ("twin", [0, 0, 0, 0], 0.0)):
        (tmp_path / name).mkdir()
        ledger = ledger_tools.new_ledger(tmp_path / name)
        ledger.join(IDS, [0.5, 0.5, 1.0, 2.0])
        members, half = ledger.members(IDS), np.full((1, 3), int(0.6 * ledger.rungs[0].limit))
        run = ledger.reserve("before", members, half, [0, -1, -1, -1], at_most=0.45)
        run.settle((half * share).astype(np.int64), [0, -1, -1, -1])
        assert ledger.charge_past("past", members, table(ledger, 40.0, 5.0, 1.0), owed, at_most=at_most)
        assert ledger.verify().problems == []
        [entry] = [event for event in ledger.history("ada") if event.run == "past"]
        public = [entry.meta["caps"], ledger.public_room(members).tolist()]
        ledger.change(IDS, 2.0)
        said.append([*public, ledger.public_room(ledger.members(IDS)).tolist()])
        if at_most is None:  # a row of the table is beyond every rung, so all is gone, on higher rungs too
            assert not ledger.public_balances(ledger.members(IDS)).any()
    assert said[0] == said[1]


def test_whoever_owes_more_than_the_cap_is_charged_all_of_it_in_silence(ledger: pp.Ledger) -> None:
    members, charges = ledger.members(IDS), table(ledger, 5.0)
    assert ledger.charge_past("past", members, charges, [0, 0, -1, -1], at_most=0.1)
    assert ledger.spent(members)[:2].tolist() == [charges[0].tolist()] * 2
    assert (ledger.public_balances(members) > 0).all()
    assert ledger.balances(members)[0] == 0
    assert ledger.verify().problems == []


def test_a_receipt_says_that_it_was_before_the_ledger(ledger: pp.Ledger) -> None:
    ledger.withdraw(["ada"])
    ledger.charge_past("past", ledger.members(IDS), table(ledger, 5.0), [0, -1, -1, -1], at_most=0.1)
    [use] = ledger.receipt("ada").uses
    assert (use.charged, use.allowed_purpose) == (use.at_most, "not recorded: used before this ledger")
    assert "or before this ledger was kept" in " ".join(ledger.receipt("ada").text().split())

"""What was released without the ledger is charged afterwards: nobody is passed over, and it is charged once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ledger_tools
import privypurse as pp
from privypurse.accounting.releases import Gaussian

IDS = ["ada", "bea", "cyd", "dov"]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = ledger_tools.new_ledger(tmp_path)
    made.join(IDS, [0.5, 1.0, 2.0, 1.0])
    return made


def table(ledger: pp.Ledger, *noises: float) -> np.ndarray:
    return ledger.charges_of([Gaussian(noise) for noise in noises])


def test_all_is_charged_where_it_fits_and_else_nothing_is_left(ledger: pp.Ledger) -> None:
    members, charges = ledger.members(IDS), table(ledger, 5.0, 40.0)
    assert ledger.room(members)[0, 0] < charges[0, 0]  # 28/50 nats, of 0.23
    before = ledger.room(members)
    ledger.charge("earlier", ledger.members(["cyd"]), table(ledger, 2.3), [0])
    assert ledger.charge_past("past", members, charges, [0, 1, 0, -1])
    spent = ledger.spent(members)
    limits = np.array([rung.limit for rung in ledger.rungs])
    assert spent[1].tolist() == charges[1].tolist()
    assert spent[3].tolist() == [0, 0, 0]
    # ada, on the lowest rung: cut to the limit at each order where it does not fit, whole at the others.
    assert spent[0].tolist() == np.minimum(charges[0], limits).tolist()
    assert spent[0, 0] == limits[0]
    # cyd, on the highest: orders below do not limit her, and she had spent something before.
    whole = table(ledger, 2.3)[0] + charges[0]
    assert spent[2].tolist() == [*whole[:2].tolist(), min(whole[2], limits[2])]
    assert (before[[0]] - ledger.room(members)[[0]]).tolist() == [np.minimum(charges[0], limits).tolist()]
    assert ledger.balances(members)[0] == 0
    assert not ledger.charge("later", ledger.members(["ada"]), table(ledger, 1e6), [0]).admitted.any()
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
    with pytest.raises(pp.InvalidInput, match=r"1 of the members \(the first is number 1\) have left"):
        ledger.charge_past("past", members, charges, [0, 0, 0, 0])
    with pytest.raises(pp.InvalidInput, match=r"spent more than at_most = 0\.1"):
        ledger.charge_past("past", members, charges, [0, -1, 0, 0], at_most=0.1)
    assert ledger.run("past") is None
    assert ledger.charge_past("past", members, charges, [-1, -1, 0, 0])  # bea owes nothing
    twin = ledger.charge("twin", members, charges, [0, 0, 0, 0])
    assert twin.admitted.tolist() == [False, False, True, False]
    assert not ledger.spent(members)[:2].any()
    assert ledger.verify().problems == []


def test_what_an_open_run_may_give_back_is_not_taken_for_paid(ledger: pp.Ledger) -> None:
    """Cut to what a reservation leaves, ada would have it again once the run settles at nothing."""
    members, charges = ledger.members(IDS), table(ledger, 5.0)
    run = ledger.reserve("open", members, table(ledger, 20.0), [0, 0, 0, 0])
    with pytest.raises(pp.InvalidInput, match=r"the first is number 0\) owe more .* reserved.*settle runs"):
        ledger.charge_past("past", members, charges, [0, -1, -1, -1])
    assert ledger.charge_past("fits", members, charges, [-1, 0, -1, -1])
    run.settle(table(ledger, 20.0), [-1, -1, -1, -1])
    assert ledger.charge_past("past", members, charges, [0, -1, -1, -1])
    assert ledger.balances(members)[0] == 0
    assert ledger.verify().problems == []

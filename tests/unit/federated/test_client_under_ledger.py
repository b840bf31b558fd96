"""A client under a ledger: rounds are reserved for life before the first one, and settled at those it joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, bits, joins_all, terms_with
from paying_client import IDS, KEY, OFFER, PUBLIC, TERMS, client, drained, rounds, taken

import privypurse as pp
from privypurse.accounting import CertifiedTable
from privypurse.federated.client import Declined
from privypurse.federated.ledger_account import LedgerAccount
from privypurse.federated.terms import Offer

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


def test_all_rounds_are_reserved_and_those_begun_are_charged(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger]
) -> None:
    ledger = new_ledger()
    ours = client(tmp_path / "a", ledger=ledger, purpose="to find a cure")
    assert ours.plan.rates.tolist() == [1.0] * 9
    assert rounds(ledger, 3) <= taken(ledger, "P4") <= rounds(ledger, 3) * (1 + 1e-6)
    first = ours.answer(1, STATE)
    ours.close()
    again = client(tmp_path / "a", ledger=pp.Ledger.open(str(ledger._database), key=KEY))  # another process
    assert bits(again.answer(1, STATE)) == bits(first)
    again.answer(4, STATE)
    assert [run.what for run in ledger.runs()] == ["federated"]
    again.settle()
    assert rounds(ledger, 2) <= taken(ledger, "P4") <= rounds(ledger, 2) * (1 + 1e-6)
    with pytest.raises(Declined, match="settled"):
        again.answer(5, STATE)
    assert bits(again.answer(1, STATE)) == bits(first)
    again.close()
    assert ledger.verify().problems == []


def test_a_ledger_that_does_not_know_the_rounds_of_a_book_is_an_older_copy(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger]
) -> None:
    ledger = new_ledger()
    ledger.backup(tmp_path / "old.db")
    old = pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY)
    ours = client(tmp_path / "a", ledger=ledger)
    ours.answer(1, STATE)
    ours.close()
    with pytest.raises(pp.InvalidInput, match="old or forked copy of the ledger"):
        client(tmp_path / "a", ledger=old)
    assert not old.runs()


def seen_in_answers(tmp_path: Path, new_ledger: Callable[..., pp.Ledger]) -> list[str]:
    """What is wrong: [] for an honest account."""
    wrong, ledger = [], new_ledger()
    drained(ledger, ["P2", "P7"], rounds(ledger, 3) - 10)
    drained_client = client(tmp_path / "a", ledger=ledger, offer=Offer(TERMS, CertifiedTable([1.0], [0.5])))
    sits_out = np.where(np.isin(IDS, ["P2", "P7"]), 0.01, 1.0)
    reference = client(tmp_path / "b", sits_out, offer=Offer(TERMS, CertifiedTable([1.0], [0.5])))
    if bits(drained_client.answer(1, STATE)) != bits(reference.answer(1, STATE)):
        wrong.append("who cannot pay contributes")
    ledger.withdraw(["P0"])
    sits_out[0] = 0.01
    left = client(tmp_path / "c", sits_out, offer=Offer(TERMS, CertifiedTable([1.0], [0.5])))
    if bits(drained_client.answer(2, STATE)) != bits(left.answer(2, STATE)):
        wrong.append("who has withdrawn contributes")
    drained_client.settle()
    if taken(ledger, "P4") < rounds(ledger, 2):
        wrong.append("charges less than was joined")
    hidden = new_ledger("public")
    public = client(tmp_path / "d", ledger=hidden, offer=PUBLIC)
    before = taken(hidden, "P4")
    joins_all(public)
    public.answer(2, STATE)
    public.settle()
    if not 0 < taken(hidden, "P4") == before:
        wrong.append("gives back for not joining")
    for one in (ledger, hidden):
        wrong.extend(one.verify().problems)
    for one in (drained_client, reference, left, public):
        one.close()
    return wrong


def test_who_cannot_pay_or_has_withdrawn_is_not_drawn(tmp_path: Path, new_ledger: Callable[..., pp.Ledger]) -> None:
    assert seen_in_answers(tmp_path, new_ledger) == []


HONEST = LedgerAccount.__init__


def draws_by_budget(self: LedgerAccount, *parts: Any, **other: Any) -> None:
    HONEST(self, *parts, **other)
    self.rates = np.array(parts[3])
    self.takes_part = lambda: np.ones(9, dtype=bool)  # type: ignore[method-assign]


def everybody(self: LedgerAccount) -> np.ndarray:
    return np.ones(9, dtype=bool)


def one_round_less(self: LedgerAccount) -> None:
    reserved = self._reservation.reserved
    self._reservation.settle(
        self._charges(self._held()[1] - 1), np.where(reserved.admitted, reserved.values.astype(np.int64), -1)
    )


@pytest.mark.parametrize(
    ("name", "twin", "complaints"),
    [
        ("__init__", draws_by_budget, {"who cannot pay contributes"}),
        ("takes_part", everybody, {"who has withdrawn contributes"}),
        ("settle", one_round_less, {"charges less than was joined", "gives back for not joining"}),
    ],
)
def test_broken_twins_are_caught(
    tmp_path: Path,
    new_ledger: Callable[..., pp.Ledger],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    twin: Callable[..., Any],
    complaints: set[str],
) -> None:
    monkeypatch.setattr(LedgerAccount, name, twin)
    assert complaints <= set(seen_in_answers(tmp_path, new_ledger))


def test_who_is_not_in_the_ledger_sits_out_and_nobody_hears_of_it(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where they join it later: nothing was reserved for them before the first round."""
    ledger, offer = new_ledger(), Offer(TERMS, CertifiedTable([1.0], [0.5]))
    ids = np.where(IDS == "P3", "A3", IDS)
    whose = {"budgets": pp.Budgets(np.ones(9), delta=1e-3, person=ids), "person": ids, "offer": offer}
    ours = client(tmp_path / "a", ledger=ledger, **whose)
    assert "1 people of the budgets are not in the ledger" in caplog.text
    reference = client(tmp_path / "b", np.where(IDS == "P3", 0.01, 1.0), offer=offer)
    assert bits(ours.answer(1, STATE)) == bits(reference.answer(1, STATE))
    ours.close()
    ledger.join(["A3"], [1.0])
    again = client(tmp_path / "a", ledger=ledger, **whose)
    assert again.plan.rates.tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert bits(again.answer(2, STATE)) == bits(reference.answer(2, STATE))
    assert taken(ledger, "A3") == 0 < taken(ledger, "P4")
    again.settle()
    for one in (again, reference):
        one.close()
    nobody = {**whose, "budgets": pp.Budgets(np.ones(9), delta=1e-3, person=[f"B{k}" for k in range(9)])}
    with pytest.raises(pp.InvalidInput, match=r"'B0'.* never joined this ledger"):
        client(tmp_path / "c", ledger=ledger, **nobody)
    assert ledger.verify().problems == []


def test_a_smaller_balance_buys_a_smaller_rate(tmp_path: Path, new_ledger: Callable[..., pp.Ledger]) -> None:
    ledger = new_ledger()
    drained(ledger, ["P2"], rounds(ledger, 3) - 10)
    ours = client(tmp_path / "a", ledger=ledger)
    assert ours.plan.rates.tolist() == [1.0, 1.0, 0.25, *[1.0] * 6]
    assert taken(ledger, "P2") <= ledger.rungs[1].limit
    ours.close()
    capped = client(tmp_path / "b", ledger=new_ledger(), at_most=0.2)  # three rounds at rate 1 are ε = 0.3
    assert capped.plan.rates.tolist() == [0.25] * 9
    capped.close()


def test_nobody_spends_more_than_the_cap_by_the_terms_either(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger]
) -> None:
    """A cap at the order for life alone lets sampled steps through that are ε = 0.257 by themselves."""
    rates = np.geomspace(0.001, 1, 60)
    terms = terms_with(noise_multiplier=3.0)
    offer = Offer(terms, CertifiedTable(rates, terms.certified(rates)))
    ours = client(tmp_path / "a", 1.0, offer, ledger=new_ledger(), at_most=0.2)
    for number in (1, 2, 3):
        ours.answer(number, STATE)
    assert 0.15 < ours.spent().against_server.max() <= 0.2
    ours.close()
    with pytest.raises(pp.InvalidInput, match="at_most"):
        client(tmp_path / "b", ledger=new_ledger(), at_most=-1.0)


def test_against_the_public_hiding_who_joined_is_worth_something(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger]
) -> None:
    ledger = new_ledger("public")
    rare = Offer(terms_with(noise_multiplier=20.0, adversary="public", client_rate=0.01, most_joined=5), OFFER.table)
    ours = client(tmp_path / "a", ledger=ledger, offer=rare)
    assert 0 < taken(ledger, "P4") < rounds(ledger, 5) / 10
    ours.close()


def test_what_does_not_fit_together_is_refused(tmp_path: Path, new_ledger: Callable[..., pp.Ledger]) -> None:
    ledger = new_ledger()
    for wrong, said in (
        ({"ledger": "sqlite:///purses.db"}, r"pp\.Ledger\.open"),
        ({"ledger": new_ledger("public")}, "adversary is 'server'"),
        ({"ledger": ledger, "person": None, "budgets": pp.Budgets(np.ones(9), delta=1e-3)}, "knows people by id"),
    ):
        with pytest.raises(pp.InvalidInput, match=said):
            client(tmp_path / "a", **wrong)
    without = client(tmp_path / "b")
    without.answer(1, STATE)
    with pytest.raises(pp.InvalidInput, match="without ledger="):
        without.settle()
    without.close()
    with pytest.raises(pp.InvalidInput, match="was begun with no ledger"):
        client(tmp_path / "b", ledger=ledger)
    client(tmp_path / "c", ledger=ledger).close()
    with pytest.raises(pp.InvalidInput, match=f"was begun with ledger {ledger.id}, and this client has no ledger"):
        client(tmp_path / "c")

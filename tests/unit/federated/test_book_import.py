"""A book begun without a ledger is charged to one afterwards, for at least what was released, and then closed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, PowerFailure, joins_all, made, raises, records, terms_with
from paying_client import IDS, OFFER, PUBLIC, client, drained, rounds, taken

import privypurse as pp
from privypurse.accounting import CertifiedTable
from privypurse.federated import book_import
from privypurse.federated.client import Declined
from privypurse.federated.terms import Offer
from privypurse.ledger.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
NewLedger = Callable[..., pp.Ledger]


def budgets(epsilon: Any = 1.0, **other: Any) -> pp.Budgets:
    return pp.Budgets(np.broadcast_to(epsilon, 9), delta=1e-3, **{"person": IDS, **other})


def joined(folder: Path, number: int, epsilon: Any = 1.0, offer: Offer = OFFER, **other: Any) -> Path:
    """A book that has joined so many rounds without a ledger."""
    ours = client(folder, epsilon, offer, **other)
    joins_all(ours)
    for k in range(number):
        ours.answer(k + 1, STATE)
    ours.close()
    return folder


def imported(folder: Path, ledger: pp.Ledger, epsilon: Any = 1.0, **other: Any) -> int:
    return book_import.import_book(folder, records(), budgets(epsilon), ledger, purpose="a cure", **other)


def test_the_rounds_begun_are_charged_once(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger, folder = new_ledger(), joined(tmp_path / "a", 2)
    for _ in range(2):
        assert imported(folder, ledger) == 2
        assert rounds(ledger, 2) <= taken(ledger, "P4") <= rounds(ledger, 2) * (1 + 1e-6)
    [run] = ledger.runs()
    assert (run.what, run.purpose) == ("federated, before the ledger", "a cure")
    assert ledger.verify().problems == []


def test_against_the_public_all_rounds_are_charged(tmp_path: Path, new_ledger: NewLedger) -> None:
    """What a client reserves beforehand: not the one round that was joined."""
    ledger = new_ledger("public")
    imported(joined(tmp_path / "a", 1, offer=PUBLIC), ledger)
    reserved = new_ledger("public")
    client(tmp_path / "b", ledger=reserved, offer=PUBLIC).close()
    assert 0 < taken(ledger, "P4") == taken(reserved, "P4")


def test_against_the_public_rounds_are_charged_that_no_coin_fell_for(tmp_path: Path, new_ledger: NewLedger) -> None:
    """Amplification is paid for by everyone: what is charged does not hang on who joined."""
    found = []
    for name, out in (("none", range(1, PUBLIC.terms.rounds + 1)), ("one", range(2, PUBLIC.terms.rounds + 1))):
        ours = client(tmp_path / name, 1.0, PUBLIC)
        ours._book.keep_out(out)
        for number in (1, 2):
            with suppress(Declined):
                ours.answer(number, STATE)
        ours.close()
        ledger = new_ledger("public")
        assert imported(tmp_path / name, ledger) == 2
        found.append(taken(ledger, "P4"))
    assert 0 < found[0] == found[1]


def test_whoever_cannot_pay_is_left_with_nothing(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger = new_ledger()
    drained(ledger, ["P2"], rounds(ledger, 2) - 10)
    imported(joined(tmp_path / "a", 2), ledger)
    left = ledger.balances(ledger.members(["P2", "P4"]))
    assert left[0] == 0 < left[1]


def test_everybody_is_charged_at_the_rate_of_the_table(tmp_path: Path, new_ledger: NewLedger) -> None:
    """ε = 0.3 buys the rate 0.25, and ε = 0.01 nothing: in units, by a sum at a whole order."""
    ledger = new_ledger()
    epsilon = np.array([0.01, 0.3, *[1.0] * 7])
    imported(joined(tmp_path / "a", 2, epsilon), ledger, epsilon)
    assert taken(ledger, "P0") == 0
    [_, rung] = ledger.rungs
    whole = math.floor(rung.order), math.ceil(rung.order)  # the divergence rises with the order
    low, high = (4 * step_cost(0.25, 20.0, order) * 2**40 for order in whole)
    assert low <= taken(ledger, "P1") <= high * (1 + 1e-6) + 4


def step_cost(rate: float, noise: float, order: int) -> float:
    """Mironov et al. 2019, arXiv 1908.10530, 3.3."""
    moments = [
        math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * noise**2))
        for k in range(order + 1)
    ]
    return math.log(math.fsum(moments)) / (order - 1)


def test_an_imported_book_joins_no_more_rounds(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger, folder = new_ledger(), joined(tmp_path / "a", 1)
    imported(folder, ledger)
    for more in ({}, {"ledger": ledger}, {"ledger": new_ledger()}):
        with pytest.raises((pp.InvalidInput, Declined), match=r"was begun with ledger|no more are joined"):
            client(folder, **more)


@pytest.mark.parametrize("twin", ["charged first", "as built"])
def test_a_crash_while_it_is_imported_gives_no_round_for_nothing(
    tmp_path: Path, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    """The book is closed before the ledger is charged; the other way round, a round could follow unpaid."""
    ledger, folder = new_ledger(), joined(tmp_path / "a", 1)
    with monkeypatch.context() as patch:
        if twin == "charged first":
            patch.setattr(book_import.Book, "leave_to", lambda self, ledger: "federated-1")
            real = Ledger.charge_past
            patch.setattr(Ledger, "charge_past", lambda *a, **k: (real(*a, **k), raises(PowerFailure())()))
        else:
            patch.setattr(Ledger, "charge_past", raises(PowerFailure()))
        with pytest.raises(PowerFailure):
            imported(folder, ledger)
    answers = 1
    try:
        ours = client(folder)
        ours.answer(2, STATE)
        ours.close()
        answers += 1
    except pp.InvalidInput:
        assert imported(folder, ledger) == 1
    paid = taken(ledger, "P4")
    assert (paid < rounds(ledger, answers)) == (twin == "charged first")


def test_rows_become_people_by_their_owners(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger, by_row = new_ledger(), pp.Budgets(np.ones(9), delta=1e-3)
    made_of = {"offer": OFFER, "budgets": by_row}
    ours = made(tmp_path / "a", **made_of)
    ours.answer(1, STATE)
    ours.close()
    args = (tmp_path / "a", records(), by_row, ledger)
    for person, said in ((None, "give person="), (IDS[:3], "9 records"), (["P1"] * 9, "more than once")):
        with pytest.raises(pp.InvalidInput, match=said):
            book_import.import_book(*args, person=person)
    assert book_import.import_book(*args, person=IDS) == 1
    assert taken(ledger, "P4") >= rounds(ledger, 1)


def test_what_cannot_be_charged_is_refused(tmp_path: Path, new_ledger: NewLedger) -> None:
    ledger = new_ledger()
    with pytest.raises(pp.InvalidInput, match="no round was begun"):
        imported(joined(tmp_path / "a", 0), ledger)
    with pytest.raises(pp.InvalidInput, match="holds no offer"):
        imported(tmp_path / "nowhere", ledger)
    with pytest.raises(pp.InvalidInput, match="adversary is 'server'"):
        imported(joined(tmp_path / "b", 1), new_ledger("public"))
    with pytest.raises(pp.InvalidInput, match="begun with other records or budgets"):
        imported(joined(tmp_path / "c", 1), ledger, 0.5)
    paying = client(tmp_path / "d", ledger=ledger)
    paying.answer(1, STATE)
    paying.close()
    with pytest.raises(pp.InvalidInput, match="nothing to import"):
        imported(tmp_path / "d", ledger)
    loud = Offer(terms_with(noise_multiplier=1.0), CertifiedTable([1.0], [30.0]))  # three rounds: ε = 10 or so
    folder = joined(tmp_path / "e", 3, 40.0, loud)
    before = taken(ledger, "P4")
    with pytest.raises(pp.InvalidInput, match=r"had \(ε, δ\) = \(40, 0.001\).*promises them \(1, 0.001\)"):
        imported(folder, ledger, 40.0)
    assert taken(ledger, "P4") == before

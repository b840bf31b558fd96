"""Who is forgotten: no receipt and no history shows more of before than what was spent in all."""

import json

import numpy as np
import pytest

import privypurse as pp
from page_checks import complaints
from privypurse.ledger import history
from privypurse.ledger.receipt_facts import State
from privypurse.ledger.receipts import Receipt

SECRETS = ("care", "desk 4", "run-1", "run-2", "ward 7", "tumours")


def lived(ledger: pp.Ledger) -> None:
    """A joins, raises, lowers, is in two runs, and another one is still open."""
    ledger.join(["a", "b"], 1.0, purpose="care", recorded_by="desk 4")
    ledger.change(["a"], 4.0, purpose="ward 7")
    charge = np.array([[5, 6, 7]])
    ledger.charge("run-1", ledger.members(["a", "b"]), charge, [0, 0], purpose="tumours")
    ledger.change(["a"], 0.5)
    ledger.reserve("run-2", ledger.members(["a"]), 10 * charge, [0], purpose="tumours")


def told(receipt: Receipt) -> list[str]:
    assert complaints(receipt.html()) == []
    return [receipt.text(), receipt.html(), json.dumps(receipt.json_ld(), ensure_ascii=False)]


def shown(ledger: pp.Ledger, person: str) -> set[str]:
    everything = [*told(ledger.receipt(person)), repr(ledger.history(person))]
    return {secret for secret in SECRETS if any(secret in text for text in everything)}


def test_receipt_and_history_tell_no_more_than_what_was_spent(ledger: pp.Ledger) -> None:
    lived(ledger)
    assert shown(ledger, "a") == set(SECRETS)
    ledger.forget(["a"], recorded_by="desk 4")
    assert shown(ledger, "a") == set()
    [event] = ledger.history("a")
    assert (event.kind, event.charged) == ("forget", (55, 66, 77))  # 5 and 50, 6 and 60, 7 and 70
    receipt = ledger.receipt("a")
    assert (receipt.state, len(receipt.consents), len(receipt.uses)) == (State.FORGOTTEN, 1, 1)
    assert not receipt.uses[0].settled
    assert receipt.highest.epsilon == 4.0  # what was released on that rung stays released
    assert "pseudonymous, not erased" in " ".join(receipt.text().split())
    assert "b" in ledger.receipt("b").person
    assert shown(ledger, "b") == {"care", "desk 4", "run-1", "tumours"}


def test_a_run_that_ends_later_is_part_of_the_sum(ledger: pp.Ledger) -> None:
    lived(ledger)
    ledger.forget(["a"])
    ledger.recover("run-2")
    ledger.charge("run-3", ledger.members(["a", "b"]), np.array([[1, 1, 1]]), [0, 0])
    [event] = ledger.history("a")
    assert event.charged == (55, 66, 77)
    assert ledger.receipt("a").uses[0].settled
    assert tuple(ledger.spent(ledger.members(["a"]))[0].tolist()) == event.charged


def test_who_comes_back_has_spent_it_and_is_shown_what_is_new_alone(ledger: pp.Ledger) -> None:
    lived(ledger)
    ledger.forget(["a"])
    ledger.join(["a"], 1.0, purpose="buses")
    ledger.recover("run-2")
    ledger.charge("run-3", ledger.members(["a"]), np.array([[1, 2, 3]]), [0], purpose="lines")
    assert shown(ledger, "a") == set()
    receipt = ledger.receipt("a")
    assert (receipt.state, receipt.rung.epsilon, receipt.highest.epsilon) == (State.ACTIVE, 1.0, 4.0)
    assert [use.run for use in receipt.uses] == ["", "run-3"]
    assert [consent.purpose for consent in receipt.consents] == ["", "buses"]
    spent = ledger.spent(ledger.members(["a"]))[0].tolist()
    assert spent == [56, 68, 80]
    assert receipt.used in spent
    ledger.forget(["a"])
    assert [event.charged for event in ledger.history("a")] == [(56, 68, 80)]


def test_who_was_frozen_stays_so(ledger: pp.Ledger) -> None:
    from privypurse.ledger import people

    ledger.join(["a"], 1.0)
    with ledger._writing() as connection:
        people.freeze_everybody(connection)
    ledger.forget(["a"])
    ledger.join(["a"], 1.0)
    assert ledger.receipt("a").state is State.FROZEN
    assert not ledger.balances(ledger.members(["a"])).any()


def test_a_history_that_only_hid_entries_would_lose_what_was_spent(
    ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(ledger)
    ledger.forget(["a"])
    ledger.join(["a"], 1.0)
    whole = ledger.receipt("a").used
    hidden = history._without_what_is_forgotten
    monkeypatch.setattr(history, "_without_what_is_forgotten", lambda events, columns: hidden(events, columns)[1:])
    assert ledger.receipt("a").used == 0 < whole


def test_a_run_that_began_while_somebody_was_out_and_ended_later_is_not_shown(ledger: pp.Ledger) -> None:
    """They were listed, and paid nothing: what lies between two consents is not shown, and breaks no receipt."""
    lived(ledger)
    ledger.recover("run-2")
    ledger.forget(["a"])
    ledger.reserve("run-3", ledger.members(["a", "b"]), np.array([[1, 1, 1]]), [0, 0], purpose="tumours")
    ledger.join(["a"], 1.0)
    ledger.recover("run-3")
    assert [(event.kind, event.run) for event in ledger.history("a")] == [("forget", None), ("consent", None)]
    assert shown(ledger, "a") == set()
    assert ledger.receipt("b").uses[-1].charged == 1

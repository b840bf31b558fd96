"""Receipts out of a real ledger: of the person asked for and nobody else, adding up to what was taken."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import privypurse as pp
from page_checks import complaints
from privypurse.accounting.releases import Gaussian
from privypurse.ledger import ApproximateDP, entries
from privypurse.ledger.receipt_facts import State
from privypurse.ledger.receipts import Receipt

KEY = bytes(range(32))  # of the template
IDS = [f"person-{number:03d}" for number in range(40)]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = pp.Ledger.create(
        f"sqlite:///{tmp_path}/purses.db", epsilons=[0.5, 1.0, 2.0], delta=1e-5, key=tmp_path / "key"
    )
    made.join(IDS, np.resize([0.5, 1.0, 2.0], len(IDS)), purpose="to plan bus lines", recorded_by="desk 4")
    return made


def train(
    ledger: pp.Ledger, run: str, ids: list[str], noise: float, *, steps: int = 4, begun: int | None = None
) -> None:
    """A run that reserves all its steps, and settles those that were begun."""
    step = ledger.charges_of([Gaussian(noise, 1)])
    reservation = ledger.reserve(run, ledger.members(ids), steps * step, np.zeros(len(ids), dtype=int), purpose=run)
    if begun is not None:
        reservation.settle(begun * step, np.where(reservation.admitted, 0, -1))


def taken(ledger: pp.Ledger, person: str) -> list[int]:
    """What was taken from somebody at each measure, as the ledger has it: its limits less the room that is left."""
    members = ledger.members([person])
    return (ledger.lifetime.limits[int(members.rung[0])] - ledger.room(members)[0]).tolist()


def test_a_receipt_adds_up_to_what_the_ledger_took(ledger: pp.Ledger) -> None:
    train(ledger, "first", IDS[:6], 40.0, begun=2)
    train(ledger, "second", IDS[3:9], 30.0)
    ledger.charge("question", ledger.members(IDS[:9]), ledger.charges_of([Gaussian(50.0, 1)]), np.zeros(9, dtype=int))
    for person in IDS[:10]:
        receipt = ledger.receipt(person)
        own = int(ledger.members([person]).rung[0])
        assert receipt.rung == ledger.rungs[own] == receipt.highest
        limits = ledger.lifetime.limits[own].tolist()
        shares = [used / limit for used, limit in zip(taken(ledger, person), limits, strict=True)]
        assert float(receipt.share(receipt.used)) == max(shares[own:])  # at the measure where least is left
        assert receipt.used + receipt.left == receipt.limit
        assert all(use.charged <= use.at_most for use in receipt.uses)
        assert receipt.state is State.ACTIVE
    of_four = {use.run: use for use in ledger.receipt(IDS[4]).uses}
    assert {run: use.settled for run, use in of_four.items()} == {"first": True, "second": False, "question": True}
    assert [use.run for use in ledger.receipt(IDS[0]).uses] == ["first", "question"]
    assert ledger.receipt(IDS[9]).uses == ()


def test_each_use_stands_beside_the_purpose_that_was_allowed_when_it_began(ledger: pp.Ledger) -> None:
    train(ledger, "advertising", IDS[:1], 40.0)
    ledger.change(IDS[:1], 0.5, purpose="to plan trams")
    ledger.charge("trams", ledger.members(IDS[:1]), ledger.charges_of([Gaussian(90.0, 1)]), [0], purpose="trams")
    ledger.recover("advertising")  # its end moves nothing
    ledger.change(IDS[:1], 0.5)
    ledger.withdraw(IDS[:1])
    ledger.charge("late", ledger.members(IDS[:1]), ledger.charges_of([Gaussian(90.0, 1)]), [0], purpose="trams")
    uses = ledger.receipt(IDS[0]).uses
    assert [(use.run, use.purpose, use.allowed_purpose) for use in uses] == [
        ("advertising", "advertising", "to plan bus lines"),
        ("trams", "trams", "to plan trams"),
        ("late", "trams", "none: you had withdrawn"),
    ]
    assert uses[-1].charged == 0


def test_a_receipt_that_counted_the_reservation_and_the_settlement_would_not_add_up(ledger: pp.Ledger) -> None:
    train(ledger, "first", IDS[:6], 40.0, begun=2)
    events = [event for event in ledger.history(IDS[0]) if event.charged is not None]
    assert [event.kind for event in events] == ["reserve", "settle"]
    doubled = sum(event.charged[0] for event in events)
    assert ledger.receipt(IDS[0]).used == taken(ledger, IDS[0])[0] < doubled


STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "charge", "raise", "lower", "leave"]), st.integers(0, 2)),
    max_size=8,
)


LOWERED = [("raise", 0), ("raise", 0), ("charge", 0), ("lower", 0), ("lower", 0)]  # below what was used by then


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(STEPS)
@example(LOWERED)
def test_no_purse_is_beyond_its_limit_but_one_that_was_lowered(template: Path, steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(template, f"{folder}/purses.db")
        ledger = pp.Ledger.open(f"sqlite:///{folder}/purses.db", key=KEY)
        ledger.join(IDS[:3], [rung.epsilon for rung in ledger.rungs])
        lowered: set[str] = set()
        for place, (what, who) in enumerate(steps):
            rung = ledger.rungs.index(ledger.receipt(IDS[who]).rung)
            match what:
                case "reserve" | "settle":
                    train(ledger, str(place), IDS[:3], 9.0 + who, begun=None if what == "reserve" else who)
                case "charge":
                    charges = ledger.charges_of([Gaussian(6.0 + who, 1)])
                    ledger.charge(str(place), ledger.members(IDS[:3]), charges, np.zeros(3, dtype=int))
                case "raise" | "lower":
                    other = min(rung + 1, 2) if what == "raise" else max(rung - 1, 0)
                    lowered |= {IDS[who]} if other < rung else set()
                    ledger.change([IDS[who]], ledger.rungs[other].epsilon)
                case "leave":
                    ledger.withdraw([IDS[who]])
                    ledger.join([IDS[who]], ledger.rungs[rung].epsilon)
        for person in IDS[:3]:
            receipt = ledger.receipt(person)
            assert sum((receipt.share(use.charged) for use in receipt.uses), Fraction(0)) == receipt.share(
                receipt.used
            )
            assert (receipt.share(receipt.used) > 1) == (receipt.state is State.FROZEN)
            assert receipt.share(receipt.used) <= 1 or person in lowered
            assert receipt.highest.epsilon >= receipt.rung.epsilon


def told(receipt: Receipt) -> list[str]:
    """A receipt in all its forms, but for its id and times."""
    texts = [receipt.text(), receipt.html(), json.dumps(receipt.json_ld(), ensure_ascii=False)]
    return [hide_times(text.replace(receipt.receipt_id, "…")) for text in texts]


def tells_of_others(ledger: pp.Ledger, receipt: Callable[[str], Receipt]) -> bool:
    """Whether a receipt names somebody else, or changes with what others do."""
    train(ledger, "first", IDS[:6], 40.0, begun=2)
    before = told(receipt(IDS[0]))
    ledger.withdraw(IDS[5:9])
    ledger.change([IDS[4]], 2.0, purpose="something else entirely")
    train(ledger, "second", IDS[10:20], 30.0)
    after = told(receipt(IDS[0]))
    return before != after or any(person in text for person in IDS[1:] for text in after)


def test_it_has_nothing_of_anybody_else(ledger: pp.Ledger) -> None:
    assert not tells_of_others(ledger, ledger.receipt)


@pytest.mark.parametrize("told", ["head", "entries", "runs"])
def test_a_receipt_with_a_fingerprint_or_a_count_would_tell_of_others(ledger: pp.Ledger, told: str) -> None:
    def with_more(person: str) -> Receipt:
        return replace(ledger.receipt(person), contact=str(getattr(ledger.show(), told)))

    assert tells_of_others(ledger, with_more)


def hide_times(text: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "…", text)


def test_raising_lowering_withdrawing_and_forgetting(ledger: pp.Ledger) -> None:
    person = IDS[0]
    ledger.change([person], 2.0, purpose="more")
    train(ledger, "first", [person], 6.0, begun=3)
    raised = ledger.receipt(person)
    assert (raised.rung, raised.highest) == (ledger.rungs[2], ledger.rungs[2])
    ledger.change([person], 0.5)
    lowered = ledger.receipt(person)
    assert (lowered.state, lowered.rung, lowered.highest) == (State.FROZEN, ledger.rungs[0], ledger.rungs[2])
    assert lowered.left == 0
    assert lowered.share(lowered.used) > 1
    assert not ledger.balances(ledger.members([person])).any()
    ledger.withdraw([person])
    assert ledger.receipt(person).state is State.WITHDRAWN
    ledger.join([person], 2.0)
    back = ledger.receipt(person)
    assert (back.state, back.used) == (State.ACTIVE, raised.used)
    ledger.forget([person])
    assert ledger.receipt(person).state is State.FORGOTTEN
    for receipt in (raised, lowered, back, ledger.receipt(person)):
        assert complaints(receipt.html()) == []
    said = [consent.state for consent in back.consents]
    assert said == [State.ACTIVE] * 3 + [State.WITHDRAWN, State.ACTIVE]
    assert [consent.state for consent in ledger.receipt(person).consents] == [State.FORGOTTEN]


def test_a_consent_that_has_run_out_is_told(ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.join(["early"], 1.0, valid_until="2100-01-01")
    assert ledger.receipt("early").state is State.ACTIVE
    monkeypatch.setattr(entries, "now", lambda: 4_102_531_200 * 10**6)  # 2100-01-02 in seconds since 1970
    receipt = ledger.receipt("early")
    assert receipt.state is State.EXPIRED
    assert "2100-01-01" in receipt.text()


def test_ids_are_the_person_however_they_are_written(ledger: pp.Ledger) -> None:
    ledger.join([7], 1.0)
    assert ledger.receipt(" 7 ").person == ledger.receipt(7).person == "7"
    with pytest.raises(pp.InvalidInput, match="stranger"):
        ledger.receipt("stranger")


def test_without_the_key_there_is_no_receipt(
    ledger: pp.Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVYPURSE_LEDGER_KEY", raising=False)
    with pytest.raises(pp.InvalidInput, match="PRIVYPURSE_LEDGER_KEY"):
        pp.Ledger.open(f"sqlite:///{tmp_path}/purses.db").receipt(IDS[0])


def test_a_part_set_apart_is_a_measure_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/apart.db"
    ledger = pp.Ledger.create(url, epsilons=[1.0, 2.0], delta=1e-5, set_apart=0.1, key=tmp_path / "key")
    ledger.join(["A"], 1.0)
    ledger.charge("outside", ledger.members(["A"]), ledger.charges_of([ApproximateDP(0.05, 1e-8)]), np.zeros(1, int))
    receipt = ledger.receipt("A")
    assert receipt.measure.startswith("ε of releases known only as")
    assert float(receipt.share(receipt.used)) == pytest.approx(0.5, abs=1e-9)

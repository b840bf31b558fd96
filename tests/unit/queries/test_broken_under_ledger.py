"""Questions under a ledger that break a rule: each is caught by the check that the honest one passes."""

from __future__ import annotations

import sqlite3
from fractions import Fraction

import numpy as np
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.ledger.ledger import Ledger
from privypurse.queries import Analyst, analyst, contributions, ledger_purses, noisy_sums
from privypurse.queries.ledger_purses import LedgerPurses

PEOPLE = 40
IDS = [f"C{k}" for k in range(PEOPLE)]
NOISE = (29.0, 47.0)
HONEST = LedgerPurses.pay


def asked(new_ledger, name, values, empty=()):
    """Sums, and what the ledger's file and the answers show; ``empty`` people have nothing left beforehand."""
    ledger = new_ledger(name)
    ledger.join(IDS, 1.0)
    members, rung = ledger.members(IDS), ledger.rungs[1]
    charges = np.array([[one.limit for one in ledger.rungs]])
    charges[0, [0, 2]] = 0, min(rung.limit, ledger.rungs[2].limit)
    ledger.charge("before", members, charges, np.where(np.isin(np.arange(PEOPLE), empty), 0, -1))
    asks = silenced(Analyst({"x": values}, pp.Budgets(np.ones(PEOPLE), person=IDS), person=IDS, ledger=ledger))
    answers = [asks.sum("x", lower=0, upper=1, noise=noise) for noise in NOISE]
    return ledger, answers


def shown(ledger, answers):
    """All that may be seen without being paid for: public facts of answers, sizes, caps, public balances."""
    facts = [
        [getattr(answer, name) for name in vars(answer) if name not in ("value", "released")] for answer in answers
    ]
    with sqlite3.connect(str(ledger._database.path)) as file:
        sizes = file.execute(
            "SELECT length(entry.classes), length(payload) FROM entry JOIN block ON entry.seq = block.entry "
            "WHERE kind = 'charge' ORDER BY seq, number"
        ).fetchall()
    caps = [run.at_most for run in ledger.runs()]
    return facts, sizes, caps, ledger.public_room(ledger.members(IDS)).tolist()


def complaints(new_ledger, monkeypatch):
    """What is wrong: [] for the honest one."""
    wrong, events = [], []
    for place, name, event in ((Ledger, "charge", "charged"), (contributions.Dense, "total", "added up")):
        honest = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *a, _f=honest, _e=event, **k: (events.append(_e), _f(*a, **k))[1])
    values = np.linspace(0, 1, PEOPLE)
    try:
        ledger, answers = asked(new_ledger, "one", values)
        for answer in answers:
            if float(answer) != pytest.approx(values.sum(), abs=1e-6):
                wrong.append("leaves somebody out who could pay")
        wrong.extend(charged_too_little(ledger, values))
        if ledger.verify().problems:
            wrong.append("the ledger does not verify")
        if events != ["charged", *["charged", "added up"] * len(NOISE)]:
            wrong.append(f"not charged before it is made: {events}")
        kept = [place for place in range(PEOPLE) if place % 3]
        others, fewer = asked(new_ledger, "two", values, empty=[place for place in range(PEOPLE) if not place % 3])
        if any(float(answer) != pytest.approx(values[kept].sum(), abs=1e-6) for answer in fewer):
            wrong.append("somebody with an empty purse contributes")
        if shown(ledger, answers) != shown(others, fewer):
            wrong.append("tells who is empty")
        if shown(ledger, answers) != shown(*asked(new_ledger, "three", np.full(PEOPLE, 0.3))):
            wrong.append("tells of the data")
    except Exception as error:
        wrong.append(f"tells by raising {error!r}")
    return wrong


def charged_too_little(ledger, values):
    for who, value in list(zip(IDS, values.tolist(), strict=True))[::6]:
        charged = [event.charged for event in ledger.history(who) if event.charged is not None]
        for k, rung in enumerate(ledger.rungs):
            least = sum(Fraction(rung.order) * (Fraction(value) / Fraction(noise)) ** 2 / 2 for noise in NOISE)
            # What is contributed lies on a grid and may be shorter, by less than 2^-30 of itself.
            if value and sum(row[k] for row in charged) < least * 2**40 * (1 - Fraction(1, 2**29)):
                yield "charges less than it costs"
                return


def test_the_honest_one_has_no_complaints(new_ledger, monkeypatch):
    assert complaints(new_ledger, monkeypatch) == []


def answers_before_it_charges(parts, people, pay, *, clip, noise, source):
    parts = parts.clipped(clip)
    total = parts.total(np.ones(people, dtype=bool))
    return np.where(pay(parts.norms() * (1 + 1e-12) / noise).all(), total, total)


def ignores_who_could_not_pay(parts, people, pay, *, clip, noise, source):
    parts = parts.clipped(clip)
    pay(parts.norms() * (1 + 1e-12) / noise)
    return parts.total(np.ones(people, dtype=bool))


def charges_nobody(self, ratio, most, *, alike=False):
    return HONEST(self, np.zeros(ratio.shape), most, alike=alike) | (ratio > 0)


def charges_in_float32(self, ratio, most, *, alike=False):
    """Of float32 a third of all numbers are rounded down by more than a unit."""
    short = np.nextafter(ratio.astype(np.float32), np.float32(0)).astype(np.float64)
    return paid_by_classes(self, short, np.unique(short))


def rounds_down(self, ratio, most, *, alike=False):
    levels = most * ledger_purses.SHARES
    return HONEST(self, levels[np.maximum(np.searchsorted(levels, ratio) - 2, 0)] * (ratio > 0), most)


def classes_of_those_present(self, ratio, most, *, alike=False):
    return paid_by_classes(self, ratio, np.unique(ratio))


def paid_by_classes(self, ratio, levels):
    levels = levels[levels > 0]
    place = np.where(ratio > 0, np.searchsorted(levels, ratio), -1)
    run = f"run {len(self._ledger.runs())}"
    return self._ledger.charge(
        run, self._members, ledger_purses.charges_of_ratios(self._ledger.lifetime, levels), place, at_most=0.5
    ).admitted


def refuses_aloud(self, ratio, most, *, alike=False):
    pays = HONEST(self, ratio, most, alike=alike)
    if not pays[ratio > 0].all():
        raise pp.PrivyPurseError("somebody cannot pay")
    return pays


@pytest.mark.parametrize(
    ("place", "name", "twin", "complaint"),
    [
        (analyst, "paid_sum", answers_before_it_charges, "not charged before"),
        (analyst, "paid_sum", ignores_who_could_not_pay, "empty purse contributes"),
        (LedgerPurses, "pay", charges_nobody, "charges less"),
        (LedgerPurses, "pay", charges_in_float32, "charges less"),
        (LedgerPurses, "pay", rounds_down, "charges less"),
        (LedgerPurses, "pay", classes_of_those_present, "tells of the data"),
        (LedgerPurses, "pay", refuses_aloud, "tells by raising"),
    ],
)
def test_broken_twins_are_caught(new_ledger, monkeypatch, place, name, twin, complaint):
    monkeypatch.setattr(place, name, twin)
    assert any(complaint in one for one in complaints(new_ledger, monkeypatch))


def test_an_answer_that_cannot_be_charged_is_not_made(new_ledger, monkeypatch):
    """Noise is drawn beforehand: nothing that may fail stands between charge and answer."""
    ledger = new_ledger()
    ledger.join(IDS, 1.0)
    asks = silenced(
        Analyst({"x": np.ones(PEOPLE)}, pp.Budgets(np.ones(PEOPLE), person=IDS), person=IDS, ledger=ledger)
    )

    class Broken:
        def normal(self, count):
            raise OSError("no entropy")

    asks._source = Broken()
    with pytest.raises(OSError, match="no entropy"):
        asks.count(noise=20.0)
    assert not ledger.runs()
    assert noisy_sums.largest_ratio(1.0, 20.0) >= 1 / 20

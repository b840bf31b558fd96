"""The year of `examples/year`: nobody's purse is overdrawn, by sums that this test makes itself."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import EPSILONS, UNIT, charged, step_cost
from page_checks import complaints
from privypurse.federated.terms import Offer

EXAMPLE = Path(__file__).parents[2] / "examples" / "year"
ORDERS = np.array([28, 16, 9])  # of ε = 0.5, 1 and 2 at δ = 1e-5, when the ledger of the year was made


@dataclass(frozen=True)
class Lived:
    """A year that has passed: what happened, where, and the ledger."""

    year: Any
    folder: Path
    ledger: pp.Ledger

    def charged(self, person: str) -> dict[str, np.ndarray]:
        """For each run what it took from somebody in the end, in nats at each order."""
        events = [event for event in self.ledger.history(person) if event.charged is not None]
        return {str(event.run): np.array(event.charged) * UNIT for event in events}

    @cached_property
    def runs(self) -> list[str]:
        """Training, question, training, round."""
        return [run.run_id for run in self.ledger.runs()]


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module", params=[pytest.param(size, marks=pytest.mark.slow) for size in (300, 5000)])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    folder = tmp_path_factory.mktemp("year")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("PRIVYPURSE_LEDGER", "PRIVYPURSE_LEDGER_KEY"):
            patch.setenv(variable, "")  # and back to what it was
        patch.chdir(folder)
        year = module("customers").made_up(request.param)
        module("year").whole(year)
        yield Lived(year, folder, pp.Ledger.open("sqlite:///purses.db", key="ledger.key"))


def trained(lived: Lived, out: str, table: str) -> tuple[dict[str, float], float, int]:
    """Everybody's sampling rate, σ and the steps of a training."""
    plan = pp.Plan.load(lived.folder / out / "plan.json")
    rows = getattr(lived.year, table)
    return dict(zip((one.customer for one in rows), plan.rates, strict=True)), plan.noise_multiplier, plan.steps


def held(epsilon: float, order: float, delta: float = 1e-5) -> float:
    """The divergence from which (ε, δ) follows (Canonne et al. 2020, arXiv 2004.00010, Proposition 12)."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def cost_of(steps: int, rates: np.ndarray, noise: float) -> np.ndarray:
    """[people, orders]: what sampled Gaussian steps cost, in nats."""
    different, which = np.unique(rates, return_inverse=True)
    return steps * np.array([[step_cost(rate, noise, order) for order in ORDERS] for rate in different])[which]


@pytest.mark.slow
def test_nobody_spent_more_than_they_granted_by_sums_of_our_own(lived: Lived) -> None:
    """Trainings by rate, noise and steps; the question by who is 65; of the round its table of rates is known."""
    assert [rung.order for rung in lived.ledger.rungs] == ORDERS.tolist()
    people = sorted(lived.year.july, key=lambda one: one.customer)
    ids, epsilon = np.array([one.customer for one in people]), np.array([one.epsilon for one in people])
    total = np.zeros((len(people), 3))
    for out, table in (("first", "january"), ("second", "july")):
        rates, noise, steps = trained(lived, out, table)
        total += cost_of(steps, np.array([rates.get(person, 0.0) for person in ids]), noise)
    old = {one.customer for one in lived.year.january if one.age >= 65}
    total += np.isin(ids, list(old))[:, None] * ORDERS / (2 * 40.0**2)
    offer = Offer.load(lived.folder / "books/ours/offer.json")
    most = {one: offer.table.parameter[offer.table.epsilon <= one].max(initial=0) for one in EPSILONS}
    rounds = cost_of(offer.terms.local_steps, np.array([most[one] for one in epsilon]), offer.terms.noise_multiplier)
    said = charged(lived.ledger, ids)
    assert (said >= total * (1 - 1e-9)).all()
    assert (said <= (total + rounds) * (1 + 1e-6) + 1e-9).all()
    limits = np.array([held(one, order) for one, order in zip(EPSILONS, ORDERS, strict=True)])
    counts = np.array(EPSILONS) >= epsilon[:, None]  # orders of one's own rung and of those above
    assert (said <= limits)[counts].all()
    assert (said[:, 0] > 0.9 * limits[0])[epsilon == 0.5].mean() > 0.5  # or it would hold by itself
    assert lived.ledger.verify().problems == []


def test_each_use_is_charged_as_what_it_was(lived: Lived) -> None:
    uses = {0: trained(lived, "first", "january"), 2: trained(lived, "second", "july")}
    old = {one.customer for one in lived.year.january if one.age >= 65}
    for one in lived.year.july[:150]:
        taken = lived.charged(one.customer)
        for place, (rates, noise, steps) in uses.items():
            [cost] = cost_of(steps, np.array([rates.get(one.customer, 0.0)]), noise)
            assert taken.get(lived.runs[place], np.zeros(3)) == pytest.approx(cost, rel=1e-6, abs=1e-9)
        cost = ORDERS / (2 * 40.0**2) * (one.customer in old)
        assert taken.get(lived.runs[1], np.zeros(3)) == pytest.approx(cost, rel=1e-6)


def test_purses_really_were_used(lived: Lived) -> None:
    """What would hold of empty runs, too, is no test."""
    for person in (*lived.year.joined, *lived.year.raised):
        runs = lived.charged(person)
        assert runs[lived.runs[2]].all()
        assert runs[lived.runs[3]].any()


def test_who_has_withdrawn_pays_nothing_afterwards(lived: Lived) -> None:
    rates, _, _ = trained(lived, "second", "july")
    for person in lived.year.withdrawn:
        assert rates[person] == 0
        events = lived.ledger.history(person)
        gone = [event.kind for event in events].index("withdraw")
        assert any(any(event.charged or ()) for event in events[:gone])
        assert not any(any(event.charged or ()) for event in events[gone:])
        assert lived.ledger.balances(lived.ledger.members([person])).tolist() == [0]


def test_edited_and_reordered_rows_are_the_same_people(lived: Lived) -> None:
    before = [one.customer for one in lived.year.january]
    now = [one.customer for one in lived.year.july]
    assert now[: len(before)] != before
    assert lived.ledger.members(before).numbers.tolist() == list(range(len(before)))
    assert sorted(lived.ledger.members(now).numbers) == list(range(len(before) + 20))  # twenty are new, and no more
    same = sorted(set(lived.year.edited) - {*lived.year.withdrawn, *lived.year.raised})
    for person in same[:50]:
        runs = lived.charged(person)
        assert runs[lived.runs[0]].all()
        assert runs[lived.runs[2]].all()
        assert [event.kind for event in lived.ledger.history(person)].count("join") == 1


def test_a_receipt_is_of_one_person_and_adds_up(lived: Lived) -> None:
    for person in (lived.year.raised[0], lived.year.withdrawn[0], lived.year.joined[0]):
        html = (lived.folder / f"{person}.html").read_text()
        said = json.loads((lived.folder / f"{person}.json").read_text())
        assert complaints(html) == []
        for text in (html, json.dumps(said)):
            assert set(re.findall(r"\bC\d{5}\b", text)) == {person}
        [processing] = said["pii_processing"]
        granted = {one.customer: one.epsilon for one in lived.year.july}[person]
        assert processing["epsilon"] == granted
        taken = lived.charged(person)
        place = EPSILONS.index(granted)
        assert [use["units_charged"] for use in processing["uses"]] == [
            round(charge[place] / UNIT) for charge in taken.values()
        ]
        assert processing["units_used"] == sum(use["units_charged"] for use in processing["uses"])
        joined = 2 if person in lived.year.joined else 4
        assert len(processing["uses"]) == joined
        assert f"{granted:g}" in html


def second_noise(folder: Path, year: Any, patch: pytest.MonkeyPatch) -> float:
    """σ of the second training."""
    folder.mkdir()
    patch.chdir(folder)
    steps = module("year")
    steps.january(year)
    steps.may()
    steps.july(year)
    return pp.Plan.load("second/plan.json").noise_multiplier


@pytest.mark.slow
def test_the_second_trainings_noise_tells_nothing_of_what_people_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same grants and caps, but everybody is 65, or nobody: the question takes from all, or from none."""
    for variable in ("PRIVYPURSE_LEDGER", "PRIVYPURSE_LEDGER_KEY"):
        monkeypatch.setenv(variable, "")
    year = module("customers").made_up(300)
    years = [replace(year, january=tuple(replace(one, age=age) for one in year.january)) for age in (20, 70)]
    young, old = (second_noise(tmp_path / f"{k}", one, monkeypatch) for k, one in enumerate(years))
    assert young == old
    # The broken twin: noise from real balances.
    monkeypatch.setattr(pp.Ledger, "public_room", pp.Ledger.room)
    young, old = (second_noise(tmp_path / f"twin-{k}", one, monkeypatch) for k, one in enumerate(years))
    assert young != old

"""Under a ledger, public balances follow from plans and grants alone, and nobody's leaving stops the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, new_ledger
from privypurse.assignment.round_planner import PdpSgd
from privypurse.ledger import entries
from privypurse.plans import file as planfile
from privypurse.plans.under_ledger import UnderLedger
from training_tools import LOSS

N = 24
IDS = np.array([f"C{k:03d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
BUDGETS = pp.Budgets(np.array([0.15, 0.3])[np.arange(N) % 2], delta=DELTA, person=IDS)


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


@pytest.fixture(scope="module")
def rounds() -> pp.rounds.Schedule:
    return pp.rounds.schedule(BUDGETS, PdpSgd(rounds=2), epochs=4, batch_size=8, accountant="rdp")


def planned(ledger: pp.Ledger) -> pp.Plan:
    shape = {"steps": 3, "batch_size": 8, "noise_multiplier": 4.0, "accountant": "rdp"}
    return pp.plan(BUDGETS, ledger=ledger, at_most=0.3, **shape)


def trained(ledger: pp.Ledger, plan: Any, who: np.ndarray, **options: Any) -> None:
    """By a plan or a schedule, on records of these people."""
    data = TensorDataset(torch.randn(who.size, 3), torch.randint(0, 2, (who.size,)))
    options |= {"person": IDS[who], "ledger": ledger}
    if isinstance(plan, pp.rounds.Schedule):
        plan = replace(plan, ledger=UnderLedger(ledger.id, 0.6, ledger.members(IDS).numbers))
        pp.rounds.train(
            lambda: nn.Linear(3, 2),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            data,
            plan,
            LOSS,
            **options,
        )
        return
    model = nn.Linear(3, 2)
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, LOSS, **options)


HERE = np.arange(8, N)
"""Who has records: not the first eight."""


@pytest.mark.parametrize("kind", ["plan", "rounds"])
def test_public_balances_do_not_tell_who_had_records(ledger, rounds, kind):
    trained(ledger, planned(ledger) if kind == "plan" else rounds, HERE)
    members = ledger.members(IDS)
    public = ledger.public_balances(members)
    for rung in range(3):
        assert np.unique(public[rung::3]).size == 1  # as if all of them had taken part
        assert public[rung] < ledger.rungs[rung].limit
    paid = charged(ledger, IDS)
    assert (paid[HERE] > 0).all()
    assert (paid[:8] == 0).all()
    assert not ledger.verify().problems


def test_the_twin_that_lists_who_has_records_is_seen(ledger, monkeypatch):
    reserve = pp.Ledger.reserve

    def listing(self: pp.Ledger, run: str, members: Any, charges: Any, row: Any, **options: Any) -> Any:
        some = row >= 0
        return reserve(self, run, self.numbered(members.numbers[some]), charges, row[some], **options)

    monkeypatch.setattr(pp.Ledger, "reserve", listing)
    trained(ledger, planned(ledger), HERE)
    assert np.unique(ledger.public_balances(ledger.members(IDS))[::3]).size > 1


def test_who_comes_into_the_data_later_takes_no_part_in_a_run_that_goes_on(ledger, tmp_path):
    plan = planned(ledger)
    trained(ledger, plan, HERE, steps=2, checkpoint=tmp_path / "run")
    trained(ledger, plan, np.arange(N), checkpoint=tmp_path / "run")
    paid = charged(ledger, IDS)
    assert (paid[HERE] > 0).all()
    assert (paid[:8] == 0).all()


def test_a_plan_remembers_its_people_in_the_ledger(ledger, tmp_path):
    plan = planned(ledger)
    plan.save(tmp_path / "plan.json")
    again = pp.Plan.load(tmp_path / "plan.json")
    assert again.ledger.numbers.tolist() == ledger.members(IDS).numbers.tolist()
    assert (again.digest(), again.ledger.id, again.ledger.at_most) == (plan.digest(), ledger.id, 0.3)


def test_a_plan_that_names_other_people_by_number_is_refused(ledger):
    plan = planned(ledger)
    swapped = plan.ledger.numbers.copy()
    swapped[[10, 11]] = swapped[[11, 10]]
    altered = replace(plan, ledger=replace(plan.ledger, numbers=swapped))
    with pytest.raises(pp.InvalidInput, match="other people by number than by id"):
        trained(ledger, altered, HERE)
    with pytest.raises(pp.InvalidInput, match="the number there of each of its people"):
        replace(plan, ledger=replace(plan.ledger, numbers=swapped[1:]))
    assert planfile.digest(altered) != planfile.digest(plan)


def leave(ledger: pp.Ledger, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second person's consent is in force no more."""
    if how == "ended":
        ledger.withdraw(IDS[1:2])
        ledger.join(IDS[1:2], GRANTED[1:2], valid_until=datetime.now(UTC) + timedelta(days=100))
        now = entries.now
        monkeypatch.setattr(entries, "now", lambda: now() + 200 * 86_400 * 10**6)
    else:
        getattr(ledger, how)(IDS[1:2])


@pytest.mark.parametrize("how", ["withdraw", "forget", "ended"])
@pytest.mark.parametrize("kind", ["plan", "rounds"])
def test_one_who_left_takes_no_part_and_stops_nobody(ledger, rounds, kind, how, monkeypatch):
    plan = planned(ledger) if kind == "plan" else rounds
    leave(ledger, how, monkeypatch)
    trained(ledger, plan, np.arange(N))
    paid = (charged(ledger, IDS) > 0).all(axis=1)
    assert paid.tolist() == (np.arange(N) != 1).tolist()


def test_the_twin_that_asks_those_who_left_whether_they_can_pay_is_seen(ledger, rounds, monkeypatch):
    ledger.withdraw(IDS[1:2])
    monkeypatch.setattr(pp.Ledger, "consenting", lambda self, members: np.ones(len(members), dtype=bool))
    with pytest.raises(pp.InfeasibleBudget):
        trained(ledger, rounds, np.arange(N))

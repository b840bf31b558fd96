"""A share set apart for releases known only as (ε, δ): paid by basic composition, beside the Rényi purse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse.accounting.releases import Gaussian
from privypurse.ledger import ApproximateDP
from privypurse.ledger.standing import Standing

KEY = bytes(range(32))
GRANTS = [(1.0, 1e-5), (2.0, 1e-6)]


@pytest.fixture
def ledger(tmp_path: Path) -> pp.Ledger:
    made = pp.Ledger.create(f"sqlite:///{tmp_path / 'purses.db'}", GRANTS, set_apart=0.25, key=KEY)
    made.join(["a", "b"], [1.0, 2.0])
    return made


def times_paid(ledger: pp.Ledger, release: object, most: int) -> list[int]:
    """How often each of two people can pay for a release."""
    people, charges = ledger.members(["a", "b"]), ledger.charges_of([release])
    paid = [ledger.charge(f"{release} {n}", people, charges, [0, 0]).admitted for n in range(most)]
    return np.sum(paid, axis=0).tolist()


def test_epsilons_add_up_to_the_share_and_no_further(ledger: pp.Ledger) -> None:
    assert times_paid(ledger, ApproximateDP(0.125, 0.0), 6) == [2, 4]
    assert ledger.verify().problems == []


def test_deltas_do_too_at_the_least_of_the_rungs_that_may_come(ledger: pp.Ledger) -> None:
    """Whoever is on the first rung may be raised to the second, whose δ is smaller."""
    assert times_paid(ledger, ApproximateDP(1e-6, 1e-7), 4) == [2, 2]
    assert ledger.verify().problems == []


def test_the_two_parts_do_not_pay_for_each_other(ledger: pp.Ledger) -> None:
    people = ledger.members(["a", "b"])
    before = ledger.balances(people)
    times_paid(ledger, ApproximateDP(0.125, 0.0), 4)
    assert (ledger.balances(people) == before).all()
    assert times_paid(ledger, Gaussian(20.0), 1) == [1, 1]


def test_a_part_without_a_limit_is_caught(ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Standing.limits
    monkeypatch.setattr(
        Standing,
        "limits",
        lambda self, column: honest(self, column) if column < 2 else np.full(self.rung.size, 2**61),
    )
    assert times_paid(ledger, ApproximateDP(0.125, 0.0), 5) == [5, 5]
    assert "beyond their purse" in " ".join(ledger.verify().problems)


def test_the_whole_purse_is_smaller_by_the_share(ledger: pp.Ledger, tmp_path: Path) -> None:
    whole = pp.Ledger.create(f"sqlite:///{tmp_path / 'whole.db'}", GRANTS, key=KEY)
    for less, more in zip(ledger.rungs, whole.rungs, strict=True):
        assert less.limit / less.order < 0.75 * more.limit / more.order

"""The purse of the tiny worlds is the ledger's: over random histories both admit the same and have the same left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lifetime_worlds import Account, Purse, Run, Use, plus, randomised_response
from privypurse.ledger import Ledger
from privypurse.ledger.lifetime import CEILING

RUNGS = [(2.61, 1e-5), (2.62, 1e-5), (4.0, 1e-6)]
ODDS = ("21/20", "11/10", "5/4", "3/2", "2", "4")
STEPS = 2


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(f"sqlite:///{tmp_path}/purses.db", RUNGS, key=tmp_path / "key")


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_admit_and_leave_the_same(ledger: Ledger, seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = [[None if limit >= CEILING else limit for limit in row] for row in ledger.lifetime.limits.tolist()]
    purse = Purse([rung.order for rung in ledger.rungs], limits, [Use.of(randomised_response(odds)) for odds in ODDS])
    account, opened, refused = Account(0, (0,) * len(RUNGS)), {}, 0
    ledger.join(["somebody"], RUNGS[0][0])
    members = ledger.members(["somebody"])
    for number in range(30):
        name, use = f"run {number}", int(rng.integers(len(ODDS)))
        match rng.choice(["release", "reserve", "settle", "move"], p=[0.4, 0.25, 0.2, 0.15]):
            case "release":
                sums = plus(account.sums, purse.paid[use])
                admitted = ledger.charge(name, members, np.array([purse.paid[use]]), [0]).admitted.tolist()
                assert admitted == [purse.fits(account, sums)]
                account = Account(account.rung, sums if admitted[0] else account.sums)
                refused += not admitted[0]
            case "reserve":
                sums = plus(account.sums, purse.paid[use], STEPS)
                run = ledger.reserve(name, members, STEPS * np.array([purse.paid[use]]), [0])
                assert run.admitted.tolist() == [purse.fits(account, sums)]
                if run.admitted[0]:
                    account, opened[name] = Account(account.rung, sums), (run, Run(use, 0, STEPS))
                else:
                    refused += 1
            case "settle" if opened:
                run, of = opened.pop(next(iter(opened)))
                begun = int(rng.integers(STEPS + 1))
                run.settle(begun * np.array([purse.paid[of.use]]), [0])
                account = Account(account.rung, plus(account.sums, purse.paid[of.use], begun - STEPS))
            case "move":
                account = purse.on_rung(account, int(rng.integers(len(RUNGS))))
                ledger.change(["somebody"], RUNGS[account.rung][0])
        left = [
            CEILING if limit is None else max(limit - spent, 0)
            for limit, spent in zip(limits[account.rung], account.sums, strict=True)
        ]
        assert ledger.room(members)[0].tolist() == left
    assert refused > 2

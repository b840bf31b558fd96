"""Statistics under a ledger: whoever is measured pays, for life, before anything is told (rule 16)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import privypurse as pp
from privypurse.queries import LedgerPurses, statistics

IDS = [f"C{k}" for k in range(40)]
GRANTED = np.where(np.arange(40) < 10, 0.5, 4.0)
UNIT = Fraction(1, 2**40)


@pytest.fixture
def ledger(new_ledger):
    made = new_ledger()
    made.join(IDS, GRANTED)
    return made


@pytest.fixture
def purses(ledger):
    return LedgerPurses(ledger, pp.Budgets(GRANTED, person=IDS), purpose="what it cost")


def exact(rung, *ratios):
    """Σ α·r²/2 in units (Mironov 2017, Proposition 7)."""
    return sum(Fraction(rung.order) * Fraction(ratio) ** 2 / 2 / UNIT for ratio in ratios)


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_everybody_is_charged_for_their_own_term_at_every_order(ledger, purses):
    values = np.arange(40) % 5.0
    statistics.count(values > 2, purses, noise=50.0, seed=1)
    statistics.mean(values, purses, cap=4.0, noise=200.0, seed=1)
    statistics.quantiles(values, purses, probabilities=(0.3, 0.5), cap=4.0, noise=400.0, steps=3, seed=1)
    spent = ledger.spent(ledger.members(IDS))
    for who, value in enumerate(values):
        ratios = [1 / 50] * int(value > 2) + [abs(value - 2) / 200] + [math.sqrt(2) / 2 / 400] * 3
        for rung, charged in zip(ledger.rungs, spent[who].tolist(), strict=True):
            least = exact(rung, *ratios)
            # The mean's norms are rounded up by 1/256 in its uppermost octaves, and each charge to a whole unit.
            assert least <= charged <= least * Fraction("1.01") + 5
    assert [run.what for run in ledger.runs()] == ["question"] * 5
    assert {run.purpose for run in ledger.runs()} == {"what it cost"}
    assert ledger.verify().problems == []


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_whoever_cannot_pay_is_not_measured_and_nobody_is_told(ledger, purses):
    flags = np.ones(40, dtype=bool)
    noise = 3.0  # 28/18 nats of 0.23 at ε = 0.5; 6/18 of 2.2 at ε = 4
    counted = [statistics.count(flags, purses, noise=noise, seed=seed).value for seed in range(8)]
    own = ledger.rungs[2]
    times = int(own.limit // math.ceil(exact(own, 1 / noise)))
    assert 2 <= times <= 6
    assert np.abs(np.subtract(counted, [30] * times + [0] * (8 - times))).max() < 5 * noise
    assert not ledger.spent(ledger.members(IDS[:10])).any()
    assert ledger.verify().problems == []


def test_what_a_full_purse_could_not_pay_is_refused_whatever_is_left(ledger, purses):
    held = [2 * rung.limit * 2.0**-40 / rung.order for rung in ledger.rungs]
    assert purses.total.tolist() == pytest.approx([held[0]] * 10 + [held[2]] * 30)
    with pytest.raises(pp.InvalidInput, match="the fullest purse holds"):
        statistics.count(np.ones(40, dtype=bool), purses, noise=1 / math.sqrt(1.01 * held[2]))
    with pytest.raises(pp.InvalidInput, match="the fullest purse holds"):
        statistics.release(np.ones(40), purses, cap=1.0, epsilon=4.5)
    with pytest.raises(pp.InvalidInput, match="for each of 40 people"):
        statistics.count(np.ones(39, dtype=bool), purses, noise=50.0)
    assert not ledger.runs()


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_a_ledger_that_is_gone_tells_nothing(ledger, purses, tmp_path):
    (tmp_path / "purses.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(pp.PrivyPurseError, match="is not there"):
        statistics.mean(np.ones(40), purses, cap=2.0, noise=90.0, seed=1)
    (tmp_path / "elsewhere.db").rename(tmp_path / "purses.db")
    assert not ledger.runs()

"""The public list that rates and clip norms under a ledger are from: what is not on it is charged to nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, new_ledger
from privypurse.plans.price_list import PriceList

IDS = np.array([f"C{k}" for k in range(6)])
GRANTED = np.array(EPSILONS)[np.arange(6) % 3]


def planned(folder: Path, method: str) -> tuple[PriceList, pp.Plan]:
    ledger = new_ledger(folder)
    ledger.join(IDS, GRANTED)
    budgets = pp.Budgets(GRANTED, delta=DELTA, person=IDS)
    shape = {"steps": 100, "batch_size": 2, "noise_multiplier": 1.5, "accountant": "rdp"}
    plan = pp.plan(budgets, method, ledger=ledger, at_most=1.0, **shape)
    return PriceList.of_plan(ledger, plan), plan


def changed(plan: pp.Plan, **columns: np.ndarray) -> pp.Plan:
    return replace(plan, levels=replace(plan.levels, **columns))


def test_rates_are_found_at_their_price(tmp_path):
    prices, plan = planned(tmp_path, "sample")
    rows = prices.rows_of(plan)
    assert np.array_equal(prices.value[rows], plan.levels.rate)
    left_out = changed(plan, rate=np.where(np.arange(len(plan.levels)) == 0, 0.0, plan.levels.rate))
    assert prices.rows_of(left_out).tolist() == [-1, *rows[1:]]


@pytest.mark.parametrize("above", ["the list", "a price by a hair"])
def test_a_rate_above_what_it_would_be_charged_at_is_refused(tmp_path, above):
    prices, plan = planned(tmp_path, "sample")
    top = prices.value[-1]
    assert top < 0.99
    rate = plan.levels.rate.copy()
    rate[-1] = 1.0 if above == "the list" else rate[-1] * (1 + 1e-10)
    with pytest.raises(pp.InvalidInput, match="altered"):
        prices.rows_of(changed(plan, rate=rate))


def test_clip_norms_are_priced_at_the_one_rate_and_at_no_other(tmp_path):
    prices, plan = planned(tmp_path, "scale")
    one = plan.ledger.rate
    rows = prices.rows_of(plan)
    held = prices.value[rows] * plan.noise_multiplier * plan.clip_norm
    assert (held >= plan.levels.clip_norm).all()
    np.testing.assert_allclose(held, plan.levels.clip_norm, rtol=1e-9)
    for other in (1.0, one * 1.01, one / 2):
        rate = plan.levels.rate.copy()
        rate[-1] = other
        with pytest.raises(pp.InvalidInput, match="altered"):
            prices.rows_of(changed(plan, rate=rate))
    norms = plan.levels.clip_norm.copy()
    norms[-1] *= 1 + 1e-10
    with pytest.raises(pp.InvalidInput, match="altered"):
        prices.rows_of(changed(plan, clip_norm=norms))

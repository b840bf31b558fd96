"""Figures that are accounting alone: beside the paper's printed rates, another accountant, and counts that add up."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest

from privypurse.assignment.round_planner import AdaPdp
from privypurse.assignment.threshold_sampling import FixedLoss
from privypurse.budgets import Budgets
from reproductions import accounting_figures
from reproductions.unsound.drawn_pay import published

pytestmark = pytest.mark.slow

ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 65))


def by_another_accountant(rate: float, noise: float, steps: int) -> float:
    accountant = dp_accounting.rdp.RdpAccountant(orders=ORDERS)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return float(accountant.compose(event, steps).get_epsilon(1e-5))


@pytest.mark.parametrize("column", ["Sample", "Scale"])
def test_every_group_is_used_up_at_the_last_step_and_not_before(column: str) -> None:
    spent, moments, plan = accounting_figures.consumption("54-37-9 %", column)
    granted = np.array([1.0, 2.0, 3.0])
    assert moments == [1875, 3750, 5625, 7500, 9375]
    assert (spent[:, -1] <= granted).all()
    assert (spent[:, -1] > 0.995 * granted).all()
    assert (spent[:, -2] < 0.9 * granted).all()
    for level in range(3):
        noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm[level]
        for moment, found in zip(moments, spent[level], strict=True):
            other = by_another_accountant(float(plan.levels.rate[level]), float(noise), moment)
            assert found == pytest.approx(other, rel=0.02)
            assert found != pytest.approx(by_another_accountant(plan.levels.rate[level], noise, 2 * moment), rel=0.02)


def test_the_rates_are_those_that_the_paper_prints() -> None:
    """Boenisch et al. (2023), Table 6: MNIST, 54-37-9 %, Sample."""
    _, _, plan = accounting_figures.consumption("54-37-9 %", "Sample")
    assert plan.levels.rate.round(3).tolist() == [0.006, 0.011, 0.016]
    assert plan.noise_multiplier == pytest.approx(2.376, rel=0.01)


def test_only_the_drawn_have_less_left_by_the_published_rule() -> None:
    epsilon = np.repeat([0.5, 0.75, 1.0], 200)
    how = {"epochs": 2.0, "batch_size": 60, "rng": np.random.default_rng(0)}
    made = published(Budgets(epsilon, delta=1e-5), AdaPdp(FixedLoss(0.2, 0.8), rounds=3), **how)
    before, after = accounting_figures.left_over(made)[:2]
    drawn = np.asarray(made.drawn[0])
    assert before.tolist() == epsilon.tolist()
    assert after[~drawn].tolist() == epsilon[~drawn].tolist()
    assert after[drawn] == pytest.approx(np.maximum(epsilon[drawn] - made.rounds[0].threshold, 0))


def test_everybody_is_counted_once_in_every_round() -> None:
    text = accounting_figures.figure_6(records=600)
    published_part, sound = text.split("Sound:")
    rows = [line.strip("| ").split(" | ") for line in published_part.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 3
    for _, _, drawn, nothing, *counts in rows:
        numbers = [int(each.replace(",", "")) for each in counts]
        by_epsilon, by_chance = sum(numbers[:-5]), sum(numbers[-5:])
        assert by_epsilon == by_chance == 600 - int(nothing)
        assert 0 < int(drawn) <= by_chance
    assert [int(row[3]) for row in rows] == sorted(int(row[3]) for row in rows)  # nobody gets anything back
    assert sound.count("\n| ") == 4  # two rounds: what is left is reckoned as if everybody paid

"""Accounting backwards: what is found stays below what was asked for by more than pricing it again may differ."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.accounting import PLD, RDP, CertifiedTable, SampledGaussian
from privypurse.accounting import inverse as module
from privypurse.accounting.inverse import INVERSE_NOISE, Axis, Inverse

DELTA = np.array([1e-6])


def release(inverse):
    return SampledGaussian(0.05, 1.0 / inverse, 200)


def at_a_node(accountant, node):
    """What a node of the axis costs, and that much and a trifle: the node alone would answer it."""
    [cost] = accountant.epsilons([release(float(INVERSE_NOISE.at(np.array([node]))[0]))], DELTA)
    return cost, np.array([cost * (1 + 1e-8)])


def require_room(accountant, node):
    cost, wanted = at_a_node(accountant, node)
    found, spent = Inverse(accountant, release, INVERSE_NOISE).certified(wanted, DELTA)
    assert accountant.epsilons([release(float(found[0]))], DELTA)[0] == spent[0] < cost
    assert (1 - 5e-4) * wanted[0] <= spent[0] <= (1 - 1e-5) * wanted[0]


@pytest.mark.parametrize("node", [-2, 0, 3])
@pytest.mark.parametrize("accountant", [RDP(), PLD()])
def test_the_same_release_may_cost_a_trifle_more_the_next_time(accountant, node):
    """On another machine Fourier transforms round otherwise, and σ·(C/c) is not σ to the last digit."""
    require_room(accountant, node)


def test_without_that_room_the_node_itself_is_the_answer(monkeypatch):
    monkeypatch.setattr(module, "_HAIR", 1e-9)
    with pytest.raises(AssertionError):
        require_room(RDP(), 0)


def test_the_least_that_an_axis_reaches_is_told_of_the_right_budget():
    """Where even the smallest parameter leaves no room, the budget that it costs as much as is named."""
    axis = Axis(lowest_decade=0, highest_decade=2)
    [least] = RDP().epsilons([release(1.0)], DELTA)
    wanted = np.array([2 * least, least * (1 + 1e-6)])
    with pytest.raises(pp.InfeasibleBudget) as error:
        Inverse(RDP(), release, axis).certified(wanted, np.repeat(DELTA, 2))
    assert error.value.epsilon == wanted[1]
    found, spent = Inverse(RDP(), release, axis).certified(wanted[:1], DELTA)
    assert found[0] > 1
    assert spent[0] < wanted[0]


def test_no_number_buys_nothing():
    table = CertifiedTable(np.array([0.001, 1.0]), np.array([0.1, 5.0]))
    assert table.within(np.array([np.nan, 0.05, 0.1, 5.0])).tolist() == [0.0, 0.0, 0.001, 1.0]


def test_what_many_nodes_share_is_priced_once():
    """Where a parameter changes nothing from some point on, as a chance that is certain, an axis is long and dear."""
    asked = []

    class Counting(RDP):
        def epsilons(self, releases, delta, progress=None):
            asked.extend(releases)
            return super().epsilons(releases, delta, progress)

    def until_one(inverse):
        return release(min(inverse, 1.0))

    [most] = RDP().epsilons([release(1.0)], DELTA)
    found, spent = Inverse(Counting(name="counting"), until_one, INVERSE_NOISE).certified(np.array([2 * most]), DELTA)
    assert found[0] >= 1.0
    assert spent[0] == most
    assert asked.count(release(1.0)) == 1


def test_scale_keeps_its_promise_where_its_own_price_is_a_trifle_higher():
    """Its search prices 1/(1/σ), its plan σ·(C/c); here these two fell on both sides of the promise."""
    budgets = pp.Budgets(np.full(100, 8.0), delta=9.463459354805813e-08)
    plan = pp.plan(budgets, method="scale", steps=1000, batch_size=5)
    assert (plan.spent() <= budgets.epsilon).all()

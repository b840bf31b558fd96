"""Everyone's purse is that of their own ε and δ, and what a person is told is what that person spent."""

import numpy as np
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.accounting import gdp
from privypurse.queries import Analyst

# Seven people own twenty rows in no order: row k is hardly ever person k's, nor person k % 7's.
PERSON = np.array([3, 3, 0, 5, 1, 1, 1, 6, 2, 0, 4, 4, 5, 3, 2, 6, 6, 0, 1, 5])
EPSILON = np.array([0.5, 1.0, 2.0, 3.0, 1.5, 0.8, 4.0])
DELTA = np.array([1e-5, 1e-8, 1e-3, 1e-6, 1e-4, 1e-7, 1e-9])


def asked() -> Analyst:
    budgets = pp.Budgets(EPSILON[PERSON], delta=DELTA[PERSON], person=PERSON)
    return silenced(Analyst({"who": PERSON, "x": np.ones(20)}, budgets, person=budgets.person))


@pytest.mark.parametrize("who", range(7))
def test_a_person_is_told_by_id_what_they_spent_themselves(who: int) -> None:
    asks = asked()
    asks.count(f"who == {who}", noise=20.0)
    told = np.array([asks.spent(person) for person in range(7)])
    assert [asks.spent(str(person)) for person in range(7)] == told.tolist()
    assert ((told > 0) == (who == np.arange(7))).all()
    # The exact curve at that person's own δ; at another's it would be another number.
    assert told[who] == pytest.approx(float(gdp.epsilon(1 / 20, DELTA[who])), rel=1e-6)
    others = [float(gdp.epsilon(1 / 20, delta)) for delta in DELTA[np.arange(7) != who]]
    assert told.max() != pytest.approx(np.array(others), rel=1e-3)


@pytest.mark.parametrize("currency", ["gdp", "zcdp"])
def test_everyone_can_spend_their_own_purse_and_no_more(currency: str) -> None:
    """Asked until nobody can pay: the true δ at each person's ε is their own, whoever else is in the data."""
    budgets = pp.Budgets(EPSILON[PERSON], delta=DELTA[PERSON], person=PERSON)
    asks = silenced(Analyst({"x": np.ones(20)}, budgets, person=budgets.person, currency=currency))
    answered = np.zeros(20_000)
    for k in range(answered.size):
        answered[k] = float(asks.count(noise=40.0))
        if answered[k] == 0:
            break
    assert answered[k] == 0
    times = np.array([int((answered > n).sum()) for n in range(7)])  # how often so many people could pay
    assert np.unique(times).size == 7
    first = np.unique(PERSON, return_index=True)[1]
    order = budgets.owner[first]  # of person 0, 1, …: in the order of first appearance
    spent = asks.purses.spent[order] * (1 if currency == "gdp" else 2)  # in μ²
    assert sorted(np.round(spent * 40**2).astype(int)) == sorted(times)
    reached = gdp.delta(np.sqrt(spent), EPSILON)
    assert (reached <= DELTA).all()
    if currency == "gdp":  # which is exact: one more answer would be too many for anybody
        assert (gdp.delta(np.sqrt(spent + 1.001 / 40**2), EPSILON) > DELTA).all()


def test_a_row_with_a_number_that_is_none_counts_nowhere_and_costs_nothing() -> None:
    """NaN in one of two numbers: the other one does not stay behind (rule 12)."""
    budgets = pp.Budgets(np.full(4, 3.0), delta=1e-5, person=["a", "b", "c", "c"])
    rows = {"x": np.array([1.0, np.nan, 2.0, np.inf]), "y": np.array([10.0, 20.0, 30.0, 40.0])}
    asks = silenced(Analyst(rows, budgets, person=budgets.person))
    answer = asks.ask(lambda some: np.stack([some["x"], some["y"]], axis=1), size=2, clip=50.0, noise=100.0)
    assert answer.value == pytest.approx([3.0, 40.0], abs=1e-6)
    assert asks.purses.spent[1] == 0
    assert asks.purses.spent[[0, 2]] == pytest.approx([101 / 100**2, 904 / 100**2], rel=1e-6)

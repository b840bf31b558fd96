"""Budgets with ids are applied by id: whose row a question touches pays, whatever the order of rows (rule 13)."""

import numpy as np
import pandas as pd
import pytest

import privypurse as pp

IDS = ["ann", "bo", "cy", "di"]
BUDGETS = pp.Budgets([1.0, 2.0, 3.0, 4.0], person=IDS)
AGE = {"ann": 20, "bo": 40, "cy": 60, "di": 80}


def _table(order: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"who": order, "age": [AGE[one] for one in order]})


def _by_row(table: pd.DataFrame) -> pp.Analyst:
    """As it was: the n-th row is the n-th budget's, whoever's it is."""
    return pp.Analyst(table, BUDGETS, person=IDS)


@pytest.mark.parametrize("order", [IDS, IDS[::-1], ["cy", "ann", "di", "bo"], ["di"], ["bo", "bo", "cy"]])
@pytest.mark.parametrize("given", ["column", "ids"])
def test_whom_it_touches_pays_whatever_the_order_of_rows(order, given):
    table = _table(order)
    asks = pp.Analyst(table, BUDGETS, person="who" if given == "column" else order)
    asks.count("age >= 60", noise=10.0)
    paid = {one for one in IDS if asks.spent(one) > 0}
    assert paid == {one for one in order if AGE[one] >= 60}


def test_by_row_the_wrong_one_pays():
    asks = _by_row(_table(IDS[::-1]))
    asks.count("who == 'di'", noise=10.0)
    assert asks.spent("di") == 0
    assert asks.spent("ann") > 0


def test_ids_are_asked_for_and_strangers_named():
    table = _table(IDS)
    with pytest.raises(pp.InvalidInput, match="applied by id; give person="):
        pp.Analyst(table, BUDGETS)
    with pytest.raises(pp.InvalidInput, match="no budget: 'eve'"):
        pp.Analyst(table, BUDGETS, person=["ann", "bo", "cy", "eve"])
    with pytest.raises(pp.InvalidInput, match="each of the 4 records"):
        pp.Analyst(table, BUDGETS, person=IDS[:3])
    with pytest.raises(pp.InvalidInput, match="no column 'whose'"):
        pp.Analyst(table, BUDGETS, person="whose")
    with pytest.raises(pp.InvalidInput, match="the budgets have no ids"):
        pp.Analyst(table, pp.Budgets(np.ones(4)), person="who")

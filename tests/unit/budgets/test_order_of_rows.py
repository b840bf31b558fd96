"""Columns meet by place: where pandas says that their rows are others, nothing is made of them (rule 13)."""

import numpy as np
import pandas as pd
import pytest

import privypurse as pp

TABLE = pd.DataFrame(
    {
        "id": [f"p{k}" for k in range(6)],
        "eps": [4.0, 0.5] * 3,
        "level": ["much", "little"] * 3,
        "delta": [1e-5, 1e-6] * 3,
    }
)
LEVELS = {"much": 4.0, "little": 0.5}


def test_a_sorted_column_does_not_meet_the_ids_of_the_table() -> None:
    """Half of the people were promised 4 who had granted 0.5."""
    sorted_by_grant = TABLE.eps.sort_values()
    with pytest.raises(pp.InvalidInput, match="person has another index than epsilon"):
        pp.Budgets(sorted_by_grant, person=TABLE.id)
    with pytest.raises(pp.InvalidInput, match="delta has another index than epsilon"):
        pp.Budgets(sorted_by_grant, delta=TABLE.delta)
    with pytest.raises(pp.InvalidInput, match="person has another index than levels"):
        pp.Budgets.from_levels(TABLE.level.sort_values(), LEVELS, person=TABLE.id)
    with pytest.raises(pp.InvalidInput, match="delta has another index than levels"):
        pp.Budgets.from_levels(TABLE.level.sort_values(), LEVELS, delta=TABLE.delta)


def test_columns_of_the_same_rows_meet_whatever_their_order() -> None:
    shuffled = TABLE.sample(frac=1, random_state=0)
    whole = pp.Budgets(TABLE.eps, delta=TABLE.delta, person=TABLE.id)
    for made in (
        pp.Budgets(shuffled.eps, delta=shuffled.delta, person=shuffled.id),
        pp.Budgets.from_levels(shuffled.level, LEVELS, delta=shuffled.delta, person=shuffled.id),
        pp.Budgets(shuffled.eps, delta=shuffled.delta, person=shuffled.id.to_numpy()),
        pp.Budgets(shuffled.eps.to_numpy(), delta=shuffled.delta, person=shuffled.id),
    ):
        granted = dict(zip(made.people_ids().tolist(), made.epsilon.tolist(), strict=True))
        assert granted == dict(zip(whole.people_ids().tolist(), whole.epsilon.tolist(), strict=True))


@pytest.mark.filterwarnings("ignore:seed=")
def test_ids_of_an_analyst_are_in_the_order_of_its_rows() -> None:
    budgets = pp.Budgets(TABLE.eps, person=TABLE.id)
    rows = pd.DataFrame({"x": np.arange(6.0)})
    with pytest.raises(pp.InvalidInput, match="person has another index than data"):
        pp.Analyst(rows, budgets, person=TABLE.id.sort_values(ascending=False), seed=0)
    answer = pp.Analyst(rows, budgets, person=TABLE.id, seed=0).count(noise=50.0)
    assert answer.noise == 50.0

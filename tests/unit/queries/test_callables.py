"""Callables are tried on public rows: what is wrong with them is said there, and never by the real rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from queries_brute_force import FORMS, N, people, silenced

import privypurse as pp
from privypurse.queries import Analyst

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


def bad_shape(rows):
    return np.zeros((len(rows["age"]), 3))


BAD = {
    "shape": (bad_shape, "shape"),
    "too few rows": (lambda rows: np.zeros((2, 2)), "shape"),
    "text": (lambda rows: np.full((len(rows["age"]), 2), "a"), "numbers"),
    "NaN": (lambda rows: np.stack([rows["age"], np.log(-1.0 - rows["age"])], 1), "NaN"),
    "infinity": (lambda rows: np.stack([rows["age"], 1 / (0 * rows["age"])], 1), "NaN or ∞"),
    "raises": (lambda rows: rows["ages"], "KeyError"),
    "mean": (lambda rows: np.stack([rows["age"] - rows["age"].mean(), rows["age"]], 1), "depends on the other"),
    "rank": (lambda rows: np.stack([np.argsort(rows["age"], kind="stable"), rows["age"]], 1), "depends on the other"),
    "sum": (lambda rows: np.stack([np.cumsum(rows["age"]), rows["age"]], 1), "depends on the other"),
    "place": (lambda rows: np.stack([np.arange(len(rows["age"])), rows["age"]], 1), "depends on the other"),
    "twice": (lambda rows: np.stack([pd.Series(np.asarray(rows["age"])).duplicated(), rows["age"]], 1), "depends on"),
    "count": (lambda rows: np.full((len(rows["age"]), 2), 1 / len(rows["age"])), "depends on the other"),
    "above mean": (lambda rows: np.stack([rows["age"] > rows["age"].mean(), rows["age"]], 1), "depends on the other"),
    "chance": (lambda rows: np.random.default_rng().random((len(rows["age"]), 2)), "chance"),
}


@pytest.mark.parametrize("form", ["mapping", "frame"])
@pytest.mark.parametrize("case", BAD)
def test_bad_callables_are_refused_and_nothing_is_charged(form, case):
    q, said = BAD[case]
    asks = Analyst(FORMS[form](people()[0]), people()[1], person=people()[1].person)
    with pytest.raises(pp.InvalidInput, match=said):
        asks.ask(q, size=2, clip=1.0, noise=1.0)
    assert not asks.purses.spent.any()


@pytest.mark.parametrize("form", ["mapping", "frame"])
def test_bad_conditions_are_refused(form):
    asks = Analyst(FORMS[form](people()[0]), people()[1], person=people()[1].person)
    for where, said in (
        (lambda rows: rows["age"] > rows["age"].mean(), "depends on the other"),
        (lambda rows: rows["age"], "True or False"),
        (lambda rows: True, "shape"),
        ("age >", "cannot be read"),
        (3, "where"),
    ):
        with pytest.raises(pp.InvalidInput, match=said):
            asks.count(where, noise=1.0)
    assert not asks.purses.spent.any()


def test_a_tensor_callable_that_looks_at_the_batch_is_refused():
    asks = Analyst(torch.randn(N, 3), pp.Budgets(np.ones(N)))
    for q in (torch.nn.BatchNorm1d(3).train(), lambda x: x - x.mean(0), lambda x: x.softmax(0)):
        with pytest.raises(pp.InvalidInput, match=r"depends on the other rows|failed on made-up"):
            asks.ask(q, size=3, clip=1.0, noise=1.0)
    assert not asks.purses.spent.any()


def test_an_error_never_depends_on_the_real_rows():
    """NaN and ∞ for some real rows alone: they count as zero, pay nothing, and nobody hears of it."""
    table, budgets = people()
    asks = silenced(Analyst(table, budgets, person=budgets.person))
    odd = table["age"] % 2 == 1

    def q(rows):
        with np.errstate(all="ignore"):
            return np.where(
                (rows["age"] % 2 == 1) & (rows["age"] > 1), np.array([np.nan, np.inf, -np.inf])[rows["age"] % 3], 1
            )

    got = asks.ask(q, size=1, clip=1.0, noise=50.0)
    touched = ~(odd & (table["age"] > 1))
    assert got.value[0] == touched.sum()
    assert ((asks.purses.spent > 0) == touched).all()


def test_a_callable_that_fails_on_real_rows_quotes_none_of_them():
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person)

    def q(rows):
        if (rows["age"] > 1).any():
            raise ValueError(f"secret {rows['age'].max()}")
        return rows["age"]

    with pytest.raises(pp.InvalidInput, match="nothing was charged") as caught:
        asks.ask(q, size=1, clip=1.0, noise=1.0)
    assert "secret" not in str(caught.value)
    with pytest.raises(pp.InvalidInput, match="shape"):
        asks.ask(lambda rows: rows["age"] if len(rows["age"]) < N else rows["age"][:5], size=1, clip=1.0, noise=1.0)
    assert not asks.purses.spent.any()


def test_example_rows_stand_in_where_zeros_and_ones_make_no_sense():
    table = {"x": np.array([2.0, 3.0, 4.0])}

    def q(rows):
        return 1 / np.log(rows["x"]) if (rows["x"] > 1).all() else 1 / 0

    with pytest.raises(pp.InvalidInput, match="example"):
        Analyst(table, pp.Budgets([1.0] * 3)).ask(q, size=1, clip=9, noise=100)
    asks = silenced(Analyst(table, pp.Budgets([1.0] * 3), example={"x": np.array([5.0, 6.0])}))
    assert asks.ask(q, size=1, clip=9, noise=100).value[0] == pytest.approx((1 / np.log(table["x"])).sum())
    for bad in ({"x": np.array([5.0])}, [5.0, 6.0]):
        with pytest.raises(pp.InvalidInput, match="example"):
            Analyst(table, pp.Budgets([1.0] * 3), example=bad)


def test_frames_of_many_kinds_of_columns_can_be_asked():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "yes": pd.array([True, None, False], dtype="boolean"),
            "kind": pd.Categorical(["a", "b", None]),
            "text": ["x", None, "z"],
            "day": pd.to_datetime(["2024-01-01", None, "2024-03-01"]),
            "small": np.array([1, 2, 3], dtype=np.float32),
        }
    )
    asks = silenced(Analyst(frame, pp.Budgets([2.0] * 3)))
    assert float(asks.count("whole >= 1 and text != 'q'", noise=100)) == 2
    assert float(asks.count("yes", noise=100)) == 1
    assert float(asks.count("kind in ('a', 'b')", noise=100)) == 2
    assert float(asks.count("day > '2024-02-01'", noise=100)) == 1
    assert float(asks.count(lambda rows: rows["yes"], noise=100)) == 1
    assert float(asks.count(lambda rows: rows["kind"] == "a", noise=100)) == 1
    assert float(asks.sum("yes", lower=0, upper=1, noise=100)) == 1
    assert asks.ask(lambda rows: rows["whole"], size=1, clip=10, noise=1e3).value[0] == pytest.approx(4)
    assert asks.ask(lambda rows: rows[["small", "small"]], size=2, clip=9, noise=1e3).value.tolist() == [6, 6]


@pytest.mark.parametrize("form", ["mapping", "frame"])
def test_a_callable_that_adds_a_column_leaves_the_data_alone(form):
    data = FORMS[form](people()[0])

    def q(rows):
        rows["twice"] = 2 * rows["age"]
        return rows["twice"]

    asks = Analyst(data, people()[1], person=people()[1].person)
    asks.ask(q, size=1, clip=1.0, noise=100.0)
    assert "twice" not in data
    with pytest.raises(pp.InvalidInput, match="twice"):
        asks.count("twice > 1", noise=100.0)

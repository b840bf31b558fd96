"""Answers and charges against brute force; nobody overdrawn, what is wrong is said before anything is charged."""

import math
import time

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from queries_brute_force import FORMS, N, Reference, Silent, people, silenced

import privypurse as pp
from privypurse.accounting import gdp
from privypurse.errors import PrivyPurseWarning
from privypurse.queries import Analyst

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("persons", [None, 17, 1])
def test_every_question_against_brute_force(form, persons):
    table, budgets = people(persons=persons)
    asks = silenced(Analyst(FORMS[form](table), budgets, person=budgets.person))
    truth = Reference(budgets.owner, asks.purses.total)
    age, pay, city, smoker = (table[name].tolist() for name in ("age", "pay", "city", "smoker"))
    for noise in (4.0, 20.0, 5.0, 3.0, 7.0, 2.5):
        got = asks.count("age >= 50 and city == 'Oslo'", noise=noise)
        chosen = [a >= 50 and c == "Oslo" for a, c in zip(age, city, strict=True)]
        assert float(got) == pytest.approx(truth.ask([[1.0] if yes else None for yes in chosen], 1, noise, (0, 1))[0])

        got = asks.sum("pay", lower=-100, upper=500, noise=500 * noise, where="smoker")
        vectors = [[p] if s and math.isfinite(p) else None for p, s in zip(pay, smoker, strict=True)]
        want = truth.ask(vectors, 500, 500 * noise, (-100, 500))[0]
        assert float(got) == pytest.approx(want, abs=1e-4)

        got = asks.mean("pay", lower=0, upper=600, noise=noise)
        vectors = [[min(max((p - 300) / 300, -1), 1), 1.0] if math.isfinite(p) else None for p in pay]
        total, count = truth.ask(vectors, math.sqrt(2), noise)
        assert got.released.tolist() == pytest.approx([total, count], abs=1e-6)
        middle = 300 if count <= noise else 300 + 300 * total / count
        assert float(got) == pytest.approx(middle, abs=1e-5)

        got = asks.histogram("city", categories=["Voss", "Oslo", "Atlantis"], noise=noise, where="age < 80")
        places = [["Voss", "Oslo"].index(c) if c in ("Voss", "Oslo") and a < 80 else None
                  for a, c in zip(age, city, strict=True)]  # fmt: skip
        vectors = [None if k is None else [float(k == j) for j in range(3)] for k in places]
        assert got.value.tolist() == pytest.approx(truth.ask(vectors, 1, noise), abs=1e-7)

        got = asks.histogram("age", edges=[10, 20, 50.5, 99], noise=noise)
        places = [next((j for j, (a, b) in enumerate([(10, 20), (20, 50.5), (50.5, 99.5)]) if a <= v < b), None)
                  for v in age]  # fmt: skip
        vectors = [None if k is None else [float(k == j) for j in range(3)] for k in places]
        assert got.value.tolist() == pytest.approx(truth.ask(vectors, 1, noise), abs=1e-7)

        got = asks.ask(lambda rows: np.stack([rows["age"], 10 - rows["age"]], 1), size=2, clip=60, noise=60 * noise)
        want = truth.ask([[float(a), 10.0 - a] for a in age], 60, 60 * noise)
        assert got.value.tolist() == pytest.approx(want, abs=1e-5)
        assert asks.purses.spent.tolist() == pytest.approx(truth.spent, rel=1e-6, abs=1e-12)
    assert truth.refused > 0  # the test went on until some could not pay


@pytest.mark.parametrize("wrap", [torch.tensor, np.asarray])
def test_arrays_and_tensors(wrap):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N, 3)), rng.integers(0, 2, N)
    budgets = pp.Budgets(np.ones(N))
    one = silenced(Analyst(wrap(x), budgets, person=budgets.person)).ask(
        lambda rows: rows[:, :2], size=2, clip=1e3, noise=1e5
    )
    assert one.value.tolist() == pytest.approx(x[:, :2].sum(0).tolist(), abs=1e-3)
    both = silenced(Analyst((wrap(x), wrap(y)), budgets, person=budgets.person))
    got = both.ask(lambda rows: rows[0] * rows[1][:, None], size=3, clip=1e3, noise=1e5)
    assert got.value.tolist() == pytest.approx((x * y[:, None]).sum(0).tolist(), abs=1e-3)
    assert float(both.count(lambda rows: rows[1] == 1, noise=10)) == y.sum()
    with pytest.raises(pp.InvalidInput, match="no named columns"):
        both.count("age > 3", noise=1)
    with pytest.raises(pp.InvalidInput, match="no named columns"):
        both.sum("age", lower=0, upper=1, noise=1)


def test_a_model_may_be_asked():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(N, 3)
    got = silenced(Analyst(x, pp.Budgets(np.ones(N)))).ask(model, size=2, clip=100.0, noise=1e3)
    assert got.value.tolist() == pytest.approx(model(x).sum(0).tolist(), abs=1e-3)


@pytest.mark.parametrize("currency", ["gdp", "zcdp"])
def test_what_a_person_gave_stays_within_their_budget_by_dp_accounting(currency):
    """Contributions are measured: answers with a person's rows minus answers without them, both without noise."""
    table, budgets = people(persons=12)
    person = 3
    gone = budgets.owner == person
    without = {name: values.copy() for name, values in table.items()}
    without["age"] = np.where(gone, -1000, without["age"])
    without["city"] = np.where(gone, None, without["city"])
    epsilon = float(budgets.epsilon[gone][0])
    ratios = []
    pair = [silenced(Analyst(data, budgets, person=budgets.person, currency=currency)) for data in (table, without)]
    for step in range(60):
        noise = 3.0 + step % 7
        counts = [float(one.count("age >= 20", noise=noise)) for one in pair]
        ratios.append((counts[0] - counts[1]) / noise)
        bins = [one.histogram("city", categories=["Oslo", "Bergen", "Voss"], noise=2 * noise).value for one in pair]
        ratios.append(float(np.linalg.norm(bins[0] - bins[1])) / (2 * noise))
    given = [ratio for ratio in ratios if ratio > 0]
    assert 0 < len(given) < len(ratios)  # the purse ran out on the way
    accountant = PLDAccountant()
    for ratio in given:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / ratio))
    truly = accountant.get_epsilon(1e-5)
    told = pair[0].spent(int(budgets.person[np.argmax(gone)]))
    assert truly <= epsilon * 1.001  # their answer is pessimistic by a little
    assert told <= epsilon
    if currency == "gdp":
        assert truly == pytest.approx(told, rel=2e-3)
        assert truly > 0.8 * epsilon  # and the purse was put to use
    else:
        assert truly <= told


@pytest.mark.parametrize("persons", [None, 5])
def test_spent_of_a_person_whom_nothing_touched_is_zero(persons):
    table, budgets = people(persons=persons)
    table["age"] = np.where(np.isfinite(table["age"]), table["age"], 50.0)
    asks, everybody = Analyst(table, budgets, person=budgets.person), persons or N
    assert {asks.spent(who) for who in range(everybody)} == {0.0}
    asks.count("age >= 0", noise=30)
    alone = float(gdp.epsilon(1 / 30, 1e-5))
    for who in range(everybody):
        assert alone <= asks.spent(who) <= alone * 1.0001
    for bad in (-1, N, True):
        with pytest.raises(pp.InvalidInput, match="record must be" if persons is None else "person"):
            asks.spent(bad)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_adversaries_never_overdraw_anybody(data):
    """The adversary sees everything, purses included, and chooses noise so that somebody can only just pay."""
    n = data.draw(st.integers(1, 12), label="records")
    persons = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 4), min_size=n, max_size=n)), label="persons")
    each = st.floats(0.01, 20).filter(lambda e: e > 0)
    chosen = data.draw(st.lists(each, min_size=n, max_size=n), label="ε")
    epsilon = chosen if persons is None else [chosen[persons.index(who)] for who in persons]
    delta = data.draw(st.sampled_from([1e-3, 1e-5, 1e-9]), label="δ")
    currency = data.draw(st.sampled_from(["gdp", "zcdp"]), label="currency")
    budgets = pp.Budgets(epsilon, delta=delta, person=persons)
    x = data.draw(st.lists(st.floats(allow_nan=True), min_size=n, max_size=n), label="x")
    asks = Analyst({"x": np.array(x), "row": np.arange(n)}, budgets, person=budgets.person, currency=currency, seed=0)
    squares = np.zeros(budgets.people)
    for _ in range(data.draw(st.integers(1, 12), label="questions")):
        aim = data.draw(st.integers(0, budgets.people - 1), label="aimed at")
        left = float(asks.purses.left[aim]) * data.draw(
            st.sampled_from([1.0, 1 - 1e-15, 1 + 1e-15, 0.5, 0.3, 1e-6, 2.0]), label="share"
        )
        unit = 1.0 if currency == "gdp" else 0.5
        noise = math.sqrt(unit / left) if left > 1e-30 else 1.0
        before = asks.purses.spent.copy()
        kind = data.draw(st.sampled_from(["count", "sum", "mean", "ask"]), label="question")
        row = data.draw(st.integers(0, n - 1), label="row")
        if kind == "count":
            asks.count(f"row <= {row}", noise=noise)
        elif kind == "sum":
            asks.sum("x", lower=-1, upper=1, noise=noise, where=f"row != {row}")
        elif kind == "mean":
            asks.mean("x", lower=-1e3, upper=10, noise=noise)
        else:
            asks.ask(lambda rows: np.stack([rows["x"], rows["row"]], 1), size=2, clip=1.0, noise=noise)
        squares += (asks.purses.spent - before) / unit
        assert (asks.purses.spent <= asks.purses.total).all()
        assert (asks.purses.spent >= before).all()
    first = budgets.first_record
    assert (gdp.delta(np.sqrt(squares), budgets.epsilon[first]) <= budgets.delta[first]).all()


def test_the_check_above_notices_a_purse_too_large():
    budgets = pp.Budgets([1.0], delta=1e-5)
    asks = Analyst({"x": np.ones(1)}, budgets, person=budgets.person, seed=0)
    asks.purses.total = asks.purses.total * 1.01
    noise = 1 / math.sqrt(float(asks.purses.left[0]) * (1 - 1e-9))
    asks.count(noise=noise)
    assert gdp.delta(np.sqrt(asks.purses.spent), 1.0) > 1e-5


def test_a_purse_smaller_than_the_ladder_step_is_rounded_down():
    asks = Analyst({"x": np.ones(2)}, pp.Budgets([1.0, 1.00999]))
    assert asks.purses.total[0] == asks.purses.total[1]


def test_one_record():
    asks = silenced(Analyst({"x": np.array([3.0])}, pp.Budgets([1.0])))
    assert float(asks.count("x == 3", noise=5)) == 1
    assert float(asks.mean("x", lower=0, upper=4, noise=0.9)) == 2  # a count of 1 does not exceed what is unknown
    assert asks.histogram("x", edges=[0, 3], noise=100).value.tolist() == [1]


def test_everybody_exhausted_is_noise_alone_and_charges_nothing():
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person)
    asks.count(noise=1 / math.sqrt(asks.purses.total.max()) * 1.0000001)
    asks.purses.spent = asks.purses.total.copy()
    drawn = np.array([float(asks.count("age >= 0", noise=2.0)) for _ in range(300)])
    assert np.abs(drawn).max() < 2 * 6
    assert abs(drawn.mean()) < 2 * 6 / math.sqrt(300)
    assert (asks.purses.spent == asks.purses.total).all()


@pytest.mark.slow
def test_a_million_records_quickly():
    n = 10**6
    rng = np.random.default_rng(0)
    table = {"age": rng.integers(0, 100, n), "city": np.array(["Oslo", "Bergen"])[rng.integers(0, 2, n)]}
    asks = silenced(Analyst(table, pp.Budgets(rng.choice([1.0, 2.0, 3.0], n))))
    want = int(((table["age"] >= 65) & (table["city"] == "Oslo")).sum())
    asks.count("city == 'Oslo'", noise=1e3)  # the column is sorted into words once
    seconds = []
    for _ in range(5):
        begun = time.process_time()
        got = asks.count("age >= 65 and city == 'Oslo'", noise=1e3)
        seconds.append(time.process_time() - begun)
    assert float(got) == want
    assert min(seconds) < 0.5  # of processor time; 30 ms on an idle machine


def test_the_cost_is_told_at_the_delta_that_was_named():
    """The smallest δ of all would tell what somebody declared."""
    asks = Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3), delta=[1e-5, 1e-8, 1e-6]))
    assert asks.count(noise=9.0).cost.delta == 1e-5
    cost = asks.count(noise=9.0, delta=1e-7).cost
    assert cost.delta == 1e-7
    assert cost.epsilon == pytest.approx(float(gdp.epsilon(1 / 9, 1e-7)))
    assert "δ = 1e-7" in str(cost)


def test_a_mean_tells_its_own_error_or_that_it_is_none():
    asks = silenced(Analyst({"x": np.full(400, 7.0)}, pp.Budgets(np.full(400, 3.0))))
    known = asks.mean("x", lower=0, upper=10, noise=20.0)
    assert known.error == pytest.approx(5 * 20 / 400)
    assert (known.note, str(known).partition(";")[0]) == ("", "7 ± about 0.25")
    unknown = asks.mean("x", lower=0, upper=10, noise=20.0, where="x > 8")
    assert (unknown.error, float(unknown)) == (None, 5.0)
    assert "5 (the noisy count does not exceed the noise: this is the middle of the range, not an" in str(unknown)
    assert "(noise of standard deviation 20);" in str(asks.count(noise=20.0))


def test_the_error_of_a_mean_is_about_its_standard_deviation():
    asks = Analyst({"x": np.full(1000, 7.0)}, pp.Budgets(np.full(1000, 1e3)))
    drawn = [asks.mean("x", lower=-10, upper=10, noise=30.0) for _ in range(300)]
    spread = float(np.std([float(one) for one in drawn]))
    assert 0.8 < spread / np.mean([one.error for one in drawn]) < 1.5  # the count's noise adds some, √(1 + 0.7²)


def test_a_histogram_says_how_several_rows_of_one_person_count():
    table = {"x": np.array([1, 2, 1, 1])}
    several = silenced(
        Analyst(table, pp.Budgets(np.ones(4), person=["ann", "ann", "bo", "bo"]), person=["ann", "ann", "bo", "bo"])
    )
    told = several.histogram("x", categories=[1, 2], noise=9.0)
    assert told.value.tolist() == pytest.approx([1 + math.sqrt(0.5), math.sqrt(0.5)])
    assert "0.71 in each of two" in str(told)
    assert Analyst(table, pp.Budgets(np.ones(4))).histogram("x", categories=[1, 2], noise=9.0).note == ""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: a.count(noise=0), "noise must be .*not 0"),
        (lambda a: a.count(noise=-1), "noise"),
        (lambda a: a.count(noise=float("nan")), "noise"),
        (lambda a: a.count(noise=float("inf")), "noise"),
        (lambda a: a.count(noise="3"), "noise must be a finite number .*not '3'"),
        (lambda a: a.sum("age", lower=3, upper=3, noise=1), "below upper"),
        (lambda a: a.sum("age", lower=0, upper=float("inf"), noise=1), "upper"),
        (lambda a: a.sum("ages", lower=0, upper=1, noise=1), "no column 'ages'.*age, pay, city, smoker"),
        (lambda a: a.mean("city", lower=0, upper=1, noise=1), "holds text, not numbers"),
        (lambda a: a.histogram("age", noise=1), "either"),
        (lambda a: a.histogram("age", edges=[1, 2], categories=[1], noise=1), "either"),
        (lambda a: a.histogram("age", edges=[1], noise=1), "edges"),
        (lambda a: a.histogram("age", edges=[1, 1], noise=1), "edges"),
        (lambda a: a.histogram("age", edges=["a", 1], noise=1), "edges"),
        (lambda a: a.histogram("city", edges=[1, 2], noise=1), "categories="),
        (lambda a: a.histogram("city", categories=[], noise=1), "one or more"),
        (lambda a: a.histogram("city", categories="Oslo", noise=1), "list"),
        (lambda a: a.histogram("city", categories=["a", "a"], noise=1), "twice"),
        (lambda a: a.histogram("city", categories=[1], noise=1), "text"),
        (lambda a: a.histogram("age", categories=["1"], noise=1), "kind"),
        (lambda a: a.ask(lambda rows: rows["age"], size=0, clip=1, noise=1), "size"),
        (lambda a: a.ask(lambda rows: rows["age"], size=1, clip=0, noise=1), "clip"),
    ],
)
def test_bad_arguments(call, said):
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person)
    with pytest.raises(pp.InvalidInput, match=said):
        call(asks)
    assert not asks.purses.spent.any()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1, 2, 3], "list"),
        ({}, "no columns"),
        ({"x": np.ones(3), "y": np.ones(2)}, "differ in length"),
        ({"x": np.ones(2)}, "2 rows but there are 3 budgets"),
        (np.ones(4), "4 rows"),
        (np.float64(1.0), "give a pandas"),
        (pd.DataFrame(np.ones((3, 2)), columns=["x", "x"]), "same name"),
        ((np.ones(3), np.ones(2)), "differ in length"),
    ],
)
def test_bad_data(data, said):
    with pytest.raises(pp.InvalidInput, match=said):
        Analyst(data, pp.Budgets(np.ones(3)))
    with pytest.raises(pp.InvalidInput, match="currency"):
        Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3)), currency="rdp")


def test_budgets_must_be_budgets():
    for bad in (np.ones(3), 1.0, [1.0, 1.0, 1.0]):
        with pytest.raises(pp.InvalidInput, match=r"budgets is of type .*pp\.Budgets\(epsilon\)"):
            Analyst({"x": np.ones(3)}, bad)


def test_columns_whose_names_are_numbers_are_to_be_renamed():
    frame = pd.DataFrame(np.ones((3, 2)))
    asks = Analyst(frame, pp.Budgets(np.ones(3)))
    for question in (lambda: asks.sum("0", lower=0, upper=1, noise=9), lambda: asks.count("`0` > 0", noise=9)):
        with pytest.raises(pp.InvalidInput, match=r"data\.columns = data\.columns\.astype\(str\)"):
            question()
    frame.columns = frame.columns.astype(str)
    assert float(silenced(Analyst(frame, pp.Budgets(np.ones(3)))).count("`0` > 0", noise=9)) == 3


def test_a_seed_says_that_nothing_is_private():
    with pytest.warns(PrivyPurseWarning, match="nothing is private"):
        one = Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3)), seed=4)
    assert float(one.count(noise=5)) == float(
        Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3)), seed=4).count(noise=5)
    )
    assert isinstance(silenced(one)._source, Silent)

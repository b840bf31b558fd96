"""Answers and charges against brute force; nobody overdrawn, nobody told, nothing lost on disk."""

import math
import os
import subprocess
import sys
import threading
import time

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from queries_brute_force import Reference, Silent, silenced

import privypurse as pp
from held_files import read_held
from privypurse.accounting import gdp
from privypurse.accounting.filters import Filter
from privypurse.errors import PrivyPurseWarning
from privypurse.queries import Analyst, analyst, contributions, mechanism

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
N = 60


def people(n=N, seed=0, persons=None):
    """A table with missing cells, and budgets; ``persons`` people own the rows."""
    rng = np.random.default_rng(seed)
    table = {
        "age": rng.integers(0, 100, n),
        "pay": np.where(rng.random(n) < 0.1, np.nan, np.where(rng.random(n) < 0.05, np.inf, rng.normal(300, 200, n))),
        "city": np.array([["Oslo", "Bergen", "Voss", None][k] for k in rng.integers(0, 4, n)], dtype=object),
        "smoker": rng.random(n) < 0.3,
    }
    person = None if persons is None else rng.integers(0, persons, n)
    epsilon = rng.choice([0.2, 0.5, 1.0, 3.0], n)
    if person is not None:
        epsilon = rng.choice([0.2, 0.5, 1.0, 3.0], persons)[person]
    return table, pp.Budgets(epsilon, person=person)


FORMS = {
    "mapping": lambda table: table,
    "frame": pd.DataFrame,
    "tensors": lambda table: {k: torch.tensor(v) if v.dtype.kind in "fib" else v for k, v in table.items()},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("persons", [None, 17, 1])
def test_every_question_against_brute_force(form, persons):
    table, budgets = people(persons=persons)
    asks = silenced(Analyst(FORMS[form](table), budgets))
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
    one = silenced(Analyst(wrap(x), budgets)).ask(lambda rows: rows[:, :2], size=2, clip=1e3, noise=1e5)
    assert one.value.tolist() == pytest.approx(x[:, :2].sum(0).tolist(), abs=1e-3)
    both = silenced(Analyst((wrap(x), wrap(y)), budgets))
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


# What one person's answers cost, by somebody else's accounting


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
    pair = [silenced(Analyst(data, budgets, currency=currency)) for data in (table, without)]
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
    asks, everybody = Analyst(table, budgets), persons or N
    assert {asks.spent(who) for who in range(everybody)} == {0.0}
    asks.count("age >= 0", noise=30)
    alone = float(gdp.epsilon(1 / 30, 1e-5))
    for who in range(everybody):
        assert alone <= asks.spent(who) <= alone * 1.0001
    for bad in (-1, N, True):
        with pytest.raises(pp.InvalidInput, match="record is" if persons is None else "person"):
            asks.spent(bad)


# Broken twins: each must be caught by the check that an honest analyst passes


def complaints():
    """What is wrong with the analyst: [] for an honest one."""
    wrong = []
    table = {"x": np.array([1.0, 1.0, 0.0, 5.0]), "kind": np.array(["a", "a", "b", "a"])}
    budgets = pp.Budgets([1.0, 1.0, 1.0, 0.1], person=["ann", "ann", "bo", "cy"])
    asks = silenced(Analyst(table, budgets))
    try:
        fresh = asks.count("kind == 'a'", noise=5.0)  # ann and cy, who cannot pay for it
        if float(fresh) != 1.0:
            wrong.append(f"counted {float(fresh)} instead of 1")
        cost = 1 / 25
        spent = asks.purses.spent
        if not np.allclose(spent, [cost, 0.0, 0.0], atol=1e-9):
            wrong.append(f"charged {spent}")
        total = asks.ask(lambda rows: rows["x"], size=1, clip=1.0, noise=20.0)
        want = Reference(budgets.owner, asks.purses.total).ask([[1.0], [1.0], [0.0], [5.0]], 1.0, 20.0)
        if not np.allclose(total.value, want, atol=1e-6):
            wrong.append(f"added up {total.value} instead of {want}")
        rich = silenced(Analyst(table, pp.Budgets(np.full(4, 50.0), person=["ann", "ann", "bo", "cy"])))
        other = rich.count("kind == 'a'", noise=5.0)
        for name in set(vars(fresh)) | set(vars(other)):
            if name not in ("value", "released") and getattr(fresh, name, 0) != getattr(other, name, 0):
                wrong.append(f"tells by {name}")
    except Exception as error:
        wrong.append(f"tells by raising {error!r}")
    return wrong


def test_an_honest_analyst_has_no_complaints():
    assert complaints() == []


def charges_everybody_the_worst_case(parts, purses, *, clip, noise, source, save=None):
    cost = np.full(purses.total.shape, (clip / noise) ** 2)
    pays = purses.affords(cost)
    purses.charge(np.where(pays, cost, 0.0))
    return parts.clipped(clip).total(pays)


def forgets_to_charge(parts, purses, *, clip, noise, source, save=None):
    parts = parts.clipped(clip)
    return parts.total(purses.affords((parts.norms() / noise) ** 2))


def lets_everybody_in(parts, purses, *, clip, noise, source, save=None):
    parts = parts.clipped(clip)
    cost = (parts.norms() / noise) ** 2
    purses.charge(np.where(purses.affords(cost), cost, 0.0))
    return parts.total(np.ones(purses.total.shape, dtype=bool))


def refuses_aloud(parts, purses, *, clip, noise, source, save=None):
    if not purses.affords((parts.norms() / noise) ** 2).all():
        raise pp.PrivyPurseError("somebody cannot pay")
    return mechanism.noisy_sum(parts, purses, clip=clip, noise=noise, source=source, save=save)


@pytest.mark.parametrize(
    "twin", [charges_everybody_the_worst_case, forgets_to_charge, lets_everybody_in, refuses_aloud]
)
def test_broken_twins_are_caught(monkeypatch, twin):
    monkeypatch.setattr(analyst, "noisy_sum", twin)
    assert complaints()


def test_clipping_rows_instead_of_persons_is_caught(monkeypatch):
    """Ten rows of 1 of one person, clip 1: the person may add 1, and pays for 1."""

    def added():
        budgets = pp.Budgets(np.full(10, 3.0), person=["ann"] * 10)
        asks = silenced(Analyst({"x": np.ones(10)}, budgets))
        got = asks.ask(lambda rows: rows["x"], size=1, clip=1.0, noise=1e3)
        return float(got.value[0]), float(asks.purses.spent[0]) * 1e6

    assert added() == pytest.approx((1.0, 1.0))

    def rows_first(rows, owner, people):
        clipped = contributions.Dense(rows).clipped(1.0).values
        dense = contributions.by_person(clipped, owner, people)
        object.__setattr__(dense, "clipped", lambda limit: dense)
        return dense

    monkeypatch.setattr(analyst, "by_person", rows_first)
    assert added()[0] == pytest.approx(10.0)


def test_an_answer_with_who_paid_in_it_is_caught(monkeypatch):
    honest = analyst.Answer

    class Telling(honest):
        def __init__(self, value, noise, cost, released, **more):
            super().__init__(value, noise, cost, released, **more)
            object.__setattr__(self, "left_out", float(np.sum(value)))

    monkeypatch.setattr(analyst, "Answer", Telling)
    assert complaints() == ["tells by left_out"]


# Nobody is ever overdrawn


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
    asks = Analyst({"x": np.array(x), "row": np.arange(n)}, budgets, currency=currency, seed=0)
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
    asks = Analyst({"x": np.ones(1)}, budgets, seed=0)
    asks.purses.total = asks.purses.total * 1.01
    noise = 1 / math.sqrt(float(asks.purses.left[0]) * (1 - 1e-9))
    asks.count(noise=noise)
    assert gdp.delta(np.sqrt(asks.purses.spent), 1.0) > 1e-5


def test_a_purse_smaller_than_the_ladder_step_is_rounded_down():
    asks = Analyst({"x": np.ones(2)}, pp.Budgets([1.0, 1.00999]))
    assert asks.purses.total[0] == asks.purses.total[1]


# Sizes at the edge


def test_one_record():
    asks = silenced(Analyst({"x": np.array([3.0])}, pp.Budgets([1.0])))
    assert float(asks.count("x == 3", noise=5)) == 1
    assert float(asks.mean("x", lower=0, upper=4, noise=0.9)) == 2  # a count of 1 does not exceed what is unknown
    assert asks.histogram("x", edges=[0, 3], noise=100).value.tolist() == [1]


def test_everybody_exhausted_is_noise_alone_and_charges_nothing():
    table, budgets = people()
    asks = Analyst(table, budgets)
    asks.count(noise=1 / math.sqrt(asks.purses.total.max()) * 1.0000001)
    asks.purses.spent = asks.purses.total.copy()
    drawn = np.array([float(asks.count("age >= 0", noise=2.0)) for _ in range(300)])
    assert np.abs(drawn).max() < 2 * 6
    assert abs(drawn.mean()) < 2 * 6 / math.sqrt(300)
    assert (asks.purses.spent == asks.purses.total).all()


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


# Floats


def test_sums_are_exact_so_that_no_order_and_no_low_digit_shows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=1000) * 10.0 ** rng.integers(-9, 1, 1000)
    mixed = rng.permutation(1000)

    def asked(values):
        return silenced(Analyst({"x": values}, pp.Budgets(np.full(1000, 5.0)))).sum("x", lower=-1, upper=1, noise=1.0)

    assert float(asked(x)) == float(asked(x[mixed]))
    assert np.clip(x, -1, 1).sum() != np.clip(x, -1, 1)[mixed].sum()  # which plain floats do not give
    assert float(asked(x)) == pytest.approx(math.fsum(np.clip(x, -1, 1)), abs=1e-6)


@pytest.mark.parametrize(("n", "clip", "noise"), [(1, 1, 1), (10**6, 1, 1e-3), (50, 1e-9, 3), (50, 1e6, 1e-6)])
def test_answers_lie_on_a_public_grid(n, clip, noise):
    fine = contributions.grain(n, clip, noise)
    assert math.log2(fine).is_integer()
    assert n * clip / fine <= 2**52
    purses = Filter(np.full(n, 1e6), np.full(n, 1e-5))
    values = np.random.default_rng(0).normal(size=(n, 1)) * clip
    answer = mechanism.noisy_sum(
        contributions.Dense(values), purses, clip=clip, noise=noise, source=analyst.noise_source()
    )
    assert (answer / fine == np.rint(answer / fine)).all()


@pytest.mark.parametrize("size", [1, 3])
def test_no_contribution_is_longer_than_the_clip_norm_or_costs_less_than_it_is_long(size):
    rng = np.random.default_rng(4)
    values = rng.normal(size=(5000, size)) * 10.0 ** rng.integers(-200, 300, (5000, 1))
    values[:100] = 1e307
    clip = 0.7
    parts = contributions.Dense(values).clipped(clip).rounded(contributions.grain(5000, clip, 0.3))
    exact = [math.hypot(*row) for row in parts.values.tolist()]
    norms = parts.norms() * contributions.UP
    assert max(exact) <= clip
    assert all(norm >= true for norm, true in zip(norms.tolist(), exact, strict=True))
    large = np.array([math.hypot(*row) > 1 for row in values.tolist()])
    assert (norms[large] > 0.69).all()  # however huge, a vector keeps its direction and the clip norm


def test_the_worst_case_told_is_one():
    table, budgets = people(persons=9)
    asks = Analyst(table, pp.Budgets(np.full(N, 8.0), person=budgets.person))
    for question in (
        lambda: asks.count(noise=3.0),
        lambda: asks.sum("age", lower=0, upper=50, noise=100.0),
        lambda: asks.mean("age", lower=0, upper=50, noise=4.0),
        lambda: asks.histogram("city", categories=["Oslo", "Voss"], noise=4.0),
        lambda: asks.ask(lambda rows: rows["age"], size=1, clip=3.0, noise=20.0),
    ):
        before = asks.purses.spent.copy()
        answer = question()
        assert (asks.purses.spent - before).max() <= answer.cost.amount
        assert answer.cost.epsilon == pytest.approx(float(gdp.epsilon(math.sqrt(answer.cost.amount), 1e-5)))
        assert ("at most" in str(answer)) is not answer.alike


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
    several = silenced(Analyst(table, pp.Budgets(np.ones(4), person=["ann", "ann", "bo", "bo"])))
    told = several.histogram("x", categories=[1, 2], noise=9.0)
    assert told.value.tolist() == pytest.approx([1 + math.sqrt(0.5), math.sqrt(0.5)])
    assert "0.71 in each of two" in str(told)
    assert Analyst(table, pp.Budgets(np.ones(4))).histogram("x", categories=[1, 2], noise=9.0).note == ""


# What is wrong is said before anything is charged, and by public rows alone


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
    asks = Analyst(FORMS[form](people()[0]), people()[1])
    with pytest.raises(pp.InvalidInput, match=said):
        asks.ask(q, size=2, clip=1.0, noise=1.0)
    assert not asks.purses.spent.any()


@pytest.mark.parametrize("form", ["mapping", "frame"])
def test_bad_conditions_are_refused(form):
    asks = Analyst(FORMS[form](people()[0]), people()[1])
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
    asks = silenced(Analyst(table, budgets))
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
    asks = Analyst(table, budgets)

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

    asks = Analyst(data, people()[1])
    asks.ask(q, size=1, clip=1.0, noise=100.0)
    assert "twice" not in data
    with pytest.raises(pp.InvalidInput, match="twice"):
        asks.count("twice > 1", noise=100.0)


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
    asks = Analyst(*people())
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


# On disk


def test_spending_outlives_the_process(tmp_path):
    table, budgets = people()
    with Analyst(table, budgets, purses=tmp_path / "purses") as asks:
        asks.count("age > 50", noise=50.0)
        spent = asks.purses.spent.copy()
    with Analyst(pd.DataFrame(table), budgets, purses=tmp_path / "purses") as asks:  # the same data in another form
        assert asks.purses.spent.tolist() == spent.tolist()
        asks.count("age > 50", noise=50.0)
        assert asks.purses.spent.sum() == pytest.approx(2 * spent.sum())


def test_other_data_budgets_or_currency_are_refused(tmp_path):
    table, budgets = people()
    path = tmp_path / "purses"
    Analyst(table, budgets, purses=path).close()  # nothing asked, nothing spent
    with Analyst(table, budgets, purses=path) as asks:
        asks.count(noise=9.0)
    whole = path.read_bytes()
    older = {**table, "age": np.where(np.arange(N) == 7, table["age"] + 1, table["age"])}
    renamed = {("years" if name == "age" else name): values for name, values in table.items()}
    moved = {**table, "city": np.where(np.arange(N) == 5, "Hamar", table["city"])}
    for data in (older, renamed, moved, {k: v[::-1] for k, v in table.items()}, {**table, "more": table["age"]}):
        with pytest.raises(pp.InvalidInput, match="another data set"):
            Analyst(data, budgets, purses=path)
    for other in (
        pp.Budgets(budgets.epsilon + 1),
        pp.Budgets(budgets.epsilon, delta=1e-6),
        pp.Budgets(np.ones(N), person=np.zeros(N, np.int64)),
    ):
        with pytest.raises(pp.InvalidInput, match="another list of budgets"):
            Analyst(table, other, purses=path)
    with pytest.raises(pp.InvalidInput, match="another currency"):
        Analyst(table, budgets, currency="zcdp", purses=path)
    assert path.read_bytes() == whole
    Analyst(table, budgets, purses=path).close()


def test_nothing_is_released_that_cannot_be_written_down(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, purses=tmp_path / "purses")
    asks.count("age > 50", noise=5.0)
    before, whole = asks.purses.spent.copy(), read_held(tmp_path / "purses")

    def full(*_):
        raise OSError("disk full")

    for call in ("os.pwrite", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(call, full)
            with pytest.raises(OSError, match="disk full"):
                asks.count("age > 50", noise=5.0)
        assert (asks.purses.spent == before).all()
        assert read_held(tmp_path / "purses") == whole
    asks.count("age > 50", noise=5.0)
    assert (asks.purses.spent > before).any()


def test_the_charge_is_on_disk_before_the_answer(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, purses=tmp_path / "purses")
    seen = []
    honest = asks._file.write
    monkeypatch.setattr(asks._file, "write", lambda **arrays: (seen.append(arrays["spent"].copy()), honest(**arrays)))
    asks.count("age > 50", noise=50.0)
    assert len(seen) == 1
    assert (seen[0] > 0).tolist() == (table["age"] > 50).tolist()


def test_a_killed_process_has_paid_for_all_that_it_said(tmp_path):
    path = tmp_path / "purses"
    code = (
        "import numpy as np, privypurse as pp\n"
        "from privypurse.queries import Analyst\n"
        f"asks = Analyst({{'x': np.ones(5)}}, pp.Budgets(np.ones(5)), purses={str(path)!r})\n"
        "while True: print(float(asks.count(noise=1000.0)), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    answers = sum(line.endswith("\n") for line in said)
    with Analyst({"x": np.ones(5)}, pp.Budgets(np.ones(5)), purses=path) as asks:
        assert answers <= round(float(asks.purses.spent[0]) * 1000**2) <= answers + 2


def test_threads_pay_for_each_answer():
    asks = Analyst({"x": np.ones(50)}, pp.Budgets(np.full(50, 3.0)))
    workers = [threading.Thread(target=lambda: [asks.count(noise=100.0) for _ in range(50)]) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert float(asks.purses.spent[0]) == pytest.approx(400 / 100**2)


def test_closed_and_forked_analysts_answer_nothing(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, purses=tmp_path / "purses")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(pp.InvalidInput, match="another process"):
            asks.count(noise=5.0)
    asks.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        asks.count(noise=5.0)
    assert not asks.purses.spent.any()


def test_columns_without_bytes_need_no_purses_on_disk_and_are_refused_with_them(tmp_path):
    table = {"x": np.ones(2), "odd": np.array([1, "a"], dtype=object)}
    assert float(silenced(Analyst(table, pp.Budgets([1.0, 1.0]))).count(noise=10)) == 2
    with pytest.raises(pp.InvalidInput, match=r"'odd'.*mix"):
        Analyst(table, pp.Budgets([1.0, 1.0]), purses=tmp_path / "purses")
    assert not list(tmp_path.iterdir())


def test_a_seed_says_that_nothing_is_private():
    with pytest.warns(PrivyPurseWarning, match="nothing is private"):
        one = Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3)), seed=4)
    assert float(one.count(noise=5)) == float(
        Analyst({"x": np.ones(3)}, pp.Budgets(np.ones(3)), seed=4).count(noise=5)
    )
    assert isinstance(silenced(one)._source, Silent)


def test_the_noise_is_as_large_as_told():
    asks = Analyst({"x": np.ones(3)}, pp.Budgets(np.full(3, 1e6)))
    for noise in (0.5, 40.0):
        drawn = asks.ask(lambda rows: np.zeros((len(rows["x"]), 20_000)), size=20_000, clip=1.0, noise=noise).value
        assert drawn.std() == pytest.approx(noise, rel=0.03)
        assert abs(drawn.mean()) < 0.05 * noise

"""Sums on a public grid: exact in any order, no longer than the clip norm, with noise as large as told."""

import math

import numpy as np
import pytest
from queries_brute_force import N, people, silenced

import privypurse as pp
from privypurse.accounting import gdp
from privypurse.accounting.filters import Filter
from privypurse.queries import Analyst, analyst, contributions, noisy_sums

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


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
    answer = noisy_sums.noisy_sum(contributions.Dense(values), purses, clip=clip, noise=noise, source=analyst.Noise())
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
    asks = Analyst(table, pp.Budgets(np.full(N, 8.0), person=budgets.person), person=budgets.person)
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


def test_the_noise_is_as_large_as_told():
    asks = Analyst({"x": np.ones(3)}, pp.Budgets(np.full(3, 1e6)))
    for noise in (0.5, 40.0):
        drawn = asks.ask(lambda rows: np.zeros((len(rows["x"]), 20_000)), size=20_000, clip=1.0, noise=noise).value
        assert drawn.std() == pytest.approx(noise, rel=0.03)
        assert abs(drawn.mean()) < 0.05 * noise

"""Ends by a released histogram: about the quantiles, and not the far edge of an empty grid."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.queries import Answer, quantile_range
from privypurse.queries.answers import Cost

EDGES = np.linspace(0, 1e6, 201)


def answered(counts, noise):
    told = counts + noise * np.random.default_rng(0).standard_normal(counts.size)
    return Answer(told, noise, Cost(1 / max(noise, 1e-9) ** 2, "gdp"), told)


def far(counts, edges, tail):
    """The twin: counts below zero are taken for none, and noise above it for people."""
    share = np.cumsum(np.maximum(counts, 0)) / np.maximum(counts, 0).sum()
    return edges[np.argmax(share >= 1 - tail) + 1]


def test_noise_in_empty_bins_is_not_taken_for_people():
    incomes = np.random.default_rng(1).lognormal(10.5, 0.5, 20_000)
    counts = np.histogram(incomes, EDGES)[0].astype(float)
    low, high = quantile_range(answered(counts, 30.0), EDGES)
    assert {low, high} <= set(EDGES)
    assert ((incomes >= low) & (incomes <= high)).mean() > 0.96
    assert high < 2 * np.quantile(incomes, 0.99)
    assert far(answered(counts, 30.0).value, EDGES, 0.01) > 5 * high


def test_without_noise_it_is_the_quantile_on_the_grid():
    counts = np.array([1.0, 0, 49, 49, 1, 0])
    edges = np.arange(7)
    assert quantile_range(answered(counts, 0.0), edges, tail=0.01) == (2, 4)
    assert quantile_range(answered(counts, 0.0), edges, tail=0) == (0, 5)
    assert quantile_range(answered(np.zeros(6), 1.0), edges) == (0, 6)  # nothing stands out


def test_an_analysts_answer_goes_in_and_bare_counts_do_not():
    with pytest.warns(pp.PrivyPurseWarning, match="seed"):  # in 6 of 10,000 others an empty bin stands out by chance
        asks = pp.Analyst({"age": np.arange(4000) % 40 + 20.0}, pp.Budgets(np.full(4000, 4.0)), seed=1)
    edges = [0, 20, 40, 60, 80, 200]
    assert quantile_range(asks.histogram("age", edges=edges, noise=20), edges) == (20, 60)
    with pytest.raises(pp.InvalidInput, match=r"ndarray.*nobody paid for"):
        quantile_range(np.array([1.0, 2.0]), [0, 1, 2])
    with pytest.raises(pp.InvalidInput, match="3 entries and the answer 6 bins"):
        quantile_range(answered(np.ones(6), 1.0), [0, 1, 2])
    with pytest.raises(pp.InvalidInput, match="tail must be"):
        quantile_range(answered(np.ones(2), 1.0), [0, 1, 2], tail=0.5)

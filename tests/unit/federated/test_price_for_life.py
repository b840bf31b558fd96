"""What a purse for life costs a federation: the page says what is computed, and that is right by plain sums."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks.federated import PLANNED, price_for_life, rate_for_life
from scipy.special import gammaln, logsumexp

from privypurse.federated.terms import Terms

PAGE = Path(__file__).parents[3] / "docs" / "ledger.md"


def step_cost(rate: float, noise: float, order: int) -> float:
    """Mironov et al. 2019, arXiv 1908.10530, 3.3, in logarithms: at order 115 the terms are beyond floats."""
    if rate == 0:
        return 0.0
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + k * np.log(rate) + (order - k) * np.log1p(-rate) + k * (k - 1) / (2 * noise**2)
    return float(logsumexp(terms)) / (order - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "order"), [(0.1, 115), (0.5, 28), (1.0, 16)])
@pytest.mark.parametrize("name", ["adult, 15 rounds", "adult, 2 rounds"])
def test_the_rate_is_the_largest_that_its_purse_pays_for(name: str, epsilon: float, order: int) -> None:
    """At whole orders the divergence is a sum, and the purse a formula (Canonne et al. 2020, Proposition 12)."""
    terms: Terms = PLANNED[name]
    held = epsilon - math.log1p(-1 / order) + (math.log(terms.delta) + math.log(order)) / (order - 1)
    table = terms.table()
    rate, steps = rate_for_life(terms, table, epsilon), terms.local_steps * terms.cap
    rates = np.sort(table.parameter)
    larger = rates[rates > rate * (1 + 1e-9)]
    assert steps * step_cost(rate, terms.noise_multiplier, order) <= held
    assert steps * step_cost(float(larger[0]), terms.noise_multiplier, order) > held * (1 - 1e-6)


@pytest.mark.parametrize(("epsilon", "order"), [(0.1, 115), (0.5, 28), (1.0, 16)])
def test_noise_for_life_is_the_least_that_a_purse_pays_for(epsilon: float, order: int) -> None:
    """Also for ε = 0.1, whose owners the terms' own noise leaves out."""
    terms, rate = PLANNED["adult, 2 rounds"], 0.0071 * epsilon / 0.1
    held = epsilon - math.log1p(-1 / order) + (math.log(terms.delta) + math.log(order)) / (order - 1)
    noise = terms.with_noise_for(epsilon, rate, for_life=True).noise_multiplier
    assert noise > terms.with_noise_for(epsilon, rate).noise_multiplier
    for tried, pays in ((noise, True), (noise * 0.999, False)):
        assert (40 * step_cost(rate, tried, order) <= held) == pays


@pytest.mark.slow
def test_the_page_has_every_line() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [line for line in price_for_life() if line not in page]
    assert missing == []

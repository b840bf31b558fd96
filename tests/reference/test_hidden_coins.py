"""Rounds that a record enters by one hidden coin: against enumeration and quadrature, in both directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from privypurse.accounting import (
    PLD,
    RDP,
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    SampledGaussian,
    SampledRound,
    loss_distribution,
    pld,
)
from privypurse.accounting.loss_distribution import LossDistribution

DELTA = 1e-5


def epsilon_of(with_: np.ndarray, without: np.ndarray, delta: float) -> float:
    """The exact ε at δ of two discrete distributions, in the worse direction."""

    def delta_at(epsilon: float) -> float:
        one = np.maximum(with_ - math.exp(epsilon) * without, 0).sum()
        other = np.maximum(without - math.exp(epsilon) * with_, 0).sum()
        return float(max(one, other)) - delta

    return 0.0 if delta_at(0.0) <= 0 else float(optimize.brentq(delta_at, 0.0, 60.0, xtol=1e-12))


def responses(epsilon: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """How often randomised response says yes in ``count`` tries, with the record and without it."""
    yes = 1 / (1 + math.exp(-epsilon))
    number = np.arange(count + 1)
    return stats.binom.pmf(number, count, yes), stats.binom.pmf(number, count, 1 - yes)


def enumerated(rates: list[float], epsilon: float, count: int, delta: float) -> float:
    """Rounds of randomised responses, each entered by one coin, outcome by outcome."""
    inner, without = responses(epsilon, count)
    p, q = np.ones(1), np.ones(1)
    for rate in rates:
        p = np.multiply.outer(p, (1 - rate) * without + rate * inner).ravel()
        q = np.multiply.outer(q, without).ravel()
    return epsilon_of(p, q, delta)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.03])
@pytest.mark.parametrize(
    ("rates", "epsilon", "count"),
    [([0.3775], 1.0, 1), ([0.3775] * 6, 1.0, 1), ([0.2, 0.7, 0.05], 0.4, 5), ([0.9, 1.0], 0.3, 8), ([1e-4], 2.0, 3)],
)
def test_losses_of_rounds_are_those_of_enumeration(
    rates: list[float], epsilon: float, count: int, delta: float
) -> None:
    truth = enumerated(rates, epsilon, count, delta)
    release = Composed(tuple(SampledRound(rate, PureDP(epsilon, count)) for rate in rates))
    by_pld = float(PLD().epsilons([release], delta)[0])
    assert truth - 1e-9 <= by_pld <= truth * 1.01 + 2e-3
    assert float(RDP().epsilons([release], delta)[0]) >= truth - 1e-9


def test_rounds_are_repeated_as_if_composed_one_by_one() -> None:
    once = SampledRound(0.3, SampledGaussian(0.02, 1.3, 200))
    for accountant in (PLD(), RDP()):
        repeated = accountant.epsilons([SampledRound(0.3, once.release, 4)], DELTA)
        np.testing.assert_allclose(repeated, accountant.epsilons([Composed((once,) * 4)], DELTA), rtol=1e-3)


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 1.0), (0.5, 2.0), (0.9, 0.7), (0.01, 0.5)])
def test_a_round_of_one_step_is_a_sampled_step(rate: float, sigma: float) -> None:
    for accountant, loose in ((PLD(), 1.001), (RDP(), 1.15)):  # between whole orders a round has a chord only
        round_, step = accountant.epsilons([SampledRound(rate, Gaussian(sigma)), SampledGaussian(rate, sigma)], DELTA)
        assert step * (1 - 1e-6) <= round_ <= step * loose


def renyi(alpha: float, log_p: np.ndarray, log_q: np.ndarray, log_width: float) -> float:
    return float(special.logsumexp(alpha * log_p + (1 - alpha) * log_q) + log_width) / (alpha - 1)


@pytest.mark.parametrize("rate", [0.05, 0.3775, 0.8])
@pytest.mark.parametrize(("inner_rate", "sigma"), [(0.3, 1.0), (1.0, 3.0), (0.7, 0.8)])
def test_renyi_curve_of_two_sampled_steps_bounds_the_divergence_in_both_directions(
    rate: float, inner_rate: float, sigma: float
) -> None:
    x = np.linspace(-14 * sigma, 14 * sigma + 12, 601)  # smooth: a step of a tenth of σ is exact to 1e-12
    step = (x[1] - x[0]) * 1.0
    without = stats.norm.logpdf(x, 0, sigma)
    with np.errstate(divide="ignore"):
        drawn = np.logaddexp(np.log1p(-inner_rate) + without, np.log(inner_rate) + stats.norm.logpdf(x, 1, sigma))
    q = np.add.outer(without, without)
    p = np.logaddexp(np.log1p(-rate) + q, np.log(rate) + np.add.outer(drawn, drawn))
    orders = np.array([1.3, 2.0, 2.5, 3.0, 6.0, 12.0])
    curve = RDP(orders=orders).curves([SampledRound(rate, SampledGaussian(inner_rate, sigma, 2))])[0]
    for order, bound in zip(orders.tolist(), curve.tolist(), strict=True):
        removing, adding = renyi(order, p, q, 2 * math.log(step)), renyi(order, q, p, 2 * math.log(step))
        assert bound >= max(removing, adding) - 1e-9
        if order >= 2 and float(order).is_integer():  # with every integer order below it at hand it is tight
            dense = RDP(orders=np.arange(2.0, order + 1))
            tight = float(dense.curves([SampledRound(rate, SampledGaussian(inner_rate, sigma, 2))])[0, -1])
            assert removing - 1e-9 <= tight <= max(removing, adding) * 1.6 + 1e-9


def test_the_published_lemma_for_clients_would_double_it() -> None:
    steps = SampledGaussian(0.01, 2.0, 300)
    tight = float(RDP().epsilons([SampledRound(0.3775, steps, 10)], DELTA)[0])
    lemma = float(RDP().epsilons([ClientSampled(0.3775, steps, 10)], DELTA)[0])
    assert (round(tight, 2), round(lemma, 2)) == (0.44, 0.88)
    assert float(PLD().epsilons([SampledRound(0.3775, steps, 10)], DELTA)[0]) < tight


def gaussian_round_delta(rate: float, sigma: float, epsilon: float) -> tuple[float, float]:
    """δ of removing and of adding for one Gaussian step in one round, by quadrature."""

    def mixture(x: float) -> float:
        return (1 - rate) * stats.norm.pdf(x, 0, sigma) + rate * stats.norm.pdf(x, 1, sigma)

    def over(function: object) -> float:
        return float(integrate.quad(function, -12 * sigma, 12 * sigma + 1, limit=400)[0])  # type: ignore[arg-type]

    grown = math.exp(epsilon)
    return (
        over(lambda x: max(mixture(x) - grown * stats.norm.pdf(x, 0, sigma), 0.0)),
        over(lambda x: max(stats.norm.pdf(x, 0, sigma) - grown * mixture(x), 0.0)),
    )


@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.3775, 2.0, 0.1), (0.7, 1.5, 0.4), (0.1, 1.0, 0.05)])
def test_each_direction_has_its_own_losses(rate: float, sigma: float, epsilon: float) -> None:
    inner = loss_distribution.sampled_gaussian(1.0, sigma, 1e-4, 1)[0]
    removing, adding = gaussian_round_delta(rate, sigma, epsilon)
    found = delta_of(inner.drawn(rate), epsilon), delta_of(inner.drawn(rate, adding=True), epsilon)
    np.testing.assert_allclose(found, (removing, adding), rtol=2e-3)
    # The broken twin: whoever takes one direction's losses for both is too low by far in the other.
    assert removing > 1.05 * adding


def delta_of(losses: LossDistribution, epsilon: float) -> float:
    values = (losses.lower + np.arange(losses.mass.size)) * losses.step
    return losses.infinity + float(losses.mass @ np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0))


def test_rounds_are_composed_direction_by_direction() -> None:
    first, second = SampledRound(0.3, SampledGaussian(0.2, 1.0, 3)), SampledRound(0.7, SampledGaussian(0.5, 2.0, 2))
    together = pld.distributions(Composed((first, second)), 1e-3)
    apart = [pld.distributions(each, 1e-3) for each in (first, second)]
    expected = [apart[0][direction].plus(apart[1][direction]) for direction in range(2)]
    spent = [[one.epsilon(1e-3) for one in pair] for pair in (together, expected)]
    assert spent[0] == pytest.approx(spent[1], rel=1e-9)
    assert spent[0][0] != pytest.approx(spent[0][1], rel=1e-3)  # they are not alike, so that a mix-up would show


def test_what_arithmetic_lost_stays_counted_when_drawn() -> None:
    inner = LossDistribution(0.1, 0, np.array([0.5, 0.5]), 0.0, slop=1e-3)
    for adding in (False, True):
        assert inner.drawn(0.3, adding=adding).slop >= 3e-4


def test_adding_decides_where_it_costs_more() -> None:
    """μ = 0.1, drawn with chance 0.6, order 2: D(Q ‖ (1-π)Q + πP) by quadrature lies above removing's bound."""
    mu, rate, order = 0.1, 0.6, 2.0
    x = np.linspace(-14, 14, 20_001)
    q = stats.norm.logpdf(x)
    p = np.logaddexp(math.log1p(-rate) + q, math.log(rate) + stats.norm.logpdf(x, mu))
    width = math.log(x[1] - x[0])
    truth = max(renyi(order, p, q, width), renyi(order, q, p, width))
    found = RDP(orders=np.array([2.0])).curves([SampledRound(rate, SampledGaussian(1.0, 1 / mu, 1))])[0, 0]
    assert truth - 1e-12 <= found
    # The bound of adding is π·ρ(1 + π(α-1)), ρ(α) = αμ²/2, and it is the larger of the two here.
    assert found >= rate * (1 + rate * (order - 1)) * mu**2 / 2 * (1 - 1e-9)


def test_drawing_keeps_the_mass_and_rises_with_the_rate() -> None:
    inner = PLD().epsilons([SampledGaussian(0.05, 1.2, 50)], DELTA)[0]
    rates = [0.0, 1e-6, 0.01, 0.2, 0.5, 0.9, 0.999, 1.0]
    spent = PLD().epsilons([SampledRound(rate, SampledGaussian(0.05, 1.2, 50)) for rate in rates], DELTA)
    assert spent[0] == 0
    assert (np.diff(spent) >= 0).all()
    assert spent[-1] == pytest.approx(inner)
    one = loss_distribution.sampled_gaussian(0.05, 1.2, 1e-3, 50)
    for direction, adding in zip(one, (False, True), strict=True):
        drawn = direction.repeated(50).drawn(0.3, adding=adding)
        assert drawn.mass.sum() + drawn.infinity == pytest.approx(1.0, abs=1e-9)
        assert (drawn.mass >= 0).all()


def test_who_is_charged_only_when_drawn_overspends() -> None:
    """The published rule charges the inner ε to the drawn alone; a record that stays until drawn really spends more.

    Randomised response with ε = 1 inside, π for ε = 0.5: rule 1's figures are in test_rules.py. Here every round is
    charged, drawn or not, and that covers the truth of a record that is drawn anew in each.
    """
    rate = math.expm1(0.5) / math.expm1(1.0)
    truth = enumerated([rate] * 10, 1.0, 1, 1e-6)
    charged = float(PLD().epsilons([SampledRound(rate, PureDP(1.0), 10)], 1e-6)[0])
    assert truth <= charged <= truth * 1.01
    assert charged > 0.5 * 4


@pytest.mark.parametrize("order", [2.5, 6.5, 11.5])
def test_orders_between_and_beyond_the_whole_ones_are_bounds_too(order: float) -> None:
    """With few orders at hand the last whole one may lie below the last order; nothing is flat there."""
    rate, sigma = 0.9, 1.0
    x = np.linspace(-14, 26, 40_001)
    q, inner = stats.norm.logpdf(x, 0, sigma), stats.norm.logpdf(x, 1, sigma)
    p = np.logaddexp(math.log1p(-rate) + q, math.log(rate) + inner)
    truth = renyi(order, p, q, math.log(x[1] - x[0]))
    for orders in ([1.5, order], [1.5, 2.0, 3.0, order]):
        curve = RDP(orders=np.array(sorted(set(orders)))).curves([SampledRound(rate, Gaussian(sigma))])
        assert curve[0, -1] >= truth - 1e-9

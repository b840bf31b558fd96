"""What a record really spends that pays only when it is drawn: against every outcome, against quadrature."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

import privypurse as pp
from privypurse.accounting import PLD, Gaussian, PureDP, SampledGaussian, SampledRound, gdp
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.assignment.round_planner import AdaPdp, Groups, PdpSgd, Sampling
from privypurse.assignment.threshold_sampling import FixedLoss
from privypurse.errors import InvalidInput
from privypurse.plans import Promise
from privypurse.plans.schedule import Round
from reproductions.unsound import true_cost
from reproductions.unsound.drawn_pay import Published, published

DELTA = 1e-5


def epsilon_of(with_: np.ndarray, without: np.ndarray, delta: float) -> float:
    """The exact ε at δ of two discrete distributions, in the worse direction."""

    def excess(epsilon: float) -> float:
        return max(delta_of(with_, without, epsilon)) - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 120.0, xtol=1e-12))


def delta_of(with_: np.ndarray, without: np.ndarray, epsilon: float) -> tuple[float, float]:
    grown = math.exp(epsilon)
    return (
        float(np.maximum(with_ - grown * without, 0).sum()),
        float(np.maximum(without - grown * with_, 0).sum()),
    )


def enumerated(turns: list[tuple[float, float]], delta: float) -> float:
    """Rounds of randomised response, (chance, ε) each: the sum over all coins of every outcome's probability.

    A coin that falls on the record lets it answer once more and never again; where no coin is needed it stays.
    """

    def law(epsilon: float, answer: int, present: bool) -> float:
        yes = 1 / (1 + math.exp(-epsilon))
        return yes if (answer == 1) == present else 1 - yes

    def seen(answers: tuple[int, ...], number: int, inside: bool) -> float:
        if number == len(turns):
            return 1.0
        chance, epsilon = turns[number]
        away = law(epsilon, answers[number], False)
        if not inside:
            return away * seen(answers, number + 1, False)
        there = law(epsilon, answers[number], True)
        drawn = chance * there * seen(answers, number + 1, chance == 1)
        return drawn + (1 - chance) * away * seen(answers, number + 1, True)

    outcomes = list(itertools.product((0, 1), repeat=len(turns)))
    with_ = np.array([seen(answers, 0, True) for answers in outcomes])
    without = np.array([seen(answers, 0, False) for answers in outcomes])
    assert with_.sum() == pytest.approx(1.0)
    return epsilon_of(with_, without, delta)


def found(turns: list[tuple[float, float]], delta: float) -> float:
    return true_cost.epsilon([true_cost.Turn(chance, PureDP(epsilon)) for chance, epsilon in turns], delta)


def test_somebody_more_can_be_seen_better_than_somebody_less() -> None:
    """Here adding the record decides, not removing it."""
    turns = [(0.43, 2.52), (1.0, 2.17)]
    truth = enumerated(turns, 0.1)
    assert truth - 1e-9 <= found(turns, 0.1) <= truth + 5e-3


TURN = st.tuples(st.one_of(st.just(1.0), st.floats(1e-3, 0.999)), st.floats(0.05, 2.0))


@settings(max_examples=10, deadline=None)
@given(st.lists(TURN, min_size=1, max_size=5), st.sampled_from([1e-6, 1e-4, 1e-2, 0.1]))
def test_never_below_and_hardly_above_the_truth(turns: list[tuple[float, float]], delta: float) -> None:
    truth = enumerated(turns, delta)
    assert truth - 1e-9 <= found(turns, delta) <= truth * 1.01 + 2e-3


@pytest.mark.parametrize(
    "turns",
    [
        [(1.0, 0.5), (0.3, 1.0), (1.0, 0.2), (0.6, 0.7), (0.6, 0.7), (1.0, 0.4)],
        [(0.5, 1.0)] * 6,
        [(1.0, 0.6)] * 6,
        [(1e-12, 1.0), (1 - 1e-12, 1.0), (0.5, 1.0)],
        [(0.0, 3.0), (0.4, 1.0)],
    ],
    ids=["mixed", "coins", "sure", "extreme", "never"],
)
@pytest.mark.parametrize("delta", [1e-5])
def test_six_rounds(turns: list[tuple[float, float]], delta: float) -> None:
    truth = enumerated(turns, delta)
    assert truth - 1e-9 <= found(turns, delta) <= truth * 1.005 + 1e-3


def test_order_matters_and_a_sure_draw_is_not_the_last() -> None:
    """The broken twins: a record that leaves after a sure draw, and one that stays after a coin drew it."""
    turns = [(1.0, 0.5), (0.4, 1.0)]
    truth = enumerated(turns, 1e-6)
    assert found(turns, 1e-6) == pytest.approx(truth, rel=1e-3)
    assert found(turns[:1], 1e-6) < truth * 0.6
    stays = float(PLD().epsilons([SampledRound(0.4, PureDP(1.0), 5)], 1e-6)[0])
    leaves = found([(0.4, 1.0)] * 5, 1e-6)
    assert leaves == pytest.approx(enumerated([(0.4, 1.0)] * 5, 1e-6), rel=1e-3)
    assert leaves < 0.5 * stays


@pytest.mark.parametrize(("rounds", "really"), [(1, 0.5), (2, 0.719), (10, 0.9945)])
def test_the_figures_of_rule_1(rounds: int, really: float) -> None:
    chance = math.expm1(0.5) / math.expm1(1.0)
    spent = found([(chance, 1.0)] * rounds, 1e-8)
    assert spent == pytest.approx(really, abs=2e-3)
    assert spent == pytest.approx(math.log1p((1 - (1 - chance) ** rounds) * math.expm1(1.0)), abs=2e-3)


def test_gaussian_rounds_of_rule_1() -> None:
    """ε = 0.1, τ = 1, δ = 1e-5, ten rounds: δ(0.1) is 1.66e-4 where 1e-4 is claimed."""
    chance = math.expm1(0.1) / math.expm1(1.0)
    noise = 1 / float(gdp.mu(1.0, DELTA))
    turns = [true_cost.Turn(chance, Gaussian(noise))] * 10
    assert true_cost.epsilon(turns, 1.66e-4 * 0.99) > 0.1
    assert true_cost.epsilon(turns, 1.66e-4 * 1.03) < 0.1


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle & Wang (2018), Theorem 8."""
    return float(special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))


def one_coin(chance: float, mu: float, delta: float) -> float:
    """The exact ε of a Gaussian round that a coin decides, from the ratio 1 - π + π·L in both directions."""

    def excess(epsilon: float) -> float:
        removing = chance * gaussian_delta(mu, math.log1p(math.expm1(epsilon) / chance))
        share = 1 - math.exp(epsilon) * (1 - chance)
        adding = share * gaussian_delta(mu, math.log(math.exp(epsilon) * chance / share)) if share > 0 else 0.0
        return max(removing, adding) - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 30.0, xtol=1e-12))


@pytest.mark.parametrize("chance", [1e-4, 0.05, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("noise", [0.8, 1.3, 7.0])
def test_one_gaussian_round_is_what_the_closed_form_says(chance: float, noise: float) -> None:
    for delta in (1e-6, 1e-5, 1e-3):
        truth = one_coin(chance, 1 / noise, delta)
        assert (
            truth - 1e-9
            <= true_cost.epsilon([true_cost.Turn(chance, Gaussian(noise))], delta)
            <= truth * 1.005 + 1e-5
        )


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.97, 1.0])
def test_one_round_of_sampled_steps_is_that_of_loss_distributions(chance: float) -> None:
    release = SampledGaussian(0.05, 1.1, 300)
    for delta in (1e-6, 1e-5, 1e-3):
        expected = float(PLD().epsilons([SampledRound(chance, release)], delta)[0])
        assert true_cost.epsilon([true_cost.Turn(chance, release)], delta) == pytest.approx(expected, rel=0.01)


def test_sure_rounds_are_composed() -> None:
    turns = [true_cost.Turn(1.0, Gaussian(4.0))] * 4
    assert true_cost.epsilon(turns, DELTA) == pytest.approx(
        float(PLD().epsilons([Gaussian(2.0)], DELTA)[0]), rel=0.01
    )


def test_nobody_who_is_never_in_spends_anything() -> None:
    assert true_cost.epsilon([], DELTA) == 0.0
    assert true_cost.epsilon([true_cost.Turn(0.0, Gaussian(0.1))], DELTA) == 0.0


def test_what_is_seen_with_the_record_alone_stays_a_risk() -> None:
    """An outcome that gives the record away for sure: no ε covers a δ below its probability."""
    some, never = (
        true_cost._Ratio(np.log([0.99]), np.ones(1), 0.01),
        true_cost._Ratio(np.zeros(1), np.ones(1), 0.0),
    )
    assert 1 - 0.99**2 <= some.times(some).infinity <= 0.02 + 1e-9
    assert some.unless(0.25, never).infinity == pytest.approx(0.75 * 0.01)
    assert never.unless(0.25, some).infinity == pytest.approx(0.25 * 0.01)
    assert some.times(some).epsilon(0.0198) == math.inf
    assert some.times(some).epsilon(0.03) < math.inf


def test_more_rounds_never_cost_less() -> None:
    spent = [true_cost.epsilon([true_cost.Turn(0.3, Gaussian(1.5))] * rounds, DELTA) for rounds in range(1, 6)]
    assert (np.diff(spent) > 0).all()
    for_sure = true_cost.epsilon([true_cost.Turn(1.0, Gaussian(1.5))], DELTA)
    assert spent[0] < 0.9 * for_sure
    assert spent[-1] < for_sure  # it is in once at most


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rounds_whose_losses_are_huge(count: int) -> None:
    """Inside is 30-DP: without the record what it would say has a probability below what arithmetic sees."""
    rate, absent = 0.3, np.array([1 / (1 + math.exp(30.0)), 1 / (1 + math.exp(-30.0))])
    p, q = np.ones(1), np.ones(1)
    for _ in range(count):
        p = np.multiply.outer(p, (1 - rate) * absent + rate * absent[::-1]).ravel()
        q = np.multiply.outer(q, absent).ravel()
    for delta in (1e-5, 0.2):
        said = float(PLD().epsilons([SampledRound(rate, PureDP(30.0), count)], delta)[0])
        truth = epsilon_of(p, q, delta)
        assert truth - 1e-6 <= said <= truth + 0.02


def test_an_infinite_loss_in_a_round() -> None:
    """Of removing it stays infinite, if the record was drawn; of adding it is as large as not being drawn allows."""
    inner = LossDistribution(step=0.01, lower=0, mass=np.array([0.9]), infinity=0.1)
    removing, adding = inner.drawn(0.3), inner.drawn(0.3, adding=True)
    assert removing.infinity == pytest.approx(0.03)
    assert adding.infinity == 0
    losses = (adding.lower + np.arange(adding.mass.size)) * adding.step
    above = adding.mass[losses > 0.005]
    assert above.sum() == pytest.approx(0.1)
    assert losses[np.flatnonzero(adding.mass)].max() == pytest.approx(-math.log(0.7), abs=0.01)
    for one in (removing, adding):
        assert one.mass.sum() + one.infinity == pytest.approx(1.0)


# --- Published bookkeeping ----------------------------------------------------------------------------------------


def by_hand(epsilon: list[float], rounds: list[tuple[float, float, float]], delta: float) -> Published:
    """Rounds of one Gaussian step that everybody drawn is in: (threshold, μ, ε charged to the drawn)."""
    levels = len(epsilon)
    return Published(
        method="pdp-sgd, as published",
        accountant="rdp",
        rounds=tuple(
            Round(threshold=tau, noise_multiplier=1 / mu, steps=1, rate=1.0, chance=np.zeros(levels), expected=1.0)
            for tau, mu, _ in rounds
        ),
        batch_size=1,
        clip_norm=1.0,
        epsilon_by_level=np.array(epsilon),
        delta_by_level=np.full(levels, delta),
        level_of=np.arange(levels),
        promise=Promise.NONE,
        drawn=tuple(np.ones(levels, dtype=bool) for _ in rounds),
        charge=tuple(cost for *_, cost in rounds),
    )


def chance_of(left: float, tau: float) -> float:
    return 1.0 if left >= tau else math.expm1(left) / math.expm1(tau)


def ratio(left: float, rounds: list[tuple[float, float, float]], ratios: list[np.ndarray]) -> np.ndarray | float:
    """The likelihood ratio of all that is seen, from here on: over all coins, with what each leaves."""
    if not rounds or left <= 1e-9:
        return 1.0
    tau, _, cost = rounds[0]
    chance = chance_of(left, tau)
    drawn = chance * ratios[0] * ratio(left - cost, rounds[1:], ratios[1:])
    return drawn if chance == 1 else drawn + (1 - chance) * ratio(left, rounds[1:], ratios[1:])


def by_quadrature(left: float, rounds: list[tuple[float, float, float]], delta: float) -> float:
    """The true ε of a record with this budget in two Gaussian rounds, drawn and charged as published."""
    z = np.linspace(-7, 7, 501)
    density = np.exp(-(z**2) / 2)
    density /= density.sum()
    ratios = [np.exp(mu * z - mu**2 / 2) for _, mu, _ in rounds]
    without = np.multiply.outer(density, density)
    with_ = without * ratio(left, rounds, [ratios[0][:, None], ratios[1][None, :]])
    return epsilon_of(with_, without, delta)


@pytest.mark.parametrize("delta", [1e-5, 0.02])
@pytest.mark.parametrize(
    "rounds",
    [[(1.0, 0.3, 0.4), (0.8, 0.35, 0.4)], [(2.0, 0.5, 0.2), (0.6, 0.1, 0.3)], [(0.4, 0.2, 0.35), (0.9, 0.6, 0.8)]],
)
def test_what_is_said_to_be_spent_is_an_upper_bound(rounds: list[tuple[float, float, float]], delta: float) -> None:
    budgets = [0.2, 0.5, 0.9, 1.5]
    said = by_hand(budgets, rounds, delta).spent_by_level()
    truth = np.array([by_quadrature(left, rounds, delta) for left in budgets])
    assert (said >= truth - 2e-3 * truth - 1e-4).all()  # the quadrature is that good
    assert (said <= 2 * truth + 0.05).all()
    # The broken twin: whoever was drawn in the first round, and paid, is all that the second one counts.
    (_, _, cost), (next_tau, next_mu, _) = rounds
    paid = [
        PLD().epsilons([SampledRound(chance_of(left - cost, next_tau), Gaussian(1 / next_mu))], delta)[0]
        if left > cost
        else 0.0
        for left in budgets
    ]
    assert (np.array(paid) < truth).any()


def test_where_being_drawn_uses_all_up_the_truth_is_said() -> None:
    rounds = [(1.0, 0.35, 1.0), (0.7, 0.3, 0.7)]
    budgets = [0.3, 0.6, 0.8, 1.4]
    said = by_hand(budgets, rounds, 1e-4).spent_by_level()
    # 1.4 is in both, the second time by chance; the quadrature takes what is left, 0.4, as well.
    truth = [by_quadrature(left, rounds, 1e-4) for left in budgets]
    np.testing.assert_allclose(said, truth, rtol=5e-3)


def simulated(left: float, made: Published, epsilon: float, count: int = 40_000) -> tuple[float, float]:
    """δ(ε) of removing such a record from this run: a mean and its deviation.

    Drawn where it matters: what is seen is shifted by 3.5 deviations towards the record, and weighed back.
    """
    assert all(one.rate == 1 for one in made.rounds)
    rounds = [
        (one.threshold, math.sqrt(one.steps) / one.noise_multiplier, cost)
        for one, cost in zip(made.rounds, made.charge, strict=True)
    ]
    mu = np.array([one for _, one, _ in rounds])
    shift = 3.5 * mu / np.linalg.norm(mu)
    z = np.random.default_rng(0).normal(size=(count, mu.size)) + shift
    weight = np.exp(shift @ shift / 2 - z @ shift)
    seen = ratio(left, rounds, list(np.exp(mu * z - mu**2 / 2).T))
    over = weight * np.maximum(seen - math.exp(epsilon), 0.0)
    return float(over.mean()), float(over.std() / math.sqrt(count))


def run_as_published(rounds: int) -> tuple[pp.Budgets, Published]:
    """Full batches, so that a round is one Gaussian; surplus weighs more, so that the first threshold is high."""
    budgets = pp.Budgets(np.repeat([0.5, 0.75, 1.0], [300, 300, 200]), delta=DELTA)
    method = PdpSgd(FixedLoss(0.3, 0.7), rounds=rounds)
    return budgets, published(budgets, method, epochs=rounds, batch_size=800, rng=np.random.default_rng(3))


def test_a_published_run_really_overdraws_the_strictest() -> None:
    budgets, made = run_as_published(2)
    delta, deviation = simulated(0.5, made, 0.5)
    assert delta - 6 * deviation > 2 * DELTA
    assert made.promise is Promise.NONE
    assert "NO PROMISE" in made.summary()
    assert "as published" in repr(made)
    with pytest.raises(pp.InvalidInput, match="overspend"):
        made.check(budgets)


@pytest.mark.parametrize("rounds", [1, 2, 4, 7])
def test_what_is_said_of_a_published_run_covers_the_truth(rounds: int) -> None:
    _, made = run_as_published(rounds)
    for left, said in zip(made.epsilon_by_level.tolist(), made.spent_by_level().tolist(), strict=True):
        delta, deviation = simulated(left, made, said)
        assert delta <= DELTA + 6 * deviation
        delta, deviation = simulated(left, made, said / 3)  # and the simulation would see it if it did not
        assert delta - 6 * deviation > DELTA


@pytest.mark.parametrize("method", [AdaPdp(rounds=4), Sampling(), PdpSgd(rounds=4)])
def test_published_runs_charge_the_drawn_alone(method: AdaPdp | Sampling | PdpSgd) -> None:
    epsilon = np.repeat([0.5, 1.0, 2.0], [50, 30, 20])
    budgets = pp.Budgets(epsilon, delta=DELTA)
    made = published(budgets, method, epochs=2, batch_size=20, rng=np.random.default_rng(0))
    left = epsilon.copy()
    for number, (one, who, cost) in enumerate(zip(made.rounds, made.drawn, made.charge, strict=True)):
        assert who[left >= one.threshold].all()
        assert not who[left <= 1e-9].any()
        assert cost <= one.threshold * (1 + 1e-9)
        assert made.draw(number, np.full(100, 0.5)) is who
        left = np.where(who, np.maximum(left - cost, 0.0), left)
    assert len(made.rounds) <= method.rounds
    raw = np.array([one.threshold * who.sum() for one, who in zip(made.rounds, made.drawn, strict=True)])
    np.testing.assert_allclose(made.weights, raw / raw.sum())


def test_only_thresholds_were_published_that_way() -> None:
    budgets = pp.Budgets([1.0, 2.0])
    with pytest.raises(pp.InvalidInput, match="threshold sampling"):
        published(budgets, Groups(), epochs=1, batch_size=1, rng=np.random.default_rng(0))  # type: ignore[arg-type]


def test_what_cannot_be_said_at_a_delta_is_infinite_and_no_crash() -> None:
    assert (
        true_cost.epsilon([true_cost.Turn(1.0, Gaussian(0.3))], 1e-5)
        >= float(PLD().epsilons([Gaussian(0.3)], 1e-5)[0]) * 0.99
    )


def test_published_rounds_say_that_nothing_is_promised_and_give_no_releases() -> None:
    budgets = pp.Budgets(np.repeat([0.5, 0.75, 1.0], 40), delta=1e-3)
    made = published(budgets, Sampling(), epochs=2, batch_size=20, rng=np.random.default_rng(0))
    assert "NO PROMISE" in made.summary()
    with pytest.raises(InvalidInput, match="different rounds"):
        made.releases()
    with pytest.raises(InvalidInput, match="Budgets"):
        published([0.5], Sampling(), epochs=2, batch_size=20, rng=np.random.default_rng(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="epochs"):
        published(budgets, Sampling(), epochs=float("nan"), batch_size=20, rng=np.random.default_rng(0))


def test_what_only_one_world_can_show_counts_at_every_epsilon() -> None:
    """A ratio of e with probability 0.1 under Q, and 0.01 of P where Q is never: δ(ε) = 0.1·(e - e^ε) + 0.01."""
    alone = 0.01
    rest = (1 - alone - 0.1 * math.e) / 0.9
    ratio = true_cost._Ratio(np.array([math.log(rest), 1.0]), np.array([0.9, 0.1]), alone)
    for epsilon in (0.3, 0.5, 0.9):
        delta = 0.1 * (math.e - math.exp(epsilon)) + alone
        assert epsilon <= ratio.epsilon(delta) <= epsilon + 1e-6
    assert ratio.epsilon(alone / 2) == math.inf

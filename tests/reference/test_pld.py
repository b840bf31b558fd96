"""Loss distributions against dp-accounting (from both sides), the exact Gaussian curve and brute force."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from privypurse.accounting import GDP, PLD, RDP, ClientSampled, Composed, Gaussian, PureDP, SampledGaussian, rdp
from privypurse.accounting.releases import SampledRound
from privypurse.errors import Unsupported

SETTINGS = [
    (2.0, 0.01, 2000, 1e-5),
    (0.7, 0.01, 500, 1e-6),
    (5.0, 0.3, 300, 1e-5),
    (0.5, 0.5, 10, 1e-5),
    (1.0, 0.001, 3000, 1e-7),
    (3.0, 0.999, 50, 1e-5),
    pytest.param(0.785, 2e-4, 5000, 1e-6, marks=pytest.mark.slow),
]


def peer(sigma: float, rate: float, steps: int, delta: float, step: float, pessimistic: bool) -> float:
    """dp-accounting's ε: an upper bound, or (optimistic, by privacy buckets) a lower one."""
    once = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=step,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    )
    return float(once.self_compose(steps).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), SETTINGS)
def test_between_the_peers_bounds(sigma: float, rate: float, steps: int, delta: float) -> None:
    ours = float(PLD().epsilons([SampledGaussian(rate, sigma, steps)], delta)[0])
    spread = rate * math.sqrt(math.expm1(sigma**-2))
    fine = min(max(spread / 10, 2e-5), 2e-3)
    below = peer(sigma, rate, steps, delta, fine, pessimistic=False)
    above = peer(sigma, rate, steps, delta, fine, pessimistic=True)
    assert below <= ours <= above * 1.002 + 1e-6


@given(mu=st.floats(0.05, 6.0), count=st.integers(1, 3000), delta=st.sampled_from([1e-3, 1e-5, 1e-8, 1e-10]))
@settings(max_examples=40, deadline=None)
def test_unsampled_gaussians_against_the_exact_curve(mu: float, count: int, delta: float) -> None:
    release = Gaussian(math.sqrt(count) / mu, count)
    exact = float(GDP().epsilons([release], delta)[0])
    ours = float(PLD().epsilons([release], delta)[0])
    assert exact * (1 - 1e-8) <= ours <= exact * 1.005 + 1e-4


@pytest.mark.slow
@given(
    sigma=st.floats(0.4, 20),
    rate=st.floats(1e-4, 1),
    steps=st.integers(1, 5000),
    delta=st.sampled_from([1e-3, 1e-6, 1e-9]),
)
@settings(max_examples=40, deadline=None)
def test_never_above_rdp(sigma: float, rate: float, steps: int, delta: float) -> None:
    release = SampledGaussian(rate, sigma, steps)
    by_pld = float(PLD().epsilons([release], delta)[0])
    by_rdp = float(RDP().epsilons([release], delta)[0])
    assert by_pld <= by_rdp * 1.002 + 1e-4


def test_composition_in_parts_is_composition_at_once() -> None:
    whole = PLD().epsilons([SampledGaussian(0.02, 1.2, 300)], 1e-5)[0]
    parts = Composed((SampledGaussian(0.02, 1.2, 100), SampledGaussian(0.02, 1.2, 200)))
    nested = Composed(
        (Composed((SampledGaussian(0.02, 1.2, 150),)), SampledGaussian(0.02, 1.2, 150), Gaussian(9.0, 0))
    )
    np.testing.assert_allclose(PLD().epsilons([parts, nested], 1e-5), whole, rtol=2e-3)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize(("epsilon", "rounds", "join"), [(1.0, 3, 1.0), (0.4, 6, 1.0), (1.0, 4, 0.3), (2.0, 3, 0.1)])
def test_randomised_response_by_enumeration(epsilon: float, rounds: int, join: float) -> None:
    """All transcripts of randomised response in joined rounds; the unjoined ones run without the record."""
    yes = math.exp(epsilon) / (1 + math.exp(epsilon))
    present = np.array([join * yes + (1 - join) * (1 - yes), join * (1 - yes) + (1 - join) * yes])
    absent = np.array([1 - yes, yes])
    p = np.array([np.prod(t) for t in itertools.product(present, repeat=rounds)])
    q = np.array([np.prod(t) for t in itertools.product(absent, repeat=rounds)])
    release = PureDP(epsilon, rounds) if join == 1 else ClientSampled(join, PureDP(epsilon), rounds)
    for delta in (1e-1, 1e-2, 1e-4):
        for accountant in (PLD(), RDP()):
            charged = float(accountant.epsilons([release], delta)[0])
            true = max(hockey_stick(p, q, charged), hockey_stick(q, p, charged))
            assert true <= delta * (1 + 1e-9)
        if join == 1:  # and for pure releases the charge is the best possible
            by_pld = float(PLD().epsilons([release], delta)[0])
            if by_pld > 0.01:
                assert max(hockey_stick(p, q, by_pld * 0.995), hockey_stick(q, p, by_pld * 0.995)) > delta


def test_too_small_delta_is_refused() -> None:
    with pytest.raises(Unsupported, match="1e-10"):
        PLD().epsilons([SampledGaussian(0.01, 1.0, 10)], 1e-12)


def test_rounding_is_taken_off_delta() -> None:
    """The broken twin: the same distribution with its slop forgotten answers a smaller ε."""
    from dataclasses import replace

    from privypurse.accounting.pld import distributions

    honest = distributions(SampledGaussian(0.01, 2.0, 9375), 5e-4)[0]
    assert honest.slop > 0
    assert replace(honest, slop=0.0).epsilon(1e-9) < honest.epsilon(1e-9)


@pytest.mark.parametrize("missing", [1e-15, 1e-14, 1e-12, 1e-6, 0.1])
def test_each_direction_on_its_own_up_to_rates_next_to_one(missing: float) -> None:
    """One step at rate 1 - missing: δ(ε) of removing and of adding, by 40-digit arithmetic, is never above ours."""
    from privypurse.accounting.loss_distribution import sampled_gaussian

    rate, sigma = 1 - missing, 0.3
    remove, add = sampled_gaussian(rate, sigma, 0.01, 1)
    for direction, one in (("remove", remove), ("add", add)):
        losses = (one.lower + np.arange(one.mass.size)) * one.step
        for epsilon in (0.5, 5.0, 12.0, 20.0, 30.0):
            ours = one.infinity + one.slop + float(np.maximum(-np.expm1(epsilon - losses), 0.0) @ one.mass)
            assert mp.mpf(ours) >= one_step_delta(rate, sigma, epsilon, direction)


def one_step_delta(rate: float, sigma: float, epsilon: float, direction: str) -> mp.mpf:
    with mp.workdps(40):
        q, s, e = mp.mpf(rate), mp.mpf(sigma), mp.mpf(epsilon)
        bound = (mp.exp(e if direction == "remove" else -e) - 1 + q) / q
        if bound <= 0:
            return mp.mpf(0)
        x = s**2 * mp.log(bound) + mp.mpf(1) / 2  # where the loss is ε
        if direction == "remove":
            without, with_ = mp.ncdf(-x / s), mp.ncdf(-(x - 1) / s)
            return (1 - q) * without + q * with_ - mp.exp(e) * without
        without, with_ = mp.ncdf(x / s), mp.ncdf((x - 1) / s)
        return without - mp.exp(e) * ((1 - q) * without + q * with_)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7, 1e-4, 0.004, 0.01, 1.0, 30.0, 900.0])
def test_rdp_of_randomised_response_is_never_below_the_truth(epsilon: float) -> None:
    orders = np.array([1.02, 1.5, 2.0, 9.0, 100.0])
    for order, ours in zip(orders, rdp.randomised_response(epsilon, orders), strict=True):
        with mp.workdps(900):
            p = mp.exp(epsilon) / (1 + mp.exp(epsilon))
            a = mp.mpf(order)
            truth = mp.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
            assert truth <= mp.mpf(ours) <= truth * (1 + mp.mpf(10) ** -11)


def test_only_who_takes_no_part_pays_nothing() -> None:
    free = [
        SampledGaussian(0.0, 1.0, 9),
        Gaussian(1.0, 0),
        Composed(()),
        ClientSampled(0.5, SampledGaussian(0.0, 1.0)),
    ]
    next_to_free = [PureDP(1e-9), SampledGaussian(1e-150, 1e3, 10**7), Gaussian(1e9)]
    for accountant in (RDP(np.array([2.0, 8.0])), RDP(), PLD()):
        assert (accountant.epsilons(free, 1e-5) == 0).all()
    assert (RDP(np.array([2.0, 8.0])).epsilons(next_to_free, 1e-10) > 0).all()


@pytest.mark.slow
def test_hopeless_grids_stay_small_and_quick() -> None:
    """Wide and narrow parts together, many parts, and an ε in the millions: each bounded, none a memory cliff."""
    pair = Composed((SampledGaussian(0.01, 1.0, 1000), SampledGaussian(1e-6, 1.0, 1000)))
    alone = float(PLD().epsilons([SampledGaussian(0.01, 1.0, 1000)], 1e-5)[0])
    assert alone * 0.999 <= float(PLD().epsilons([pair], 1e-5)[0]) <= alone * 1.001
    huge = Gaussian(0.1, 10**6)
    exact = float(GDP().epsilons([huge], 1e-5)[0])
    assert exact <= float(PLD().epsilons([huge], 1e-5)[0]) <= exact * 1.01


@pytest.mark.parametrize(("epsilon", "count", "delta"), [(0.01, 30, 1e-2), (0.01, 100, 1e-3), (0.3, 12, 1e-4)])
@pytest.mark.parametrize("apart", [0.0, 3e-13, 9e-10])
def test_pure_releases_that_hardly_differ_are_not_rounded_down(epsilon, count, delta, apart):
    """Randomised response composed term by term: ε that lie just beyond a point of the grid go up to the next."""
    other = epsilon * (1 + apart)
    found = float(PLD().epsilons([Composed((PureDP(epsilon, 1), PureDP(other, count)))], delta)[0])
    yes, own = 1 / (1 + math.exp(-other)), 1 / (1 + math.exp(-epsilon))

    def exact(at: float) -> float:
        terms = []
        for right in range(count + 1):
            many = math.comb(count, right) * yes**right * (1 - yes) ** (count - right)
            for sign, share in ((1, own), (-1, 1 - own)):
                loss = other * (2 * right - count) + sign * epsilon
                terms.append(many * share * max(0.0, -math.expm1(at - loss)))
        return math.fsum(terms)

    assert exact(found) <= delta * (1 + 1e-11)
    assert exact(found * (1 - 1e-3)) > delta  # and it is not far above


def test_a_round_whose_losses_span_too_many_points_is_refused_before_it_takes_all_memory():
    release = SampledRound(0.361, SampledGaussian(1.844e-7, 493.3, 1), 1)
    with pytest.raises(Unsupported, match=r'grid points, more than .*; use the accountant "rdp"'):
        PLD().epsilons([release], 0.059)


def test_one_pure_release_of_a_tiny_epsilon_is_not_rounded_down():
    epsilon, delta = 1.2609675838499564e-08, 5.832873639679825e-10
    with mp.workdps(60):
        top = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        exact = mp.mpf(epsilon) + mp.log1p(-mp.mpf(delta) / top)
        assert float(PLD().epsilons([PureDP(epsilon, 1)], delta)[0]) >= exact

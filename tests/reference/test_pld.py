"""Loss distributions against dp-accounting (from both sides), the exact Gaussian curve and brute force."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from privypurse.accounting import GDP, PLD, RDP, ClientSampled, Composed, Gaussian, PureDP, SampledGaussian
from privypurse.errors import Unsupported

SETTINGS = [
    (2.0, 0.01, 2000, 1e-5),
    (0.7, 0.01, 500, 1e-6),
    (5.0, 0.3, 300, 1e-5),
    (0.5, 0.5, 10, 1e-5),
    (1.0, 0.001, 3000, 1e-7),
    (3.0, 0.999, 50, 1e-5),
    (0.785, 2e-4, 5000, 1e-6),
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

"""The best attacker's advantage, against closed forms, quadrature and another accountant."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from privypurse.accounting import Gaussian, PureDP, SampledGaussian
from privypurse.accounting.advantage import advantage, best_accuracy, total_variation
from privypurse.errors import InvalidInput


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (0.0, 0.2), (0.1, 1e-5), (1.0, 1e-5), (1.0, 0.3), (8.0, 0.0)]
)
def test_the_best_accuracy_is_that_of_the_mechanism_that_reaches_it(epsilon: float, delta: float) -> None:
    """Which tells for certain with probability δ, and else answers by randomised response at ε."""
    yes = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    with_person, without = np.array([delta, yes, 1 - delta - yes, 0.0]), np.array([0.0, 1 - delta - yes, yes, delta])
    right = float(np.maximum(with_person, without).sum() / 2)
    assert best_accuracy(epsilon, delta) == pytest.approx(right, rel=1e-11)
    assert best_accuracy(epsilon, delta) >= right * (1 - 1e-15)
    assert advantage(epsilon, delta) == pytest.approx(float(np.abs(with_person - without).sum() / 2), abs=1e-11)


def test_an_epsilon_that_no_float_can_raise_e_to_tells_everything() -> None:
    assert best_accuracy(1e6, 0.0) == 1.0


@pytest.mark.parametrize("arguments", [(-1.0, 0.0), (math.nan, 0.0), (1.0, -1e-9), (1.0, 1.5)])
def test_what_is_no_promise_is_refused(arguments: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match=r"epsilon|delta"):
        best_accuracy(*arguments)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (5.0, 30), (40.0, 100)])
def test_gaussian_steps_have_a_closed_form(sigma: float, steps: int) -> None:
    exact = 2 * stats.norm.cdf(math.sqrt(steps) / sigma / 2) - 1
    found = total_variation(Gaussian(sigma, steps))
    assert exact * (1 - 1e-12) <= found <= exact * 1.001


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.6), (0.3, 1.0), (0.9, 4.0)])
def test_one_sampled_step_by_quadrature(rate: float, sigma: float) -> None:
    def apart(x: float) -> float:
        return rate * abs(stats.norm.pdf(x, 1, sigma) - stats.norm.pdf(x, 0, sigma)) / 2

    exact = sum(integrate.quad(apart, *ends, limit=200)[0] for ends in [(-60 * sigma, 0.5), (0.5, 60 * sigma)])
    found = total_variation(SampledGaussian(rate, sigma, 1))
    assert exact * (1 - 1e-9) <= found <= exact * 1.001


def test_randomised_response() -> None:
    assert total_variation(PureDP(1.0)) == pytest.approx(math.tanh(0.5), rel=1e-9)


@pytest.mark.slow
def test_releases_that_share_a_point_differ() -> None:
    """At (1, 1e-5) both: the figures of docs/soundness.md, by another accountant."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    for rate, sigma, told in [(0.00129709, 0.6, 0.016), (0.26406068, 10.0, 0.105)]:
        other = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)
        composed = other.self_compose(100)
        assert composed.get_epsilon_for_delta(1e-5) == pytest.approx(1.0, abs=2e-3)
        found = total_variation(SampledGaussian(rate, sigma, 100))
        assert found == pytest.approx(composed.get_delta_for_epsilon(0.0), rel=2e-3)
        assert found == pytest.approx(told, abs=6e-4)
        assert found < advantage(1.0, 1e-5) / 4

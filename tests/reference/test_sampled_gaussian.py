"""The Rényi kernel against high-precision integration, the published sum, Opacus and dp-accounting."""

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import rdp as opacus_rdp

from privypurse.accounting import RDP, SampledGaussian, sampled_gaussian
from privypurse.accounting.rdp import ORDERS

SETTINGS = [
    (0.01, 2.0),
    (1e-4, 1.0),
    (1e-6, 5.0),
    (0.5, 0.5),
    (0.3, 10.0),
    (0.999, 100.0),
    (1e-3, 0.3),
    (0.05, 0.15),
    (0.9, 1.5),
]


def true_rdp(rate: float, sigma: float, order: float) -> mp.mpf:
    """log E[(1-q+q·e^U)^α] / (α-1): a sum for whole orders, else an integral, cut into pieces.

    The moment may differ from 1 by 1e-14 only, and its logarithm needs digits beyond that: 25 were too few.
    """
    with mp.workdps(60 if order == int(order) else 40):
        q, s, a = mp.mpf(rate), mp.mpf(sigma), mp.mpf(order)
        if order == int(order):
            moment = mp.fsum(
                mp.binomial(a, k) * (1 - q) ** (a - k) * q**k * mp.exp(mp.mpf(k * (k - 1)) / (2 * s * s))
                for k in range(int(order) + 1)
            )
        else:

            def density(z: mp.mpf) -> mp.mpf:
                ratio = 1 - q + q * mp.exp((2 * z - 1) / (2 * s * s))
                return mp.exp(-z * z / (2 * s * s)) / (mp.sqrt(2 * mp.pi) * s) * ratio**a

            pieces = [-14 * s, *mp.linspace(-5 * s, a + 5 * s, 7), a + 14 * s]
            moment = mp.quad(density, pieces)
        return mp.log(moment) / (a - 1)


def one(rate: float, sigma: float, orders: list[float]) -> np.ndarray:
    return sampled_gaussian.rdp(np.array([rate]), np.array([sigma]), np.array(orders))[0]


@pytest.mark.parametrize(
    ("rate", "sigma"), [*SETTINGS[:2], *(pytest.param(*each, marks=pytest.mark.slow) for each in SETTINGS[2:])]
)
def test_never_below_the_truth_and_hardly_above(rate: float, sigma: float) -> None:
    orders = [1.02, 1.3, 1.5, 2.0, 2.7, 3.0, 5.5, 9.9, 11.0, 32.0]
    for order, ours in zip(orders, one(rate, sigma, orders), strict=True):
        truth = true_rdp(rate, sigma, order)
        assert mp.mpf(float(ours)) >= truth
        # Beyond 30 nats a step the bound without sampling is used, which is looser on purpose.
        if truth < 25:
            assert float(ours - truth) <= 1e-9 * float(truth) + 3e-10


def test_just_below_a_whole_order_it_is_not_below_the_truth() -> None:
    rate, sigma, order = 1e-7, 2.0, 2.9999999999999982
    assert mp.mpf(float(one(rate, sigma, [order])[0])) >= true_rdp(rate, sigma, order)


@pytest.mark.slow
@given(
    rate=st.floats(1e-7, 1 - 1e-7),
    sigma=st.floats(0.3, 50),
    order=st.one_of(st.integers(2, 200).map(float), st.floats(1.05, 12)),
)
@settings(max_examples=50, deadline=None)
def test_random_settings_never_below_the_truth(rate: float, sigma: float, order: float) -> None:
    assert mp.mpf(float(one(rate, sigma, [order])[0])) >= true_rdp(rate, sigma, order)


@pytest.mark.slow
def test_a_bare_quadrature_is_no_bound() -> None:
    """The broken twin: the same integral by an ordinary rule, not rounded up, falls below the truth somewhere."""

    def bare(rate: float, sigma: float, order: float) -> float:
        z = np.linspace(-8 * sigma, order + 8 * sigma, 400)
        log_f = order * np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * z - 1) / (2 * sigma**2)) - z**2 / (
            2 * sigma**2
        )
        total = np.trapezoid(np.exp(log_f), z) / np.sqrt(2 * np.pi) / sigma
        return float(np.log(total) / (order - 1))

    cases = [(rate, sigma, order) for rate, sigma in SETTINGS for order in (1.3, 5.5)]
    truths = [true_rdp(*case) for case in cases]
    assert any(mp.mpf(bare(*case)) < truth for case, truth in zip(cases, truths, strict=True))
    for (rate, sigma, order), truth in zip(cases, truths, strict=True):
        assert mp.mpf(float(one(rate, sigma, [order])[0])) >= truth


def test_chord_alone_is_above_the_quadrature_and_the_truth() -> None:
    rate, sigma, orders = np.array([0.02]), np.array([1.1]), np.array([1.5, 2.5, 7.3])
    whole = sampled_gaussian.integer_log_moments(rate, sigma, np.array([2, 3, 7, 8]))[0]
    fine = sampled_gaussian.quadrature_log_moments(rate, sigma, orders)[0]
    for k, (order, low, high) in enumerate(
        [(1.5, 0.0, whole[0]), (2.5, whole[0], whole[1]), (7.3, whole[2], whole[3])]
    ):
        chord = low + (high - low) * (order - np.floor(order))
        assert chord > fine[k] >= float(true_rdp(0.02, 1.1, order)) * (order - 1) * (1 - 1e-15)


def test_many_at_once_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(1)
    rates = np.concatenate([10 ** rng.uniform(-7, 0, 60), [0.0, 1.0]])
    sigma = 10 ** rng.uniform(-1, 2, 62)
    together = sampled_gaussian.rdp(rates, sigma, ORDERS)
    for k in (0, 7, 31, 60, 61):
        alone = sampled_gaussian.rdp(rates[k : k + 1], sigma[k : k + 1], ORDERS)[0]
        np.testing.assert_allclose(
            together[k], alone, rtol=1e-12, atol=1e-12
        )  # sums of other lengths round otherwise
    assert (together[60] == 0).all()
    np.testing.assert_allclose(together[61], ORDERS / (2 * sigma[61] ** 2), rtol=1e-12)


def test_agrees_with_opacus_and_dp_accounting_at_whole_orders() -> None:
    orders = [2.0, 3.0, 8.0, 20.0, 33.0]
    for rate, sigma in [(0.01, 2.0), (0.1, 1.0), (0.004, 0.8)]:
        ours = RDP(np.array(orders)).curves([SampledGaussian(rate, sigma, 100)])[0]
        theirs = opacus_rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=100, orders=orders)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        accountant = rdp_privacy_accountant.RdpAccountant(orders)
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(event, 100)
        np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-6)


def test_convex_and_rising_over_the_default_orders() -> None:
    for rate, sigma in [(0.01, 2.0), (1e-3, 1.0), (0.2, 5.0)]:
        cumulant = one(rate, sigma, ORDERS.tolist()) * (ORDERS - 1)
        reachable = cumulant / (ORDERS - 1) < 25
        slopes = np.diff(cumulant[reachable]) / np.diff(ORDERS[reachable])
        assert (np.diff(slopes) >= -1e-9 * np.abs(slopes[1:])).all()


def test_orders_reach_a_thousand() -> None:
    assert ORDERS.max() >= 1000
    assert ORDERS.min() < 1.1

"""Costs at the ends of what floats hold: never 0, never NaN, never below the true number (rule 4)."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest

from privypurse.accounting import RDP, Gaussian, PureDP, SampledGaussian, sampled_gaussian
from privypurse.accounting.filters import CURRENCIES, RenyiCurrency
from privypurse.accounting.rdp import ORDERS
from privypurse.accounting.releases import ClientSampled, Composed, Release, SampledRound
from privypurse.ledger.lifetime import CEILING, Lifetime

ALPHAS = (2, 3, 16, 28)
VALUES = (5e-324, 1e-310, 1e-200, 1e-160, 1e-150, 1e-100, 1e-9, 0.3, 1.0, 1e9, 1e100, 1e150, 1e160, 1e200, 1.7e308)
RATES = (5e-324, 1e-310, 1e-200, 1e-12, 0.5, float(np.nextafter(1, 0)), 1.0)


def log1p(value: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log(1 + value) if value > mpmath.mpf(10) ** -1000 else value - value**2 / 2


def moment(release: Release, alpha: int) -> mpmath.mpf:
    """The Rényi divergence of one release at a whole order, by definition, in thousands of digits."""
    match release:
        case Gaussian(noise, count):
            return count * mpmath.mpf(alpha) / (2 * mpmath.mpf(noise) ** 2)
        case SampledGaussian(rate, noise, count):
            q, square = mpmath.mpf(rate), mpmath.mpf(noise) ** 2
            terms = [
                mpmath.binomial(alpha, k) * (1 - q) ** (alpha - k) * q**k * mpmath.expm1(k * (k - 1) / (2 * square))
                for k in range(2, alpha + 1)
            ]
            return count * log1p(mpmath.fsum(terms)) / (alpha - 1)
        case PureDP(epsilon, count):
            e = mpmath.mpf(epsilon)
            excess = 2 * mpmath.sinh(alpha * e / 2) * mpmath.sinh((alpha - 1) * e / 2) / mpmath.cosh(e / 2)
            return count * log1p(excess) / (alpha - 1)
        case _:
            raise AssertionError(release)


@pytest.mark.parametrize(
    "value",
    [
        *(v for v in VALUES if v < 0.1 or v in (1.0, 1e160)),
        *(pytest.param(v, marks=pytest.mark.slow) for v in VALUES if v == 0.3 or (v > 1e99 and v != 1e160)),
    ],
)
def test_no_cost_is_below_the_true_one(value):
    releases: list[Release] = [Gaussian(value, 3), PureDP(value, 3)]
    releases += [SampledGaussian(rate, value, 3) for rate in RATES]
    with mpmath.workdps(2500), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = RDP(np.array(ALPHAS, dtype=np.float64)).curves(releases)
        assert (found > 0).all()
        for release, row in zip(releases, found.tolist(), strict=True):
            for alpha, cost in zip(ALPHAS, row, strict=True):
                if isinstance(release, PureDP) and value > 1e4:  # randomised response that hides nothing
                    assert cost >= min(3 * value, 1.7e308)
                elif (
                    isinstance(release, SampledGaussian) and value < 1e-4
                ):  # α/2σ², but for a few hundred times log q
                    assert cost >= 3 * (alpha / (2 * max(value, 1e-150) ** 2) - 4e4)
                else:
                    true = moment(release, alpha)
                    assert mpmath.mpf(cost) >= true
                    assert value != 1.0 or true < 1e-295 or mpmath.mpf(cost) <= true * (1 + mpmath.mpf(10) ** -6)


@pytest.mark.slow
def test_nothing_is_nan_and_nothing_is_free_but_taking_no_part():
    accountant = RDP()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in VALUES:
            plain: list[Release] = [Gaussian(value), PureDP(value, 1000), SampledGaussian(1e-200, value, 10**6)]
            rounds = [kind(rate, one) for kind in (ClientSampled, SampledRound) for rate in RATES for one in plain]
            for release in (*plain, *rounds, Composed(tuple(plain))):
                assert (accountant.curves([release]) > 0).all(), release
    nobody = [SampledGaussian(0.0, 1e-200), Gaussian(1e-200, 0), SampledRound(0.0, Gaussian(5e-324)), Composed(())]
    assert (accountant.curves(nobody) == 0).all()


def test_the_twin_without_a_least_cost_is_free(monkeypatch):
    monkeypatch.setattr(sampled_gaussian, "TINY", 0.0)
    assert (RDP(np.array([16.0])).curves([SampledGaussian(1e-200, 1e200), PureDP(1e-200)]) == 0).all()


def test_a_ledger_charges_a_unit_at_least_and_the_ceiling_at_most():
    lifetime = Lifetime.of([(1.0, 1e-5), (2.0, 1e-5)])
    small = [Gaussian(1e200), Gaussian(1.7e308), SampledGaussian(5e-324, 1e308), PureDP(5e-324)]
    assert (lifetime.charges_of(small) == 1).all()
    assert (lifetime.charges_of([Gaussian(1e-200), SampledGaussian(0.5, 5e-324)]) == CEILING).all()


@pytest.mark.parametrize("currency", [*CURRENCIES.values(), RenyiCurrency(ORDERS[:3])], ids=lambda each: each.name)
def test_filters_charge_the_smallest_contribution(currency):
    values = np.array([5e-324, 1e-200, 1e-163])[:, None]
    assert (currency.gaussian(values) > 0).all()
    assert (currency.gaussian(np.zeros(1)) == 0).all()
    assert (currency.gaussian(np.array([1e200])[:, None]) == np.inf).all()
    assert all((currency.pure(float(value)) > 0).all() for value in values[:, 0])

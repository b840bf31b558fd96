"""Orders, limits and charges for life: limits never above and charges never below the truth, in whole units."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from privypurse.accounting import gdp
from privypurse.accounting.filters import renyi_purse
from privypurse.accounting.rdp import ORDERS, RDP
from privypurse.accounting.releases import (
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    SampledGaussian,
    SampledRound,
)
from privypurse.errors import InvalidInput
from privypurse.ledger import lifetime
from privypurse.ledger.lifetime import CEILING, UNIT, ApproximateDP, Lifetime, lifetime_order, units_up

GRANTS = [(0.1, 1e-5), (0.5, 1e-6), (1.0, 1e-5), (8.0, 1e-5), (300.0, 1e-3)]


def exact_purse(epsilon: float, delta: float, order: float) -> Decimal:
    """Canonne, Kamath & Steinke (2020), Proposition 12, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        a, e, d = Decimal(order), Decimal(epsilon), Decimal(delta)
        return e - ((a - 1) / a).ln() + (d.ln() + a.ln()) / (a - 1)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_limits_are_the_purse_rounded_down(share: float) -> None:
    for rung in Lifetime.of(GRANTS, share).rungs:
        keep = Decimal(1) - Decimal(share)
        with localcontext() as context:
            context.prec = 60
            truth = exact_purse(float(rung.epsilon), float(rung.delta), rung.order)
            truth += (keep - 1) * Decimal(rung.epsilon) + keep.ln() / (Decimal(rung.order) - 1)
            truth *= 2**40
        assert truth * (1 - Decimal("1e-9")) - 2 < rung.limit <= truth


def test_the_order_is_the_lowest_that_is_nearly_the_best_for_gaussians() -> None:
    for epsilon, delta in GRANTS:
        worth = [exact_purse(epsilon, delta, order) / Decimal(order) for order in ORDERS.tolist()]
        good = [
            order for order, one in zip(ORDERS.tolist(), worth, strict=True) if one >= max(worth) * Decimal("0.97")
        ]
        assert lifetime_order(epsilon, delta) == min(good)


def gaussian_truth(sigma: float, order: float) -> Fraction:
    """α/(2σ²) in units, exactly."""
    return Fraction(order) / (2 * Fraction(sigma) ** 2) / Fraction(UNIT)


def never_below(ladder: Lifetime) -> bool:
    sigmas = [0.7, 3.0, 21.3, 1e3, 1e5, 3e6, 1e7]
    charges = ladder.charges_of([Gaussian(sigma) for sigma in sigmas])
    return all(
        charges[row, column] >= gaussian_truth(sigma, rung.order)
        for row, sigma in enumerate(sigmas)
        for column, rung in enumerate(ladder.rungs)
    )


def test_gaussian_charges_are_the_truth_rounded_up() -> None:
    ladder = Lifetime.of(GRANTS)
    assert never_below(ladder)
    for sigma in (0.7, 21.3, 1e5):
        for charge, rung in zip(ladder.charges_of([Gaussian(sigma)])[0], ladder.rungs, strict=True):
            truth = gaussian_truth(sigma, rung.order)
            assert charge <= truth * (1 + Fraction(1, 10**11)) + 1


def test_a_charge_rounded_down_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "units_up", lambda value: np.floor(np.ldexp(value, 40)).astype(np.int64))
    assert not never_below(Lifetime.of(GRANTS))


def test_pure_and_sampled_charges_bound_the_divergence_to_many_digits() -> None:
    ladder = Lifetime.of([(1.0, 1e-5)])
    alpha = mpmath.mpf(ladder.rungs[0].order)
    assert alpha == int(alpha)
    pure, sampled = ladder.charges_of([PureDP(0.3), SampledGaussian(0.02, 1.1, 50)])[:, 0]
    with mpmath.workdps(50):
        p = mpmath.exp("0.3") / (1 + mpmath.exp("0.3"))
        moment = p**alpha * (1 - p) ** (1 - alpha) + (1 - p) ** alpha * p ** (1 - alpha)
        truth = mpmath.log(moment) / (alpha - 1) * 2**40
        assert truth <= pure <= truth * (1 + mpmath.mpf("1e-9")) + 1
        q, sigma = mpmath.mpf(0.02), mpmath.mpf(1.1)
        terms = (
            mpmath.binomial(alpha, k) * (1 - q) ** (alpha - k) * q**k * mpmath.exp(k * (k - 1) / (2 * sigma**2))
            for k in range(int(alpha) + 1)
        )
        truth = 50 * mpmath.log(mpmath.fsum(terms)) / (alpha - 1) * 2**40
        assert truth <= sampled <= truth * (1 + mpmath.mpf("1e-9")) + 1


TINY = [SampledGaussian(1e-160, 5.0), SampledGaussian(1e-300, 5.0), Gaussian(1e150), PureDP(1e-200)]


def test_what_a_float_cannot_hold_costs_a_unit() -> None:
    assert (Lifetime.of(GRANTS).charges_of(TINY) == 1).all()
    assert units_up(5e-324) == 1
    assert units_up(0.0) == 0


def test_a_subnormal_charge_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two floors hold it up: that of the curves, and that of the charges."""
    honest = RDP.curves

    def underflowing(self: RDP, releases: Any) -> Any:
        curves = honest(self, releases)
        return np.where(curves < 1e-300, 0.0, curves)

    monkeypatch.setattr(RDP, "curves", underflowing)
    assert (Lifetime.of(GRANTS).charges_of(TINY) == 1).all()
    monkeypatch.setattr(lifetime, "never_lost", lambda charges, releases: charges)
    assert (Lifetime.of(GRANTS).charges_of(TINY) == 0).any()


def test_who_takes_no_part_pays_nothing() -> None:
    free = [SampledGaussian(0.0, 1.0, 10), Gaussian(1.0, 0), Composed(()), SampledRound(0.0, Gaussian(1.0))]
    assert (Lifetime.of(GRANTS).charges_of(free) == 0).all()


def test_rounds_are_charged_as_by_the_whole_grid_of_orders() -> None:
    from privypurse.accounting.rdp import RDP

    ladder = Lifetime.of(GRANTS[:3])
    releases = [SampledRound(0.2, Gaussian(2.0, 5)), ClientSampled(0.5, Composed((Gaussian(3.0), PureDP(0.1))))]
    curves = RDP().curves(releases)[:, np.searchsorted(ORDERS, [rung.order for rung in ladder.rungs])]
    assert (ladder.charges_of(releases) >= curves / UNIT).all()
    assert (ladder.charges_of(releases) <= curves / UNIT + 1).all()


@pytest.mark.parametrize("wrong", [-1e-9, math.inf, math.nan])
def test_no_charge_is_negative_infinite_or_no_number(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="finite divergence"):
        units_up([0.1, wrong])


def test_a_charge_beyond_every_purse_stops_at_the_ceiling() -> None:
    assert units_up([1e30, 1e308]).tolist() == [CEILING, CEILING]
    assert all(rung.limit < CEILING for rung in Lifetime.of([(2.0**18, 0.5)]).rungs)


def test_what_is_known_as_epsilon_and_delta_is_paid_from_the_part_set_apart() -> None:
    ladder = Lifetime.of([(1.0, 1e-5), (2.0, 1e-6)], set_apart=0.25)
    charges = ladder.charges_of([Gaussian(10.0), ApproximateDP(0.1, 1e-9)])
    assert charges.shape == (2, 4)
    assert (charges[0, 2:] == 0).all()
    assert (charges[1, :2] == 0).all()
    assert charges[1, 2] == math.ceil(Fraction(0.1) * 2**40)
    assert charges[1, 3] == math.ceil(Fraction(1e-9) * 2**60)
    assert ladder.limits[0, 2:].tolist() == [2**38, math.floor(Fraction(0.25) * Fraction(1e-6) * 2**60)]
    with pytest.raises(InvalidInput, match="set_apart"):
        Lifetime.of([(1.0, 1e-5)]).charges_of([ApproximateDP(0.1, 1e-9)])


def test_a_person_is_limited_by_their_rung_and_all_above() -> None:
    """Limits may fall as ε rises: the promise of rung k is also about those who stay below it."""
    ladder = Lifetime.of([(1.0, 1e-5), (1.03, 1e-5), (2.0, 1e-12)])
    limits = [rung.limit for rung in ladder.rungs]
    assert ladder.limits.tolist() == [
        limits,
        [CEILING, *limits[1:]],
        [CEILING, CEILING, limits[2]],
    ]


def test_a_cap_is_what_a_gaussian_release_of_that_epsilon_costs() -> None:
    from privypurse.accounting import gdp

    ladder = Lifetime.of([(0.5, 1e-5), (2.0, 1e-5)])
    caps = ladder.caps(np.zeros((1, 2), dtype=np.int64), 0.2)
    sigma = 1 / float(gdp.mu(0.2, 1e-5))
    charges = ladder.charges_of([Gaussian(sigma)])[0]
    for k in range(2):
        assert charges[k] <= caps[k, k] <= charges[k] * (1 + 1e-5)
    whole = ladder.caps(np.zeros((1, 2), dtype=np.int64), None)
    assert [whole[k, k] for k in range(2)] == [rung.limit for rung in ladder.rungs]
    most = ladder.caps(np.zeros((1, 2), dtype=np.int64), 100.0)
    assert (most == whole).all()


def test_a_release_that_was_solved_for_the_cap_to_six_digits_is_within_it() -> None:
    ladder = Lifetime.of(GRANTS)
    for k, rung in enumerate(ladder.rungs):
        noise = (1 - 4e-7) / gdp.mu(0.05, np.array(rung.delta))
        charge = ladder.charges_of([Gaussian(float(noise))])
        assert charge[0, k] <= ladder.caps(charge, 0.05)[k, k]


def test_at_other_orders_a_cap_is_the_most_that_an_affordable_row_costs() -> None:
    ladder = Lifetime.of([(0.5, 1e-5), (2.0, 1e-5)])
    table = np.array([[10, 1], [2000, 5], [CEILING, 7], [CEILING, CEILING]])
    caps = ladder.caps(table, None)
    assert caps[0, 1] == 5
    assert caps[1, 0] == CEILING


BAD_GRANTS = [
    ([], "1 to 8"),
    ([(0.1 * k, 1e-5) for k in range(1, 10)], "1 to 8"),
    ([(1.0, 1e-5), (0.5, 1e-5)], "rise"),
    ([(1.0, 1e-5), (1.0, 1e-6)], "rise"),
    ([(0.0, 1e-5)], "ε"),
    ([(1.0, 0.0)], "δ"),
    ([(1.0, 1.0)], "δ"),
    ([(1e-6, 1e-300)], "holds nothing"),
    ([1.0], "pairs"),
    (3, "pairs"),
]


@pytest.mark.parametrize(("grants", "said"), BAD_GRANTS)
def test_bad_rungs_are_refused(grants: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Lifetime.of(grants)


def test_an_epsilon_off_the_ladder_is_refused_with_the_rungs() -> None:
    ladder = Lifetime.of([(0.5, 1e-5), (1.0, 1e-5)])
    assert ladder.rung_of([1.0, 0.5]).tolist() == [1, 0]
    for wrong in (0.7, 1.0000001, 0.1, 3.0, math.nan):
        with pytest.raises(InvalidInput, match=r"choose one of 0\.5, 1"):
            ladder.rung_of([0.5, wrong])


def test_purses_here_are_those_of_the_filter() -> None:
    rung = Lifetime.of([(1.0, 1e-5)]).rungs[0]
    held = renyi_purse(np.asarray(rung.order), np.asarray(1.0), np.asarray(1e-5))
    assert rung.limit == math.floor(float(held) / UNIT)

"""Trade-off curves against closed forms: no test does better than the curve says, and the best comes close."""

import numpy as np
import pytest
from scipy import stats

from privypurse.accounting import ClientSampled, Gaussian, PureDP, SampledGaussian, trade_off
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.trade_off import TradeOff

ERRORS = (1e-6, 1e-3, 0.05, 0.3, 0.7, 0.99)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 5.0])
def test_gaussian_curves_are_the_closed_form_from_above(mu):
    for curve in (TradeOff.gaussian(mu), TradeOff.of_release(Gaussian(1 / mu, 1))):
        for x in ERRORS:
            best = stats.norm.sf(stats.norm.isf(x) - mu)  # Neyman and Pearson
            assert best * (1 - 1e-12) <= curve.most(x) <= best * 1.001
            assert curve.least(best) <= x * (1 + 1e-12)


def thresholds(rate, sigma, x):
    """P and Q of {value > x}, the best events of one sampled step, and of the opposite ones."""
    out, drawn = stats.norm.sf(x, scale=sigma), stats.norm.sf(x, loc=1, scale=sigma)
    with_, without = (1 - rate) * out + rate * drawn, out
    return (with_, without), (1 - with_, 1 - without)


def exceeded(curve, rate, sigma):
    """By how much threshold tests beat the curve, in either direction, at most; and how far below they all stay."""
    gaps = []
    for x in np.linspace(-4 * sigma, 5 * sigma, 50):
        above, below = thresholds(rate, sigma, x)
        gaps += [above[0] - curve.most(above[1]), below[1] - curve.most(below[0])]
    return max(gaps), min(gaps)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.7), (0.3, 1.0), (0.9, 2.0)])
def test_no_threshold_beats_the_curve_of_a_sampled_step(rate, sigma):
    most, _ = exceeded(TradeOff.of_release(SampledGaussian(rate, sigma, 1)), rate, sigma)
    assert -2e-4 < most <= 1e-12


def test_a_curve_of_one_direction_alone_is_beaten_in_the_other(monkeypatch):
    real = trade_off.distributions
    monkeypatch.setattr(trade_off, "distributions", lambda release, step: real(release, step)[1:])
    most, _ = exceeded(TradeOff.of_release(SampledGaussian(0.3, 1.0, 1)), 0.3, 1.0)
    assert most > 1e-3


def guessed(rate, sigma):
    """How often somebody is right, and wrong, who says *in* above one value and *out* below another."""
    for high in np.linspace(-2, 4, 13):
        for low in np.linspace(-4, high, 13):
            (in_, by_chance), (_, _) = thresholds(rate, sigma, high)
            (_, _), (missed, out) = thresholds(rate, sigma, low)
            yield (in_ + out) / 2, (by_chance + missed) / 2


def test_no_pair_of_thresholds_beats_the_curve_of_guesses():
    """For one sampled step these are the best guesses; the curve of either direction alone is wider."""
    step = SampledGaussian(0.3, 1.0, 1)
    curve, wider = TradeOff.of_guesses(step), TradeOff.of_release(step)
    pairs = list(guessed(0.3, 1.0))
    assert -1e-3 < max(right - curve.most(wrong) for right, wrong in pairs) <= 1e-12
    slack = [wider.most(wrong) - curve.most(wrong) for _, wrong in pairs]
    assert min(slack) > -1e-12
    assert max(slack) > 0.01


def test_a_curve_by_the_smaller_of_both_directions_is_beaten_by_guesses():
    epsilon, removing, adding = trade_off._lines(SampledGaussian(0.3, 1.0, 1))
    broken = TradeOff(epsilon, np.minimum(removing, adding))
    assert max(right - broken.most(wrong) for right, wrong in guessed(0.3, 1.0)) > 1e-3


def test_pure_and_approximate_dp():
    curve = TradeOff.of_release(PureDP(1.0, 1))
    best = np.e / (1 + np.e)  # randomised response: true with this chance, and the lie at 1 - it
    assert best <= curve.most(1 - best) <= best + 1e-3
    curve = TradeOff.approximate(1.0, 0.01)
    assert curve.most(0.1) == pytest.approx(np.e * 0.1 + 0.01)
    assert curve.most(0.9) == pytest.approx(1 - (1 - 0.01 - 0.9) / np.e)


def test_what_is_most_and_least_are_inverse():
    curve = TradeOff.of_release(SampledGaussian(0.1, 1.0, 20))
    for x in ERRORS:
        assert curve.least(curve.most(x)) == pytest.approx(x, rel=1e-6)


def test_the_slop_and_infinite_losses_of_a_distribution_are_in_the_curve(monkeypatch):
    sure = LossDistribution(0.1, 0, np.ones(1) * 0.75, 0.2, slop=0.05)
    monkeypatch.setattr(trade_off, "distributions", lambda release, step: (sure,))
    monkeypatch.setattr(trade_off, "discretisation", lambda release: 0.1)
    assert TradeOff.of_release(Gaussian(1.0, 1)).most(1e-9) >= 0.25


def test_client_sampling_has_a_curve_too():
    inner = SampledGaussian(0.1, 1.0, 5)
    assert TradeOff.of_release(ClientSampled(0.5, inner, 2)).most(0.1) < TradeOff.of_release(inner).most(0.1) + 0.1

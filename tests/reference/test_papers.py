"""Figures that the papers print, recomputed."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.accounting import RDP, ClientSampled, SampledGaussian
from privypurse.assignment import curve_fit
from privypurse.budgets import preferences

# Boenisch et al. (2023), Tables 4 and 6: n, B, steps, C, σ of DP-SGD.
DATA = {"mnist": (60_000, 512, 9375, 0.2), "svhn": (73_257, 1024, 2146, 0.9), "cifar10": (50_000, 1024, 1465, 0.4)}
SHARES = {"34-43-23": (0.34, 0.43, 0.23), "54-37-9": (0.54, 0.37, 0.09)}
UNIFORM = {"mnist": 3.425, "svhn": 2.747, "cifar10": 3.293}
SAMPLE = {
    ("mnist", "34-43-23"): (2.024, (0.005, 0.009, 0.013)),
    ("mnist", "54-37-9"): (2.376, (0.006, 0.011, 0.016)),
    ("svhn", "34-43-23"): (1.667, (0.008, 0.015, 0.021)),
    ("svhn", "54-37-9"): (1.937, (0.009, 0.018, 0.025)),
    ("cifar10", "34-43-23"): (1.965, (0.012, 0.022, 0.031)),
    ("cifar10", "54-37-9"): (2.300, (0.014, 0.026, 0.037)),
}
# Printed for MNIST; for the others the printed σ_scale contradicts the paper's own Eq. 10, which gives these.
SCALE = {
    ("mnist", "34-43-23"): 2.063,
    ("mnist", "54-37-9"): 2.418,
    ("svhn", "34-43-23"): 1.717,
    ("svhn", "54-37-9"): 1.990,
    ("cifar10", "34-43-23"): 2.011,
    ("cifar10", "54-37-9"): 2.348,
}
CLIP = {
    ("svhn", "34-43-23"): (0.561, 0.970, 1.270),
    ("svhn", "54-37-9"): (0.651, 1.125, 1.472),
    ("cifar10", "34-43-23"): (0.244, 0.430, 0.574),
    ("cifar10", "54-37-9"): (0.285, 0.502, 0.671),
}


def table_six(data: str, shares: str, method: str, accountant: str = "rdp") -> pp.Plan:
    n, batch, steps, clip = DATA[data]
    epsilon = preferences.levels(n, (1.0, 2.0, 3.0), SHARES[shares], np.random.default_rng(0))
    budgets = pp.Budgets(epsilon, delta=1e-5)
    return pp.plan(budgets, method, steps=steps, batch_size=batch, clip_norm=clip, accountant=accountant)


@pytest.mark.parametrize("data", DATA)
def test_table_6_uniform(data: str) -> None:
    assert table_six(data, "34-43-23", "uniform").noise_multiplier == pytest.approx(UNIFORM[data], rel=0.015)


@pytest.mark.parametrize("case", SAMPLE, ids="/".join)
def test_table_6_sample(case: tuple[str, str]) -> None:
    plan = table_six(*case, "sample")
    sigma, rates = SAMPLE[case]
    assert plan.noise_multiplier == pytest.approx(sigma, rel=0.015)
    np.testing.assert_allclose(plan.levels.rate, rates, atol=0.00065)  # printed to three places


@pytest.mark.parametrize("case", SCALE, ids="/".join)
def test_table_6_scale(case: tuple[str, str]) -> None:
    plan = table_six(*case, "scale")
    assert plan.noise_multiplier == pytest.approx(SCALE[case], rel=0.015)
    if case in CLIP:
        np.testing.assert_allclose(plan.levels.clip_norm, CLIP[case], rtol=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["uniform", "sample", "scale"])
def test_loss_distributions_need_6_to_8_percent_less_noise(method: str) -> None:
    by_rdp = table_six("mnist", "34-43-23", method).noise_multiplier
    by_pld = table_six("mnist", "34-43-23", method, "pld").noise_multiplier
    assert 0.05 < 1 - by_pld / by_rdp < 0.085


@pytest.mark.parametrize(
    ("rounds", "steps", "join", "sigma", "delta", "budget", "really"),
    [(20, 5, 0.5, 1.0, 1e-3, 0.2, (0.8, 1.1)), (15, 50, 0.5, 4.0, 1e-4, 0.5, (0.02, 0.06))],
)
def test_a_fitted_curve_is_no_bound(
    rounds: int, steps: int, join: float, sigma: float, delta: float, budget: float, really: tuple[float, float]
) -> None:
    """Liu et al. (2024), Figure 5 refitted: R² above 0.99, and yet 0.2 costs about 0.94, and 0.5 uses about 0.04."""

    def at(rate: float) -> ClientSampled:
        return ClientSampled(join, SampledGaussian(rate, sigma, steps), rounds)

    curve = curve_fit.fit(at, delta)
    assert curve.r_squared > 0.99
    rate = float(curve.rate(np.array([budget]))[0])
    spent = float(RDP().epsilons([at(rate)], delta)[0])
    assert really[0] < spent < really[1]

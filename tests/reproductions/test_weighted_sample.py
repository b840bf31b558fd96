"""Weights against the bias of Sample: charged, they keep every ε; left uncharged, they overdraw the strict."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.accounting import PLD, SampledGaussian
from privypurse.errors import InvalidInput
from reproductions.plans import method_of
from reproductions.weighted_sample import WeightedSample

EPSILON, STEPS, BATCH = np.repeat([0.5, 3.0], 300_000), 100, 60_000


def _plan(gamma: float, noise: float | None) -> pp.Plan:
    budgets = pp.Budgets(EPSILON, delta=1e-7)
    how = {"steps": STEPS, "batch_size": BATCH, "accountant": "rdp"}
    return pp.plan(budgets, WeightedSample(gamma), noise_multiplier=noise, **how)


def _spent(plan: pp.Plan) -> np.ndarray:
    """By the other accountant, from rates and clip norms alone."""
    table = plan.levels
    noise = plan.noise_multiplier * plan.clip_norm / table.clip_norm
    faced = [SampledGaussian(rate, sigma, STEPS) for rate, sigma in zip(table.rate, noise, strict=True)]
    return PLD().epsilons(faced, 1e-7)


def test_without_weights_it_is_sample():
    ours = _plan(0.0, None)
    sample = pp.plan(pp.Budgets(EPSILON, delta=1e-7), steps=STEPS, batch_size=BATCH, accountant="rdp")
    assert ours.noise_multiplier == pytest.approx(sample.noise_multiplier, rel=5e-3)
    assert ours.levels.rate == pytest.approx(sample.levels.rate, rel=0.02)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_charged_weights_keep_every_budget_and_level_the_contributions(gamma):
    plan = _plan(gamma, 12.0)
    assert (plan.levels.rate > 0).all()
    assert (_spent(plan) <= plan.levels.epsilon).all()
    strict, generous = plan.levels.rate * plan.levels.clip_norm
    unweighted = _plan(0.0, 12.0).levels.rate
    assert strict / generous > unweighted[0] / unweighted[1]
    if gamma == 1.0:
        assert strict == pytest.approx(generous)


def test_weights_that_are_not_charged_overdraw_the_strict():
    table = _plan(0.0, 3.0).levels
    weight = BATCH / EPSILON.size / table.rate
    faced = [SampledGaussian(q, 3.0 / w, STEPS) for q, w in zip(table.rate, weight, strict=True)]
    spent = PLD().epsilons(faced, 1e-7)
    assert spent[0] > 1.5 * table.epsilon[0]
    assert spent[1] < table.epsilon[1]


def test_gamma_is_between_none_and_all():
    with pytest.raises(InvalidInput, match="gamma"):
        WeightedSample(1.5)
    assert method_of("weighted-sample", {"gamma": 0.25}) == WeightedSample(0.25)

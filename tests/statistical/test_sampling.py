"""Coins and noise: the right law is accepted, one that is 5 % off is rejected."""

import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

import privypurse as pp
from privypurse.randomness import SecureRandomness, SeededRandomness
from privypurse.training.sampling import PoissonSampler

STRICT = 1e-6  # how unlikely a right sampler may look before the test fails


def seeded(seed: int) -> SeededRandomness:
    with pytest.warns(pp.errors.PrivyPurseWarning, match="tests"):
        return SeededRandomness(seed)


def counts(rates: np.ndarray, draws: int, source: object) -> np.ndarray:
    sampler, total = PoissonSampler(rates), np.zeros(rates.size, dtype=np.int64)
    for step in range(draws):
        np.add.at(total, sampler.draw(source.for_step(step)), 1)
    return total


def looks_like(total: int, trials: int, rate: float) -> float:
    return float(stats.binomtest(int(total), trials, rate).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-4, 3e-3, 0.02, 0.13, 0.25, 0.7])
@pytest.mark.parametrize("make", [SecureRandomness, lambda: seeded(1)], ids=["secure", "seeded"])
def test_rates_are_the_accounted_ones(rate: float, make: object) -> None:
    """Among rates of other classes, those of one rate: accepted as they are, rejected 5 % above and below."""
    people, draws = 60_000, max(20, int(12 / rate * 3000 / 60_000))
    rates = np.concatenate([np.full(people, rate), np.geomspace(1e-5, 1, 500)])
    total = int(counts(rates, draws, make())[:people].sum())
    trials = people * draws
    assert looks_like(total, trials, rate) > STRICT
    assert looks_like(total, trials, rate * 1.05) < STRICT
    assert looks_like(total, trials, rate * 0.95) < STRICT


def test_every_rate_within_a_class_is_kept_apart() -> None:
    """Rates between 0.01 and 0.0199 share a class; each of 20 groups has its own."""
    values = np.linspace(0.0101, 0.0199, 20)
    total = counts(np.repeat(values, 2_000), 300, SecureRandomness()).reshape(20, 2_000).sum(axis=1)
    pvalues = [looks_like(t, 600_000, rate) for t, rate in zip(total, values, strict=True)]
    assert min(pvalues) > STRICT / 20
    assert looks_like(total[0], 600_000, values[-1]) < STRICT


@pytest.mark.parametrize("make", [SecureRandomness, lambda: seeded(1)], ids=["secure", "seeded"])
def test_units_and_steps_are_independent(make: object) -> None:
    """The number drawn in a step varies like a sum of independent coins, and does not lean on the step before."""
    rates = np.full(4_000, 0.05)
    sampler, source = PoissonSampler(rates), make()
    sizes = np.array([sampler.draw(source.for_step(step)).size for step in range(1500)])
    expected = 4_000 * 0.05 * 0.95
    ratio = float(sizes.var(ddof=1) / expected)
    spread = stats.chi2.ppf([STRICT, 1 - STRICT], 1499) / 1499
    assert spread[0] < ratio < spread[1]
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 5.5 / math.sqrt(1499)
    # A sampler of fixed batches, or one that repeats itself, would not pass.
    assert not spread[0] < np.full(1500, 200.0).var(ddof=1) / expected < spread[1]


class Coins:
    """Hits the first place at once, and decides with a given second coin whether it is kept."""

    def __init__(self, second: float) -> None:
        self._second = second

    def uniform(self, count: int) -> np.ndarray:
        return np.ones(count) if count > 1 else np.full(count, self._second)


@pytest.mark.parametrize("rate", [1e-7, 3e-11, 2e-14])
def test_no_rate_is_exceeded_by_the_grain_of_the_coins(rate: float) -> None:
    """A place is hit when a uniform (a multiple of 2^-53) lies above 1 - rate; then a second coin decides."""
    most = int(rate * 2**53) + 3
    uniforms = 1.0 - np.arange(most - 6, most) * 2.0**-53
    hit = np.floor(np.log(uniforms) / np.log1p(-rate)) == 0
    hits = (most - 6 + int(hit.sum())) * 2.0**-53
    sampler = PoissonSampler(np.array([rate]))
    share = 1.0 - 2.0**-50 / rate
    kept = [sampler.draw(Coins(u)).size for u in (share * 0.99, share * 1.001)]
    assert hits * share <= rate
    assert hits * share >= rate - 2.0**-49
    assert kept == [1, 0] or share * 1.001 > 1
    # Coins of float32, which are multiples of 2^-24, overshoot a rate of 1e-7 by 19 %.
    assert math.ceil(1e-7 * 2**24) * 2.0**-24 / 1e-7 == pytest.approx(1.19, abs=0.01)


def test_nobody_is_drawn_twice_and_extremes_are_exact() -> None:
    rates = np.concatenate([np.ones(50), np.zeros(50), np.full(1000, 0.3)])
    for _ in range(20):
        drawn = PoissonSampler(rates).draw(SecureRandomness())
        assert np.unique(drawn).size == drawn.size
        assert set(range(50)) <= set(drawn.tolist())
        assert not set(range(50, 100)) & set(drawn.tolist())
    assert PoissonSampler(np.zeros(5)).draw(SecureRandomness()).size == 0
    assert PoissonSampler(np.array([1e-12])).draw(SecureRandomness()).size == 0


@pytest.mark.slow
def test_noise_is_standard_normal() -> None:
    draws = SecureRandomness().normal(400_001).numpy()
    assert draws.dtype == np.float64
    assert draws.size == 400_001
    assert stats.kstest(draws, "norm").pvalue > STRICT
    assert stats.kstest(draws * 1.05, "norm").pvalue < STRICT
    assert stats.kstest(draws + 0.02, "norm").pvalue < STRICT
    halves = draws[:400_000].reshape(2, -1)  # cosine and sine of the same angle are independent
    assert abs(np.corrcoef(halves)[0, 1]) < 5.5 / math.sqrt(200_000)
    assert abs(np.corrcoef(halves**2)[0, 1]) < 5.5 / math.sqrt(200_000)
    assert np.abs(draws).max() > 4


def test_tails_are_there() -> None:
    """One in 15,787 normals is beyond four deviations, and none of them is cut."""
    draws = SecureRandomness().normal(4_000_000).abs()
    for bound in (3.0, 4.0):
        assert looks_like(int((draws > bound).sum()), 4_000_000, float(2 * stats.norm.sf(bound))) > STRICT


def test_two_sources_share_nothing_and_a_seed_repeats() -> None:
    assert not torch.equal(SecureRandomness().normal(10), SecureRandomness().normal(10))
    source = SecureRandomness()
    assert not torch.equal(source.normal(10), source.normal(10))
    one, other = seeded(3), seeded(3)
    assert torch.equal(one.for_step(7).normal(10), other.for_step(7).normal(10))
    assert np.array_equal(one.for_step(7).uniform(10), other.for_step(7).uniform(10))
    assert not torch.equal(one.for_step(7).normal(10), one.for_step(8).normal(10))
    assert not np.array_equal(one.for_step(7, rank=0).uniform(10), one.for_step(7, rank=1).uniform(10))


def test_a_forked_process_has_noise_of_its_own() -> None:
    """A worker that inherited the stream would repeat its parent's noise."""
    source = SecureRandomness()
    source.normal(3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, source.normal(8).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 64))
    assert theirs.size == 8
    assert not np.array_equal(theirs, source.normal(8).numpy())

"""The noise has the distribution it says, and another distribution would be noticed."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from privypurse.errors import PrivyPurseWarning
from privypurse.queries.noise import Noise

COUNT = 200_000
RARELY = 1e-7


def test_distribution():
    drawn, law = Noise().normal(COUNT), stats.norm
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, law.cdf).pvalue > RARELY
    for wrong in (0.95, 1.05):
        assert stats.kstest(drawn * wrong, law.cdf).pvalue < RARELY
    beyond = int((np.abs(drawn) > 4).sum())
    assert stats.binomtest(beyond, COUNT, 2 * law.sf(4)).pvalue > RARELY


def test_normal_deviation_to_a_percent():
    drawn = Noise().normal(COUNT)

    def chance(values):
        squares = float(np.square(values).sum())
        return 2 * min(stats.chi2.cdf(squares, COUNT), stats.chi2.sf(squares, COUNT))

    assert chance(drawn) > RARELY
    assert chance(drawn * 1.02) < RARELY
    assert chance(drawn * 0.98) < RARELY


def test_the_two_numbers_of_one_transform_are_independent():
    first, second = np.split(Noise().normal(COUNT), 2)
    for one, other in ((first, second), (first**2, second**2), (np.abs(first), np.abs(second))):
        assert stats.pearsonr(one, other).pvalue > RARELY
    assert stats.pearsonr(first**2, first**2 + second).pvalue < RARELY


def test_extreme_words_give_finite_noise():
    class Extreme(Noise):
        def _words(self, count):
            return np.full(count, self.word, dtype=np.uint64)

    for word in (0, 2**64 - 1):
        source = Extreme()
        source.word = word
        assert np.isfinite(source.normal(5)).all()
    source.word = 0
    assert 9 < np.abs(source.normal(1)[0]) < 10


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_count(count):
    assert Noise().normal(count).shape == (count,)


def test_secure_noise_never_repeats_and_a_seed_does_and_says_so():
    assert not np.intersect1d(Noise().normal(1000), Noise().normal(1000)).size
    assert Noise().secure
    drawn = []
    for seed in (1, 1, 2):
        with pytest.warns(PrivyPurseWarning, match="nothing is private"):
            source = Noise(seed)
        assert not source.secure
        drawn.append(source.normal(10).tobytes())
    assert drawn[0] == drawn[1] != drawn[2]
    for bad in (-1, 1.5, True, "1"):
        with pytest.raises(pp.InvalidInput, match="seed"):
            Noise(bad)


@pytest.mark.slow
def test_no_torch_is_loaded():
    code = (
        "import sys, privypurse.queries, privypurse.queries.statistics; print({'torch', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

"""ε of whole trajectories against dp-accounting (from both sides), the exact Gaussian curve, and our own PLD."""

import functools
import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from privypurse.accounting import PLD, Composed, SampledGaussian, gdp, loss_distribution, trajectories
from privypurse.accounting.characteristic_functions import Folded, Logarithms, Spectra, first_below
from privypurse.errors import InvalidInput, Unsupported

DELTAS = st.sampled_from([1e-3, 1e-5, 1e-7])


def composed(counts, rate, sigmas):
    pairs = zip(sigmas, counts, strict=True)
    return Composed(tuple(SampledGaussian(rate, float(sigma), int(count)) for sigma, count in pairs if count))


def by_pld(counts, rate, sigmas, delta):
    return PLD().epsilons([composed(row, rate, sigmas) for row in counts], delta)


def peer(counts, rate, sigmas, delta, pessimistic):
    """dp-accounting's ε of one record: an upper bound, or (optimistic, by privacy buckets) a lower one."""
    levels = [(float(sigma), int(count)) for sigma, count in zip(sigmas, counts, strict=True) if count]
    spread = min(rate * math.sqrt(math.expm1(min(sigma**-2, 20))) for sigma, _ in levels)
    parts = [
        privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=sigma,
            sampling_prob=rate,
            value_discretization_interval=min(max(spread / 10, 1e-5), 2e-3),
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(count)
        for sigma, count in levels
    ]
    return float(functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "sigmas", "counts", "delta"),
    [
        (0.017, [1.2, 2.0, 5.0], [[500, 1000, 300], [3, 0, 40], [0, 0, 2000], [1, 0, 0]], 1e-5),
        (0.3, [4.0, 10.0], [[50, 100], [1, 1], [0, 7]], 1e-6),
        pytest.param(1e-3, [0.6, 1.0], [[100, 400], [2, 0], [0, 1]], 1e-6, marks=pytest.mark.slow),
        (0.5, [0.5, 1.0], [[3, 2], [1, 0]], 1e-4),
    ],
)
def test_between_the_peers_bounds(rate, sigmas, counts, delta):
    ours = trajectories.epsilons(np.array(counts), rate, np.array(sigmas), delta)
    for row, mine in zip(counts, ours, strict=True):
        assert peer(row, rate, sigmas, delta, pessimistic=False) <= mine
        assert mine <= peer(row, rate, sigmas, delta, pessimistic=True) * 1.003 + 1e-6


@pytest.mark.slow
@given(
    rate=st.floats(math.log(1e-4), 0).map(math.exp),
    sigmas=st.lists(st.floats(math.log(0.5), math.log(50)).map(math.exp), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1, 5, 40]),
    delta=DELTAS,
)
@settings(max_examples=25, deadline=None)
def test_never_below_the_peers_optimistic_bound(rate, sigmas, seed, most, delta):
    counts = np.random.default_rng(seed).integers(0, most + 1, (1, len(sigmas)))
    counts[0, 0] += 1
    ours = float(trajectories.epsilons(counts, rate, np.array(sigmas), delta)[0])
    assert peer(counts[0], rate, sigmas, delta, pessimistic=False) <= ours


@pytest.mark.slow
@given(
    rate=st.floats(math.log(1e-4), 0).map(math.exp),
    sigmas=st.lists(st.floats(math.log(0.5), math.log(50)).map(math.exp), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1, 10, 300, 5000]),
    delta=DELTAS,
)
@settings(max_examples=25, deadline=None)
def test_close_to_pld(rate, sigmas, seed, most, delta):
    counts = np.random.default_rng(seed).integers(0, most + 1, (2, len(sigmas)))
    ours, theirs = trajectories.epsilons(counts, rate, np.array(sigmas), delta), by_pld(counts, rate, sigmas, delta)
    deviation = np.sqrt(counts @ np.log1p(rate**2 * np.expm1(np.array(sigmas) ** -2.0)))
    assert (ours <= theirs * 1.01 + 1e-3 * deviation).all()
    assert (ours >= theirs * 0.97 - 1e-3 * deviation).all()  # both are upper bounds, either may be the tighter one


@pytest.mark.slow
@given(
    sigmas=st.lists(st.floats(math.log(0.5), math.log(500)).map(math.exp), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1, 30, 3000]),
    delta=st.sampled_from([1e-2, 1e-5, 1e-8, 1e-10]),
)
@settings(max_examples=60, deadline=None)
def test_unsampled_steps_against_the_exact_curve(sigmas, seed, most, delta):
    counts = np.random.default_rng(seed).integers(0, most + 1, (3, len(sigmas)))
    ours = trajectories.epsilons(counts, 1.0, np.array(sigmas), delta)
    mu = np.sqrt(counts @ np.array(sigmas) ** -2.0)
    exact = gdp.epsilon(mu, delta)
    assert (ours >= exact * (1 - 1e-8)).all()
    assert (ours <= exact * 1.004 + 1e-3 * mu).all()


def one_step_delta(rate, sigma, epsilon):
    """The true δ(ε) of removing the record, to 40 digits."""
    with mp.workdps(40):
        q, s, e = mp.mpf(rate), mp.mpf(sigma), mp.mpf(epsilon)
        x = s**2 * mp.log((mp.exp(e) - 1 + q) / q) + mp.mpf(1) / 2
        without, with_ = mp.ncdf(-x / s), mp.ncdf(-(x - 1) / s)
        return (1 - q) * without + q * with_ - mp.exp(e) * without


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 7.0, 50.0])
def test_one_step_against_the_truth(rate, sigma):
    deltas = np.array([1e-3, 1e-5, 1e-7, 1e-9])
    ours = trajectories.epsilons(np.ones((4, 1), dtype=np.int64), rate, np.array([sigma]), deltas)
    for epsilon, delta in zip(ours.tolist(), deltas.tolist(), strict=True):
        assert one_step_delta(rate, sigma, epsilon) <= delta
        if epsilon > 0:
            assert one_step_delta(rate, sigma, epsilon * 0.997) > delta * 0.99


def crowd(records, seed=0):
    rng = np.random.default_rng(seed)
    sigmas = 1.5 * 10 / np.arange(1, 11)
    return rng.poisson(10 ** rng.uniform(-1, 2.5, (records, 1)) * rng.dirichlet(np.ones(10), records)), sigmas


def test_company_changes_nothing():
    counts, sigmas = crowd(200)
    deltas = np.where(np.arange(200) % 2, 1e-5, 1e-7)
    together = trajectories.epsilons(counts, 0.02, sigmas, deltas)
    for record in range(0, 200, 9):
        alone = trajectories.epsilons(counts[record : record + 1], 0.02, sigmas, deltas[record])
        np.testing.assert_allclose(alone, together[record], rtol=1e-6, atol=1e-9)


def test_more_steps_cost_more():
    counts, sigmas = crowd(100)
    before = trajectories.epsilons(counts, 0.02, sigmas, 1e-5)
    after = trajectories.epsilons(counts + np.eye(10, dtype=np.int64)[np.arange(100) % 10] * 20, 0.02, sigmas, 1e-5)
    assert (after >= before * (1 - 2e-3)).all()  # the grids differ, and with them how tight the bounds are
    doubled = trajectories.epsilons(2 * counts, 0.02, sigmas, 1e-5)
    assert (doubled >= before).all()


def test_alike_records_are_computed_once_and_come_out_alike():
    counts, sigmas = crowd(30)
    counts = np.tile(counts, (20, 1))
    seen = []
    out = trajectories.epsilons(counts, 0.02, sigmas, 1e-5, progress=lambda done, total: seen.append((done, total)))
    assert (out.reshape(20, 30) == out[:30]).all()
    assert seen[-1][0] == seen[-1][1] <= 30


def test_who_takes_no_part_pays_nothing():
    sigmas = np.array([1.0, math.inf])
    out = trajectories.epsilons(np.array([[0, 0], [0, 10**6], [1, 0], [1, 9]]), 0.1, sigmas, 1e-5)
    assert (out[:2] == 0).all()
    assert out[2] == out[3] > 0
    assert (trajectories.epsilons(np.array([[5, 5]]), 0.0, sigmas, 1e-5) == 0).all()
    assert trajectories.epsilons(np.zeros((0, 2), dtype=np.int64), 0.1, sigmas, 1e-5).shape == (0,)
    assert trajectories.epsilons(np.zeros((3, 0), dtype=np.int64), 0.1, np.zeros(0), 1e-5).tolist() == [0, 0, 0]
    assert (trajectories.epsilons(np.zeros((4, 1), dtype=np.uint8), 1.0, np.array([0.1]), 1e-5) == 0).all()


def test_a_step_that_costs_less_than_delta_has_epsilon_zero():
    assert trajectories.epsilons(np.array([[1]]), 1e-4, np.array([50.0]), 1e-5).tolist() == [0.0]


def test_far_apart_records_each_keep_their_digits():
    """Spending from 1e-4 to 300 beside each other."""
    counts = np.array([[0, 0, 1], [0, 0, 100], [0, 3, 0], [1, 0, 0], [400, 0, 0], [10_000, 0, 0], [1, 1000, 10**5]])
    sigmas = np.array([4.0, 60.0, 5000.0])
    ours = trajectories.epsilons(counts, 1.0, sigmas, 1e-5)
    exact = gdp.epsilon(np.sqrt(counts @ sigmas**-2.0), 1e-5)
    assert (ours >= exact * (1 - 1e-8)).all()
    np.testing.assert_allclose(ours, exact, rtol=3e-3)


def test_what_cannot_be_answered_is_refused():
    good = np.array([[1]])
    with pytest.raises(InvalidInput, match="counts"):
        trajectories.epsilons(np.array([[1.5]]), 0.1, np.array([1.0]), 1e-5)
    with pytest.raises(InvalidInput, match="0 or more"):
        trajectories.epsilons(np.array([[-1]]), 0.1, np.array([1.0]), 1e-5)
    with pytest.raises(InvalidInput, match="kinds of step"):
        trajectories.epsilons(good, 0.1, np.array([1.0, 2.0]), 1e-5)
    with pytest.raises(InvalidInput, match="positive"):
        trajectories.epsilons(good, 0.1, np.array([math.nan]), 1e-5)
    with pytest.raises(InvalidInput, match="rate"):
        trajectories.epsilons(good, 1.1, np.array([1.0]), 1e-5)
    for delta in (1e-12, 1.0, math.nan):
        with pytest.raises(Unsupported):
            trajectories.epsilons(good, 0.1, np.array([1.0]), delta)
    with pytest.raises(Unsupported, match="rounding alone"):
        trajectories.epsilons(np.array([[10**6]]), 1.0, np.array([1e4]), 1e-10)


# --- Broken twins ------------------------------------------------------------------------------------------------


def test_one_direction_alone_is_caught(monkeypatch):
    counts, rate, sigmas, delta = np.array([[100, 50]]), 0.02, np.array([0.8, 2.0]), 1e-5
    below = peer(counts[0], rate, sigmas, delta, pessimistic=False)
    assert float(trajectories.epsilons(counts, rate, sigmas, delta)[0]) >= below
    honest = loss_distribution.sampled_gaussian
    monkeypatch.setattr(loss_distribution, "sampled_gaussian", lambda *arguments: honest(*arguments)[1:])
    assert float(trajectories.epsilons(counts, rate, sigmas, delta)[0]) < below


def test_optimistic_rounding_is_caught(monkeypatch):
    counts, sigmas, delta = np.array([[100, 50]]), np.array([20.0, 30.0]), 1e-5
    exact = float(gdp.epsilon(np.sqrt(counts @ sigmas**-2.0), delta)[0])
    assert float(trajectories.epsilons(counts, 1.0, sigmas, delta)[0]) >= exact
    honest = loss_distribution.sampled_gaussian

    def rounded_down(*arguments):
        return tuple(replace(one, lower=one.lower - 1) for one in honest(*arguments))

    monkeypatch.setattr(loss_distribution, "sampled_gaussian", rounded_down)
    assert float(trajectories.epsilons(counts, 1.0, sigmas, delta)[0]) < exact


def spectra_of(sigma, rate, step, length, precision=np.float64, count=1):
    losses = loss_distribution.sampled_gaussian(rate, sigma, step, count)[0]
    folded = Folded.of(losses, length)
    return Spectra.of([folded], step, length, precision)


def delta_at_zero(spectra, count, last=None):
    last = spectra.edges[-1] if last is None else last
    logs = Logarithms.of(spectra, int(last))
    curve, rounding = logs.deltas(np.array([[float(count)]]), int(last), 2 * (spectra.weight.size - 1))
    return curve[0], rounding[0]


@pytest.mark.parametrize("length", [256, 512, 640])
def test_losses_above_a_narrow_window_are_added(length):
    """Half a period of 4, 8 or 10, a loss of N(2, 4): what wraps around is missing, and Chernoff makes up for it."""
    spectra = spectra_of(0.5, 1.0, 1 / 32, length)
    curve, rounding = delta_at_zero(spectra, 1)
    true = gdp.delta(2.0, np.arange(curve.size) / 32)
    above = spectra.above(np.array([[1.0]]))[0]
    assert (curve + rounding + above + spectra.lost[0] >= true).all()
    assert curve[0] + rounding + spectra.lost[0] < true[0]


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta"),
    [(1e-3, 0.3, 10, 1e-3), (0.01, 0.5, 1, 1e-3), (1.0, 1.0, 1000, 1e-3)],
)
def test_a_window_that_was_planned_too_short_is_still_an_upper_bound(monkeypatch, rate, sigma, count, delta):
    """An eighth of the window: much of the loss lies above it, and what Chernoff says of that is in the answer."""
    below = peer([count], rate, [sigma], delta, pessimistic=False)
    planned = trajectories._grid

    def shortened(*arguments):
        total, window, *others = planned(*arguments)
        return total, window / 8, *others

    def found():
        return float(trajectories.epsilons(np.array([[count]]), rate, np.array([sigma]), delta)[0])

    monkeypatch.setattr(trajectories, "_grid", shortened)
    assert found() >= below
    # The broken twin: the tail is not added.
    monkeypatch.setattr(Spectra, "above", lambda self, counts: np.zeros(counts.shape[0]))
    assert found() < below


@pytest.mark.parametrize(("sigma", "count", "delta"), [(50.0, 1, 1e-3), (20.0, 100, 1e-2), (1.0, 1, 1e-2)])
def test_what_left_out_frequencies_may_hide_is_in_the_answer(monkeypatch, sigma, count, delta):
    """Nine tenths of δ may be left out: still an upper bound, since δ is read off what is left of it."""
    exact = float(gdp.epsilon(math.sqrt(count) / sigma, delta))

    def found():
        return float(trajectories.epsilons(np.array([[count]]), 1.0, np.array([sigma]), delta)[0])

    monkeypatch.setattr(trajectories, "_OMITTED", 0.9)
    monkeypatch.setattr(trajectories, "_TOO_LOOSE", 1.0)
    assert found() >= exact
    # The broken twin: frequencies are left out and nothing is added for them.
    cut = Spectra.cut
    monkeypatch.setattr(Spectra, "cut", lambda *some: (cut(*some)[0], np.zeros(some[1].shape[0])))
    assert found() < exact


def test_losses_that_are_infinite_are_in_the_answer(monkeypatch):
    """Each step tells everything with probability 5e-8: of δ = 1e-5 a half is gone after 100 of them."""
    told, sigma, count, delta = 5e-8, 20.0, 100, 1e-5
    honest = loss_distribution.sampled_gaussian

    def telling(*arguments):
        return tuple(
            replace(one, mass=one.mass * (1 - told), infinity=one.infinity + told) for one in honest(*arguments)
        )

    monkeypatch.setattr(loss_distribution, "sampled_gaussian", telling)
    ours = float(trajectories.epsilons(np.array([[count]]), 1.0, np.array([sigma]), delta)[0])
    lost = -math.expm1(count * math.log1p(-told))
    exact, without = (float(gdp.epsilon(math.sqrt(count) / sigma, d)) for d in ((delta - lost) / (1 - lost), delta))
    assert exact <= ours <= exact * 1.003
    assert without < 0.97 * exact


@pytest.mark.parametrize("count", [1, 3, 30])
def test_frequencies_that_are_left_out_are_bounded(count):
    spectra = spectra_of(2.0, 0.3, 1 / 64, 4096)
    whole, _ = delta_at_zero(spectra, count)
    for allowed in (1e-2, 1e-4, 1e-6):
        last, omitted = spectra.cut(np.array([[float(count)]]), np.array([allowed]))
        some, _ = delta_at_zero(spectra, count, last[0])
        assert np.abs(whole - some).max() <= omitted[0] + 1e-13
        assert omitted[0] <= allowed
    assert last[0] < 2048 or count < 30


@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_rounding_is_bounded(count):
    rough, bound = delta_at_zero(spectra_of(100.0, 0.3, 2.0**-13, 2**14, count=count), count)
    fine, _ = delta_at_zero(spectra_of(100.0, 0.3, 2.0**-13, 2**14, np.longdouble, count), count)
    assert 0 < np.abs(rough - fine).max() <= bound < 1e-8


def test_chords_are_taken_in_e_to_the_epsilon():
    """One atom: δ(ε) = 1 - e^{ε-1} is concave in ε, so that a chord in ε would promise too small an ε."""
    grid = np.arange(4) * 0.5
    bound = np.maximum(1 - np.exp(grid - 1.0), 0.0)[None]
    wanted = np.array([0.2])
    ours = float(first_below(bound, wanted, 0.5)[0])
    assert 1 - math.exp(ours - 1) <= 0.2 + 1e-12
    straight = 0.5 + 0.5 * (bound[0, 1] - 0.2) / (bound[0, 1] - bound[0, 2])
    assert 1 - math.exp(straight - 1) > 0.2

"""Private statistics: exact enough, never dearer than told, and each pays for their own term."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from queries_brute_force import Silent

import privypurse as pp
from privypurse.accounting.filters import Filter, RenyiCurrency
from privypurse.queries import statistics

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
PROBABILITIES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def purses(n, epsilon=1.0, currency="gdp"):
    return Filter(np.broadcast_to(epsilon, n).astype(float), np.full(n, 1e-5), currency)


def like(quantiles, low, high, n, cap):
    """Values with these quantiles, as in Yu et al. (2023), Table 2: log-linear between them."""
    ranks = (np.arange(n) + 0.5) / n
    values = np.exp(np.interp(ranks, [0, *PROBABILITIES, 1], np.log([low, *quantiles, high])))
    return np.minimum(values, cap)


TABLE_2 = {
    "MNIST": (like([0.236, 0.318, 0.431, 0.697, 1.682], 0.15, 2.4, 60_000, 2.4), 2.4),
    "CIFAR-10": (like([2.713, 4.892, 6.730, 7.692, 7.8], 1.0, 7.8, 50_000, 7.8), 7.8),
}


def errors(values, cap, seed, **options):
    got = statistics.release(values, purses(values.size), cap=cap, epsilon=0.1, delta=1e-5, seed=seed, **options)
    truth = np.array([values.mean(), *np.quantile(values, PROBABILITIES)])
    return np.abs(np.array([got.mean, *got.quantiles]) / truth - 1)


@pytest.mark.parametrize("name", TABLE_2)
@pytest.mark.parametrize("times", [1, 20])
def test_figures_like_the_papers_within_two_percent(name, times):
    """The paper reports 1.13 and 0.91 %. With a cap 20 times too large the mean suffers and the quantiles do not."""
    values, cap = TABLE_2[name]
    each = np.array([errors(values, cap * times, seed) for seed in range(5)])
    assert np.median(each.mean(axis=1)) <= 0.02
    assert np.median(each[:, 1:].mean(axis=1)) <= 0.015


def test_an_error_in_the_noise_would_show(monkeypatch):
    values, cap = TABLE_2["MNIST"]
    honest = statistics.noisy_sum
    monkeypatch.setattr(
        statistics, "noisy_sum", lambda parts, kept, *, noise, **o: honest(parts, kept, noise=20 * noise, **o)
    )
    assert np.median([errors(values, cap, seed).mean() for seed in range(3)]) > 0.02


@pytest.mark.parametrize("currency", ["gdp", "zcdp"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-6), (0.01, 1e-3)])
def test_the_cost_is_what_dp_accounting_says(currency, epsilon, delta, monkeypatch):
    """Everybody's real contributions, read off the calls, composed by somebody else's accountant."""
    ratios = []
    honest = statistics.noisy_sum

    def listening(parts, kept, *, clip, noise, source, alike=False):
        ratios.append(np.sqrt(np.square(parts.clipped(clip).values).sum(axis=1)).max() / noise)
        return honest(parts, kept, clip=clip, noise=noise, source=source, alike=alike)

    monkeypatch.setattr(statistics, "noisy_sum", listening)
    values = np.array([0.0, 5.0, 1.0, 2.0])
    kept = Filter(np.full(4, 5.0), np.full(4, delta), currency)
    got = statistics.release(values, kept, cap=5.0, epsilon=epsilon, delta=delta)
    assert len(ratios) == 1 + 20
    accountant = PLDAccountant()
    for ratio in ratios:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / ratio))
    truly = accountant.get_epsilon(delta)
    assert truly <= epsilon * 1.002
    assert got.cost.epsilon <= epsilon
    assert got.cost.amount >= kept.spent.max()
    assert kept.spent.max() == pytest.approx(got.cost.amount, rel=1e-9)  # somebody at 0 or at the cap pays it all
    if currency == "gdp":
        assert truly == pytest.approx(epsilon, rel=0.01)
        assert got.cost.epsilon > 0.999 * epsilon


def test_everyone_pays_for_their_own_term():
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 2.0, 2.0, -7.0])
    kept = purses(8, 3.0)
    got = statistics.mean(values, kept, cap=4.0, noise=20.0)
    terms = [abs(min(max(v, 0.0), 4.0) - 2.0) for v in values]
    assert kept.spent.tolist() == pytest.approx([(term / 20) ** 2 for term in terms])
    assert got.cost.amount == pytest.approx((2 / 20) ** 2)
    values[5:7] = np.nan, np.inf
    kept = purses(8, 3.0)
    got = statistics.quantiles(values, kept, cap=4.0, noise=50.0, steps=7, probabilities=(0.2, 0.5, 0.9))
    assert kept.spent.tolist() == pytest.approx([7 * 3 / 4 / 50**2 if math.isfinite(v) else 0.0 for v in values])
    assert got.cost.amount == pytest.approx(7 * 3 / 4 / 50**2)
    assert got.values.shape == (3,)
    assert "at most" in str(got.cost)


def test_mean_against_brute_force_and_who_cannot_pay(monkeypatch):
    monkeypatch.setattr(statistics, "Noise", lambda seed: Silent())
    values = [0.5, 9.0, 1.0, 2.0, 2.0]
    kept = purses(5, [1.0, 1.0, 1.0, 1.0, 0.01])
    noise = 30.0
    got = statistics.mean(values, kept, cap=4.0, noise=noise)
    # The last is in the middle and pays nothing; then somebody off the middle without reserve counts as the middle.
    assert got.value == pytest.approx((0.5 + 4.0 + 1.0 + 2.0 + 2.0) / 5)
    got = statistics.mean([*values[:4], 4.0], kept, cap=4.0, noise=noise)
    assert got.value == pytest.approx((0.5 + 4.0 + 1.0 + 2.0 + 2.0) / 5)
    assert kept.spent[4] == 0
    assert (kept.spent <= kept.total).all()


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_without_noise_are_those_of_sorting(monkeypatch, seed):
    monkeypatch.setattr(statistics, "Noise", lambda seed: Silent())
    rng = np.random.default_rng(seed)
    for values in (
        rng.random(5000) * 8,
        np.exp(rng.normal(0, 1, 5000)),
        np.full(5000, 3.0),
        rng.choice([1.0, 4.0], 5000),
    ):
        cap = 10.0
        got = statistics.quantiles(values, purses(5000, 10.0), cap=cap, noise=1e3).values
        low = np.quantile(np.minimum(values, cap), np.maximum(PROBABILITIES - 0.005, 0))
        high = np.quantile(np.minimum(values, cap), np.minimum(PROBABILITIES + 0.005, 1))
        assert (got >= low * 0.97).all()
        assert (got <= high * 1.03).all()
        assert (np.diff(got) >= 0).all()


def test_exhausted_reserves_give_noise_alone_and_overdraw_nobody():
    values = np.full(100, 3.0)
    kept = purses(100, 0.1)
    kept.spent = kept.total.copy()
    got = statistics.release(values, kept, cap=4.0, epsilon=0.099, delta=1e-5)
    assert (kept.spent == kept.total).all()
    assert 0 <= got.mean <= 4
    assert ((got.quantiles > 0) & (got.quantiles <= 4)).all()


def test_a_reserve_that_is_exactly_the_cost_pays_for_it_all():
    values, cap = np.linspace(0, 5, 300), 5.0
    kept = Filter(np.full(300, 0.101), np.full(300, 1e-5))
    statistics.release(values, kept, cap=cap, epsilon=0.1, delta=1e-5)
    paid = kept.spent / kept.spent.max()
    assert (paid > 0.7).all()  # three quarters for the quantiles, which everybody paid for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"values": [1.0, 2.0]}, "3 purses"),
        ({"values": [[1.0, 2.0, 3.0]]}, "shape"),
        ({"values": ["a", "b", "c"]}, "numbers"),
        ({"values": [1.0, float("nan"), 3.0]}, "finite"),
        ({"values": [1.0, 2.0, float("inf")]}, "finite"),
        ({"epsilon": 1.1}, r"costs up to μ² = 0\.\d+ a person, but the fullest purse holds 0\.\d+"),
        ({"cap": 0.0}, "cap"),
        ({"cap": float("inf")}, "cap"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-5}, "delta"),
        ({"purses": Filter(np.ones(3), np.full(3, 1e-5), RenyiCurrency(np.full(3, 8.0)))}, "gdp"),
    ],
)
def test_bad_arguments(change, said):
    kept = purses(3)
    given = {"values": [1.0, 2.0, 3.0], "purses": kept, "cap": 5.0, "epsilon": 0.1, "delta": 1e-5, **change}
    with pytest.raises(pp.InvalidInput, match=said):
        statistics.release(**given)
    assert not kept.spent.any()


def test_bad_quantiles():
    for options, said in (
        ({"probabilities": ()}, "probabilities"),
        ({"probabilities": (0.0,)}, "probabilities"),
        ({"steps": 0}, "steps"),
        ({"noise": 0.0}, "noise"),
    ):
        with pytest.raises(pp.InvalidInput, match=said):
            statistics.quantiles([1.0], purses(1), cap=1.0, **{"noise": 1.0, **options})


@pytest.mark.parametrize("currency", ["gdp", "zcdp"])
def test_what_even_the_fullest_purse_cannot_pay_is_refused_by_what_is_known_beforehand(currency):
    kept = purses(3, [0.1, 1.0, 0.5], currency)
    unit = {"gdp": 1.0, "zcdp": 0.5}[currency]
    just = math.sqrt(unit / float(kept.total.max()))  # the noise at which a contribution of 1 just fits
    for noise, fits in ((0.999 * just, False), (1.001 * just, True)):
        for ask in (
            lambda noise=noise: statistics.mean([0.0, 2.0, 2.0], kept, cap=2.0, noise=noise),
            lambda noise=noise: statistics.quantiles(
                [0.0, 2.0, 2.0], kept, cap=2.0, noise=noise, steps=4, probabilities=(0.5,)
            ),
        ):
            if fits:
                ask()  # the second time out of empty purses, of which nobody is told
            else:
                with pytest.raises(pp.InvalidInput, match="fullest purse holds"):
                    ask()
                assert not kept.spent.any()


def test_a_mean_of_what_is_not_finite_is_refused():
    with pytest.raises(pp.InvalidInput, match="finite"):
        statistics.mean([1.0, float("nan")], purses(2), cap=4.0, noise=100.0)


@pytest.mark.slow
def test_a_count_is_paid_for_by_those_who_are_counted():
    flags = np.arange(1000) % 4 == 0
    held = purses(1000)
    found = statistics.count(flags, held, noise=20.0)
    assert abs(found.value - 250) < 6.5 * 20
    np.testing.assert_allclose(held.spent, np.where(flags, (1 / 20) ** 2, 0.0), rtol=1e-9)
    assert found.cost.amount == pytest.approx(1 / 400)
    many = np.array([statistics.count(flags, purses(1000), noise=20.0).value for _ in range(300)])
    assert 16 < many.std() < 24
    broke = purses(1000, 0.2)
    while (broke.affords(np.full(1000, 1 / 400.0))).all():
        statistics.count(np.ones(1000, dtype=bool), broke, noise=20.0)
    assert abs(statistics.count(flags, broke, noise=20.0).value) < 6.5 * 20  # nobody can pay: noise alone


@pytest.mark.parametrize("flags", [np.ones(3), np.ones(4, dtype=bool), [1, 0, 1], True])
def test_a_count_needs_one_flag_each(flags):
    with pytest.raises(pp.InvalidInput, match="one True or False"):
        statistics.count(flags, purses(3), noise=20.0)


def test_one_person():
    got = statistics.release([2.0], purses(1, 3.0), cap=4.0, epsilon=1.0)
    assert 0 <= got.mean <= 4
    assert "0.9-quantile" in str(got)

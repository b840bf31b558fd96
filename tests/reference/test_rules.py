"""Rules 1, 4, 7, 8 and 9 of docs/soundness.md: what breaks them is shown to be caught."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, signal, stats

import privypurse as pp
from privypurse.accounting import PLD, RDP, ClientSampled, Gaussian, PureDP, SampledGaussian, gdp
from reproductions.unsound.trusted_curve import TrustedCurve

# --- Rule 1: amplification is paid for by everyone ---------------------------------------------------------------


def until_drawn(pi: float, tau: float, rounds: int) -> float:
    """The true ε of "stay in until drawn, then leave" around randomised response, over all 2^k transcripts."""
    yes = math.exp(tau) / (1 + math.exp(tau))
    present, absent = np.array([1 - yes, yes]), np.array([yes, 1 - yes])
    worst = 0.0
    for transcript in itertools.product((0, 1), repeat=rounds):
        bits = list(transcript)
        without = math.prod(absent[bit] for bit in bits)
        drawn_at = [(1 - pi) ** j * pi * without / absent[bits[j]] * present[bits[j]] for j in range(rounds)]
        with_record = (1 - pi) ** rounds * without + sum(drawn_at)
        worst = max(worst, abs(math.log(with_record / without)))
    return worst


def published_claim(epsilon: float) -> float:
    """Heo et al. (2023), Algorithm 1 line 11: only drawn records pay, so nobody ever pays more than their ε."""
    return epsilon


@pytest.mark.parametrize(("rounds", "really"), [(1, 0.5), (2, 0.719), (10, 0.9945)])
def test_charging_only_the_drawn_overspends(rounds: int, really: float) -> None:
    epsilon, tau = 0.5, 1.0
    pi = math.expm1(epsilon) / math.expm1(tau)
    assert pi == pytest.approx(0.3775, abs=1e-4)
    true = until_drawn(pi, tau, rounds)
    assert true == pytest.approx(really, abs=6e-4)
    assert true == pytest.approx(math.log1p((1 - (1 - pi) ** rounds) * math.expm1(tau)), rel=1e-12)
    # Charged by rate, in every round, drawn or not: never too little. Charged by luck: too little from round 2 on.
    by_rate = rounds * math.log1p(pi * math.expm1(tau))
    assert by_rate >= true * (1 - 1e-12)
    assert (published_claim(epsilon) < true * (1 - 1e-12)) == (rounds > 1)
    # The accountants know the mechanism in which a drawn record stays in; that costs at least as much.
    for accountant in (PLD(), RDP()):
        charged = float(accountant.epsilons([ClientSampled(pi, PureDP(tau), rounds)], 1e-9)[0])
        assert charged >= true * (1 - 1e-6)


def test_gaussian_rounds_break_the_published_claim_too() -> None:
    """ε = 0.1, τ = 1, δ = 1e-5, ten rounds: δ(0.1) is 1.66e-4 where 1e-4 is claimed."""
    epsilon, tau, delta, rounds = 0.1, 1.0, 1e-5, 10
    pi = math.expm1(epsilon) / math.expm1(tau)
    mu = float(gdp.mu(tau, delta))  # the Gaussian that is exactly (τ, δ)-DP
    # Likelihood ratio of the transcripts: (1-π)^k + Σ_j π(1-π)^{j-1}·Y_j with independent log-normal Y_j of mean 1.
    step = 2e-6
    grid = np.arange(0, 1.0, step)
    total = np.array([1.0])
    for j in range(rounds):
        weight = pi * (1 - pi) ** j
        with np.errstate(divide="ignore"):
            z = (np.log((grid + step / 2) / weight) + mu**2 / 2) / mu
        mass = np.diff(
            np.concatenate([[0.0], 0.5 * (1 + np.vectorize(math.erf)(z[: int(0.35 / step)] / math.sqrt(2)))])
        )
        total = signal.fftconvolve(total, mass)
    ratio = (1 - pi) ** rounds + step * np.arange(total.size)
    really = float(np.maximum(ratio - math.exp(epsilon), 0.0) @ np.maximum(total, 0.0))
    assert really == pytest.approx(1.66e-4, rel=0.01)
    assert really > rounds * delta


def test_spent_is_a_function_of_the_rate_alone() -> None:
    """Two people with the same rate have spent the same, whoever of them was drawn; there is nothing to tell it."""
    budgets = pp.Budgets([1.0, 1.0, 2.0, 2.0], delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=100, batch_size=1, accountant="rdp")
    for steps in (0, 1, 50, 100):
        spent = plan.spent(steps)
        assert spent[0] == spent[1]
        assert spent[2] == spent[3]
        expected = [SampledGaussian(rate, plan.noise_multiplier, steps) for rate in plan.rates]
        np.testing.assert_array_equal(spent, RDP().epsilons(expected, 1e-5))


# --- Rule 4: round toward privacy (see also test_sampled_gaussian, test_certification) -----------------------------


@pytest.mark.parametrize("accountant", [RDP(), PLD()], ids=["rdp", "pld"])
def test_spent_rises_with_rate_clip_and_steps(accountant: pp.accounting.Accountant) -> None:
    rates = np.geomspace(1e-4, 1.0, 25)
    by_rate = accountant.epsilons([SampledGaussian(rate, 1.5, 200) for rate in rates.tolist()], 1e-5)
    by_noise = accountant.epsilons([SampledGaussian(0.02, sigma, 200) for sigma in np.geomspace(9, 0.5, 25)], 1e-5)
    by_steps = accountant.epsilons([SampledGaussian(0.02, 1.0, int(t)) for t in np.geomspace(1, 5000, 25)], 1e-5)
    for values in (by_rate, by_noise, by_steps):
        assert (np.diff(values) >= -1e-9).all()


def test_tables_answer_with_the_safe_neighbour() -> None:
    table = pp.accounting.CertifiedTable(np.array([0.1, 0.2, 0.4]), np.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(table.within(np.array([0.5, 1.0, 1.99, 2.0, 9.0])), [0.0, 0.1, 0.1, 0.2, 0.4])
    np.testing.assert_array_equal(table.cost(np.array([0.0, 0.05, 0.1, 0.11, 0.4, 0.5])), [0, 1, 1, 2, 4, np.inf])
    # Points given in any order, and one that claims more than a larger parameter does, are put right.
    mended = pp.accounting.CertifiedTable(np.array([0.4, 0.1, 0.2]), np.array([4.0, 1.0, 5.0]))
    np.testing.assert_array_equal(mended.epsilon, [1.0, 4.0, 4.0])


# --- Rule 7: what the promise is conditional on ---------------------------------------------------------------------


def rate_of_first(epsilon: list[float], **arguments: object) -> float:
    return float(pp.plan(pp.Budgets(epsilon, delta=1e-5), "sample", steps=300, batch_size=1, **arguments).rates[0])


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_with_fixed_noise_nobody_elses_budget_moves_my_rate(accountant: str) -> None:
    rng = np.random.default_rng(3)
    crowds = [[1.3], [1.3, 0.7], [1.3, *rng.uniform(0.3, 8.0, 50)], [1.3, *rng.uniform(1.2, 1.4, 40)]]
    fixed = {rate_of_first(crowd, noise_multiplier=2.0, accountant=accountant) for crowd in crowds}
    assert len(fixed) == 1
    # The broken twin: σ solved from all budgets, and the same person's rate moves with the crowd.
    solved = {rate_of_first(crowd, accountant=accountant) for crowd in crowds[1:]}
    assert len(solved) == len(crowds) - 1


def test_the_operating_point_moves_with_the_noise_at_the_same_budget() -> None:
    """Kaiser et al. (2026): at (1, 1e-5) and 100 steps the best advantage is 0.016 at σ = 0.6, 0.105 at σ = 10."""
    for sigma, advantage in ((0.6, 0.016), (10.0, 0.105)):
        plan = pp.plan(pp.Budgets([1.0]), "sample", steps=100, batch_size=1, noise_multiplier=sigma)
        assert total_variation(plan.releases()[0]) == pytest.approx(advantage, abs=0.002)


def total_variation(release: SampledGaussian) -> float:
    from privypurse.accounting.pld import discretisation, distributions

    remove = distributions(release, discretisation(release))[0]
    losses = (remove.lower + np.arange(remove.mass.size)) * remove.step
    return float(remove.infinity + np.maximum(-np.expm1(-losses), 0.0) @ remove.mass)


@pytest.mark.parametrize(
    ("arguments", "protects"),
    [
        ({"method": "sample"}, "data"),
        ({"method": "sample", "noise_multiplier": 2.0}, "presence"),
        ({"method": "scale", "noise_multiplier": 2.0}, "data"),
        ({"method": "uniform", "noise_multiplier": 2.0}, "data"),
        ({"method": "exclude"}, "data"),
        ({"method": TrustedCurve(), "noise_multiplier": 2.0}, "none"),
    ],
)
def test_every_plan_says_which_promise_it_makes(
    arguments: dict, protects: str, tmp_path: pytest.TempPathFactory
) -> None:
    budgets = pp.Budgets([1.0, 2.0, 4.0, 4.0], delta=1e-5)
    plan = pp.plan(budgets, steps=50, batch_size=1, accountant="rdp", **arguments)
    assert plan.promise == protects
    assert plan.promise.text in plan.summary()
    plan.save(tmp_path / "plan.json")
    assert pp.Plan.load(tmp_path / "plan.json").promise == protects


# --- Rule 8: against the server every joined round counts ---------------------------------------------


def test_charging_the_server_the_average_number_of_rounds_is_too_little() -> None:
    """λ = 0.1, T = 50, Gaussian rounds with μ² = 0.278, δ = 1e-5: Liu et al. (2024), Theorem 1 (2) claims 6.35."""
    join, rounds, square, delta = 0.1, 50, 0.278, 1e-5
    orders = np.linspace(1.5, 20, 5000)
    claimed = float((join * rounds * square * orders / 2 + math.log(1 / delta) / (orders - 1)).min())
    assert claimed == pytest.approx(6.35, abs=0.01)
    joined = np.arange(1, rounds + 1)

    def true_delta(epsilon: float) -> float:  # the server sees how many rounds were joined
        return float(stats.binom.pmf(joined, rounds, join) @ gdp.delta(np.sqrt(square * joined), epsilon))

    assert optimize.brentq(lambda e: true_delta(e) - delta, 1, 20) == pytest.approx(6.93, abs=0.01)
    # Charged for every joined round, the exact curve at that number of rounds is enough for it.
    for count in (1, 5, 20):
        release = Gaussian(1 / math.sqrt(square), count)
        charged = float(PLD().epsilons([release], delta)[0])
        assert float(gdp.delta(math.sqrt(square * count), charged)) <= delta


# --- Rule 9: an infeasible budget is an error that names it ------------------------------------------------


@pytest.mark.parametrize("method", ["sample", "uniform", "scale", "curve-fit"])
def test_an_infeasible_budget_is_named(method: str) -> None:
    budgets = pp.Budgets([1.0, 1e-4, 2.0], delta=1e-5)
    with pytest.raises(pp.InfeasibleBudget, match=r"record 1: ε = 0\.0001"):
        pp.plan(budgets, method, steps=1000, batch_size=1, accountant="rdp")


def test_what_cannot_be_used_up_is_reported() -> None:
    plan = pp.plan(pp.Budgets([1.0, 500.0]), "sample", steps=10, batch_size=1, noise_multiplier=4.0)
    assert plan.capped.tolist() == [False, True]
    assert plan.rates[1] == 1.0
    exact = float(gdp.epsilon(math.sqrt(10) / 4.0, 1e-5))
    assert plan.spent()[1] == pytest.approx(exact, rel=0.005)
    assert "capped" in plan.summary()
    assert Gaussian(4.0, 10) != plan.releases()[0]

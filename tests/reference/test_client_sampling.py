"""Liu et al. (2024), Lemma 6 and Theorem 1, by integrating the densities of what an adversary sees.

A client joins a round with probability λ. If it does, the round's outcome is that of one or two sampled Gaussian
steps (with the record P, without it Q); if not, it is whatever the other clients make of it, R, the same with the
record and without. The public sees (1-λ)R + λP or (1-λ)R + λQ. R may be anything: near Q, beside it, or out of reach,
where it tells the coin.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from privypurse.accounting import PLD, RDP, ClientSampled, SampledGaussian, SampledRound
from privypurse.federated.terms import Terms
from some_of import some_of

DELTA = 1e-4
ORDERS = np.array([1.25, 1.5, 1.75, 2, 2.5, 3, 4, 6, 9, 16, 24])


class Round:
    """One round on a grid: the logarithms of the densities of both worlds."""

    def __init__(
        self, join: float, rate: float, sigma: float, steps: int, mean: float, wide: float = 1.0, points: int = 10_001
    ) -> None:
        spread = sigma * math.sqrt(steps)
        self.x = np.linspace(-60, 120, points)
        # The sum of the steps: 0, 1 … steps of them have the record in them.
        drawn = np.arange(steps + 1)[:, None]
        parts = stats.binom.logpmf(drawn, steps, rate) + stats.norm.logpdf(self.x, drawn, spread)
        with np.errstate(divide="ignore"):
            others = np.log1p(-join) + stats.norm.logpdf(self.x, mean, wide)
        self.present = np.logaddexp(others, math.log(join) + special.logsumexp(parts, axis=0))
        self.absent = np.logaddexp(others, math.log(join) + stats.norm.logpdf(self.x, 0, spread))

    def directions(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.present, self.absent), (self.absent, self.present)]

    def divergences(self) -> np.ndarray:
        """Rényi, the larger of both directions, at each of the orders."""
        step = self.x[1] - self.x[0]
        moments = [
            [special.logsumexp(order * p + (1 - order) * q) + math.log(step) for order in ORDERS]
            for p, q in self.directions()
        ]
        return np.max(moments, axis=0) / (ORDERS - 1)

    def delta(self, epsilon: float) -> float:
        """The smallest δ at which one round is (ε, δ)-private, in the worse direction."""
        step = self.x[1] - self.x[0]
        return max(float(np.maximum(np.exp(p) - np.exp(epsilon + q), 0).sum() * step) for p, q in self.directions())

    def delta_of_two(self, epsilon: float) -> float:
        """The same of two independent rounds."""
        step = self.x[1] - self.x[0]
        out = []
        for p, q in self.directions():
            some = (p > -60) | (q > -60)  # the rest is nothing
            both_p, both_q = (np.exp(np.add.outer(one[some], one[some])) for one in (p, q))
            out.append(float(np.maximum(both_p - math.exp(epsilon) * both_q, 0).sum() * step**2))
        return max(out)


JOINS, RATES, SIGMAS, STEPS = (0.1, 0.6), (0.05, 0.4, 1.0), (0.8, 2.0), (1, 2)
ELSEWHERE = ((0.0, 1.0), (0.6, 2.0), (-3.0, 0.7), (60.0, 1.0))
"""Mean and deviation of what the others make: beside the client's outcome, around it, and where it tells the coin."""
CASES = some_of(
    list(itertools.product(JOINS, RATES, SIGMAS, STEPS)),
    quick=[
        *((0.1, 0.05, 0.8, 1), (0.6, 0.05, 2.0, 2), (0.1, 0.4, 2.0, 2)),
        *((0.6, 0.4, 0.8, 1), (0.1, 1.0, 0.8, 2), (0.6, 1.0, 2.0, 1)),
    ],
)


def release(join: float, rate: float, sigma: float, steps: int, rounds: int = 1) -> ClientSampled:
    return ClientSampled(join, SampledGaussian(rate, sigma, steps), rounds)


@pytest.mark.parametrize(("join", "rate", "sigma", "steps"), CASES)
def test_lemma_6_is_never_exceeded(join: float, rate: float, sigma: float, steps: int) -> None:
    charged = RDP(ORDERS).curves([release(join, rate, sigma, steps)])[0]
    for mean, wide in ELSEWHERE:
        really = Round(join, rate, sigma, steps, mean, wide).divergences()
        assert (really <= charged * (1 + 1e-6) + 1e-9).all()


@pytest.mark.parametrize(("join", "rate", "sigma"), list(itertools.product(JOINS, RATES, SIGMAS)))
def test_lemma_6_is_reached_where_the_outcome_tells_who_joined(join: float, rate: float, sigma: float) -> None:
    """So that the test above would notice a smaller charge. One step: what is charged for it is exact."""
    whole = np.round(ORDERS) == ORDERS
    charged = RDP(ORDERS).curves([release(join, rate, sigma, 1)])[0]
    really = Round(join, rate, sigma, 1, 80.0).divergences()
    assert really[whole] == pytest.approx(charged[whole], rel=1e-4, abs=1e-9)


def test_amplifying_as_if_only_the_record_stayed_away_is_too_little() -> None:
    """The broken twins: a client takes its other records along, so a record's own coin is no measure."""
    really = Round(0.1, 0.4, 0.8, 1, 60.0)
    for twin in (SampledRound(0.1, SampledGaussian(0.4, 0.8)), SampledGaussian(0.1 * 0.4, 0.8)):
        assert (RDP(ORDERS).curves([twin])[0] < really.divergences()).any()
        assert really.delta(float(PLD().epsilons([twin], DELTA)[0])) > 1.2 * DELTA
    # Where the others' outcome is that of the client without the record, they would do.
    nearby = Round(0.1, 0.4, 0.8, 1, 0.0, 0.8, points=100_001)
    assert nearby.delta(float(PLD().epsilons([SampledGaussian(0.1 * 0.4, 0.8)], DELTA)[0])) <= DELTA * (1 + 1e-6)


@pytest.mark.parametrize(("join", "rate", "sigma", "steps"), CASES)
def test_theorem_1_for_one_round(join: float, rate: float, sigma: float, steps: int) -> None:
    charged = [
        float(accountant.epsilons([release(join, rate, sigma, steps)], DELTA)[0]) for accountant in (RDP(), PLD())
    ]
    for mean, wide in ELSEWHERE:
        really = Round(join, rate, sigma, steps, mean, wide, points=100_001)
        assert max(really.delta(epsilon) for epsilon in charged) <= DELTA * (1 + 1e-6)


@pytest.mark.parametrize(("join", "rate", "sigma"), [(0.5, 0.4, 0.8), (0.1, 1.0, 2.0), (0.9, 0.4, 2.0)])
def test_theorem_1_for_two_rounds(join: float, rate: float, sigma: float) -> None:
    by_rdp, by_pld = (
        float(accountant.epsilons([release(join, rate, sigma, 1, 2)], DELTA)[0]) for accountant in (RDP(), PLD())
    )
    assert by_pld <= by_rdp
    for mean, wide in ELSEWHERE:
        two = Round(join, rate, sigma, 1, mean, wide, points=3001)
        assert two.delta_of_two(by_pld) <= DELTA * (1 + 1e-3)
    # It is no more than a little too much: the coin told, 2 % less would not do.
    assert Round(join, rate, sigma, 1, 60.0, points=3001).delta_of_two(0.98 * by_pld) > DELTA


def test_pld_is_reached_where_the_outcome_tells_who_joined() -> None:
    for join, rate, sigma in ((0.5, 0.4, 0.8), (0.1, 1.0, 2.0), (0.9, 0.05, 0.8)):
        charged = float(PLD().epsilons([release(join, rate, sigma, 1)], DELTA)[0])
        assert Round(join, rate, sigma, 1, 60.0).delta(0.99 * charged) > DELTA


# --- Against the server -------------------------------------------------------------------------------


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle & Wang (2018), Theorem 8."""
    first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(special.ndtr(first) - math.exp(epsilon + special.log_ndtr(second)))


TERMS = Terms(
    rounds=50,
    local_steps=4,
    noise_multiplier=4.0,
    batch_size=4,
    learning_rate=0.5,
    clients=10,
    client_rate=0.1,
    delta=1e-5,
)


def after(joined: int) -> float:
    """μ of everything that the server sees of a record that is in every step."""
    return math.sqrt(TERMS.local_steps * joined) / TERMS.noise_multiplier


def test_the_cap_holds_even_against_a_server_that_asks_every_time() -> None:
    charged = float(TERMS.certified(np.ones(1))[0])
    assert gaussian_delta(after(TERMS.cap), charged) <= TERMS.delta
    assert gaussian_delta(after(TERMS.cap), 0.99 * charged) > TERMS.delta
    # One round more would be too much.
    assert gaussian_delta(after(TERMS.cap + 1), charged) > TERMS.delta


def test_the_average_number_of_rounds_is_too_little() -> None:
    """Theorem 1 (2) charges λT = 5 rounds. A server that keeps to λ sees more of them in 38 % of all runs."""
    average = round(TERMS.client_rate * TERMS.rounds)
    assert average < TERMS.cap
    claimed = float(PLD().epsilons([TERMS.joined(1.0, average)], TERMS.delta)[0])
    joined = np.arange(1, TERMS.rounds + 1)
    often = stats.binom.pmf(joined, TERMS.rounds, TERMS.client_rate)
    without_a_cap = sum(p * gaussian_delta(after(n), claimed) for n, p in zip(joined, often, strict=True))
    assert without_a_cap > 10 * TERMS.delta
    # With the cap of the terms, and its charge, whatever is joined is paid for.
    charged = float(TERMS.certified(np.ones(1))[0])
    capped = sum(p * gaussian_delta(after(min(n, TERMS.cap)), charged) for n, p in zip(joined, often, strict=True))
    assert capped <= TERMS.delta


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_joined_round_has_no_discount_from_the_coin(rate: float) -> None:
    """What the server sees of a round that was joined: P against Q themselves, both ways."""
    charged = float(PLD().epsilons([TERMS.joined(rate, 1)], DELTA)[0])
    seen = Round(1.0, rate, TERMS.noise_multiplier, TERMS.local_steps, 0.0)
    assert seen.delta(charged) <= DELTA
    public = float(PLD().epsilons([TERMS.seen(rate, 1)], DELTA)[0])
    assert seen.delta(public) > DELTA

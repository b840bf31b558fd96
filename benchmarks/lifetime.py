"""What an order for life costs: python -m benchmarks.lifetime

A plan for one run may use the tightest accountant, privacy loss distributions or Gaussian DP. A purse that lasts pays
at one Rényi order, fixed beforehand (docs/ledger.md). Three tables at one (ε, δ): the noise multiplier σ that each
needs for the same training, how many Gaussian questions each allows, and σ at orders that other public functions
would choose.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privypurse.accounting import PLD, RDP, Gaussian, SampledGaussian, gdp
from privypurse.accounting.filters import renyi_purse
from privypurse.accounting.rdp import ORDERS
from privypurse.ledger.lifetime import Lifetime


@dataclass(frozen=True)
class Course:
    """A training: everyone is drawn at this rate in each of so many steps."""

    name: str
    rate: float
    steps: int

    def release(self, sigma: float) -> SampledGaussian:
        return SampledGaussian(self.rate, sigma, self.steps)


COURSES = (
    Course("full batch, T = 100", 1.0, 100),
    Course("MNIST: q = 512/60,000, T = 9,375", 512 / 60_000, 9_375),
    Course("q = 1e-3, T = 100,000", 1e-3, 100_000),
    Course("q = 1e-3, T = 10,000", 1e-3, 10_000),
    Course("q = 1e-4, T = 200,000", 1e-4, 200_000),
    Course("q = 1e-4, T = 20,000", 1e-4, 20_000),
)
QUESTIONS, NOISE = 28, 20.0


def least_sigma(fits: Callable[[float], bool]) -> float:
    """The smallest noise multiplier that fits, to four digits."""
    low, high = 0.1, 2000.0
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def by_loss_distribution(course: Course, epsilon: float, delta: float) -> float:
    return least_sigma(lambda sigma: float(PLD().epsilons([course.release(sigma)], delta)[0]) <= epsilon)


def for_life(course: Course, epsilon: float, delta: float) -> float:
    """As a ledger charges it."""
    lifetime = Lifetime.of([(epsilon, delta)])
    return least_sigma(lambda sigma: lifetime.charges_of([course.release(sigma)])[0, 0] <= lifetime.rungs[0].limit)


def at_order(course: Course, order: float, epsilon: float, delta: float) -> float:
    held = float(renyi_purse(np.array(order), np.array(epsilon), np.array(delta)))
    accountant = RDP(orders=np.array([order]))
    return (
        least_sigma(lambda sigma: accountant.curves([course.release(sigma)])[0, 0] <= held) if held > 0 else math.inf
    )


def lowest_worth(share: float, epsilon: float, delta: float) -> float:
    """The lowest order that pays for this share of the most Gaussian divergence."""
    worth = renyi_purse(ORDERS, np.array(epsilon), np.array(delta)) / ORDERS
    return float(ORDERS[np.argmax(worth >= share * worth.max())])


def best_for(course: Course, epsilon: float, delta: float) -> float:
    usable: list[float] = ORDERS[renyi_purse(ORDERS, np.array(epsilon), np.array(delta)) > 0].tolist()
    return min(usable, key=lambda order: at_order(course, order, epsilon, delta))


def training(epsilon: float, delta: float) -> None:
    print(f"{'training':34s} {'PLD, one run':>13s} {'for life':>9s} {'times':>6s}")
    for course in COURSES:
        once, ever = by_loss_distribution(course, epsilon, delta), for_life(course, epsilon, delta)
        print(f"{course.name:34s} {once:13.3f} {ever:9.3f} {ever / once:6.2f}", flush=True)


def questions(epsilon: float, delta: float) -> None:
    lifetime = Lifetime.of([(epsilon, delta)])
    each = int(lifetime.charges_of([Gaussian(NOISE)])[0, 0])
    limit, rung = lifetime.rungs[0].limit, lifetime.rungs[0]
    square = float(gdp.mu(epsilon, delta)) ** 2
    noise = least_sigma(lambda sigma: lifetime.charges_of([Gaussian(sigma, QUESTIONS)])[0, 0] <= limit)
    print(f"questions with noise {NOISE:g}: {math.floor(square * NOISE**2)} by Gaussian DP, {limit // each} for life")
    print(f"noise of {QUESTIONS} questions: {math.sqrt(QUESTIONS / square):.2f} by Gaussian DP, {noise:.2f} for life")
    print(f"order {rung.order:g}, which holds {math.ldexp(limit, -40):.4f} nats")


def orders(epsilon: float, delta: float) -> None:
    shares = (1.0, 0.97, 0.95, 0.9, 0.8)
    chosen = [lowest_worth(share, epsilon, delta) for share in shares]
    heads = [f"{share:.0%}: α {order:g}" for share, order in zip(shares, chosen, strict=True)]
    print(
        f"{'training':34s} "
        + " ".join(f"{head:>12s}" for head in heads)
        + f" {'best for it':>16s} {'two orders':>11s}"
    )
    for course in COURSES:
        sigmas = [at_order(course, order, epsilon, delta) for order in chosen]
        own = best_for(course, epsilon, delta)
        # Two orders, half of δ each: one for Gaussian releases, one for sparse sampling; whichever still pays.
        halves = [lowest_worth(1.0, epsilon, delta / 2), best_for(COURSES[3], epsilon, delta / 2)]
        both = min(at_order(course, order, epsilon, delta / 2) for order in halves)
        best = f"{at_order(course, own, epsilon, delta):.3f} (α {own:g})"
        print(f"{course.name:34s} " + " ".join(f"{sigma:12.3f}" for sigma in sigmas) + f" {best:>16s} {both:11.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()
    for table in (training, questions, orders):
        table(options.epsilon, options.delta)
        print()


if __name__ == "__main__":
    main()

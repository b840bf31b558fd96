"""What an order for life costs: python -m benchmarks.lifetime [--check docs/ledger-proofs.md]

A plan for one run may use the tightest accountant, privacy loss distributions or Gaussian DP. A purse that lasts pays
at one Rényi order, fixed beforehand (docs/ledger-proofs.md).
Three tables at one (ε, δ): the noise multiplier σ that each
needs for the same training, how many Gaussian questions each allows, and σ at orders that other public functions
would choose.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def up(sigma: float, digits: int = 2) -> str:
    """Rounded up: what is shown is enough noise."""
    return f"{math.ceil(sigma * 10**digits) / 10**digits:.{digits}f}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As docs/ledger-proofs.md has it."""
    lines = [list(heads), ["---"] * len(heads), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def training(epsilon: float, delta: float, courses: Sequence[Course] = COURSES) -> str:
    """The noise multiplier of each training, for one run and for life."""

    def row(course: Course) -> tuple[str, ...]:
        once, ever = by_loss_distribution(course, epsilon, delta), for_life(course, epsilon, delta)
        return course.name, up(once), up(ever), f"{ever / once:.2f}"

    return table(("training", "PLD, one run", "for life", "times"), map(row, courses))


def questions(epsilon: float, delta: float) -> str:
    """How many Gaussian questions there are, and with which noise."""
    lifetime = Lifetime.of([(epsilon, delta)])
    each = int(lifetime.charges_of([Gaussian(NOISE)])[0, 0])
    limit = lifetime.rungs[0].limit
    square = float(gdp.mu(epsilon, delta)) ** 2
    noise = least_sigma(lambda sigma: lifetime.charges_of([Gaussian(sigma, QUESTIONS)])[0, 0] <= limit)
    many, few = math.floor(square * NOISE**2), limit // each
    once = up(math.sqrt(QUESTIONS / square), 1)
    return (
        f"Of Gaussian questions with noise {NOISE:g}, Gaussian DP allows {many}, a purse for life {few}; for "
        f"{QUESTIONS} questions the noise is {up(noise, 1)} instead of {once}."
    )


def orders(epsilon: float, delta: float, courses: Sequence[Course] = COURSES) -> str:
    """σ at orders that other public functions would choose."""
    shares = {"best for Gaussian": 1.0, "97 %": 0.97, "95 %": 0.95, "80 %": 0.8}
    chosen = {name: lowest_worth(share, epsilon, delta) for name, share in shares.items()}
    heads = [f"{name} ({order:g})" for name, order in chosen.items()]
    # Two orders, half of δ each: one for Gaussian releases, one for sparse sampling; whichever still pays.
    halves = [lowest_worth(1.0, epsilon, delta / 2), best_for(COURSES[3], epsilon, delta / 2)]

    def row(course: Course) -> tuple[str, ...]:
        sigmas = [up(at_order(course, order, epsilon, delta)) for order in chosen.values()]
        own = best_for(course, epsilon, delta)
        both = min(at_order(course, order, epsilon, delta / 2) for order in halves)
        return course.name, *sigmas, f"{up(at_order(course, own, epsilon, delta))} ({own:.3g})", up(both)

    return table(("training", *heads, "best for this training", "two orders"), map(row, courses))


def missing_in(page: str, parts: Iterable[str]) -> list[str]:
    """What a page does not have, wherever its lines are broken: whole sentences, and lines of tables."""
    text = " ".join(page.split())
    return [line for part in parts for line in part.splitlines() if " ".join(line.split()) not in text]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--check", type=Path, metavar="PAGE", help="exit 1 unless this page has all of it")
    options = parser.parse_args(arguments)
    parts = []
    for part in (training, questions, orders):
        parts.append(part(options.epsilon, options.delta))
        print(parts[-1], end="\n\n", flush=True)
    wrong = [] if options.check is None else missing_in(options.check.read_text(encoding="utf-8"), parts)
    for line in wrong:
        print(f"not in {options.check}: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

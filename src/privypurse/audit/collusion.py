"""What other people's choices can do to you at the same (ε, δ): Kaiser et al. (2026, arXiv 2601.12922).

A point (ε, δ) leaves a curve open. Every method puts a person onto one family of curves: a sampling rate q, with the
effective noise multiplier that (ε, δ) needs at q. Rare steps with little noise and steps taken always with much of it
cost the same (ε, δ), but the best attacker's advantage, the total variation, differs: it grows with q. Where public
constants are solved from all budgets, other people's budgets decide which q it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privypurse._validate import integer, real
from privypurse.accounting import SampledGaussian, accountant_named
from privypurse.accounting.advantage import total_variation
from privypurse.arrays import FloatArray
from privypurse.assignment.method import Calibrator
from privypurse.assignment.sample import Sample
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput, Unsupported
from privypurse.plans import Plan, Promise

_SOLVED_RATES = ("sample", "curve-fit")  # σ follows from all budgets, and everyone's rate from it
_FEWEST_REMAIN = "exclude"  # the rate follows from how many others remain
_LEAST_RATE = 1e-3  # of what is looked at where others may choose anything: below it the advantage only falls


@dataclass(frozen=True)
class Collusion:
    """One level of a plan: the best attacker's advantage now, and at worst if the others chose otherwise."""

    epsilon: float
    delta: float
    now: float
    worst: float
    rate: float
    """The sampling rate at which it is worst."""

    @property
    def excess(self) -> float:
        """How much others can add."""
        return self.worst - self.now


def collusion(plan: Plan, others: tuple[float, float] | None = None, points: int = 9) -> tuple[Collusion, ...]:
    """For each level of the plan how much more an attacker could tell if all others chose other ε.

    ``others``: the smallest and largest ε that they may choose; left out, any. Advantages are upper bounds by privacy
    loss distributions; the worst is the largest at ``points`` rates, the ends of what others can bring about among
    them. Nothing is added where all that is public was fixed beforehand (promise "presence").
    """
    if plan.filter is not None:
        raise Unsupported("a plan with extra steps follows gradients as it goes and has no curve; leave them out")
    if plan.promise not in (Promise.DATA, Promise.PRESENCE):
        raise InvalidInput(f"the plan promises nothing by itself ({plan.promise}); give one that does")
    integer(points, "points", least=2)
    if others is not None:
        least = real(others[0], "others[0]", above=0, hint="an ε")
        others = least, real(others[1], "others[1]", least=least, hint="an ε, not below the first")
    now = np.array([total_variation(release) for release in plan.releases()])
    worst, rate = now.copy(), plan.levels.rate.copy()
    if plan.promise is Promise.DATA:
        for level in range(now.size):
            for candidate in _rates(plan, level, others, points).tolist():
                found = total_variation(_at_rate(plan, level, candidate))
                if found > worst[level] * (1 + 1e-9):  # more than rounding
                    worst[level], rate[level] = found, candidate
    columns = zip(plan.levels.epsilon, plan.levels.delta, now, worst, rate, strict=True)
    return tuple(Collusion(*map(float, row)) for row in columns)


def _calibrator(plan: Plan) -> Calibrator:
    return Calibrator(plan.shape, accountant_named(plan.accountant))


def _at_rate(plan: Plan, level: int, rate: float) -> SampledGaussian:
    """What somebody of this level would face at that rate: the noise is as little as their (ε, δ) allows."""
    inverse, _ = _calibrator(plan).inverse_noise(rate).certified(*_purse(plan, level))
    return SampledGaussian(rate, 1.0 / float(inverse[0]), plan.steps)


def _purse(plan: Plan, level: int) -> tuple[FloatArray, FloatArray]:
    some = slice(level, level + 1)
    return plan.levels.epsilon[some], plan.levels.delta[some]


def _rates(plan: Plan, level: int, others: tuple[float, float] | None, points: int) -> FloatArray:
    """Rates that others' choices could give to somebody of this level."""
    even = min(1.0, plan.batch_size / plan.people)
    if plan.method == _FEWEST_REMAIN:
        return np.geomspace(even, 1.0, points)
    if plan.method not in _SOLVED_RATES:  # one rate for all, whatever they choose
        return np.array([even])
    if others is None:
        return np.geomspace(min(_LEAST_RATE, even), 1.0, points)
    first, last = sorted(_rate_among(plan, level, epsilon) for epsilon in others)
    return np.geomspace(first, last, points)


def _rate_among(plan: Plan, level: int, theirs: float) -> float:
    """The rate of one person of this level where all others hold ``theirs``; 1 where no noise fits so little."""
    own, delta = (float(column[0]) for column in _purse(plan, level))
    if plan.people == 1:
        return float(plan.levels.rate[level])
    epsilon, people = np.array([theirs, own]), np.array([plan.people - 1, 1])
    order = np.argsort(epsilon, kind="stable")
    levels = Levels(epsilon[order], np.full(2, delta), people[order])
    open_shape = Calibrator(replace(plan.shape, noise_multiplier=None), accountant_named(plan.accountant))
    try:
        rate = Sample().assign(levels, open_shape).rate
    except InfeasibleBudget:
        return 1.0
    return float(rate[int(np.flatnonzero(order == 1)[0])])

"""Budgets → schedule: training in rounds with threshold sampling, and groups one after another.

Heo et al. (2023, arXiv 2305.15165). PDP-SGD (their Algorithm 1) trains one model in several rounds; in each a
threshold τ is chosen, people below it are drawn by a coin, and the round is τ-DP for who was drawn. AdaPDP (Algorithm
2) trains a model a round and averages them; Sampling (Definition B.1) has a single round.

As published, only the drawn pay, and who is not drawn keeps the whole budget for the next round. That uses the same
luck twice (rule 1). Here, and this is ours, the rounds are the same but what is left is reckoned as if everybody
paid: someone below τ has nothing left, someone above it has √(ε² - τ²). So the thresholds follow from the declared
budgets alone, and the schedule can be composed tightly: noise is solved so that those who are in every round spend
what the most generous grant, and each other person's chances so that they spend their own ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from privypurse._validate import integer, one_of, real
from privypurse.accounting import Accountant, Composed, Progress, Release, SampledGaussian, accountant_named
from privypurse.accounting.inverse import Axis
from privypurse.arrays import FloatArray
from privypurse.assignment.method import (
    UNUSED,
    Calibrator,
    named,
    refuse_overspending,
    require_budgets,
    require_people,
    whose,
)
from privypurse.assignment.threshold_sampling import AdaptiveLoss, FixedLoss, Loss, best_threshold, probabilities
from privypurse.budgets import Budgets
from privypurse.budgets.budgets import LARGEST, SMALLEST
from privypurse.budgets.levels import Levels
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.plans import TrainingShape
from privypurse.plans.round_prices import RoundPrices
from privypurse.plans.schedule import Round, Schedule, faced
from privypurse.plans.under_ledger import UnderLedger

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_LEFT = 0.02  # of the largest ε: rounds for less than this are not worth their noise
_CLOSE = 5e-4  # of ε: how near the noise is solved
_Inner = list[SampledGaussian]
"""For each round the steps of whoever was drawn into it."""
_NOMINAL = Axis(lowest_decade=-6, highest_decade=10, per_decade=8)
"""Of a nominal budget, which decides the chances of all rounds together."""


@dataclass(frozen=True)
class PdpSgd:
    """One model through all rounds (Heo et al. 2023, Algorithm 1)."""

    loss: Loss = field(default_factory=AdaptiveLoss)
    rounds: int = 10
    name: ClassVar[str] = "pdp-sgd"
    separate: ClassVar[bool] = False


@dataclass(frozen=True)
class AdaPdp:
    """A model a round, outputs averaged (Heo et al. 2023, Algorithm 2; Niu et al. 2021)."""

    loss: Loss = field(default_factory=lambda: FixedLoss(0.2, 0.8))
    rounds: int = 10
    name: ClassVar[str] = "adapdp"
    separate: ClassVar[bool] = True


@dataclass(frozen=True)
class Sampling:
    """One round, drawn before training begins (Heo et al. 2023, Definition B.1; Jorgensen et al. 2015)."""

    loss: Loss = field(default_factory=FixedLoss)
    rounds: ClassVar[int] = 1
    name: ClassVar[str] = "sampling"
    separate: ClassVar[bool] = False


@dataclass(frozen=True)
class Groups:
    """Groups of equal ε one after another, each with ordinary DP-SGD (Boenisch et al. 2023, E.2)."""

    order: str = "strict-first"
    name: ClassVar[str] = "groups"

    def __post_init__(self) -> None:
        one_of(self.order, "order", ("strict-first", "relaxed-first"))


InRounds = PdpSgd | AdaPdp | Sampling | Groups
SCHEDULES: dict[str, InRounds] = {method.name: method for method in (PdpSgd(), AdaPdp(), Sampling(), Groups())}


def schedule(
    budgets: Budgets,
    method: str | InRounds = "pdp-sgd",
    *,
    epochs: float,
    batch_size: int,
    clip_norm: float = 1.0,
    ledger: Ledger | None = None,
    at_most: float | None = None,
    accountant: str = "pld",
    progress: Progress | None = None,
) -> Schedule:
    """Turn everyone's ε into rounds of training that keep every one of them.

    All rounds together take as many steps as ``epochs`` over everybody would; a round that draws fewer people, or at
    a smaller threshold, takes fewer of them, and one that would take none is left out. ``batch_size`` is the public
    divisor of every step. With method "groups" each group gets ``epochs`` of its own. ``ledger`` is where its people
    are charged for life when it is trained, with the public cap ``at_most``, an ε (None: all of public balances):
    nobody's ε here is above it, and whether public balances pay for the rounds is asked at once. A lifetime's
    accounting is coarser, so ε of whole grants may not be paid for: the error says about how much would be.

    Guarantee: ``schedule.spent() <= budgets.epsilon`` for every record, proved by the named accountant.
    """
    require_budgets(budgets)
    chosen: InRounds = named(method, SCHEDULES)
    if not isinstance(chosen, InRounds):
        raise InvalidInput(f"method must be a name or a method in rounds, not {type(chosen).__name__}")
    under = _under(ledger, budgets, at_most)
    shape = TrainingShape(steps=1, batch_size=batch_size, clip_norm=clip_norm)
    levels, level_of = budgets.levels(at_most)
    require_people(shape, levels, "lower it")
    work = _Work(levels, shape, real(epochs, "epochs", above=0), accountant_named(accountant), progress)
    rounds = work.groups(chosen.order) if isinstance(chosen, Groups) else work.thresholds(chosen)
    made = Schedule(
        method=chosen.name,
        accountant=accountant,
        rounds=rounds,
        batch_size=shape.batch_size,
        clip_norm=shape.clip_norm,
        epsilon_by_level=levels.epsilon,
        delta_by_level=levels.delta,
        level_of=level_of,
        separate=not isinstance(chosen, Groups) and chosen.separate,
        notes=work.notes(),
        ledger=under,
        **whose(budgets),
    )
    refuse_overspending(made, progress)
    if ledger is not None:
        members = ledger.members(budgets.people_ids())
        RoundPrices.of(ledger, made).require_payable(ledger, members, made)
    return made


def _under(ledger: Ledger | None, budgets: Budgets, at_most: float | None) -> UnderLedger | None:
    if ledger is None:
        if at_most is not None:
            raise InvalidInput(f"at_most is {at_most!r}, a run's cap in a ledger; give ledger= too, or leave it out")
        return None
    if at_most is not None:
        at_most = real(at_most, "at_most", least=SMALLEST, most=LARGEST, hint="an ε")
    return UnderLedger(ledger.id, at_most, ledger.members(budgets.people_ids()).numbers)


@dataclass(eq=False)
class _Work:
    """What solving a schedule needs at hand."""

    levels: Levels
    shape: TrainingShape
    epochs: float
    accountant: Accountant
    progress: Progress | None
    unused: int = 0

    def thresholds(self, method: PdpSgd | AdaPdp | Sampling) -> tuple[Round, ...]:
        taus = nominal_thresholds(self.levels, method.loss, integer(method.rounds, "rounds"))
        expected = self.levels.people @ nominal_chances(self.levels.epsilon, taus)
        counts = self._steps(taus, expected)
        worth = np.flatnonzero(counts >= 1)
        steps = np.round(counts[worth]).astype(np.int64).tolist()
        taus, expected = np.array(taus)[worth].tolist(), expected[worth]
        rates = np.minimum(1.0, self.shape.batch_size / expected).tolist()
        # Whoever is in every round spends the most generous ε, or in a single round its threshold.
        goal = taus[0] if method.rounds == 1 else float(self.levels.epsilon.max())
        inner = self._solved(taus, steps, rates, goal)

        def release_at(nominal: float) -> Release:
            return faced(inner, nominal_chances(np.array([nominal]), taus)[0].tolist())

        inverse = self._calibrator(1).inverse(release_at, _NOMINAL)
        nominal, spent = inverse.certified(self.levels.epsilon, self.levels.delta)
        self.unused = int(self.levels.people[spent < UNUSED * self.levels.epsilon].sum())
        chances = nominal_chances(nominal, taus)
        if not chances.any():
            raise InfeasibleBudget(
                "nobody would be drawn into any round; take fewer epochs or a larger batch_size",
                epsilon=float(self.levels.epsilon.max()),
                delta=float(self.levels.delta.max()),
            )
        return tuple(
            Round(
                threshold=tau,
                noise_multiplier=one.noise_multiplier,
                steps=one.count,
                rate=one.rate,
                chance=chance,
                expected=float(self.levels.people @ chance),
            )
            for tau, one, chance in zip(taus, inner, chances.T, strict=True)
        )

    def groups(self, order: str) -> tuple[Round, ...]:
        """One round for each level: everybody in it is drawn for sure, nobody else is."""
        which = range(self.levels.epsilon.size)
        rounds = []
        for level in which if order == "strict-first" else reversed(which):
            group = self.levels.only(slice(level, level + 1))
            rate = min(1.0, self.shape.batch_size / group.total)
            steps = max(1, round(self.epochs * group.total / self.shape.batch_size))
            inverse, _ = self._calibrator(steps).inverse_noise(rate).certified(group.epsilon, group.delta)
            rounds.append(
                Round(
                    threshold=float(group.epsilon[0]),
                    noise_multiplier=float(1.0 / inverse[0]),
                    steps=steps,
                    rate=rate,
                    chance=(np.arange(self.levels.epsilon.size) == level).astype(np.float64),
                    expected=float(group.total),
                )
            )
        return tuple(rounds)

    def notes(self) -> tuple[str, ...]:
        if not self.unused:
            return ()
        return (f"{self.unused:,} of {self.levels.total:,} people granted more than these rounds can use",)

    def _calibrator(self, steps: int) -> Calibrator:
        return Calibrator(replace(self.shape, steps=steps), self.accountant, self.progress)

    def _steps(self, taus: list[float], expected: FloatArray) -> FloatArray:
        """How many steps each round takes.

        n passes over m people move the model by n·m of signal and by about n/τ of noise, whatever the batch. So the
        best n is proportional to m·τ², and a round takes n·m/batch_size steps.
        """
        share = expected**2 * np.square(taus)
        steps = self.epochs * self.levels.total / self.shape.batch_size * share / share.sum()
        return np.asarray(np.maximum(steps, np.where(share == share.max(), 1.0, 0.0)))

    def _solved(self, taus: list[float], steps: list[int], rates: list[float], goal: float) -> _Inner:
        """Each round's steps, with noise in the proportions of the thresholds, so that all together cost ``goal``."""
        # Whoever is in every round holds the largest ε; that person's δ decides.
        strictest = self.levels.delta[np.argmax(self.levels.epsilon)][None]

        def at(scale: float) -> _Inner:
            out = []
            for tau, n, q in zip(taus, steps, rates, strict=True):
                inverse, _ = self._calibrator(n).inverse_noise(q).certified(np.array([tau * scale]), strictest)
                out.append(SampledGaussian(q, float(1.0 / inverse[0]), n))
            return out

        def cost(rounds: _Inner) -> float:
            return float(self.accountant.epsilons([Composed(tuple(rounds))], strictest)[0])

        return at(goal / taus[0]) if len(taus) == 1 else _largest(at, cost, goal)


def _largest(at: Callable[[float], _Inner], cost: Callable[[_Inner], float], goal: float) -> _Inner:
    """At about the largest scale whose cost is within the goal: a secant in logarithms, with brackets."""
    low, high, scale = 0.0, math.inf, 1.0
    best: _Inner | None = None
    for _ in range(40):
        made = at(scale)
        found = cost(made)
        if found <= goal:
            low, best = scale, made
            if found >= goal * (1 - _CLOSE):
                break
        else:
            high = scale
        wish = scale * goal / found * (1 - _CLOSE / 2)
        scale = wish if low < wish < high else (low + min(high, 4 * low + 1e-3)) / 2
    if best is None:
        raise InfeasibleBudget(
            f"no noise keeps ε = {goal:g} over all rounds; take fewer rounds or epochs, or raise that ε",
            epsilon=goal,
            delta=math.nan,
        )
    return best


def nominal_thresholds(levels: Levels, loss: Loss, rounds: int) -> list[float]:
    """τ of each round: the threshold that wastes least of what is left if everybody pays for every round."""
    left = levels.epsilon.copy()
    out: list[float] = []
    while len(out) < rounds and left.max() > _LEFT * levels.epsilon.max():
        some = left > 0
        out.append(best_threshold(left[some], loss, levels.people[some]))
        left = _left(left, out[-1])
    return out


def nominal_chances(epsilon: FloatArray, thresholds: list[float]) -> FloatArray:
    """For each ε (row) the chance of being drawn into each round (column), if nominally everybody pays each time."""
    left = np.asarray(epsilon, dtype=np.float64).copy()
    out = np.zeros((left.size, len(thresholds)))
    for k, tau in enumerate(thresholds):
        if (some := left > 0).any():
            out[some, k] = probabilities(left[some], tau)
        left = _left(left, tau)
    return out


def _left(epsilon: FloatArray, threshold: float) -> FloatArray:
    """Of ε after a round at τ: √(ε² - τ²), since what Gaussian steps cost adds up in squares.

    Heo et al. (2023) subtract. Only thresholds and chances follow from this; what they cost is computed in the end.
    """
    return np.asarray(np.sqrt(np.maximum(epsilon**2 - threshold**2, 0.0)))

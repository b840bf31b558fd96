"""Rounds with the bookkeeping of Heo et al. (2023) as published, for comparison: it keeps NO promise.

Algorithms 1 and 2 charge a round's ε to the people whom it drew and leave the others their whole budget. That uses
the same luck twice (docs/soundness.md, rule 1), so nothing is proved; what each group really spent at most is
computed beside it. Weights of AdaPDP follow from realised counts, as published, which tells who was drawn.

The text leaves open what a round's noise is solved for. For Sampling and AdaPDP each round by itself is (τ, δ)-DP for
who was drawn (their loop ends when the round has spent τ). For PDP-SGD Algorithm 4 adds the rounds before: here the
noise of a round is such that all rounds that may still follow, taken like this one, spend τ on top of them, and a
round costs the drawn what it adds. With the paper's settings the first round's noise is then close to the 1.3 that it
prints. Rényi accounting, as in the paper.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize

from privypurse._validate import real
from privypurse.accounting import PLD, RDP, Composed, Progress, Release, SampledGaussian, SampledRound
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.assignment.method import require_budgets, whose
from privypurse.assignment.round_planner import AdaPdp, PdpSgd, Sampling
from privypurse.assignment.threshold_sampling import Loss, best_threshold, probabilities
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.plans import Promise
from privypurse.plans.schedule import Round, Schedule
from reproductions.unsound import true_cost

_NOTHING = 1e-9  # of ε: less than this is nothing left


@dataclass(frozen=True, eq=False, kw_only=True)
class Published(Schedule):
    """Rounds that were drawn while the schedule was made: the next one's threshold follows from who was drawn."""

    drawn: tuple[AnyArray, ...]
    """For each round who is in it: a secret, and here it is. For simulations only."""
    charge: tuple[float, ...]
    """For each round the ε that the drawn were charged."""

    @property
    def weights(self) -> FloatArray:
        raw = np.array([one.threshold * who.sum() for one, who in zip(self.rounds, self.drawn, strict=True)])
        return np.asarray(raw / raw.sum())

    def draw(self, number: int, uniforms: FloatArray) -> AnyArray:
        return self.drawn[number]

    def releases(self) -> tuple[Release, ...]:
        raise InvalidInput("people of one level faced different rounds; spent_by_level() bounds what that cost")

    def summary(self) -> str:
        """The rounds for people to read, and at most what each level really spent in them."""
        lines = [f"method {self.method}: {len(self.rounds)} rounds, {self.steps:,} steps", self.promise.text, ""]
        lines += [
            f"round {number}: threshold {one.threshold:.4g}, noise multiplier {one.noise_multiplier:.4g}, "
            f"{one.steps:,} steps, {who.sum():,} drawn"
            for number, (one, who) in enumerate(zip(self.rounds, self.drawn, strict=True), 1)
        ]
        spent = self.spent_by_level()
        lines += [""] + [
            f"ε promised {e:g}, spent at most {s:.4f}" for e, s in zip(self.epsilon_by_level, spent, strict=True)
        ]
        return "\n".join(lines)

    def spent_by_level(self, progress: Progress | None = None) -> FloatArray:
        """At most this ε each level *really* spent at its δ, in these rounds; it may be more than was promised."""
        if not self._spent:
            full = all(cost >= one.threshold for cost, one in zip(self.charge, self.rounds, strict=True))
            found = np.zeros(self.epsilon_by_level.size)
            for level, (epsilon, delta) in enumerate(
                zip(self.epsilon_by_level.tolist(), self.delta_by_level.tolist(), strict=True)
            ):
                found[level] = (
                    true_cost.epsilon(self._turns(epsilon), delta)
                    if full
                    else PLD().epsilons([self._never_luckier(epsilon)], delta)[0]
                )
                if progress:
                    progress(level + 1, found.size)
            self._spent[0] = frozen(found)
        return self._spent[0]

    def _never_luckier(self, budget: float) -> Composed:
        """Rounds that each draw with the largest chance that any past could have left.

        Given what was seen before, a round draws the record with some chance of at most that; a larger chance can
        only cost more, and dominating rounds compose (Zhu, Dong & Wang 2022, Theorem 10).
        """
        states, rounds = np.array([budget]), []
        for one, cost in zip(self.rounds, self.charge, strict=True):
            states = states[states > _NOTHING]
            if not states.size:
                break
            chance = probabilities(states, one.threshold)
            rounds.append(SampledRound(float(chance.max()), one.release))
            paid = np.maximum(states - cost, 0.0)
            states = np.unique(np.concatenate([paid, states[chance < 1]]).round(12))
        return Composed(tuple(rounds))

    def _turns(self, left: float) -> list[true_cost.Turn]:
        """A record's rounds until it is used up, as long as it is not drawn where a coin decides."""
        turns = []
        for one in self.rounds:
            if left <= _NOTHING:
                break
            chance = float(probabilities(np.array([left]), one.threshold)[0])
            turns.append(true_cost.Turn(chance, one.release))
            if chance == 1:
                left -= one.threshold
        return turns


def published(
    budgets: Budgets,
    method: PdpSgd | AdaPdp | Sampling,
    *,
    epochs: float,
    batch_size: int,
    clip_norm: float = 1.0,
    rng: np.random.Generator,
) -> Published:
    """Rounds drawn and charged as published.

    PDP-SGD divides the ``epochs`` among the rounds that it may take; a model of its own has them all in each round.
    """
    require_budgets(budgets)
    real(epochs, "epochs", above=0)
    if not isinstance(method, PdpSgd | AdaPdp | Sampling):
        raise InvalidInput(f"only threshold sampling was published that way, not {method!r}")
    levels, level_of = budgets.levels()
    delta, left = float(levels.delta.min()), levels.epsilon[level_of]
    past: list[_Past] = []
    share = epochs / method.rounds if isinstance(method, PdpSgd) else epochs
    while len(past) < method.rounds and (left > _NOTHING).any():
        tau, who = _draw(left, method.loss, rng)
        if not who.any():
            break
        people = int(who.sum())
        steps, rate = max(1, round(share * people / batch_size)), min(1.0, batch_size / people)
        before, follow = [each.round.release for each in past], method.rounds - len(past)
        if not isinstance(method, PdpSgd):
            before, follow = [], 1
        sigma, cost = _noise(tau, before, rate, steps, follow, delta)
        # People of one level have different chances by now, so that `drawn` says what there is to say.
        nobody = np.zeros(levels.epsilon.size)
        one = Round(threshold=tau, noise_multiplier=sigma, steps=steps, rate=rate, chance=nobody, expected=people)
        past.append(_Past(one, frozen(who), cost))
        left = np.where(who, np.maximum(left - cost, 0.0), left)
    return Published(
        method=f"{method.name}, as published",
        accountant="rdp",
        rounds=tuple(each.round for each in past),
        batch_size=batch_size,
        clip_norm=clip_norm,
        epsilon_by_level=levels.epsilon,
        delta_by_level=levels.delta,
        level_of=level_of,
        **whose(budgets),
        separate=method.separate,
        promise=Promise.NONE,
        drawn=tuple(each.drawn for each in past),
        charge=tuple(each.cost for each in past),
    )


class _Past(NamedTuple):
    """A round, who was drawn into it, and the ε that it cost them."""

    round: Round
    drawn: AnyArray
    cost: float


def _draw(left: FloatArray, loss: Loss, rng: np.random.Generator) -> tuple[float, AnyArray]:
    """The best threshold for what people have left, and who is drawn by it."""
    some = left > _NOTHING
    values, counts = np.unique(left[some], return_counts=True)
    tau = best_threshold(values, loss, counts)
    chance = np.zeros(left.size)
    chance[some] = probabilities(left[some], tau)
    return tau, rng.random(left.size) < chance


def _noise(
    tau: float, before: list[SampledGaussian], rate: float, steps: int, follow: int, delta: float
) -> tuple[float, float]:
    """The noise at which ``follow`` rounds like this one spend τ on top of those before, and what this one adds."""
    accountant = RDP()

    def spent(sigma: float, rounds: int) -> float:
        faced = Composed((*before, SampledGaussian(rate, sigma, steps * rounds)))
        return float(accountant.epsilons([faced], delta)[0])

    already = float(accountant.epsilons([Composed(tuple(before))], delta)[0]) if before else 0.0
    low, high = -4.0, 14.0
    if spent(math.exp(low), follow) - already < tau or spent(math.exp(high), follow) - already > tau:
        raise InfeasibleBudget(f"no noise makes a round cost ε = {tau:g} at δ = {delta:g}", epsilon=tau, delta=delta)
    root = optimize.brentq(lambda log: spent(math.exp(log), follow) - already - tau, low, high, xtol=1e-4)
    sigma = math.exp(float(root) + 1e-4)
    return sigma, spent(sigma, 1) - already if before or follow > 1 else tau

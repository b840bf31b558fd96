"""Rounds with the bookkeeping of Heo et al. (2023) as published, for comparison: it keeps NO promise.

Algorithms 1 and 2 charge a round's ε to the people whom it drew and leave the others their whole budget. That uses
the same luck twice (rule 1), so nothing is proved; what each group really spent is computed beside it
(`accounting.luck`). Weights of AdaPDP follow from realised counts, as published, which tells who was drawn.

The text leaves open what a round's noise is solved for. Here each round by itself is (τ, δ)-DP for who was drawn, by
Rényi accounting as in the paper, which is what the proof of Theorem 4.5 needs; Algorithm 4 would add earlier rounds,
whose budgets are gone already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privypurse.accounting import RDP, Progress, luck
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.assignment.base import Levels, Means, levels_of
from privypurse.assignment.rounds import AdaPdp, PdpSgd, Sampling
from privypurse.assignment.threshold import Loss, best_threshold, probabilities
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.plans import Promise, TrainingShape
from privypurse.schedules import Round, Schedule

_NOTHING = 1e-9  # of ε: less than this is nothing left


@dataclass(frozen=True, eq=False, kw_only=True)
class Published(Schedule):
    """Rounds that were drawn while the schedule was made: the next one's threshold follows from who was drawn."""

    drawn: tuple[AnyArray, ...]
    """For each round who is in it: a secret, and here it is. For simulations only."""

    @property
    def weights(self) -> FloatArray:
        raw = np.array([one.threshold * who.sum() for one, who in zip(self.rounds, self.drawn, strict=True)])
        return np.asarray(raw / raw.sum())

    def draw(self, number: int, uniforms: FloatArray) -> AnyArray:
        return self.drawn[number]

    def spent_by_level(self, progress: Progress | None = None) -> FloatArray:
        """At most this ε each level *really* spent at its δ, in these rounds; it may be more than was promised."""
        if not self._spent:
            found = np.zeros(self.epsilon.size)
            for level in range(found.size):
                found[level] = luck.epsilon(self._turns(float(self.epsilon[level])), float(self.delta[level]))
                if progress:
                    progress(level + 1, found.size)
            self._spent.append(frozen(found))
        return self._spent[0]

    def _turns(self, left: float) -> list[luck.Turn]:
        """A record's rounds until it is used up, as long as it is not drawn where a coin decides."""
        turns = []
        for one in self.rounds:
            if left <= _NOTHING:
                break
            chance = float(probabilities(np.array([left]), one.threshold)[0])
            turns.append(luck.Turn(chance, one.release))
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
    """Rounds drawn and charged as published. ``epochs`` are divided among the rounds that the method may take."""
    if not isinstance(method, PdpSgd | AdaPdp | Sampling):
        raise InvalidInput(f"only threshold sampling was published that way, not {method!r}")
    levels, level_of = levels_of(budgets)
    left = levels.epsilon[level_of]
    rounds: list[Round] = []
    drawn: list[AnyArray] = []
    each = epochs / method.rounds
    while len(rounds) < method.rounds and (left > _NOTHING).any():
        some = left > _NOTHING
        tau = best_threshold(*_counted(left[some], method.loss))
        chance = np.zeros(left.size)
        chance[some] = probabilities(left[some], tau)
        who = rng.random(left.size) < chance
        if not who.any():
            break
        rounds.append(_round(tau, who, levels, each, batch_size))
        drawn.append(frozen(who))
        left = np.where(who, np.maximum(left - tau, 0.0), left)
    return Published(
        method=f"{method.name}, as published",
        accountant="rdp",
        rounds=tuple(rounds),
        batch_size=batch_size,
        clip_norm=clip_norm,
        epsilon=levels.epsilon,
        delta=levels.delta,
        level_of=level_of,
        owner=None if budgets.person is None else budgets.owner,
        separate=method.separate,
        promise=Promise.NONE,
        drawn=tuple(drawn),
    )


def _counted(left: FloatArray, loss: Loss) -> tuple[FloatArray, Loss, AnyArray]:
    values, counts = np.unique(left, return_counts=True)
    return values, loss, counts


def _round(tau: float, who: AnyArray, levels: Levels, epochs: float, batch_size: int) -> Round:
    people = int(who.sum())
    steps = max(1, round(epochs * people / batch_size))
    rate = min(1.0, batch_size / people)
    means = Means(TrainingShape(steps=steps, batch_size=batch_size), RDP())  # the paper's accountant
    inverse, _ = means.inverse_noise(rate).certified(np.array([tau]), levels.delta.min(keepdims=True))
    return Round(
        threshold=tau,
        noise_multiplier=float(1.0 / inverse[0]),
        steps=steps,
        rate=rate,
        chance=np.zeros(levels.epsilon.size),  # people of one level have different ones by now: see `drawn`
        expected=float(people),
    )

"""Schedules: training in rounds, each with its own noise and hidden draw of people, fixed before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privypurse.accounting import Composed, Progress, Release, SampledGaussian, SampledRound, accountant_named
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.errors import InvalidInput
from privypurse.plans.plan import Plan
from privypurse.plans.plan_base import PlanBase
from privypurse.plans.promise import Promise
from privypurse.plans.summary import SENSITIVE, bound
from privypurse.plans.training_shape import TrainingShape


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round: people are drawn into it by one coin each, and then into its steps with ``rate``."""

    threshold: float
    """τ: who has that much left, or more, is drawn for sure (Heo et al. 2023, Definition 4.1)."""
    noise_multiplier: float
    steps: int
    rate: float
    """Of who was drawn into the round, in each step."""
    chance: FloatArray
    """For each level the probability of being drawn into the round."""
    expected: float
    """How many people are drawn on average: from the declared budgets, never a realised count (rule 1)."""

    def __post_init__(self) -> None:
        chance = np.array(self.chance, dtype=np.float64)
        if chance.ndim != 1 or not ((chance >= 0) & (chance <= 1)).all():
            raise InvalidInput("chance must hold one probability for each level")
        object.__setattr__(self, "chance", frozen(chance))

    @property
    def release(self) -> SampledGaussian:
        """What a person faces who was drawn."""
        return SampledGaussian(self.rate, self.noise_multiplier, self.steps)


def faced(rounds: Sequence[SampledGaussian], chances: Sequence[float]) -> Release:
    """What a person faces who is drawn into each of these rounds with these chances.

    Rounds that the person takes no part in are left out, and a round that they are in for sure is its steps: written
    otherwise they cost the same, but an accountant's bound would differ in its last digits. So a planner and its
    schedule must both ask here.
    """
    both = [(chance, one) for chance, one in zip(chances, rounds, strict=True) if chance > 0] or [(0.0, rounds[0])]
    joined: list[Release] = [one if chance == 1 else SampledRound(chance, one) for chance, one in both]
    return joined[0] if len(joined) == 1 else Composed(tuple(joined))


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule(PlanBase):
    """What training in rounds will do, fixed before it starts.

    Guarantee: if everyone is drawn into each round by an independent, hidden coin with exactly these chances, and
    into its steps as a plan says, then after all rounds every person's ε at their δ is at most ``spent()``, which is
    at most what they promised. Everybody pays for every round, drawn or not (rule 1). Who was drawn, how many, and
    everything made of that stays secret; chances and levels are as sensitive as the budgets (rule 6).
    """

    rounds: tuple[Round, ...]
    batch_size: int
    """The public divisor of every step."""
    clip_norm: float
    epsilon_by_level: FloatArray
    """Of each level: the promise."""
    delta_by_level: FloatArray
    separate: bool = False
    """Whether each round trains a model of its own, whose outputs are averaged (AdaPDP)."""
    promise: Promise = Promise.DATA

    WHAT: ClassVar[str] = "schedule"
    MADE_BY: ClassVar[str] = "pp.rounds.schedule"

    def __post_init__(self) -> None:
        for name in ("epsilon_by_level", "delta_by_level"):
            object.__setattr__(self, name, frozen(np.array(getattr(self, name), dtype=np.float64)))
        if not self.rounds:
            raise InvalidInput("a schedule needs at least one round")
        if any(one.chance.size != self.epsilon_by_level.size for one in self.rounds):
            raise InvalidInput(f"every round needs a chance for each of the {self.epsilon_by_level.size} levels")
        super().__post_init__()

    def __repr__(self) -> str:
        return (
            f"Schedule({self.method}, {self.people:,} people, {len(self.rounds)} rounds, {self.steps:,} steps, "
            f"{self.accountant}, {self._whose})"
        )

    @property
    def steps(self) -> int:
        """Of all rounds together."""
        return sum(one.steps for one in self.rounds)

    @property
    def weights(self) -> FloatArray:
        """For each round the public weight of its model's outputs: τ times how many are drawn on average.

        Heo et al. (2023), B.2, weigh by realised counts, which tell who was drawn (rule 1).
        """
        raw = np.array([one.threshold * one.expected for one in self.rounds])
        return np.asarray(raw / raw.sum())

    def releases(self) -> tuple[Release, ...]:
        """What a person of each level faces in all rounds."""
        rounds = [one.release for one in self.rounds]
        chances = np.stack([one.chance for one in self.rounds], axis=1).tolist()
        return tuple(faced(rounds, by_round) for by_round in chances)

    def spent_by_level(self, progress: Progress | None = None) -> FloatArray:
        if not self._spent:
            found = accountant_named(self.accountant).epsilons(self.releases(), self.delta_by_level, progress)
            self._spent[0] = frozen(found)
        return self._spent[0]

    def spent(self) -> FloatArray:
        """The certified ε of every record."""
        return self._by_record(self.spent_by_level())

    def _promised(self) -> tuple[FloatArray, FloatArray]:
        return self.epsilon_by_level, self.delta_by_level

    def draw(self, number: int, uniforms: FloatArray) -> AnyArray:
        """Who is in round ``number`` (from 0), by independent uniforms in (0, 1] that are multiples of 2^-53."""
        # Such a number is at most π with probability π, rounded down to a multiple.
        return np.asarray(uniforms <= self.rounds[number].chance[self.level_of])

    def round_plan(self, number: int, drawn: AnyArray) -> Plan:
        """The plan of round ``number`` (from 0) for the units that were ``drawn``; as secret as who they are."""
        one = self.rounds[number]
        inside = np.asarray(drawn, dtype=bool)
        if inside.shape != (self.people,):
            raise InvalidInput(f"drawn has shape {inside.shape}; give one coin for each of {self.people:,} people")
        shape = TrainingShape(
            steps=one.steps,
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
            noise_multiplier=one.noise_multiplier,
        )
        largest = self.epsilon_by_level.max(), self.delta_by_level.max()
        return Plan.of_round(
            f"{self.method}, round {number + 1}",
            self.accountant,
            shape,
            (np.full(2, largest[0]), np.full(2, largest[1])),  # of the outside, and of the drawn
            np.array([0.0, one.rate]),
            level_of=inside.astype(np.int64),
            owner=self.owner,
            keyed_ids=self.keyed_ids,
            person=self.person,
        )

    def summary(self) -> str:
        """The schedule for people to read."""
        lines = [
            f"method {self.method}, {self.people:,} people, {len(self.rounds)} rounds, {self.steps:,} steps, "
            f"clip norm {self.clip_norm:g}, public divisor {self.batch_size:,}",
            f"proved by {self.accountant}; everybody pays for every round, drawn or not",
            "it holds for this order of rows" if self.keyed_ids is None else "it knows its people by id",
            "",
            "round  threshold  noise multiplier  steps     rate  drawn on average",
        ]
        lines += [
            f"{number:>5}  {one.threshold:>9.4g}  {one.noise_multiplier:>16.4g}  {one.steps:>5,}  {one.rate:>7.3g}"
            f"  {one.expected:>16,.0f}"
            for number, one in enumerate(self.rounds, 1)
        ]
        spent, people = self.spent_by_level(), self.people_by_level()
        lines += ["", "  people  ε promised  ε certified  chance in each round"]
        lines += [
            f"{people[level]:>8,}  {self.epsilon_by_level[level]:>10.4g}  {bound(float(spent[level])):>11}  "
            + " ".join(f"{one.chance[level]:.3g}" for one in self.rounds)
            for level in _some(self.epsilon_by_level.size)
        ]
        return "\n".join([*lines, "", *self.notes, self.promise_text, SENSITIVE])


def _some(size: int, most: int = 12) -> list[int]:
    """At most so many of them, the first and the last among them."""
    if size <= most:
        return list(range(size))
    return sorted({round(k * (size - 1) / (most - 1)) for k in range(most)})

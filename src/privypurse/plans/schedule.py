"""Schedules: training in rounds, each with its own noise and hidden draw of people, fixed before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privypurse.accounting import Composed, Progress, Release, SampledGaussian, SampledRound, accountant_named
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.budgets import Budgets
from privypurse.budgets.roll import Roll, applied, refuse_by_row
from privypurse.errors import InvalidInput
from privypurse.plans.plan import LevelTable, Plan, Promise, TrainingShape, compact, refuse_overdrawn, units_by_id


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule:
    """What training in rounds will do, fixed before it starts.

    Guarantee: if everyone is drawn into each round by an independent, hidden coin with exactly these chances, and
    into its steps as a plan says, then after all rounds every person's ε at their δ is at most ``spent()``, which is
    at most what they promised. Everybody pays for every round, drawn or not (rule 1). Who was drawn, how many, and
    everything made of that stays secret; chances and levels are as sensitive as the budgets (rule 6).
    """

    method: str
    accountant: str
    rounds: tuple[Round, ...]
    batch_size: int
    """The public divisor of every step."""
    clip_norm: float
    epsilon: FloatArray
    """Of each level: the promise."""
    delta: FloatArray
    level_of: AnyArray
    """For each unit (person, or record where there are no persons), its level."""
    owner: AnyArray | None = None
    separate: bool = False
    """Whether each round trains a model of its own, whose outputs are averaged (AdaPDP)."""
    promise: Promise = Promise.DATA
    notes: tuple[str, ...] = ()
    roll: Roll | None = field(default=None, repr=False)
    """Who the units are, as keyed digests of their ids; None where the schedule was made without ids."""
    person: AnyArray | None = field(default=None, repr=False)
    """The ids of the records that it was applied to, in their order."""
    _spent: list[FloatArray] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        accountant_named(self.accountant)
        if not self.rounds:
            raise InvalidInput("a schedule needs at least one round")
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, frozen(np.array(getattr(self, name), dtype=np.float64)))
        if any(one.chance.size != self.epsilon.size for one in self.rounds):
            raise InvalidInput(f"every round needs a chance for each of the {self.epsilon.size} levels")
        level_of = compact(self.level_of, self.epsilon.size, "level_of")
        object.__setattr__(self, "level_of", level_of)
        if self.owner is not None:
            object.__setattr__(self, "owner", compact(self.owner, level_of.size, "owner"))

    def __repr__(self) -> str:
        whose = "this order of rows" if self.roll is None else "by id"
        return (
            f"Schedule({self.method}, {self.people:,} people, {len(self.rounds)} rounds, {self.steps:,} steps, "
            f"{self.accountant}, {whose})"
        )

    def applied_to(self, person: Any) -> Schedule:
        """The same schedule for these records, by their owners' ids, as `Plan.applied_to` says."""
        ids, owner = applied(self.roll, person, "schedule")
        made = replace(self, owner=owner, person=ids)
        object.__setattr__(made, "_spent", self._spent)
        return made

    def for_records(self, person: Any = None) -> Schedule:
        """The schedule as training takes it: applied by id where it has ids (rule 13), else as it is."""
        if person is not None:
            return self.applied_to(person)
        refuse_by_row(self.roll, self.person, "schedule")
        return self

    def require_kept(self) -> None:
        """Raise if what the schedule spends, computed anew, is more than it promises, if it promises anything."""
        if self.promise in (Promise.NONE, Promise.PART):
            return
        spent = self.spent_by_level()
        over = ~(spent <= self.epsilon)
        if over.any():
            worst = int(np.argmax(np.where(over, spent / self.epsilon, 0.0)))
            raise InvalidInput(
                f"the schedule spends more than it promises: ε = {spent[worst]:.4g} where {self.epsilon[worst]:g} is "
                "promised. It was altered, or made by hand; make it anew with pp.rounds.schedule"
            )

    @property
    def people(self) -> int:
        return int(self.level_of.size)

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
        """What a person of each level faces in all rounds.

        Those that a level takes no part in are left out: they cost nothing, but would coarsen an accountant's grid.
        """

        def faced(level: int) -> Release:
            joined = [one for one in self.rounds if one.chance[level] > 0] or self.rounds[:1]
            return Composed(tuple(SampledRound(float(one.chance[level]), one.release) for one in joined))

        return tuple(faced(level) for level in range(self.epsilon.size))

    def spent_by_level(self, progress: Progress | None = None) -> FloatArray:
        """The certified ε of each level after all rounds, recomputed from the releases."""
        if not self._spent:
            found = accountant_named(self.accountant).epsilons(self.releases(), self.delta, progress)
            self._spent.append(frozen(found))
        return self._spent[0]

    def spent(self) -> FloatArray:
        """The certified ε of every record."""
        by_unit = self.spent_by_level()[self.level_of]
        return frozen(by_unit if self.owner is None else by_unit[self.owner])

    def check(self, budgets: Budgets) -> None:
        """Raise unless everyone's recomputed ε is within the budget that they hold; by id, as `Plan.check` does."""
        if self.roll is not None:
            owner = units_by_id(self.roll, budgets, "schedule")
        else:
            records = self.people if self.owner is None else self.owner.size
            if len(budgets) != records:
                raise InvalidInput(f"the schedule is for {records:,} records, budgets hold {len(budgets):,}")
            owner = np.arange(records) if self.owner is None else self.owner
            if not np.array_equal(owner, budgets.owner):
                raise InvalidInput(
                    f"the schedule counts {self.people:,} people and budgets {budgets.people:,}, or they own other "
                    "records; make it from these budgets, with the same person= ids"
                )
        level = self.level_of[owner]
        refuse_overdrawn(self.spent_by_level()[level], self.delta[level], budgets)

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
        levels = LevelTable(
            epsilon=np.full(2, self.epsilon.max()),
            delta=np.full(2, self.delta.max()),
            rate=np.array([0.0, one.rate]),
            clip_norm=np.full(2, self.clip_norm),
            capped=np.zeros(2, dtype=bool),
        )
        return Plan(
            method=f"{self.method}, round {number + 1}",
            accountant=self.accountant,
            promise=Promise.PART,
            shape=TrainingShape(
                steps=one.steps,
                batch_size=self.batch_size,
                clip_norm=self.clip_norm,
                noise_multiplier=one.noise_multiplier,
            ),
            levels=levels,
            level_of=inside.astype(np.int64),
            owner=self.owner,
            roll=self.roll,
            person=self.person,
        )

    def people_by_level(self) -> IntArray:
        return np.bincount(self.level_of, minlength=self.epsilon.size).astype(np.int64)

    def summary(self) -> str:
        """The schedule for people to read."""
        lines = [
            f"method {self.method}, {self.people:,} people, {len(self.rounds)} rounds, {self.steps:,} steps, "
            f"clip norm {self.clip_norm:g}, public divisor {self.batch_size:,}",
            f"proved by {self.accountant}; everybody pays for every round, drawn or not",
            "it holds for this order of rows" if self.roll is None else "it knows its people by id",
            "",
            "round  threshold  noise multiplier  steps     rate  drawn on average",
        ]
        lines += [
            f"{number:>5}  {one.threshold:>9.4g}  {one.noise_multiplier:>16.4g}  {one.steps:>5,}  {one.rate:>7.3g}"
            f"  {one.expected:>16,.0f}"
            for number, one in enumerate(self.rounds, 1)
        ]
        from privypurse.plans import summary as summaries

        spent, people = self.spent_by_level(), self.people_by_level()
        lines += ["", "  people  ε promised  ε certified  chance in each round"]
        lines += [
            f"{people[level]:>8,}  {self.epsilon[level]:>10.4g}  {spent[level]:>11.4f}  "
            + " ".join(f"{one.chance[level]:.3g}" for one in self.rounds)
            for level in _some(self.epsilon.size)
        ]
        return "\n".join([*lines, "", *self.notes, self.promise.text, summaries.SENSITIVE])


def _some(size: int, most: int = 12) -> list[int]:
    """At most so many of them, the first and the last among them."""
    if size <= most:
        return list(range(size))
    return sorted({round(k * (size - 1) / (most - 1)) for k in range(most)})

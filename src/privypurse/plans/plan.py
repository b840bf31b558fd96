"""Plans: what training will do, fixed before it starts, and what it will have cost everyone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from privypurse.accounting import Composed, Progress, Release, SampledGaussian, accountant_named
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.budgets import Budgets
from privypurse.budgets.roll import Roll, Seal, applied, refuse_by_row
from privypurse.errors import InvalidInput
from privypurse.plans.stopping import Stop

FIXED_SHARE = 0.9
"""Of δ, for the steps that are fixed beforehand; the rest is for what a filter lets follow (rule 5)."""


_SMALLEST = 1e-20


class Promise(StrEnum):
    """What an ε of the plan protects (rule 7)."""

    DATA = "data"
    PRESENCE = "presence"
    PART = "part"
    NONE = "none"

    @property
    def text(self) -> str:
        return _PROMISES[self]


_PROMISES = {
    Promise.DATA: (
        "Each ε protects that person's data, given the list of budgets: public constants of this plan were "
        "solved from everyone's ε or from their number, so they may tell something about those."
    ),
    Promise.PRESENCE: (
        "Each ε protects that person's data, presence and declared ε: each rate follows from the person's own "
        "ε and constants fixed beforehand."
    ),
    Promise.PART: (
        "This is one round of a larger whole, a schedule or a federation: who is drawn into it is a secret, and what "
        "each ε protects is said by the schedule or by the terms."
    ),
    Promise.NONE: (
        "NO PROMISE. This repeats a published method for comparison; 'certified' or 'spent' is at most what it "
        "really spends, and may be more than was promised. Do not train on people's data with it."
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrainingShape:
    """The public constants of training. With ``noise_multiplier`` None it is still to be solved.

    ``batch_size`` is the divisor of every step, whoever was drawn (rule 2). Noise has the standard deviation
    ``noise_multiplier`` · ``clip_norm`` on each summed gradient. ``extra_steps`` may follow the ``steps`` that
    everyone takes, for those alone whose small gradients left something in their purse; ``stop`` may end them early.
    """

    steps: int
    batch_size: int
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    extra_steps: int = 0
    stop: Stop | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("extra_steps", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
                raise InvalidInput(f"{name} is {value!r}; it must be a whole number, at least {least}")
            object.__setattr__(self, name, value.__index__())
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            if value is None and name == "noise_multiplier":
                continue
            if isinstance(value, bool | str) or np.ndim(value) != 0 or not hasattr(value, "__float__"):
                raise InvalidInput(f"{name} is {value!r}, not a number")
            number = float(value)
            if not (math.isfinite(number) and number > 0):
                raise InvalidInput(f"{name} is {number}; it must be finite and positive")
            object.__setattr__(self, name, number)
        for name, value in (("clip_norm", self.clip_norm), ("clip_norm · noise_multiplier", self._deviation)):
            if not _SMALLEST <= value <= 1 / _SMALLEST:
                raise InvalidInput(
                    f"{name} is {value:g}; single precision holds it between {_SMALLEST:g} and {1 / _SMALLEST:g}"
                )
        if self.stop is not None and not isinstance(self.stop, Stop):
            raise InvalidInput(f"stop is {self.stop!r}; give a StopAtPlateau or a StopWhenFew, or leave it out")
        if self.stop is not None and not self.extra_steps:
            raise InvalidInput("stop= ends extra steps early; give extra_steps= too")

    @property
    def _deviation(self) -> float:
        """Of the noise; the clip norm where it is still to be solved."""
        return self.clip_norm * (self.noise_multiplier or 1.0)

    def facing(self, step: SampledGaussian) -> Release:
        """What a person faces who takes these steps: the stopping rule's questions too, if they take part at all."""
        if self.stop is None or step.rate == 0 or step.count < self.steps:
            return step
        # Whoever is in every step is filtered in Gaussian DP, which has to hold fixed steps and questions together.
        return Composed((step, self.stop.gaussian if step.rate == 1 else self.stop.release))

    def with_noise(self, noise_multiplier: float) -> TrainingShape:
        """The same shape, with the noise multiplier solved."""
        return replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True, eq=False, kw_only=True)
class LevelTable:
    """What is alike for all people of a level, one entry a level. Levels ascend in ε."""

    epsilon: FloatArray
    """The promise: the people's ε, rounded down to the ladder."""
    delta: FloatArray
    rate: FloatArray
    clip_norm: FloatArray
    capped: AnyArray
    """True where even the largest rate or clip norm leaves some of the ε unused."""

    def __post_init__(self) -> None:
        size = np.size(self.epsilon)
        for item in fields(self):
            value = np.array(getattr(self, item.name), dtype=bool if item.name == "capped" else np.float64)
            if value.shape != (size,) or size == 0:
                raise InvalidInput(f"levels.{item.name} has shape {value.shape}; every column needs {size} entries")
            object.__setattr__(self, item.name, frozen(value))
        if not ((self.rate >= 0) & (self.rate <= 1)).all():
            raise InvalidInput("levels.rate holds something that is no probability")
        for name in ("epsilon", "delta", "clip_norm"):
            column = getattr(self, name)
            if not (np.isfinite(column) & (column > 0)).all():
                raise InvalidInput(f"levels.{name} holds something that is not finite and positive")
        if not (self.delta < 1).all():
            raise InvalidInput(f"levels.delta holds {self.delta.max():g}; δ lies below 1")
        if not ((self.clip_norm >= _SMALLEST) & (self.clip_norm <= 1 / _SMALLEST)).all():
            raise InvalidInput(
                f"levels.clip_norm goes from {self.clip_norm.min():g} to {self.clip_norm.max():g}; single precision "
                f"holds it between {_SMALLEST:g} and {1 / _SMALLEST:g}"
            )

    def __len__(self) -> int:
        return int(self.epsilon.size)


@dataclass(frozen=True)
class LevelRow:
    """One line of a plan's table: a level, or several that lie next to each other."""

    people: int
    capped: int
    epsilon: tuple[float, float]
    certified: tuple[float, float]
    rate: tuple[float, float]
    clip_norm: tuple[float, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What training will do, fixed before it starts.

    Guarantee (unless ``promise`` says NONE): after all ``steps`` of Poisson-sampled Gaussian training with
    exactly these rates, clip norms and noise, every person's ε at their δ is at most ``spent()``, which is at
    most what they promised; ``accountant`` names the proof. A person's records are one unit. With ``extra_steps`` a
    filter keeps everyone within what they promised in whatever follows (``filter`` names it).

    A plan made with ids is its people's: `applied_to` puts rates and clip norms into the order of whatever records
    they have now (rule 13). One without ids holds for the rows that it was made for, in their order.

    Rates, clip norms and levels are as sensitive as the budgets that they follow from (rule 6).
    """

    method: str
    accountant: str
    promise: Promise
    shape: TrainingShape
    levels: LevelTable
    level_of: AnyArray
    """For each unit (person, or record where there are no persons), its level."""
    owner: AnyArray | None = None
    """For each record, its unit; None where each record is its own."""
    notes: tuple[str, ...] = ()
    roll: Roll | None = field(default=None, repr=False)
    """Who the units are, as keyed digests of their ids; None where the plan was made without ids."""
    seal: Seal | None = field(default=None, repr=False)
    """Without ids: the file whose rows these are, on the command line."""
    person: AnyArray | None = field(default=None, repr=False)
    """The ids of the records that the plan was applied to, in their order. In memory only, never saved."""
    _spent: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        accountant_named(self.accountant)
        if self.shape.noise_multiplier is None:
            raise InvalidInput("a plan needs its noise multiplier")
        object.__setattr__(self, "promise", Promise(self.promise))
        object.__setattr__(self, "notes", tuple(self.notes))
        level_of = compact(self.level_of, len(self.levels), "level_of")
        object.__setattr__(self, "level_of", level_of)
        if self.owner is not None:
            object.__setattr__(self, "owner", compact(self.owner, level_of.size, "owner"))
        if self.roll is not None and (self.roll.digests.size != level_of.size or self.owner is None):
            raise InvalidInput(
                f"a plan with ids needs one for each of its {level_of.size:,} people, and their records"
            )

    def __repr__(self) -> str:
        whose = "this order of rows" if self.roll is None else "by id"
        return (
            f"Plan({self.method}, {self.people:,} people, σ {self.noise_multiplier:.4g}, {self.steps:,} steps, "
            f"batch size {self.batch_size:,}, {self.accountant}, {whose})"
        )

    @property
    def noise_multiplier(self) -> float:
        assert self.shape.noise_multiplier is not None
        return self.shape.noise_multiplier

    @property
    def steps(self) -> int:
        """The steps that everyone takes, fixed beforehand."""
        return self.shape.steps

    @property
    def extra_steps(self) -> int:
        """The steps that may follow under a filter."""
        return self.shape.extra_steps

    @property
    def stop(self) -> Stop | None:
        """What may end them early."""
        return self.shape.stop

    @property
    def all_steps(self) -> int:
        """With those that follow under a filter."""
        return self.shape.steps + self.shape.extra_steps

    @property
    def filter(self) -> str | None:
        """What keeps purses closed beyond ``steps``: None without extra steps, else "gdp" or "rdp" (rule 5).

        "gdp" where everyone who takes part is in every step: it holds from the first step on, at the whole δ. "rdp"
        where people are drawn: ``steps`` are proved by the plan's accountant at 0.9·δ, and beyond them a person goes
        on only while all that they spent, from the first step on, fits (ε, 0.1·δ) at an order fixed beforehand.
        """
        if not self.shape.extra_steps:
            return None
        return "gdp" if in_every_step(self.levels.rate) else "rdp"

    @property
    def fixed_delta(self) -> FloatArray:
        """For each level the δ at which its fixed steps are proved."""
        return self.levels.delta * FIXED_SHARE if self.filter == "rdp" else self.levels.delta

    @property
    def filter_delta(self) -> FloatArray:
        """For each level the δ of its filter. With that of the fixed steps it is at most the person's δ."""
        if self.filter != "rdp":
            return self.levels.delta
        return np.asarray((self.levels.delta - self.fixed_delta) * (1 - 1e-9))

    @property
    def batch_size(self) -> int:
        """The public divisor of every step."""
        return self.shape.batch_size

    @property
    def clip_norm(self) -> float:
        """The reference clip norm C: noise is noise_multiplier · C."""
        return self.shape.clip_norm

    @property
    def people(self) -> int:
        return int(self.level_of.size)

    @property
    def records(self) -> int:
        return self.people if self.owner is None else int(self.owner.size)

    def _by_record(self, column: AnyArray) -> Any:
        by_unit = column[self.level_of]
        return frozen(by_unit if self.owner is None else by_unit[self.owner])

    @property
    def rates(self) -> FloatArray:
        """For each record the probability that its person enters a step."""
        return self._by_record(self.levels.rate)  # type: ignore[no-any-return]

    @property
    def clip_norms(self) -> FloatArray:
        """For each record its person's clip norm. A person's records are clipped as one sum."""
        return self._by_record(self.levels.clip_norm)  # type: ignore[no-any-return]

    @property
    def epsilon(self) -> FloatArray:
        """For each record the ε that is promised: its budget, rounded down to the ladder."""
        return self._by_record(self.levels.epsilon)  # type: ignore[no-any-return]

    @property
    def delta(self) -> FloatArray:
        return self._by_record(self.levels.delta)  # type: ignore[no-any-return]

    @property
    def capped(self) -> AnyArray:
        """For each record whether even rate 1 leaves some of its ε unused."""
        return self._by_record(self.levels.capped)  # type: ignore[no-any-return]

    @property
    def expected_batch_size(self) -> float:
        """How many people a step draws on average: the sum of all rates. Sensitive; never a divisor (rule 2)."""
        return float(self._people_by_level() @ self.levels.rate)

    def _people_by_level(self) -> IntArray:
        return np.bincount(self.level_of, minlength=len(self.levels)).astype(np.int64)

    def releases(self, steps: int | None = None) -> tuple[Release, ...]:
        """What a person of each level faces in ``steps`` of the fixed steps (default: all of them)."""
        count = self._checked_steps(steps, self.steps)
        reference = self.clip_norm
        return tuple(
            self.shape.facing(
                SampledGaussian(rate, self.noise_multiplier * (reference / clip if clip != reference else 1.0), count)
            )
            for rate, clip in zip(self.levels.rate.tolist(), self.levels.clip_norm.tolist(), strict=True)
        )

    def spent(self, steps: int | None = None) -> FloatArray:
        """The certified ε of every record after ``steps`` steps, recomputed from the releases.

        Default: all that are fixed beforehand. Beyond them, with ``extra_steps``, it is the ε promised.
        """
        return self._by_record(self.spent_by_level(steps))  # type: ignore[no-any-return]

    def spent_by_level(self, steps: int | None = None, progress: Progress | None = None) -> FloatArray:
        """The same, one entry a level."""
        if steps is not None and self.steps < self._checked_steps(steps, self.all_steps):
            return frozen(np.maximum(self.spent_by_level(progress=progress), self.levels.epsilon))
        count = self._checked_steps(steps, self.steps)
        if count not in self._spent:
            accountant = accountant_named(self.accountant)
            releases = self.releases(count)
            self._spent[count] = frozen(accountant.epsilons(releases, self.fixed_delta, progress))
        return self._spent[count]

    def _checked_steps(self, steps: int | None, most: int) -> int:
        if steps is None:
            return self.steps
        if isinstance(steps, bool) or not hasattr(steps, "__index__") or not 0 <= steps.__index__() <= most:
            raise InvalidInput(f"steps is {steps!r}; the plan covers 0 to {most}")
        return steps.__index__()

    def applied_to(self, person: Any) -> Plan:
        """The same plan for these records: ``person`` holds the id of each one's owner.

        Guarantee: every record has the rate and the clip norm of its owner, in whatever order records come, and
        however many a person has; σ, divisor, steps and promise stay. Planned people without a record are absent:
        they contribute nothing (``absent`` counts them). Ids that the plan does not know are an error that names
        them; so is a second record of somebody where everybody had one when the plan was made.
        """
        ids, owner = applied(self.roll, person, "plan")
        return self._for_others(owner=owner, person=ids)

    def sealed(self, seal: Seal) -> Plan:
        """The same plan, bound to the rows of a file, byte for byte: for plans without ids.

        Make the seal as the budgets are read: in the minutes that planning takes the file may be replaced.
        """
        return self._for_others(seal=seal)

    def _for_others(self, **changes: Any) -> Plan:
        """With other records, and the same levels: it costs what it cost before."""
        made = replace(self, **changes)
        object.__setattr__(made, "_spent", self._spent)
        return made

    def for_records(self, person: Any = None) -> Plan:
        """The plan as training takes it: applied by id where it has ids (rule 13), else as it is."""
        if person is not None:
            return self.applied_to(person)
        refuse_by_row(self.roll, self.person, "plan")
        return self

    @property
    def absent(self) -> int:
        """Planned people who have no record here: they contribute nothing. Sensitive."""
        return 0 if self.owner is None else self.people - int(np.unique(self.owner).size)

    def require_kept(self, progress: Progress | None = None) -> None:
        """Raise if what the plan spends, computed anew, is more than it promises: it was altered, or is a mistake.

        One round of a larger whole (`Promise.PART`) promises nothing by itself.
        """
        if self.promise is Promise.PART:
            return
        over = ~(self.spent_by_level(progress=progress) <= self.levels.epsilon)
        if over.any():
            spent = self.spent_by_level()
            worst = int(np.argmax(np.where(over, spent / self.levels.epsilon, 0.0)))
            raise InvalidInput(
                f"the plan spends more than it promises: ε = {spent[worst]:.4g} where {self.levels.epsilon[worst]:g} "
                f"is promised at δ = {self.levels.delta[worst]:g}. It was altered, or made by hand; make it "
                "anew with pp.plan"
            )

    def check(self, budgets: Budgets) -> None:
        """Raise unless everyone's recomputed ε is within the budget that they hold in ``budgets``.

        People are compared by id where the plan has ids; whoever of them is missing from the budgets is passed over.
        Else record by record.
        """
        unit = self._units_of(budgets)
        spent, delta = self.spent_by_level()[self.level_of], self.levels.delta[self.level_of]
        if self.shape.extra_steps:
            spent = np.maximum(spent, self.levels.epsilon[self.level_of])
        refuse_overdrawn(spent[unit], delta[unit], budgets)

    def _units_of(self, budgets: Budgets) -> AnyArray:
        """For each record of the budgets its unit here."""
        if self.roll is not None:
            return units_by_id(self.roll, budgets, "plan")
        if len(budgets) != self.records:
            raise InvalidInput(f"the plan is for {self.records:,} records, budgets hold {len(budgets):,}")
        owner = np.arange(self.records) if self.owner is None else self.owner
        if not np.array_equal(owner, budgets.owner):
            raise InvalidInput(
                f"the plan counts {self.people:,} people and budgets {budgets.people:,}, or they own other records; "
                "make the plan from these budgets, with the same person= ids"
            )
        return owner

    def by_level(self, most: int = 12, progress: Progress | None = None) -> list[LevelRow]:
        """The table of the plan in at most ``most`` lines; neighbouring levels share one where there are more."""
        if most < 1:
            raise InvalidInput(f"most is {most}; a table needs at least one line")
        spent = self.spent_by_level(progress=progress)
        people = self._people_by_level()

        def span(column: FloatArray, some: slice) -> tuple[float, float]:
            return float(column[some].min()), float(column[some].max())

        return [
            LevelRow(
                people=int(people[some].sum()),
                capped=int(people[some][self.levels.capped[some]].sum()),
                epsilon=span(self.levels.epsilon, some),
                certified=span(spent, some),
                rate=span(self.levels.rate, some),
                clip_norm=span(self.levels.clip_norm, some),
            )
            for some in _grouped(people, most)
        ]

    def summary(self) -> str:
        """The plan for people to read."""
        from privypurse.plans import summary as summaries

        return summaries.text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. The file is as sensitive as the budgets."""
        from privypurse.plans import file as planfile

        planfile.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan back, bit for bit; an altered or damaged file is an error."""
        from privypurse.plans import file as planfile

        return planfile.load(Path(path))


def units_by_id(roll: Roll, budgets: Budgets, what: str) -> AnyArray:
    """For each record of the budgets its owner's unit on the roll."""
    if budgets.person is None:
        raise InvalidInput(f"the {what} was made with ids and compares people by them; give Budgets(…, person=ids)")
    return replace(roll, one_each=False).owners(budgets.person)  # records do not matter here, people do


def refuse_overdrawn(spent: FloatArray, delta: FloatArray, budgets: Budgets) -> None:
    """Raise if a record of the budgets spends more than its owner holds, by this ε and δ of each."""
    over = (spent > budgets.epsilon) | (delta > budgets.delta)
    if over.any():
        worst = int(np.argmax(np.where(over, spent / budgets.epsilon, 0.0)))
        who = f"record {worst}" if budgets.person is None else f"record {worst}, of person {budgets.person[worst]!s}"
        raise InvalidInput(
            f"{int(over.sum()):,} records overspend; worst is {who}: spends ε = {spent[worst]:.4g} at "
            f"δ = {delta[worst]:g}, holds ε = {budgets.epsilon[worst]:.4g} at δ = {budgets.delta[worst]:g}"
        )


def in_every_step(rates: FloatArray) -> bool:
    """Whether everyone who takes part at all is in every step: full-batch training."""
    return bool(np.isin(rates, (0.0, 1.0)).all())


def compact(index: Any, below: int, name: str) -> AnyArray:
    """Indices in the smallest type that holds them: a million people at three levels are a megabyte."""
    values = np.asarray(index)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be a non-empty flat array of whole numbers")
    if int(values.min()) < 0 or int(values.max()) >= below:
        raise InvalidInput(f"{name} must lie in 0 … {below - 1}")
    return frozen(values.astype(np.min_scalar_type(below - 1)))


def _grouped(people: IntArray, most: int) -> Sequence[slice]:
    """At most ``most`` runs of neighbouring levels with about equally many people."""
    if people.size <= most:
        return [slice(k, k + 1) for k in range(people.size)]
    share = np.cumsum(people) - people / 2
    group = np.minimum((share / people.sum() * most).astype(np.int64), most - 1)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return [slice(a, b) for a, b in zip(starts, [*starts[1:].tolist(), people.size], strict=True)]

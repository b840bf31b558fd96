"""Training as a plan fixes it: everyone's rate and clip norm, what they face, and what that costs at most."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from privypurse._validate import integer
from privypurse.accounting import Progress, Release, SampledGaussian, accountant_named
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.budgets.person_ids import Seal
from privypurse.errors import InvalidInput
from privypurse.plans.level_table import LevelRow, LevelTable, in_every_step
from privypurse.plans.plan_base import PlanBase, compact
from privypurse.plans.promise import Promise
from privypurse.plans.training_shape import TrainingShape
from privypurse.plans.under_ledger import PlannedUnderLedger

FIXED_SHARE = 0.9
"""Of δ, for the steps that are fixed beforehand; the rest is for what a filter lets follow (rule 5)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedTraining(PlanBase):
    """The content of a `Plan`, which says what is guaranteed. Summaries and files are made from it."""

    shape: TrainingShape
    levels: LevelTable
    seal: Seal | None = field(default=None, repr=False)
    """Without ids: the file whose rows these are, on the command line."""
    ledger: PlannedUnderLedger | None = None

    WHAT: ClassVar[str] = "plan"
    MADE_BY: ClassVar[str] = "pp.plan"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape.noise_multiplier is None:
            raise InvalidInput("a plan needs its noise multiplier")
        if self.shape.at_most is not None and self.levels.epsilon.max() > self.shape.at_most:
            raise InvalidInput(
                f"at_most is {self.shape.at_most:g}, and a level promises ε = {self.levels.epsilon.max():g}; it was "
                f"altered, or made by hand; make it anew with {self.MADE_BY}"
            )

    def __repr__(self) -> str:
        return (
            f"Plan({self.method}, {self.people:,} people, σ {self.noise_multiplier:.4g}, {self.steps:,} steps, "
            f"batch size {self.batch_size:,}, {self.accountant}, {self._whose})"
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
    def all_steps(self) -> int:
        """With those that follow under a filter."""
        return self.shape.steps + self.shape.extra_steps

    @property
    def batch_size(self) -> int:
        """The public divisor of every step."""
        return self.shape.batch_size

    @property
    def clip_norm(self) -> float:
        """The reference clip norm C: noise is noise_multiplier · C."""
        return self.shape.clip_norm

    @property
    def public_epsilon(self) -> float | None:
        """An ε that nobody exceeds and that may be told, since it follows from nobody's budget: ``at_most``.

        None where none was given: the largest ε of a plan is somebody's, and sensitive (rule 6).
        """
        if self.promise in (Promise.NONE, Promise.PART):
            return None
        return self.shape.at_most if self.ledger is None else self.ledger.at_most

    @property
    def rates(self) -> FloatArray:
        """For each record its sampling rate: the probability that its person enters a step."""
        return self._by_record(self.levels.rate)

    @property
    def clip_norms(self) -> FloatArray:
        """For each record its person's clip norm. A person's records are clipped as one sum."""
        return self._by_record(self.levels.clip_norm)

    @property
    def capped(self) -> AnyArray:
        """For each record whether even rate 1 leaves some of its ε unused."""
        return self._by_record(self.levels.capped)

    @property
    def expected_batch_size(self) -> float:
        """How many people a step draws on average: the sum of all rates. Sensitive; never a divisor (rule 2)."""
        return float(self.people_by_level() @ self.levels.rate)

    @property
    def filter(self) -> str | None:
        """What keeps purses closed beyond ``steps``: None without extra steps, else "gdp" or "rdp" (rule 5).

        "gdp" where everyone who takes part is in every step: it holds from the first step on, at the whole δ. "rdp"
        where people are drawn: ``steps`` are proved by the plan's accountant at 0.9·δ, and beyond them a person goes
        on only while all that they spent, from the first step on, fits (ε, 0.1·δ) at an order fixed beforehand.
        Under a ledger they go on, besides, only within what is reserved there, at the orders of all rungs. Where the
        plan protects people's presence it is "rdp": whether everyone's own rate is 1 tells of everyone (rule 7).
        """
        if not self.shape.extra_steps:
            return None
        by_rates = self.ledger is None and self.promise is Promise.PRESENCE
        return "gdp" if self.full_batch and not by_rates else "rdp"

    @property
    def full_batch(self) -> bool:
        """Whether everyone who takes part is in every step.

        Under a ledger rates follow from what people have left, and may not decide what is one for all (rule 15).
        """
        return in_every_step(self.levels.rate) if self.ledger is None else self.ledger.rate == 1.0

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
        return self._by_record(self.spent_by_level(steps))

    def spent_by_level(self, steps: int | None = None, progress: Progress | None = None) -> FloatArray:
        """The same, one entry a level."""
        if steps is not None and self.steps < self._checked_steps(steps, self.all_steps):
            return frozen(np.maximum(self.spent_by_level(progress=progress), self.levels.epsilon))
        count = self._checked_steps(steps, self.steps)
        # A copy for other records shares what was computed, but without its ledger it may be at another δ.
        known = count, self.fixed_delta.tobytes()
        if known not in self._spent:
            found = accountant_named(self.accountant).epsilons(self.releases(count), self.fixed_delta, progress)
            self._spent[known] = frozen(found)
        return self._spent[known]

    def _checked_steps(self, steps: int | None, most: int) -> int:
        return self.steps if steps is None else integer(steps, "steps", least=0, most=most)

    def _promised(self) -> tuple[FloatArray, FloatArray]:
        return self.levels.epsilon, self.levels.delta

    def _worst_by_level(self, progress: Progress | None = None) -> FloatArray:
        return self.spent_by_level(self.all_steps, progress)

    def by_level(self, most: int = 12) -> list[LevelRow]:
        """The table of the plan in at most ``most`` lines; neighbouring levels share one where there are more."""
        return self.levels.rows(self.people_by_level(), self.spent_by_level(), most)

    def for_nobody(self, level_of: AnyArray) -> Self:
        """The same levels, noise and steps for made-up records, one a person, at these levels: for audits."""
        made = compact(level_of, len(self.levels), "level_of")
        return self._for_others(level_of=made, owner=None, keyed_ids=None, person=None, ledger=None, seal=None)

    def with_strangers(self, level_of: AnyArray) -> Self:
        """The same for its people and their records and, behind them, made-up ones at these levels: for audits.

        It is nobody's account: who charges its people does so by the plan itself.
        """
        more = compact(level_of, len(self.levels), "level_of")
        numbers = self.people + np.arange(more.size)
        return self._for_others(
            level_of=np.append(self.level_of, more),
            owner=None if self.owner is None else np.append(self.owner, numbers),
            keyed_ids=None,
            person=None,
            ledger=None,
            seal=None,
        )

    def sealed(self, seal: Seal) -> Self:
        """The same plan, bound to the rows of a file, byte for byte: for plans without ids.

        Make the seal as the budgets are read: in the minutes that planning takes the file may be replaced.
        """
        return self._for_others(seal=seal)

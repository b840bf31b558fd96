"""What plans and schedules have in common: people in levels, their records, and a promise that is checked."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from privypurse.accounting import Progress, accountant_named
from privypurse.arrays import AnyArray, FloatArray, IntArray, T, frozen
from privypurse.budgets import Budgets
from privypurse.budgets.person_ids import KeyedIds, applied
from privypurse.errors import InvalidInput
from privypurse.plans.promise import Promise
from privypurse.plans.under_ledger import UnderLedger


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanBase(ABC):
    """What was promised to whom, fixed before training starts; base of `Plan` and `Schedule`.

    The privacy unit is a person, or a record where there are no ids. Units with equal purses form a level: they are
    treated alike. A promise is made to a person (rule 13): made with ids it is applied by them, whatever the order of
    their records. Without ids it holds for its rows in their order.
    """

    method: str
    accountant: str
    promise: Promise
    level_of: AnyArray
    """For each unit, its level."""
    owner: AnyArray | None = None
    """For each record, its unit; None where each record is its own."""
    notes: tuple[str, ...] = ()
    keyed_ids: KeyedIds | None = field(default=None, repr=False)
    """Who the units are, as keyed digests of their ids; None where there are no ids."""
    person: AnyArray | None = field(default=None, repr=False)
    """The ids of the records that it was applied to, in their order. In memory only, never saved."""
    ledger: UnderLedger | None = None
    """The ledger that it was made with, and has to be trained with."""
    _spent: dict[Any, FloatArray] = field(default_factory=dict, init=False, repr=False)

    WHAT: ClassVar[str]
    MADE_BY: ClassVar[str]
    """How errors call it, and the function that makes it."""

    def __post_init__(self) -> None:
        accountant_named(self.accountant)
        level_of = compact(self.level_of, self._promised()[0].size, "level_of")
        owner = None if self.owner is None else compact(self.owner, level_of.size, "owner")
        if self.keyed_ids is not None and (self.keyed_ids.digests.size != level_of.size or owner is None):
            raise InvalidInput(
                f"a {self.WHAT} with ids needs one for each of its {level_of.size:,} people, and their records"
            )
        if self.ledger is not None and (self.ledger.numbers.size != level_of.size or self.keyed_ids is None):
            raise InvalidInput(f"a {self.WHAT} with a ledger needs the number there of each of its people, and ids")
        checked = {"promise": Promise(self.promise), "notes": tuple(self.notes), "level_of": level_of, "owner": owner}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def _promised(self) -> tuple[FloatArray, FloatArray]:
        """ε and δ of each level."""

    @abstractmethod
    def spent_by_level(self, *, progress: Progress | None = None) -> FloatArray:
        """The certified ε of each level after all that is fixed beforehand, recomputed from the releases."""

    def _worst_by_level(self, progress: Progress | None = None) -> FloatArray:
        """The most that each level may have spent in the end, by the accountant."""
        return self.spent_by_level(progress=progress)

    @property
    def epsilon(self) -> FloatArray:
        """For each record the ε that is promised: its budget, rounded down to the ladder."""
        return self._by_record(self._promised()[0])

    @property
    def delta(self) -> FloatArray:
        return self._by_record(self._promised()[1])

    @property
    def promise_text(self) -> str:
        """What each ε protects, in words."""
        return self.promise.text if self.ledger is None else self.promise.text_under_ledger

    @property
    def people(self) -> int:
        return int(self.level_of.size)

    @property
    def records(self) -> int:
        return self.people if self.owner is None else int(self.owner.size)

    @property
    def absent(self) -> int:
        """Planned people who have no record here: they contribute nothing. Sensitive."""
        return 0 if self.owner is None else self.people - int(np.unique(self.owner).size)

    def people_by_level(self) -> IntArray:
        return np.bincount(self.level_of, minlength=self._promised()[0].size).astype(np.int64)

    @property
    def _whose(self) -> str:
        return "this order of rows" if self.keyed_ids is None else "by id"

    def _by_record(self, column: npt.NDArray[T]) -> npt.NDArray[T]:
        """For each record the entry of its person's level."""
        by_unit = column[self.level_of]
        return frozen(by_unit if self.owner is None else by_unit[self.owner])

    def applied_to(self, person: Any) -> Self:
        """The same for these records: ``person`` holds the id of each one's owner.

        Guarantee: every record is treated as its owner's level says, in whatever order records come, and however many
        a person has; all else, the promise too, stays. Planned people without a record are absent: they contribute
        nothing (``absent`` counts them). Unknown ids are an error that names them; so is a second record of somebody
        where everybody had one when it was made.
        """
        ids, owner = applied(self.keyed_ids, person, self.WHAT)
        return self._for_others(owner=owner, person=ids)

    def for_records(self, person: Any = None) -> Self:
        """As training takes it: applied by id where it has ids (rule 13), else as it is."""
        if person is not None:
            return self.applied_to(person)
        if self.keyed_ids is not None and self.person is None:
            raise InvalidInput(
                f"the {self.WHAT} was made with ids and is applied by id; give person=, the id of each record's "
                "owner in the order of the dataset"
            )
        return self

    def _for_others(self, **changes: Any) -> Self:
        """With other records, and the same levels: it costs what it cost before."""
        made = replace(self, **changes)
        object.__setattr__(made, "_spent", self._spent)
        return made

    def require_kept(self, progress: Progress | None = None, *, seeded: bool = False) -> None:
        """Raise unless one may train by it: what it spends, computed anew, must be within what it promises.

        `Promise` says what may be done with one that promises nothing; ``seeded`` runs are for comparison.
        """
        if self.promise is Promise.PART or (self.promise is Promise.NONE and seeded):
            return
        if self.promise is Promise.NONE:
            raise InvalidInput(
                f"method {self.method} is for comparison only and keeps no budget; choose another, or train "
                "a schedule with a seed= to repeat its figures on data that is nobody's"
            )
        (epsilon, delta), spent = self._promised(), self._worst_by_level(progress)
        over = ~(spent <= epsilon)
        if over.any():
            worst = int(np.argmax(np.where(over, spent / epsilon, 0.0)))
            raise InvalidInput(
                f"the {self.WHAT} spends more than it promises: ε = {spent[worst]:.4g} where {epsilon[worst]:g} is "
                f"promised at δ = {delta[worst]:g}. It was altered, or made by hand; make it anew with {self.MADE_BY}"
            )

    def check(self, budgets: Budgets) -> None:
        """Raise unless everyone's recomputed ε is within the budget that they hold in ``budgets``.

        People are compared by id where there are ids; whoever of them is missing from the budgets is passed over.
        Else record by record.
        """
        level = self.level_of[self._units_of(budgets)]
        spent, delta = self._worst_by_level()[level], self._promised()[1][level]
        over = (spent > budgets.epsilon) | (delta > budgets.delta)
        if over.any():
            worst = int(np.argmax(np.where(over, spent / budgets.epsilon, 0.0)))
            who = "" if budgets.person is None else f", of person {budgets.person[worst]!s}"
            raise InvalidInput(
                f"{int(over.sum()):,} records overspend; worst is record {worst}{who}: spends ε = {spent[worst]:.4g} "
                f"at δ = {delta[worst]:g}, holds ε = {budgets.epsilon[worst]:.4g} at δ = {budgets.delta[worst]:g}"
            )

    def _units_of(self, budgets: Budgets) -> AnyArray:
        """For each record of the budgets its unit here."""
        if self.keyed_ids is not None and budgets.person is None:
            raise InvalidInput(
                f"the {self.WHAT} was made with ids and compares people by them; give Budgets(…, person=ids)"
            )
        if self.keyed_ids is not None and budgets.person is not None:
            anybody = replace(self.keyed_ids, one_each=False)  # records do not matter here, people do
            return anybody.owners(budgets.person)
        if len(budgets) != self.records:
            raise InvalidInput(f"the {self.WHAT} is for {self.records:,} records, budgets hold {len(budgets):,}")
        owner = np.arange(self.records) if self.owner is None else self.owner
        if not np.array_equal(owner, budgets.owner):
            raise InvalidInput(
                f"the {self.WHAT} counts {self.people:,} people and budgets {budgets.people:,}, or they own other "
                "records; make it from these budgets, with the same person= ids"
            )
        return owner


def compact(index: Any, below: int, name: str) -> AnyArray:
    """Indices in the smallest type that holds them: a million people at three levels are a megabyte."""
    values = np.asarray(index)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be a non-empty flat array of whole numbers")
    if int(values.min()) < 0 or int(values.max()) >= below:
        raise InvalidInput(f"{name} must lie in 0 … {below - 1}")
    return frozen(values.astype(np.min_scalar_type(below - 1)))

"""Who holds what: everyone's privacy budget, checked once and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from privypurse._validate import first_where, float_vector, integer, real, refuse, require_same_order
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.budgets import ladder
from privypurse.budgets.levels import Levels, grouped
from privypurse.budgets.person_ids import KeyedIds, ids_of, named, texts_of
from privypurse.errors import InvalidInput

DEFAULT_DELTA = 1e-5
SMALLEST, LARGEST = 1e-9, 1e9
"""No accountant has anything to say about an ε outside of these."""

Where = Callable[[int], str]
"""How to name the place of an entry, given its row."""


@dataclass(frozen=True, eq=False, init=False)
class Budgets:
    """The purses of a data set: one ε and one δ for each record, read-only float64.

    Guarantee: every ε is finite and positive, every δ lies in (0, 1), and nothing was dropped, clipped or
    reordered on the way in; anything else was an `InvalidInput` that names the first offending record.

    δ is a number for all, which is kept exactly, or one number for each record. Left out it is 1e-5 for all: choose
    it well below 1 / people. One for each record is rounded *down* to one significant digit
    (1e-5, 2e-5, … 9e-5, 1e-4, …): stricter, never looser, and by a rule that looks at nobody else's δ.

    With ``person``, records with the same id are one unit with one ε and one δ: whatever a plan counts
    (people, rates, batch size) it counts in persons. Two budgets for one person are an error. Ids are text or whole
    numbers and compared as text: 7, "7" and " 7" are the same person, "07" is another. A plan made of them is applied
    by id (`Plan.applied_to`); one made without ids holds for the rows in this order.

    Budgets are themselves sensitive: people with something to hide tend to choose a small ε.
    """

    epsilon: FloatArray
    delta: FloatArray
    person: AnyArray | None
    owner: IntArray
    """For each record, which unit it belongs to: 0 … people-1 in order of first appearance."""

    def __init__(self, epsilon: Any, delta: Any = DEFAULT_DELTA, person: Any = None) -> None:
        require_same_order("epsilon", epsilon, delta=delta, person=person)
        eps = float_vector(epsilon, "epsilon")
        _check_epsilon(eps)
        dlt = _checked_delta(delta, eps.size)
        ids, owner = _units(person, eps.size)
        _refuse_disagreement(eps, owner, ids, "epsilon")
        _refuse_disagreement(dlt, owner, ids, "delta")
        object.__setattr__(self, "epsilon", frozen(eps))
        object.__setattr__(self, "delta", frozen(dlt))
        object.__setattr__(self, "person", None if ids is None else frozen(ids))
        object.__setattr__(self, "owner", frozen(owner))

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """These budgets as a whole at each entry: scikit-learn cuts what has as many entries as there are rows."""
        whole = np.empty(len(self), dtype=object)
        whole.fill(self)
        return whole

    def __repr__(self) -> str:
        low, high = float(self.epsilon.min()), float(self.epsilon.max())
        who = "" if self.person is None else f", {self.people:,} people"
        return f"Budgets({len(self):,} records{who}, ε {low:.4g} … {high:.4g})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Budgets):
            return NotImplemented
        return (
            np.array_equal(self.epsilon, other.epsilon)
            and np.array_equal(self.delta, other.delta)
            and np.array_equal(self.owner, other.owner)
            and (self._names() == other._names())
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def people(self) -> int:
        """How many units there are: persons where ids were given, else records."""
        return len(self) if self.person is None else int(self.owner.max()) + 1

    @property
    def one_delta(self) -> bool:
        """Whether one δ was given for all, which is kept exactly, and not one for each record."""
        return self.delta.strides == (0,)

    @property
    def first_record(self) -> IntArray:
        """For each unit, its first record."""
        if self.person is None:
            return self.owner
        return np.unique(self.owner, return_index=True)[1].astype(np.int64)

    def _names(self) -> list[str] | None:
        """The id of each unit, as text."""
        return None if self.person is None else texts_of(self.person[self.first_record])

    def people_ids(self) -> AnyArray:
        """The id of each person, as it was given; an error where there are none, as a ledger needs."""
        if self.person is None:
            raise InvalidInput(
                "a ledger knows people by id, and these budgets have none; give person=, the column of ids of a "
                "table, or the ids themselves"
            )
        return np.asarray(self.person[self.first_record])

    def unit_of(self, person: Any) -> int:
        """The unit of a person, by id; of a record, by its number, where there are no ids."""
        if self.person is None:
            return integer(person, "record", least=0, most=len(self) - 1)
        unit = self._units.get(texts_of(ids_of([person]))[0])
        if unit is None:
            raise InvalidInput(f"person is {person!r}, who has no budget here; give an id of person=")
        return unit

    def owners_of(self, person: Any, records: int) -> IntArray:
        """For each of so many records, by its owner's id, their unit. Strangers are named, to the data's owner."""
        texts = texts_of(ids_of(person, records))
        units = np.fromiter((self._units.get(text, -1) for text in texts), dtype=np.int64, count=len(texts))
        if (units < 0).any():
            raise InvalidInput(
                f"person holds ids that have no budget: {named(texts, units < 0)}; give them one, or leave their "
                "rows out. Ids are compared as text, so 07 is not 7"
            )
        return units

    def for_rows(self, person: Any) -> Budgets:
        """The same purses with an entry for each row, by its owner's id; strangers are an error that names them.

        Whoever has no row keeps one entry: what is solved from budgets then tells nothing about who has rows.
        """
        ids = ids_of(person)
        owners = self.owners_of(ids, ids.size)
        granted = self.first_record[np.append(owners, np.setdiff1d(np.arange(self.people), owners))]
        delta = float(self.delta[0]) if self.one_delta else self.delta[granted]
        return Budgets(self.epsilon[granted], delta=delta, person=np.asarray(self.person)[granted])

    @cached_property
    def _units(self) -> dict[str, int]:
        return {text: unit for unit, text in enumerate(self._names() or [])}

    @cached_property
    def _rung(self) -> IntArray:
        """For each unit the rung of the ladder that its ε is rounded down to: toward privacy, and nowhere else."""
        return ladder.rung_below(self.epsilon[self.first_record])

    @property
    def promised(self) -> FloatArray:
        """For each unit the ε that plans, federations and analysts promise: its budget, rounded down."""
        return ladder.rung_value(self._rung)

    def levels(self, at_most: float | None = None) -> tuple[Levels, IntArray]:
        """Groups of equal purses, ascending in ε, and for each unit its level; no ε above ``at_most``."""
        rung = self._rung if at_most is None else np.minimum(self._rung, ladder.rung_below(np.asarray(at_most)))
        return grouped(rung, self.delta[self.first_record])

    def keyed_ids(self) -> KeyedIds | None:
        """Who holds them, as a plan keeps it: keyed digests of the ids. None where there are no ids."""
        if self.person is None:
            return None
        first = self.first_record
        return KeyedIds.of(self.person[first], one_each=first.size == len(self))

    @classmethod
    def from_levels(
        cls, levels: Any, epsilon: Mapping[Any, float], delta: Any = DEFAULT_DELTA, person: Any = None
    ) -> Budgets:
        """From categories, one for each record. The mapping category → ε is the regulator's."""
        require_same_order("levels", levels, delta=delta, person=person)
        return cls(epsilon_of_levels(levels, epsilon), delta=delta, person=person)

    @classmethod
    def read(
        cls,
        table: Any,
        epsilon: str | None = None,
        *,
        level: str | None = None,
        levels: Mapping[str, float] | None = None,
        delta: float | str = DEFAULT_DELTA,
        person: str | None = None,
    ) -> Budgets:
        """From a CSV or Parquet file (by its ending), or a pandas DataFrame.

        Either ``epsilon`` names the column of budgets (default: the column called "epsilon"), or ``level``
        names a column of categories and ``levels`` says which ε each of them stands for. ``delta`` is a
        number or the name of a column, ``person`` the name of the column of ids.
        """
        from privypurse.budgets import tables  # here, not above: planning from arrays needs no pyarrow

        columns = tables.FileColumns(Path(table)) if isinstance(table, str | Path) else tables.FrameColumns(table)
        named = {"epsilon=": epsilon, "level=": level, "levels=": levels}
        if (level is None) != (levels is None) or (level is not None and epsilon is not None):
            raise InvalidInput(
                "give either epsilon= (a column of budgets), or level= (a column of categories) and levels= (which ε "
                f"each stands for), not both; given is {', '.join(each for each in named if named[each])}"
            )
        if level is not None and levels is not None:
            eps = epsilon_of_levels(columns.labels(level), levels, where=columns.where(level))
        else:
            column = "epsilon" if epsilon is None else epsilon
            eps = columns.numbers(column)
            _check_epsilon(eps, columns.where(column))
        deltas: Any = delta
        if isinstance(delta, str):
            deltas = columns.numbers(delta)
            _check_deltas(deltas, columns.where(delta), shown=False)
        return cls(eps, delta=deltas, person=None if person is None else columns.ids(person))


def epsilon_of_levels(levels: Any, epsilon: Mapping[Any, float], where: Where | None = None) -> FloatArray:
    """The ε of each category, or an error that names the first category without one."""
    if not epsilon:
        raise InvalidInput("the mapping from level to ε is empty; give an ε for each level")
    labels = np.asarray(levels)
    if labels.ndim != 1 or labels.size == 0:
        raise InvalidInput(f"levels must be a non-empty flat sequence of categories; it has shape {labels.shape}")
    names = labels.tolist()
    table: dict[Any, float] = {}
    for row, name in enumerate(names):
        if name in table:
            continue
        if name not in epsilon:
            place = where(row) if where else f"levels[{row}]"
            known = ", ".join(repr(key) for key in epsilon)
            said = "holds a text" if where else f"is {name!r},"  # no cell is shown: it may be another column
            raise InvalidInput(
                f"{place} {said} without an ε; levels has only {known}. Case and space around a level count: list "
                "each as it is written, or check that this is the column of levels"
            )
        table[name] = real(epsilon[name], f"the ε of level {name!r}", above=0)
    return np.fromiter((table[name] for name in names), np.float64, len(names))


def _check_epsilon(eps: FloatArray, where: Where | None = None) -> None:
    no_number = "which is no budget; give every record a positive number"
    positive = "but a budget must be positive; leave out who takes no part"
    finite = "but a budget must be finite; for a record without privacy choose a large ε"
    between = f"but must lie between {SMALLEST:g} and {LARGEST:g}"
    outside = (eps < SMALLEST) | (eps > LARGEST)
    masks = {no_number: np.isnan(eps), finite: np.isinf(eps), positive: eps <= 0, between: outside}
    for complaint, mask in masks.items():
        refuse(mask, eps, "epsilon", complaint, where, shown=where is None)


def _check_deltas(deltas: FloatArray, where: Where | None = None, *, shown: bool = True) -> None:
    wrong = ~((deltas >= 1e-300) & (deltas < 1))
    refuse(wrong, deltas, "delta", "but must lie strictly between 0 and 1; 1e-5 is usual", where, shown=shown)


def _checked_delta(delta: Any, n: int) -> FloatArray:
    if np.ndim(delta) == 0:
        value = np.array([real(delta, "delta", hint="it lies between 0 and 1; 1e-5 is usual")])
        _check_deltas(value, lambda _: "delta")
        return np.broadcast_to(value[0], n)
    dlt = float_vector(delta, "delta")
    if dlt.size != n:
        raise InvalidInput(f"delta has {dlt.size:,} entries but epsilon has {n:,}; give one number, or one each")
    _check_deltas(dlt)
    return ladder.one_digit_floor(dlt)


def _units(person: Any, n: int) -> tuple[AnyArray | None, IntArray]:
    if person is None:
        return None, np.arange(n, dtype=np.int64)
    ids = ids_of(person, n)
    # Units count in order of first appearance, so that the order of records decides, not the spelling of ids.
    seen: dict[str, int] = {}
    owner = np.fromiter((seen.setdefault(text, len(seen)) for text in texts_of(ids)), np.int64, n)
    return ids, owner


def _refuse_disagreement(values: FloatArray, owner: IntArray, ids: AnyArray | None, name: str) -> None:
    if ids is None:
        return
    promised = np.empty(int(owner.max()) + 1)
    promised[owner[::-1]] = values[::-1]  # the first record of each person decides
    row = first_where(promised[owner] != values)
    if row is not None:
        earlier = int(np.argmax(owner == owner[row]))
        raise InvalidInput(
            f"person {ids[row]!s} has two values of {name}: one in record {earlier:,} and another in record {row:,} "
            "(from 0); give one, the smaller to be safe"
        )

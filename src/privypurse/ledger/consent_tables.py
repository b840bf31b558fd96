"""Consents out of a table: who joins, raises, lowers, comes back, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
from privypurse.budgets.budgets import epsilon_of_levels
from privypurse.budgets.person_ids import ids_of, texts_of
from privypurse.budgets.tables import Columns, FileColumns, FrameColumns
from privypurse.errors import InvalidInput
from privypurse.ledger import consents, entries, people
from privypurse.ledger.consents import Consent
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.standing import FORGOTTEN, NEVER, WITHDRAWN


@dataclass(frozen=True)
class Difference:
    """What a table would change, by id. Sensitive: it says who granted what."""

    joining: tuple[str, ...]
    returning: tuple[str, ...]
    raising: tuple[str, ...]
    lowering: tuple[str, ...]
    unchanged: int
    renewing: tuple[str, ...] = ()
    """Who keeps their ε, with another purpose or another end."""
    left: tuple[str, ...] = ()
    """Who has withdrawn or been forgotten: a table does not bring them back unless that is asked for."""
    ended: tuple[str, ...] = ()
    """Who stays out: by a row whose end is past, or that says nothing of an end after theirs has passed."""
    kept: tuple[str, ...] = ()
    """Whom it gives less than it says, unless that is asked for: nobody is raised, or comes back, above what was said
    last by another way than a table of this recorder."""

    def __str__(self) -> str:
        parts = {"join": self.joining, "come back": self.returning, "raise": self.raising, "lower": self.lowering}
        parts["renew"] = self.renewing
        said = [f"{len(ids):,} {word}" for word, ids in parts.items()]
        said.append(f"{self.unchanged:,} stay as they are")
        out = {"who had left stay out": self.left, "whose end is past stay out": self.ended}
        out["not raised above a change that is not marked as this table's (that is to be asked for)"] = self.kept
        return ", ".join([*said, *(f"{len(ids):,} {words}" for words, ids in out.items() if ids)])


@dataclass(frozen=True, eq=False)
class Consents:
    """The rows of a table, checked as far as that goes without a ledger."""

    ids: AnyArray
    """As text."""
    epsilon: AnyArray
    consents: tuple[Consent, ...]
    """The different things that are recorded beside grants."""
    which: IntArray
    """For each row which of them is its."""
    where: dict[str, Callable[[int], str]]
    """For "person", "epsilon" and "valid_until" how the cell of a row is named in errors."""
    wrong_ends: dict[int, str]
    """Which of ``consents`` has an end that is no date, and what is wrong with it."""
    returning: bool = False
    """Whether those who had withdrawn or been forgotten come back."""
    raises: bool = False
    """Whether people are raised, or come back, also above what was said last by another way."""

    def mistakes(self, lifetime: Lifetime) -> list[tuple[int, str]]:
        """Rows whose ε is no rung or whose end is no date, and what to say of each."""
        ladder = [rung.epsilon for rung in lifetime.rungs]
        known = ", ".join(f"{value:g}" for value in ladder)
        found = []
        for row in np.flatnonzero(~np.isin(self.epsilon, ladder)).tolist():
            said = f"is {self.epsilon[row]:g}, which is no rung of this ledger; choose one of {known}"
            found.append((row, f"{self.place('epsilon', row)} {said}"))
        for row in np.flatnonzero(np.isin(self.which, list(self.wrong_ends))).tolist():
            found.append((row, f"{self.place('valid_until', row)} {self.wrong_ends[int(self.which[row])]}"))
        return sorted(found)

    def place(self, column: str, row: int) -> str:
        return f"{self.where[column](row)} (id {str(self.ids[row])!r})"

    def _sorted_out(
        self, connection: Connection, lifetime: Lifetime, key: Key
    ) -> tuple[list[str], dict[str, AnyArray], IntArray]:
        """Ids as text, for each kind of change who it is (a mask), and for each row the rung to be granted."""
        texts, keyed = people.keyed_ids(self.ids, key)
        said, numbers = lifetime.rung_of(self.epsilon), people.numbers_of(connection, keyed)
        known, time = numbers >= 0, entries.time_now(connection)
        left, ended, differs = np.zeros((3, known.size), dtype=bool)
        rung, before, until = said.copy(), said.copy(), np.full(known.size, NEVER)
        if known.any():
            stand, places = people.of(connection, lifetime, numbers[known], key)
            left[known] = (stand.status[places] & (WITHDRAWN | FORGOTTEN)) != 0
            until[known] = stand.until[places]
            ended = known & (until <= time)
            before[known] = stand.rung[places]
            differs[known] = self._differs(known, *consents.recorded(connection, numbers[known]))
        back = left if self.returning else np.zeros_like(left)
        over = ended & ~left & ~(self._dated() & (self._ends() > time))  # an end of which nothing is said stays: past
        stays = known & ~left & ~over
        past = (self._ends() <= time) & (~known | back) | over
        kept = (back | stays & (rung > before)) & ~past & (not self.raises)
        if kept.any():
            ours = np.array([one.recorded_by for one in self.consents], dtype=object)[self.which[kept]]
            rung[kept] = np.minimum(said[kept], consents.said_otherwise(connection, numbers[kept], ours))
            kept = rung < said
        sooner = kept & stays & self._dated() & (self._ends() < until)  # as lowering, a table may always end sooner
        rung[sooner] = before[sooner]
        stays &= ~kept | sooner  # of the others who are kept the row changes nothing
        masks = {
            "joining": ~known & ~past,
            "returning": back & ~past,
            "left": np.zeros_like(left) if self.returning else left,
            "ended": past,
            "kept": kept,
            "raising": stays & (rung > before),
            "lowering": stays & (rung < before),
            "renewing": stays & (rung == before) & differs,
            "unchanged": stays & (rung == before) & ~differs,
        }
        return texts, masks, rung

    def _ends(self) -> IntArray:
        """For each row when its consent ends; NEVER where it says nothing of that."""
        ends = [NEVER if one.valid_until is None else one.valid_until for one in self.consents]
        return np.array(ends, dtype=np.int64)[self.which]

    def _dated(self) -> AnyArray:
        """Rows that say something of an end, be it that there is none."""
        return np.array([one.valid_until is not None for one in self.consents], dtype=bool)[self.which]

    def _differs(self, known: AnyArray, recorded: list[Consent], whose: AnyArray) -> AnyArray:
        """Of the rows of people who are known: whether they say something else than is recorded."""
        differs = np.zeros(whose.size, dtype=bool)
        for name in ("purpose", "valid_until"):
            said = np.array([getattr(one, name) for one in self.consents], dtype=object)[self.which[known]]
            was = np.array([getattr(one, name) for one in recorded], dtype=object)[whose]
            differs |= np.asarray(said != np.array(None), dtype=bool) & np.asarray(said != was, dtype=bool)
        return differs

    def applied(self, connection: Connection, lifetime: Lifetime, key: Key, *, write: bool) -> Difference:
        """What the table changes; recorded, in the caller's transaction, if ``write`` says so."""
        texts, masks, rung = self._sorted_out(connection, lifetime, key)
        if write:
            epsilon = np.array([one.epsilon for one in lifetime.rungs])[rung]
            self._write(connection, lifetime, key, masks, epsilon)
        named = {name: tuple(texts[place] for place in np.flatnonzero(mask)) for name, mask in masks.items()}
        unchanged = len(named.pop("unchanged"))
        return Difference(**named, unchanged=unchanged)

    def _write(
        self, connection: Connection, lifetime: Lifetime, key: Key, masks: dict[str, AnyArray], epsilon: AnyArray
    ) -> None:
        for joining, names in ((True, ("joining", "returning")), (False, ("raising", "lowering", "renewing"))):
            wanted = np.flatnonzero(np.logical_or.reduce([masks[name] for name in names]))
            for number, some in consents.groups(self.which[wanted]):
                ids, granted = self.ids[wanted[some]], epsilon[wanted[some]]
                people.grant(connection, lifetime, ids, granted, self.consents[number], key, joining=joining)


def require_right(tables: Sequence[Consents], lifetime: Lifetime) -> None:
    """Raise for wrong rows, and for ids that come twice, in one table or in two: name the first, count the others."""
    found = [said for table in tables for _, said in table.mistakes(lifetime)] + _twice(tables)
    if found:
        more = f" ({len(found) - 1:,} more mistakes in these rows)" if len(found) > 1 else ""
        raise InvalidInput(f"{found[0]}{more}; nothing was written")


def _twice(tables: Sequence[Consents]) -> list[str]:
    ids = np.concatenate([table.ids for table in tables]).tolist()
    if len(set(ids)) == len(ids):
        return []
    first: dict[str, str] = {}
    found = []
    for table in tables:
        for row, person in enumerate(table.ids.tolist()):
            place = table.where["person"](row)
            if person in first:
                found.append(f"{place} is {person!r}, who is at {first[person]} already; name everybody once")
            first.setdefault(person, place)
    return found


def read_consents(
    table: Any,
    person: str = "person",
    epsilon: str = "epsilon",
    purpose: str = "",
    recorded_by: str = "",
    returning: bool = False,
    raising: bool = False,
    levels: Mapping[str, float] | None = None,
) -> Consents:
    """From a CSV or Parquet file or a data frame, with purpose, valid_until and recorded_by if it has them.

    With ``levels`` the column ``epsilon`` holds choices, and they say what each of them is worth.
    """
    columns = FileColumns(Path(table)) if isinstance(table, str | Path) else FrameColumns(table)
    named = f"{columns.name}: column {person!r}"
    ids = np.array(texts_of(ids_of(columns.ids(person), name=named), named), dtype=object)
    if levels is None:
        eps = columns.numbers(epsilon)
    else:
        eps = epsilon_of_levels(columns.labels(epsilon), levels, where=columns.where(epsilon))
    given = {"purpose": purpose, "valid_until": "", "recorded_by": recorded_by}
    texts = [_texts(columns, name, default, ids.size) for name, default in given.items()]
    different, which = np.unique(np.stack(texts, axis=1), axis=0, return_inverse=True)
    dated, each, wrong = columns.has("valid_until"), [], {}
    for number, (what, until, who) in enumerate(different.tolist()):
        try:
            said = Consent.of(what or None, until if dated else None, who)
        except InvalidInput as error:
            wrong[number] = str(error).removeprefix("valid_until ")
            said = Consent.of(what or None, None, who)
        each.append(replace(said, from_table=True))
    where = {"person": columns.where(person), "epsilon": columns.where(epsilon)}
    where["valid_until"] = columns.where("valid_until")
    return Consents(ids, eps, tuple(each), which.reshape(-1).astype(np.int64), where, wrong, returning, raising)


def _texts(columns: Columns, name: str, default: str, rows: int) -> AnyArray:
    if other := columns.alike(name):
        raise InvalidInput(
            f"{columns.name} has a column {other!r}, which would be passed over; call it {name!r}, or leave it out"
        )
    if not columns.has(name):
        return np.full(rows, default)
    if default:
        raise InvalidInput(f"{name}= is given and the table has a column {name!r}; leave one out")
    return np.asarray(columns.texts(name))

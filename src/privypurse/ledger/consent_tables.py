"""Consents out of a table: who joins, raises, lowers, comes back, and what stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray
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
    """Who would join or come back by a row whose end is past: they do not."""

    def __str__(self) -> str:
        parts = {"join": self.joining, "come back": self.returning, "raise": self.raising, "lower": self.lowering}
        parts["renew"] = self.renewing
        said = [f"{len(ids):,} {word}" for word, ids in parts.items()]
        said.append(f"{self.unchanged:,} stay as they are")
        out = {"who had left stay out": self.left, "whose end is past stay out": self.ended}
        return ", ".join([*said, *(f"{len(ids):,} {words}" for words, ids in out.items() if ids)])


@dataclass(frozen=True, eq=False)
class Consents:
    """The rows of a table, checked as far as that goes without a ledger."""

    ids: AnyArray
    epsilon: AnyArray
    consents: tuple[Consent, ...]
    """The different things that are recorded beside grants."""
    which: IntArray
    """For each row which of them is its."""
    returning: bool = False
    """Whether those who had withdrawn or been forgotten come back."""

    def _sorted_out(
        self, connection: Connection, lifetime: Lifetime, key: Key
    ) -> tuple[list[str], dict[str, AnyArray]]:
        """Ids as text, and for each kind of change who it is (a mask)."""
        texts, keyed = people.keyed_ids(self.ids, key)
        rung, numbers = lifetime.rung_of(self.epsilon), people.numbers_of(connection, keyed)
        known, time = numbers >= 0, entries.time_now(connection)
        left, ended, differs = np.zeros((3, known.size), dtype=bool)
        before = rung.copy()
        if known.any():
            stand, places = people.of(connection, lifetime, numbers[known], key)
            left[known] = (stand.status[places] & (WITHDRAWN | FORGOTTEN)) != 0
            ended[known] = stand.until[places] <= time
            before[known] = stand.rung[places]
            differs[known] = self._differs(known, *consents.recorded(connection, numbers[known]))
        stays, back = known & ~left & ~ended, left | ended if self.returning else ended & ~left
        past = (self._ends() <= time) & (~known | back)
        return texts, {
            "joining": ~known & ~past,
            "returning": back & ~past,
            "left": np.zeros_like(left) if self.returning else left,
            "ended": past,
            "raising": stays & (rung > before),
            "lowering": stays & (rung < before),
            "renewing": stays & (rung == before) & differs,
            "unchanged": stays & (rung == before) & ~differs,
        }

    def _ends(self) -> IntArray:
        """For each row when its consent ends; NEVER where it says nothing of that."""
        ends = [NEVER if one.valid_until is None else one.valid_until for one in self.consents]
        return np.array(ends, dtype=np.int64)[self.which]

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
        texts, masks = self._sorted_out(connection, lifetime, key)
        if write:
            self._write(connection, lifetime, key, masks)
        named = {name: tuple(texts[place] for place in np.flatnonzero(mask)) for name, mask in masks.items()}
        unchanged = len(named.pop("unchanged"))
        return Difference(**named, unchanged=unchanged)

    def _write(self, connection: Connection, lifetime: Lifetime, key: Key, masks: dict[str, AnyArray]) -> None:
        for joining, names in ((True, ("joining", "returning")), (False, ("raising", "lowering", "renewing"))):
            wanted = np.flatnonzero(np.logical_or.reduce([masks[name] for name in names]))
            for number, some in consents.groups(self.which[wanted]):
                ids, epsilon = self.ids[wanted[some]], self.epsilon[wanted[some]]
                people.grant(connection, lifetime, ids, epsilon, self.consents[number], key, joining=joining)


def read_consents(
    table: Any, person: str, epsilon: str, purpose: str, recorded_by: str, returning: bool = False
) -> Consents:
    """From a CSV or Parquet file or a data frame, with purpose, valid_until and recorded_by if it has them."""
    columns = FileColumns(Path(table)) if isinstance(table, str | Path) else FrameColumns(table)
    ids, eps = columns.labels(person), columns.numbers(epsilon)
    given = {"purpose": purpose, "valid_until": "", "recorded_by": recorded_by}
    texts = [_texts(columns, name, default, ids.size) for name, default in given.items()]
    different, which = np.unique(np.stack(texts, axis=1), axis=0, return_inverse=True)
    dated = columns.has("valid_until")
    each = tuple(Consent.of(what or None, until if dated else None, who) for what, until, who in different.tolist())
    return Consents(ids, eps, each, which.reshape(-1).astype(np.int64), returning)


def _texts(columns: Columns, name: str, default: str, rows: int) -> AnyArray:
    if not columns.has(name):
        return np.full(rows, default)
    if default:
        raise InvalidInput(f"{name}= is given and the table has a column {name!r}; leave one out")
    return np.asarray(columns.texts(name))

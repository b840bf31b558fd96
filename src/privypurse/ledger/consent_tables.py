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
from privypurse.ledger import entries, people
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.people import Consent
from privypurse.ledger.standing import FORGOTTEN, WITHDRAWN


@dataclass(frozen=True)
class Difference:
    """What a table would change, by id. Sensitive: it says who granted what."""

    joining: tuple[str, ...]
    returning: tuple[str, ...]
    raising: tuple[str, ...]
    lowering: tuple[str, ...]
    unchanged: int
    left: tuple[str, ...] = ()
    """Who has withdrawn or been forgotten: a table does not bring them back unless that is asked for."""

    def __str__(self) -> str:
        parts = {"join": self.joining, "come back": self.returning, "raise": self.raising, "lower": self.lowering}
        said = [f"{len(ids):,} {word}" for word, ids in parts.items()]
        stay = [f"{len(self.left):,} who had left stay out"] if self.left else []
        return ", ".join([*said, f"{self.unchanged:,} stay as they are", *stay])


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
        known = numbers >= 0
        left, ended = np.zeros((2, known.size), dtype=bool)
        before = rung.copy()
        if known.any():
            stand, places = people.of(connection, lifetime, numbers[known], key)
            left[known] = (stand.status[places] & (WITHDRAWN | FORGOTTEN)) != 0
            ended[known] = stand.until[places] <= entries.time_now(connection)
            before[known] = stand.rung[places]
        stays = known & ~left & ~ended
        return texts, {
            "joining": ~known,
            "returning": left | ended if self.returning else ended & ~left,
            "left": np.zeros_like(left) if self.returning else left,
            "raising": stays & (rung > before),
            "lowering": stays & (rung < before),
            "unchanged": stays & (rung == before),
        }

    def difference(self, connection: Connection, lifetime: Lifetime, key: Key) -> Difference:
        texts, masks = self._sorted_out(connection, lifetime, key)
        named = {name: tuple(texts[place] for place in np.flatnonzero(mask)) for name, mask in masks.items()}
        unchanged = len(named.pop("unchanged"))
        return Difference(**named, unchanged=unchanged)

    def write(self, connection: Connection, lifetime: Lifetime, key: Key) -> None:
        """Record the changes; in the caller's transaction, all or none."""
        _, masks = self._sorted_out(connection, lifetime, key)
        for joining, names in ((True, ("joining", "returning")), (False, ("raising", "lowering"))):
            wanted = masks[names[0]] | masks[names[1]]
            for number, consent in enumerate(self.consents):
                rows = np.flatnonzero(wanted & (self.which == number))
                if rows.size:
                    ids, epsilon = self.ids[rows], self.epsilon[rows]
                    people.grant(connection, lifetime, ids, epsilon, consent, key, joining=joining)


def read_consents(
    table: Any, person: str, epsilon: str, purpose: str, recorded_by: str, returning: bool = False
) -> Consents:
    """From a CSV or Parquet file or a data frame, with purpose, valid_until and recorded_by if it has them."""
    columns = FileColumns(Path(table)) if isinstance(table, str | Path) else FrameColumns(table)
    ids, eps = columns.labels(person), columns.numbers(epsilon)
    given = {"purpose": purpose, "valid_until": "", "recorded_by": recorded_by}
    texts = [_texts(columns, name, default, ids.size) for name, default in given.items()]
    rows = np.stack(texts, axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    consents = tuple(Consent.of(*row) for row in different.tolist())
    return Consents(ids, eps, consents, which.reshape(-1).astype(np.int64), returning)


def _texts(columns: Columns, name: str, default: str, rows: int) -> AnyArray:
    if not columns.has(name):
        return np.full(rows, default)
    if default:
        raise InvalidInput(f"{name}= is given and the table has a column {name!r}; leave one out")
    return np.asarray(columns.texts(name))

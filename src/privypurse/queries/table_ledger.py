"""Purses that last beside a table: a private ledger, made with the first question and used by all later ones.

Its key and its anchor lie beside it: the table, in the same folder, names everybody anyway, so a key elsewhere would
hide nothing. The file alone, in a backup, names nobody, and an older copy of it is told by the anchor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privypurse._storage import resolved
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets.budgets import Budgets
from privypurse.budgets.person_ids import texts_of
from privypurse.errors import InvalidInput
from privypurse.ledger import row_purses

if TYPE_CHECKING:
    from privypurse.ledger.consent_tables import Difference
    from privypurse.ledger.ledger import Ledger

DATA_SET = row_purses.DATA_SET
MOVED = "moved"
"""The id of the run that says where the purses went."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A ledger for the people of a table, and budgets by which it knows them."""

    ledger: Ledger
    budgets: Budgets
    """With ids; the most that anybody can have granted, since the ledger knows whose purse holds what."""
    news: str = ""
    """Who joined, or changed what they allow, now; in numbers. Grants are public input."""


def table_ledger(
    path: Path, budgets: Budgets, identity: Mapping[str, str], first: Callable[[Ledger], object] | None = None
) -> Kept:
    """The ledger in this file, made for these people if there is none; with a new one ``first`` is done first.

    ``identity`` says whose purses they are and where ε comes from: keys are words for an error message. A ledger
    that was made for another is refused. With ids, who is new joins, and who allows another ε than before is raised
    or lowered to the highest rung within it. Without, rows are known by number, and nobody joins later.
    """
    from privypurse.ledger import private  # here, not above: who has no ledger needs no database

    place, news = private.Place.at(resolved(path)), ""
    if not private.is_there(private.Place.at(path)):
        private.make(place, budgets, about=json.dumps(dict(identity), sort_keys=True), first=first)
        news = f"new purses for {budgets.people:,} " + (
            "rows, known by their number for good (--person COLUMN knows people by id, whatever their rows)"
            if budgets.person is None
            else "people"
        )
    ledger = private.opened(place)
    refuse_moved(ledger, path)
    _refuse_another(ledger, path, identity)
    ledger.with_its_rows()  # the fingerprint is that of these data
    if not news and budgets.person is not None:
        at, ids = budgets.first_record, budgets.people_ids()
        granted = private.on_rungs(ledger, ids, budgets.epsilon[at], budgets.delta[at])
        news = _brought_up_to_date(ledger, texts_of(ids), granted)
    return Kept(ledger, known_by(ledger, budgets), news)


def opened(path: Path) -> Ledger:
    """A table's ledger that there is; if it is of rows, it is for the caller to compare the data."""
    from privypurse.ledger import private

    return private.opened(private.Place.at(resolved(path))).with_its_rows()


def apart(path: Path, ledger: Ledger) -> Ledger | None:
    """A table's ledger in this file, where what was charged there is not in the one that is named.

    That one may be a copy of it, which has the same id.
    """
    from privypurse.ledger import private

    if not private.is_there(private.Place.at(path)):
        return None
    own = opened(path)
    return None if own.same_as(ledger) or ledger.run(f"purses {own.id}") is not None else own


def known_by(ledger: Ledger, budgets: Budgets) -> Budgets:
    """For the same rows: ids, and the most that this ledger lets anybody grant."""
    person = np.arange(len(budgets)) if budgets.person is None else budgets.person
    highest = max(rung.epsilon for rung in ledger.rungs), max(rung.delta for rung in ledger.rungs)
    return Budgets(np.full(len(budgets), highest[0]), delta=highest[1], person=person)


def identity_of(ledger: Ledger) -> dict[str, str]:
    """Of a private ledger; empty for any other."""
    return row_purses.identity_of(ledger.about)


def _refuse_another(ledger: Ledger, path: Path, identity: Mapping[str, str]) -> None:
    found = identity_of(ledger)
    differs = [name for name in {**found, **identity} if found.get(name) != identity.get(name)]
    if not differs:
        return
    if differs == [DATA_SET]:
        raise InvalidInput(
            f"the table is not what it was when its ledger {path} was made, and rows are known there by number: "
            "whose purse is whose cannot be told any more. Go on with the table as it was; from there `privypurse "
            "ledger import --purses` moves the purses to a ledger that knows people by id (--person COLUMN), where "
            "rows may change"
        )
    named = [name for name in differs if name != DATA_SET]
    told = "; ".join(f"{name}: {found.get(name, 'none')}, not {identity.get(name, 'none')}" for name in named)
    raise InvalidInput(
        f"the ledger {path} was made for {told}. Ask as it was made, so that purses are not filled again. What "
        "people allow is changed with `privypurse ledger consent`, and purses are moved with `privypurse ledger "
        "import --purses`"
    )


def _brought_up_to_date(ledger: Ledger, texts: list[str], granted: FloatArray) -> str:
    """New people join, and grants follow the table. Whoever has left, or whose consent ended, stays out.

    Nobody is raised above what was recorded last by another way, as by `privypurse ledger consent`.
    """
    from privypurse.ledger.consents import BY_TABLE

    grants = _Grants(person=np.array(texts, dtype=object), epsilon=granted)
    found = ledger.import_table(grants, recorded_by=BY_TABLE, dry_run=True)
    if news := _told(found):
        ledger.import_table(grants, recorded_by=BY_TABLE, dry_run=False)
    own = f"not raised above what was recorded by another way: {len(found.kept):,}" if found.kept else ""
    return ", ".join(filter(None, (news, own)))


def _told(found: Difference) -> str:
    parts = {
        "new people with full purses": found.joining,
        "raised": found.raising,
        "lowered": found.lowering,
    }
    return ", ".join(f"{word}: {len(ids):,}" for word, ids in parts.items() if ids)


class _Grants(dict[str, AnyArray]):
    """A table of two columns, as `Ledger.import_table` reads it."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def close_for(ledger: Ledger, ids: AnyArray, target: str) -> None:
    """Charge nothing more here to these people, who are all there are: their purses go on in another ledger.

    `refuse_moved` knows it by a run in which nobody pays.
    """
    members, columns = ledger.members(ids), ledger.lifetime.columns
    nobody = np.full(len(members), -1)
    said = f"moved to the ledger {target}"
    ledger.charge(MOVED, members, np.ones((1, columns), dtype=np.int64), nobody, at_most=1e-9, what=said)
    ledger.withdraw(ids, recorded_by=said)


def refuse_moved(ledger: Ledger, path: Path) -> None:
    """Raise where the purses have gone on elsewhere: they must not be used in both places."""
    moved = ledger.run(MOVED)
    if moved is not None:
        raise InvalidInput(f"the purses of {path} have {moved.what}; name that one by --ledger")

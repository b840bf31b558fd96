"""Who is in the ledger: ids become numbers, and consent is given, changed and taken back (`consents` says what with).

Nothing is ever merged: where two ids of one person were in the same release their charges do not add up (two halves
of an ε = 1 purse on the same counts make more than ε = 1), so two ids stay two people. Who is forgotten leaves the
keyed hash of their id with their grants and charges, which nothing shows any more but as a sum (`history`):
pseudonymous, not erased, or they could come back with a full purse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.arrays import AnyArray, IntArray, frozen
from privypurse.budgets.person_ids import ids_of, texts_of
from privypurse.errors import InvalidInput, Unsupported
from privypurse.ledger import consents, entries, row_purses, schema, standing
from privypurse.ledger.blocks import SIZE, encoded
from privypurse.ledger.consents import Consent
from privypurse.ledger.entries import Entry
from privypurse.ledger.keys import Key
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.standing import FORGOTTEN, WITHDRAWN, Standing

_FEW = 2000  # ids that are asked for one by one; beyond it the whole list is read
_AT_ONCE = 500
_NAMED = 3  # ids that an error names
CHECK = "check the id: 07 is not 7"


@dataclass(frozen=True, eq=False)
class Members:
    """People of a ledger, by number, in the order of the ids given; rungs as of when they were looked up."""

    ledger: str
    numbers: IntArray
    rung: AnyArray

    def __len__(self) -> int:
        return int(self.numbers.size)

    @property
    def blocks(self) -> IntArray:
        return np.unique(self.numbers // SIZE)


def keyed_ids(ids: Any, key: Key) -> tuple[list[str], list[bytes]]:
    """Ids in their canonical form and their keyed hashes; one that comes twice is an error."""
    texts = texts_of(ids_of(ids, name="ids"), "ids")
    if not texts:
        raise InvalidInput("ids is empty; name at least one person")
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        twice = [text for text in texts if text in seen or seen.add(text)]  # type: ignore[func-returns-value]
        raise InvalidInput(f"ids has {_few(twice)} more than once; name everybody once")
    return texts, key.keyed(texts)


def numbers_of(connection: Connection, keyed: Sequence[bytes]) -> IntArray:
    """The number of each person by their keyed id; -1 for whoever is not in the ledger."""
    if len(keyed) <= _FEW:
        found: dict[bytes, int] = {}
        for begin in range(0, len(keyed), _AT_ONCE):
            some = keyed[begin : begin + _AT_ONCE]
            rows = connection.execute(sa.select(schema.person).where(schema.person.c.keyed.in_(some)))
            found.update({bytes(one): number for number, one in rows})
        return np.fromiter((found.get(one, -1) for one in keyed), np.int64, len(keyed))
    everybody = connection.connection.cursor()  # the driver's own: SQLAlchemy's rows would take three times as long
    everybody.execute("SELECT keyed FROM person ORDER BY number")
    return _matched(_halves([one for (one,) in everybody.fetchall()]), _halves(keyed))


def known(connection: Connection, ids: Any, key: Key) -> AnyArray:
    """For each id whether that person ever joined."""
    return np.asarray(numbers_of(connection, keyed_ids(ids, key)[1]) >= 0)


def _halves(keyed: Sequence[bytes]) -> AnyArray:
    return np.frombuffer(b"".join(keyed), dtype="<u8").reshape(-1, 2)


def _matched(known: AnyArray, wanted: AnyArray) -> IntArray:
    """For each row of ``wanted`` where it is in ``known``, or -1."""
    if not known.size:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.lexsort((known[:, 1], known[:, 0]))
    first = known[order, 0]
    place = np.searchsorted(first, wanted[:, 0])
    found = np.full(len(wanted), -1, dtype=np.int64)
    left = np.arange(len(wanted))
    while left.size:  # once, unless two people share the first half of their hashes
        inside = place[left] < first.size
        left = left[inside]
        left = left[first[place[left]] == wanted[left, 0]]
        at = order[place[left]]
        same = known[at, 1] == wanted[left, 1]
        found[left[same]] = at[same]
        left = left[~same]
        place[left] += 1
    return found


def count(connection: Connection) -> int:
    """How many people there are or were."""
    latest = connection.execute(sa.select(sa.func.max(schema.person.c.number))).scalar()
    return 0 if latest is None else int(latest) + 1


def resolve(
    connection: Connection, ids: Any, key: Key, advice: str = "join them first, or leave them out"
) -> IntArray:
    """The numbers of people who are all in the ledger; strangers are named, with ``advice``."""
    texts, keyed = keyed_ids(ids, key)
    numbers = numbers_of(connection, keyed)
    _refuse_strangers(texts, numbers, advice)
    return numbers


def _refuse_strangers(texts: list[str], numbers: IntArray, advice: str) -> None:
    unknown = [texts[place] for place in np.flatnonzero(numbers < 0).tolist()]
    if unknown:
        count = "" if len(unknown) == 1 else f" ({len(unknown):,} in all)"
        raise InvalidInput(f"{_few(unknown)} never joined this ledger{count}; {advice}")


def of(connection: Connection, lifetime: Lifetime, numbers: IntArray, key: Key | None) -> tuple[Standing, IntArray]:
    """How these people stand, and their places in it."""
    found = standing.load(connection, lifetime, np.unique(numbers // SIZE), key)
    return found, found.places(numbers)


def members(connection: Connection, ledger: str, lifetime: Lifetime, ids: Any, key: Key) -> Members:
    return _members(connection, ledger, lifetime, resolve(connection, ids, key), key)


def numbered(connection: Connection, ledger: str, lifetime: Lifetime, numbers: Any, key: Key | None) -> Members:
    """People by numbers that they were given before."""
    each = np.asarray(numbers).astype(np.int64)
    if not each.size or each.min() < 0 or each.max() >= count(connection) or np.unique(each).size < each.size:
        raise InvalidInput(
            "numbers are not those of people in this ledger, each once; is it an older copy, or another one than "
            "they were looked up in?"
        )
    return _members(connection, ledger, lifetime, each, key)


def _members(connection: Connection, ledger: str, lifetime: Lifetime, numbers: IntArray, key: Key | None) -> Members:
    stand, places = of(connection, lifetime, numbers, key)
    return Members(ledger, frozen(numbers), frozen(stand.rung[places].astype(np.int8)))


def grant(
    connection: Connection, lifetime: Lifetime, ids: Any, epsilon: Any, consent: Consent, key: Key, *, joining: bool
) -> None:
    """People join (new ones, and those who had left, with what they had spent), or change their rung."""
    texts, keyed = keyed_ids(ids, key)
    rung = np.broadcast_to(_rungs(lifetime, epsilon, len(texts)), len(texts))
    numbers = numbers_of(connection, keyed)
    _refuse_wrong_state(connection, lifetime, texts, numbers, key, joining=joining)
    if not joining:
        _change(connection, texts, numbers, rung, consent)
        return
    meta: dict[str, Any] = {"change": False, **consent.after(consents.NEW).meta()}
    new = np.flatnonzero(numbers < 0)
    if new.size:
        first = count(connection)
        numbers[new] = first + np.arange(new.size)
        meta["new"] = add(connection, first, [keyed[place] for place in new.tolist()])
    _append(connection, "join" if new.size else "consent", meta, numbers, rung)


def _change(connection: Connection, texts: list[str], numbers: IntArray, rung: IntArray, consent: Consent) -> None:
    """Another rung for people who are there; what is not said beside it is recorded as it was."""
    before, which = consents.recorded(connection, numbers)
    now = [consent.after(one) for one in before]
    place = {one: number for number, one in enumerate(dict.fromkeys(now))}
    wholes, time = list(place), entries.time_now(connection)
    for number, rows in consents.groups(np.array([place[one] for one in now])[which]):
        whole = wholes[number]
        if consent.valid_until is None and whole.valid_until is not None and whole.valid_until <= time:
            ended = _few([texts[place] for place in rows.tolist()])
            said = f"give valid_until=, a later day or {consents.UNTIL_WITHDRAWN!r}"
            raise InvalidInput(f"ids: the consent of {ended} has ended by its date; {said}")
        _append(connection, "consent", {"change": True, **whole.meta()}, numbers[rows], rung[rows])


def _rungs(lifetime: Lifetime, epsilon: Any, people: int) -> IntArray:
    rung = lifetime.rung_of(epsilon)
    if rung.size not in (1, people):
        raise InvalidInput(f"epsilon has {rung.size:,} entries for {people:,} ids; give one for all, or one each")
    return rung


def _refuse_wrong_state(
    connection: Connection, lifetime: Lifetime, texts: list[str], numbers: IntArray, key: Key, *, joining: bool
) -> None:
    known = np.flatnonzero(numbers >= 0)
    if not joining:
        _refuse_strangers(texts, numbers, "they have to join first")
    elif known.size < len(texts):
        _refuse_if_people_were_lost(connection)
        _refuse_beside_rows(connection, [texts[place] for place in np.flatnonzero(numbers < 0).tolist()])
    if not known.size:
        return
    stand, places = of(connection, lifetime, numbers[known], key)
    gone = (stand.status[places] & (WITHDRAWN | FORGOTTEN)) != 0
    if joining:
        wrong = ~gone & (stand.until[places] > entries.time_now(connection))
        told = "holds a purse already, which can be changed to another rung, but not joined anew"
    else:
        wrong, told = gone, "has withdrawn; whoever joins again comes back with what they had spent"
    if wrong.any():
        raise InvalidInput(f"ids: {_few([texts[place] for place in known[wrong].tolist()])} {told}")


def _refuse_if_people_were_lost(connection: Connection) -> None:
    lost = [entry for entry in entries.of_kinds(connection, "recover") if entry.meta["people_lost"]]
    if lost:
        raise InvalidInput(
            "people joined this ledger in entries that were lost with the copy it was recovered from. Whoever is not "
            "in it may be one of them, with an empty purse, so nobody new can join; restore a later copy"
        )


def _refuse_beside_rows(connection: Connection, new: list[str]) -> None:
    """Raise where purses are rows', but for those with whom the ledger is made."""
    about = json.loads(connection.execute(sa.select(schema.ledger.c.terms)).scalar_one()).get("about", "")
    if count(connection) and row_purses.by_row(about):
        row_purses.refuse(f"ids has {_few(new)}, who {'is' if len(new) == 1 else 'are'} new", about)


def add(connection: Connection, first: int, keyed: Sequence[bytes]) -> dict[str, Any]:
    """New people, numbered from ``first`` on; what the entry holds of them."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    rows = list(zip(range(first, first + len(keyed)), keyed, strict=True))
    connection.exec_driver_sql(f"INSERT INTO person (number, keyed) VALUES ({mark}, {mark})", rows)
    return {"first": first, "count": len(keyed), "keyed": hashlib.sha256(b"".join(keyed)).hexdigest()}


def leave(connection: Connection, kind: str, ids: Any, key: Key, consent: Consent) -> None:
    """Withdraw or forget: no further charge. What is spent stays spent."""
    numbers = resolve(connection, ids, key, CHECK)
    _append(connection, kind, consent.meta(), numbers, np.zeros(numbers.size, dtype=np.int64))


def _append(connection: Connection, kind: str, meta: dict[str, Any], numbers: IntArray, values: AnyArray) -> Entry:
    order = np.argsort(numbers)
    return entries.append(connection, kind, meta, encoded(numbers[order], values[order].astype(np.uint16)[None]))


def refuse_merging(one: str, other: str) -> NoReturn:
    """Two ids of one person stay two purses (docs/ledger-proofs.md)."""
    raise Unsupported(
        f"{one!r} and {other!r} cannot be merged: what two ids spent does not add up where both were in the same "
        "release (two halves of an ε = 1 purse, spent on the same counts, come to ε = 1.47), so no purse that was "
        f"left for both together would be true. Withdraw one of them, and give the rows of both to the other from "
        "then on; what was promised to the person until then is the ε of both together"
    )


def freeze_everybody(connection: Connection) -> None:
    everybody = np.arange(count(connection))
    if everybody.size:
        _append(connection, "freeze", {}, everybody, np.zeros(everybody.size, dtype=np.int64))


def _few(texts: Sequence[str]) -> str:
    names = list(dict.fromkeys(texts))
    return ", ".join(map(repr, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")

"""Whose budgets and plans are: ids in one canonical form, and plans' keyed digests of them (rule 13)."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np

from privypurse._storage import digest_of
from privypurse._validate import refuse
from privypurse.arrays import AnyArray, IntArray, frozen
from privypurse.errors import InvalidInput

_NO_ID = "which is no id; give every record its owner, as text or a whole number"
_FLOAT = (
    "a float, which is no id: 1.0 and 1 would be two people. Give every record its owner, as text or a whole number "
    '(in pandas: .astype("Int64"))'
)
_NAMED = 3  # ids that an error names
_KEY = 16  # bytes
_UUID_LENGTH = 36
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNSEEN = {"Cc", "Cf"}  # control and format characters
_BLANK = re.compile(  # separators of files and records, and of other categories Default_Ignorable_Code_Point
    "[\x1c-\x1f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_HYPHEN = "\u2010"  # also what NFKC makes of one that does not break
_PLAIN = {str, int, float, list, tuple}  # kinds that NumPy keeps; enumerations it writes by name, cut off


def ids_of(person: Any, records: int | None = None, name: str = "person") -> AnyArray:
    """The ids as a flat array of one's own, each as it was given; ``records`` is how many there have to be."""
    kinds = {type(value) for value in person} if isinstance(person, list | tuple) else set()
    if len(kinds) > 1 or not kinds <= _PLAIN:
        ids = np.fromiter(person, dtype=object)  # NumPy would write 2.5 beside text as text, and let it pass
    else:
        try:
            ids = np.array(person)  # a copy: the caller's array may change later
        except ValueError:
            raise InvalidInput(f"{name} must hold one id for each record, but holds lists of them") from None
        if ids.dtype.kind == "f" and kinds == {int}:  # of 2^63 and 1 it makes floats
            ids = np.fromiter(person, dtype=object)
    if ids.ndim != 1 or (records is not None and ids.size != records):
        each = "each record" if records is None else f"each of the {records:,} records"
        raise InvalidInput(f"{name} must hold one id for {each}; it has shape {ids.shape}")
    return ids


def texts_of(ids: AnyArray, name: str = "person") -> list[str]:
    """The ids as text: 7, "7" and " 7" are the same person, "07" is another.

    A table is read as text and a data frame as numbers, and both may hold the same people. To take two for one is
    strict; to take one for two would fill a purse twice. So space around an id does not count, nor how much of it is
    inside, nor what does not show (a byte order mark, a zero-width space, a soft hyphen, a control character), nor by
    which of Unicode's characters a letter, digit or hyphen is written: put together or not, full-width, as a ligature
    (NFKC, by which x² is x2, too), nor the case of a UUID with its hyphens. Floats, booleans and dates are refused:
    how they are written depends on who writes them.
    """
    if ids.dtype.kind == "f":
        refuse(~np.isfinite(ids), ids, name, _NO_ID)
        refuse(np.ones(ids.shape, dtype=bool), ids, name, _FLOAT)
    values = ids.tolist()
    if ids.dtype.kind in "iu":
        return list(map(str, values))
    texts = values if set(map(type, values)) == {str} else [_text(value) for value in values]
    found = _all_plain(texts)
    wrong = np.fromiter((not text for text in found), dtype=bool, count=len(found))
    if wrong.any():
        first = values[int(np.argmax(wrong))]
        refuse(wrong, ids, name, _FLOAT if isinstance(first, float) and first == first else _NO_ID)
    return found


def _all_plain(texts: list[str | None]) -> list[str]:
    """As they are compared; where no text can be anything but plain, all at once."""
    if None not in texts:
        whole = "".join(texts)  # type: ignore[arg-type]
        cased = "-" in whole and whole != whole.lower()
        if whole.isascii() and whole.isprintable() and not cased and "  " not in whole:
            return list(map(str.strip, texts))  # type: ignore[arg-type]
    return [_plain(text) for text in texts]


def _plain(text: str | None) -> str:
    """As it is compared; "" for what is no id."""
    bare = "" if text is None else text.strip()
    if "  " in bare or not (bare.isascii() and bare.isprintable()):
        bare = " ".join(unicodedata.normalize("NFKC", _seen(bare)).replace(_HYPHEN, "-").split())
    if len(bare) == _UUID_LENGTH and bare != (lower := bare.lower()) and _UUID.fullmatch(lower):
        return lower
    return bare


def _seen(text: str) -> str:
    """Without the characters that do not show."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    kept = (one for one in text if not _BLANK.match(one))
    return "".join(one for one in kept if one.isspace() or category(one) not in _UNSEEN)


def _text(value: Any) -> str | None:
    match value:
        case bool() | np.bool_():
            return None
        case str():
            return str.__str__(value)  # of an enumeration its value, not its name
        case int() | np.integer():
            return str(int(value))
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case uuid.UUID():
            return str(value)
    return None


@dataclass(frozen=True, eq=False, repr=False)
class KeyedIds:
    """The people of a plan, in the order of its units: a 64-bit BLAKE2b digest of each id, under a key of the plan's.

    No two of its people have the same digest: with such a key another one is taken. Somebody who is not on it is
    taken for one who is with a chance of people / 2^64. The key is no secret to whoever has the plan: they can try
    ids. It keeps two plans from being joined, and digests from being looked up in a table made before.
    """

    key: bytes
    digests: AnyArray
    one_each: bool
    """Whether everybody had one record when the plan was made; a second one is then taken for a mistake."""
    mark: str
    """A hash of all ids in this order: equal for equal people, whatever the key."""

    def __post_init__(self) -> None:
        if len(self.key) != _KEY:
            raise InvalidInput(f"the key of a plan's digests has {len(self.key)} bytes, not {_KEY}")
        digests = np.asarray(self.digests, dtype=np.uint64)
        if digests.ndim != 1 or np.unique(digests).size != digests.size:
            raise InvalidInput("the digests of a plan's people are not one for each person")
        object.__setattr__(self, "digests", frozen(digests))

    @classmethod
    def of(cls, ids: AnyArray, one_each: bool) -> KeyedIds:
        """Of people who are all different, one id each."""
        texts = texts_of(ids)
        while True:
            key = os.urandom(_KEY)
            digests = _digests(texts, key)
            if np.unique(digests).size == digests.size:
                break
        return cls(key, digests, one_each, digest_of(texts))

    @cached_property
    def _order(self) -> IntArray:
        return np.argsort(self.digests).astype(np.int64)

    def units(self, texts: Sequence[str]) -> IntArray:
        """For each id, as text, its unit; -1 for whoever is not on the list."""
        wanted, order = _digests(texts, self.key), self._order
        ordered = self.digests[order]
        place = np.minimum(np.searchsorted(ordered, wanted), order.size - 1)
        return np.where(ordered[place] == wanted, order[place], -1)

    def unit_of(self, person: Any) -> int:
        """The unit of one person, by id."""
        unit = int(self.units(texts_of(ids_of([person])))[0])
        if unit < 0:
            raise InvalidInput(f"person is {person!r}, who is not in the plan; give an id that it was made with")
        return unit

    def owners(self, ids: AnyArray) -> IntArray:
        """For each record, by its owner's id, their unit. Strangers, and seconds where there was one each, are named.

        That is for the data's owner: ids tell who is in the data.
        """
        texts = texts_of(ids)
        units = self.units(texts)
        if (units < 0).any():
            raise InvalidInput(
                f"person holds ids that are not in the plan: {named(texts, units < 0)}; make the plan with them, "
                "or leave their records out. Ids are compared as text, so 07 is not 7"
            )
        if self.one_each and np.unique(units).size < units.size:
            seen = np.bincount(units, minlength=self.digests.size)
            raise InvalidInput(
                f"person holds ids more than once: {named(texts, seen[units] > 1)}; the plan was made with one "
                "record of each person. Leave the others out, or make the plan from budgets with all of them: "
                "budgets.for_rows(person) of consents with one row a person; `privypurse train` joins a file of "
                "consents to rows by id: table under [budgets]"
            )
        return units


def mark_of(ids: AnyArray) -> str:
    """A hash of all ids in this order, for what belongs to these people."""
    return digest_of(texts_of(ids))


def applied(
    keyed_ids: KeyedIds | None, person: Any, what: str, records: int | None = None
) -> tuple[AnyArray, IntArray]:
    """The records' ids as an array, and for each record its owner's unit on the list of that plan or schedule.

    ``records`` is how many there have to be, where that is known.
    """
    if keyed_ids is None:
        raise InvalidInput(
            f"the {what} was made without ids and holds for its rows in their order, so person= cannot be matched "
            "with it; make it from Budgets(…, person=ids), or leave person= out and keep the order"
        )
    ids = ids_of(person, records)
    return frozen(ids), keyed_ids.owners(ids)


def _digests(texts: Sequence[str], key: bytes) -> AnyArray:
    begun = hashlib.blake2b(digest_size=8, key=key)

    def digest(text: str) -> bytes:
        own = begun.copy()
        own.update(text.encode("utf-8", "surrogatepass"))
        return own.digest()

    return np.frombuffer(b"".join([digest(text) for text in texts]), dtype="<u8").astype(np.uint64)


def named(texts: Sequence[str], which: AnyArray) -> str:
    """The first few of these ids, and how many records there are of such."""
    places = np.flatnonzero(which)
    names = list(dict.fromkeys(texts[place] for place in places[: 50 * _NAMED].tolist()))
    more = "" if len(names) <= _NAMED else ", …"
    return f"{', '.join(map(repr, names[:_NAMED]))}{more} ({places.size:,} records, the first is {int(places[0]):,})"


@dataclass(frozen=True)
class Seal:
    """What binds a plan without ids to the file of its rows: a keyed digest of all of it."""

    key: bytes
    digest: bytes

    @classmethod
    def of(cls, path: Path) -> Seal:
        key = os.urandom(_KEY)
        return cls(key, _digest_of(path, key))

    def fits(self, path: Path) -> bool:
        """Whether the file is the one that was sealed, byte for byte."""
        return _digest_of(path, self.key) == self.digest


def _digest_of(path: Path, key: bytes) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32, key=key)).digest()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None

"""A private ledger: one party's own purses in a folder of its own, made on first use out of people's budgets."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from privypurse._storage import lock, make_folder, resolved, synchronise_folder
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import Budgets
from privypurse.budgets.person_ids import texts_of
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.ledger import keys, row_purses
from privypurse.ledger.few_rungs import required_rung, rung_within, rungs_for
from privypurse.ledger.ledger import Ledger
from privypurse.ledger.lifetime import MOST_RUNGS

_log = logging.getLogger("privypurse.ledger")
_ROW = "row "
_ABOUT = "made for the people who joined first: its rungs follow from what they granted"


@dataclass(frozen=True)
class Place:
    """Where a private ledger lies: its file, and beside it its key and its anchor, all for their owner's eyes.

    Whoever may read this folder holds the people's data anyway. The anchor tells an older copy of the file alone, not
    of the whole folder.
    """

    file: Path
    key: Path
    anchor: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Place:
        return cls(folder / "purses.db", folder / "purses.key", folder / "purses.anchor")

    @classmethod
    def at(cls, file: Path) -> Place:
        return cls(file, file.with_name(f"{file.name}.key"), file.with_name(f"{file.name}.anchor"))


def url_of(path: Path) -> str:
    """The address of a SQLite ledger in this file."""
    return f"sqlite:///{quote(str(path))}"


def private_ledger(
    folder: str | Path,
    budgets: Budgets,
    *,
    adversary: str = "server",
    purpose: str = "",
    by_row: bool = False,
    leave_out: bool = False,
) -> Ledger:
    """The ledger in this folder, made if there is none; people of ``budgets`` who are new to it join.

    Budgets are what people grant for life. Rungs are fixed when the ledger is made, by `few_rungs`; everybody is on
    the highest rung that is not above their own ε and δ. Who is in it already keeps what they granted there
    (`Ledger.change` changes it).

    ``by_row`` says that ids are rows of a data set (`row_ids`) and not people: nobody joins later, for a row of
    changed data would be a new person with a full purse. ``leave_out`` is for a client of a federation, whose failing
    would tell the server: newcomers whose ε or δ is below every rung are left out, which is logged here, and the
    client has them sit out.
    """
    place, first = Place.in_folder(Path(folder)), budgets.first_record
    ids, epsilon, delta = budgets.people_ids(), budgets.epsilon[first], budgets.delta[first]
    if by_row and not all(text.startswith(_ROW) for text in texts_of(ids)):
        raise InvalidInput(
            "by_row=True is for ids that row_ids made, and these are others: people's own ids know them whatever "
            "their rows; leave by_row out"
        )
    try:
        make_folder(Path(folder))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot hold a ledger: {error}") from None
    if not place.file.exists():
        about = row_purses.NAMED_ROWS if by_row else ""
        make(place, budgets, adversary=adversary, purpose=purpose, about=about)
    ledger = opened(place)
    ledger.require_terms(adversary=adversary)
    new = ~ledger.known(ids)
    if leave_out and not by_row:
        below = new & (rung_within(_rungs(ledger), epsilon, delta) < 0)
        if below.any():
            _log.warning("%d people grant less than every rung of %s; they are left out", below.sum(), place.file)
            new &= ~below
    if new.any():
        if by_row:
            raise InvalidInput(
                f"{place.file} was made for other rows than these {ids.size:,}: records without ids are known by "
                "their place in data that never change. Put the data back as they were; for data that change, give "
                "each person an id and take another folder, and mind that everybody's ε is spent again"
            )
        ledger.join(ids[new], on_rungs(ledger, ids[new], epsilon[new], delta[new]), purpose=purpose)
    return ledger


def row_ids(fingerprint: str, records: int) -> AnyArray:
    """Ids for the records of a data set that never changes; ``fingerprint`` is of its content."""
    return np.array([f"{_ROW}{number} of {fingerprint}" for number in range(records)])


def rungs_of(budgets: Budgets) -> list[tuple[float, float]]:
    """The grants (ε, δ) that a private ledger of these people knows."""
    at = budgets.first_record
    return rungs_for(budgets.epsilon[at], budgets.delta[at], MOST_RUNGS)


def make(
    place: Place,
    budgets: Budgets,
    *,
    adversary: str = "server",
    purpose: str = "",
    about: str = "",
    first: Callable[[Ledger], object] | None = None,
) -> None:
    """A ledger with the people of the budgets, rows by number where they have no ids; as a whole or not at all.

    ``first`` is done with it before anybody else can. Nothing where somebody else was quicker. One that is missing
    beside its key or anchor is not begun anew.
    """
    try:
        with _alone(place) as beside:
            if beside is None:
                return
            at = budgets.first_record
            ids = at if budgets.person is None else budgets.people_ids()
            epsilon, delta = budgets.epsilon[at], budgets.delta[at]
            key = keys.new()
            made = Ledger.create(
                url_of(beside), rungs_of(budgets), adversary=adversary, about=about or _ABOUT, key=key
            )
            made.join(ids, on_rungs(made, ids, epsilon, delta), purpose=purpose)
            if first is not None:
                first(made)
            keys.write(place.key, key)
            made.write_anchor(place.anchor)  # the last but its name: who finds it finds it whole
            os.rename(beside, place.file)
            synchronise_folder(place.file.parent)
    except OSError as error:
        raise InvalidInput(
            f"the ledger {place.file} cannot be made: {error.strerror or error}; it needs a folder that can be "
            "written to"
        ) from None


@contextmanager
def _alone(place: Place) -> Iterator[Path | None]:
    """Another name to make the ledger under, while nobody else makes it; None if it is there."""
    beside = place.file.with_name(f".{place.file.name}.{secrets.token_hex(8)}")
    folder = os.open(place.file.parent, os.O_RDONLY)
    try:
        lock(folder, f"somebody else is making {place.file}; try again")
        _name_whole(place)
        if place.file.exists():
            yield None
        else:
            _refuse_lost(place, "anchor", place.anchor)
            _remove_broken_off(place)
            _refuse_lost(place, "key", place.key)
            try:
                yield beside
            finally:
                if not place.file.exists():
                    place.anchor.unlink(missing_ok=True)  # ours: there was none
                _remove_broken_off(place)
    finally:
        os.close(folder)


def _refuse_lost(place: Place, what: str, path: Path) -> None:
    """Raise where what goes with a ledger is there, be it a link into a place that is not, and the ledger is not."""
    if os.path.lexists(path):
        raise InvalidInput(
            f"{place.file} is missing beside its {what} {path}, and with it what was spent; put it back. A new one "
            "would fill everybody's purse again"
        )


def is_there(place: Place) -> bool:
    """Whether there is such a ledger; raises where one was, and what goes with it is there alone."""
    for path in dict.fromkeys((place.file, resolved(place.file))):
        if path.exists():
            return True
        if path.is_symlink():
            raise InvalidInput(f"{path} leads to a ledger that is not there; bring it back before anything is asked")
        beside = Place.at(path)
        if _broken_off(beside):
            with _alone(beside) as free:  # gives it its name, removes what is left, or finds that it is lost
                if free is None:
                    return True
        _refuse_lost(beside, "anchor", beside.anchor)
        _refuse_lost(beside, "key", beside.key)
    return False


def _broken_off(place: Place) -> list[Path]:
    """What is left where making it was broken off before it had its name."""
    name, folder = re.compile(rf"\.{re.escape(place.file.name)}\.[0-9a-f]{{16}}"), place.file.parent
    return [path for path in folder.iterdir() if name.fullmatch(path.name)] if folder.is_dir() else []


def _name_whole(place: Place) -> None:
    """Where making it was broken off behind its anchor, nothing is missing but its name."""
    if place.file.exists() or not place.anchor.exists():
        return
    for path in _broken_off(place):
        with suppress(PrivyPurseError):
            if Ledger.open(url_of(path), place.key, anchor=place.anchor):
                os.rename(path, place.file)


def _remove_broken_off(place: Place) -> None:
    """That, with the key that was written just then."""
    left = _broken_off(place)
    if left:
        place.key.unlink(missing_ok=True)
    for path in left:
        for ending in ("-wal", "-shm", ""):
            Path(f"{path}{ending}").unlink(missing_ok=True)


def opened(place: Place) -> Ledger:
    """A private ledger that there is, against its anchor."""
    file = resolved(place.file)
    if not place.anchor.exists():
        anew = ["privypurse", "ledger", "verify", "--ledger", url_of(place.file), "--anchor", str(place.anchor)]
        raise InvalidInput(
            f"{place.anchor} is missing, by which an older copy of {place.file} would be told; put it back. If this "
            f"is the latest copy for certain, begin it anew: {shlex.join([*anew, '--new-anchor'])}"
        )
    return Ledger.open(url_of(file), place.key, anchor=place.anchor)


def _rungs(ledger: Ledger) -> list[tuple[float, float]]:
    return [(rung.epsilon, rung.delta) for rung in ledger.rungs]


def on_rungs(ledger: Ledger, ids: AnyArray, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """Each (ε, δ) rounded down to the ε of a rung."""
    rungs = _rungs(ledger)
    return np.array([one for one, _ in rungs])[required_rung(rungs, epsilon, delta, texts_of(ids))]

"""A private ledger: one party's own purses in a folder of its own, made on first use out of people's budgets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import numpy as np

from privypurse._storage import lock, make_folder, synchronise_folder
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import Budgets
from privypurse.budgets.person_ids import texts_of
from privypurse.errors import InvalidInput
from privypurse.ledger import keys, people
from privypurse.ledger.few_rungs import required_rung, rungs_for
from privypurse.ledger.ledger import Ledger
from privypurse.ledger.lifetime import MOST_RUNGS

FILE, KEY, ANCHOR = "purses.db", "purses.key", "purses.anchor"
_NEWLY_MADE = 2  # entries: that it was made, and who joined


def private_ledger(
    folder: str | Path, budgets: Budgets, *, adversary: str = "server", purpose: str = "", by_row: bool = False
) -> Ledger:
    """The ledger in this folder, made if there is none; people of ``budgets`` who are new to it join.

    Budgets are what people grant for life. Rungs are fixed when the ledger is made, by `few_rungs`; everybody is on
    the highest rung that is not above their own ε and δ. Who is in it already keeps what they granted there
    (`Ledger.change` changes it).

    ``by_row`` says that ids are rows of a data set (`row_ids`) and not people: nobody joins later, for a row of
    changed data would be a new person with a full purse.

    Key and anchor lie beside the ledger, all of it for its owner's eyes: whoever may read this folder holds the
    people's data anyway. The anchor tells an older copy of the ledger alone, not of the whole folder.
    """
    if budgets.person is None:
        raise InvalidInput("a ledger knows people by id, and budgets have none; give Budgets(…, person=ids)")
    home, first = Path(folder), budgets.first_record
    ids, epsilon, delta = budgets.person[first], budgets.epsilon[first], budgets.delta[first]
    try:
        make_folder(home)
        if not (home / FILE).exists():
            _make(home, ids, epsilon, delta, adversary, purpose)
    except OSError as error:
        raise InvalidInput(f"{home} cannot hold a ledger: {error}") from None
    ledger = _opened(home)
    ledger.require_terms(adversary=adversary)
    new = _strangers(ledger, ids)
    if new.any():
        if by_row:
            raise InvalidInput(
                f"{home / FILE} was made for other rows than these {ids.size:,}: records without ids are known by "
                "their place in data that never change. Put the data back as they were; for data that change, give "
                "each person an id and take another folder, and mind that everybody's ε is spent again"
            )
        ledger.join(ids[new], _on_rungs(ledger, ids[new], epsilon[new], delta[new]), purpose=purpose)
    return ledger


def row_ids(fingerprint: str, records: int) -> AnyArray:
    """Ids for the records of a data set that never changes; ``fingerprint`` is of its content."""
    return np.array([f"row {number} of {fingerprint}" for number in range(records)])


def _make(home: Path, ids: AnyArray, epsilon: FloatArray, delta: FloatArray, adversary: str, purpose: str) -> None:
    """A ledger with its people, there as a whole or not at all."""
    if (home / ANCHOR).exists():
        raise InvalidInput(
            f"{home / FILE} is missing beside its anchor, and with it what was spent; put it back. In another folder "
            "everybody's ε is spent again"
        )
    beside, folder = home / f".{FILE}.{secrets.token_hex(8)}", os.open(home, os.O_RDONLY)
    try:
        lock(folder, f"somebody else is making {home / FILE}; try again")
        if (home / FILE).exists():
            return
        made = Ledger.create(
            f"sqlite:///{beside.resolve()}",
            rungs_for(epsilon, delta, MOST_RUNGS),
            adversary=adversary,
            key=home / KEY,
        )
        made.join(ids, _on_rungs(made, ids, epsilon, delta), purpose=purpose)
        os.rename(beside, home / FILE)
        synchronise_folder(home)
    finally:
        os.close(folder)
        for ending in ("", "-wal", "-shm"):
            Path(f"{beside}{ending}").unlink(missing_ok=True)


def _opened(home: Path) -> Ledger:
    url, key = f"sqlite:///{(home / FILE).resolve()}", home / KEY
    if not (home / ANCHOR).exists():
        ledger = Ledger.open(url, key)
        if ledger.show().entries > _NEWLY_MADE:
            raise InvalidInput(
                f"{home / ANCHOR} is missing, by which an older copy of {FILE} would be told; put it back, or write "
                "it anew with Ledger.write_anchor if this is the latest copy for certain"
            )
        ledger.write_anchor(home / ANCHOR)
    return Ledger.open(url, key, anchor=home / ANCHOR)


def _strangers(ledger: Ledger, ids: AnyArray) -> AnyArray:
    """For each id whether it never joined."""
    _, keyed = people.keyed_ids(ids, keys.required(ledger._key))
    with ledger._reading() as connection:
        return np.asarray(people.numbers_of(connection, keyed) < 0)


def _on_rungs(ledger: Ledger, ids: AnyArray, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """Each (ε, δ) rounded down to the ε of a rung."""
    rungs = [(rung.epsilon, rung.delta) for rung in ledger.rungs]
    return np.array([one for one, _ in rungs])[required_rung(rungs, epsilon, delta, texts_of(ids))]

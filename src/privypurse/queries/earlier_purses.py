"""Purses kept by row, before a ledger knew the people: what they say was spent becomes charges for life.

All of it was Gaussian answers, each question chosen in the light of earlier ones. Whoever contributed r_q deviations
of the noise to question q is charged α·r_q²/2 for it, at every order α (Mironov 2017, arXiv 1702.07476, Proposition
7; Feldman & Zrnic 2021, arXiv 2008.11193, eq. 2). So α·μ²/2 with μ² = Σ r_q² charges all of them exactly, whatever α,
and Σ r_q² is what purses in Gaussian DP hold, twice what purses in zCDP hold (ρ = r²/2).

Where purses were of rows, and rows j of one person were in the same answers, their vectors add up: r_q ≤ Σ_j r_qj,
so by Minkowski's inequality μ = √(Σ_q r_q²) ≤ Σ_j √(Σ_q r_qj²) = Σ_j μ_j. Adding squares instead would be too little:
two rows that are counted together move an answer by 2, and cost 4, not 2.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privypurse._storage import HeldFile, digest_of
from privypurse.arrays import FloatArray, frozen
from privypurse.budgets.budgets import Budgets
from privypurse.budgets.person_ids import mark_of
from privypurse.errors import InvalidInput
from privypurse.queries.ledger_purses import SHARES, charges_of_ratios
from privypurse.queries.table_ledger import DATA_SET, MOVED, close_for, identity_of, opened

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_IN_SQUARES = {"gdp": 1.0, "zcdp": 2.0}
"""μ² for a unit of each currency."""
_ADDED_UP = 1 + 1e-8  # what adding up ten million costs in double precision may hide, and that of a person's rows
_ONLY = ("question", "earlier questions")  # what a ledger may have been used for whose sums are all Gaussian


@dataclass(frozen=True, eq=False)
class EarlierPurses:
    """What was spent, by each row of some data or by each person of a list of ids."""

    path: Path
    name: str
    """The id of the run that charges it, the same whenever the same purses are read: they are charged once."""
    rows: str | None
    """The fingerprint of the data whose rows they are; None where they are people's."""
    ids: str | None
    """The mark of the ids, in order; None where they are rows'."""
    source: FloatArray | Ledger
    """μ² of each, or the private ledger that has it."""

    def require_of(self, budgets: Budgets, fingerprint: str) -> None:
        """Raise unless they are the purses of these rows, in data of this fingerprint, or of these people."""
        if self.ids is not None:
            assert isinstance(self.source, np.ndarray)
            # Whoever came later stands behind the others, and has spent nothing.
            ids = None if budgets.person is None else budgets.people_ids()[: self.source.size]
            if ids is None or mark_of(ids) != self.ids:
                raise self._of_others("list of ids, or one in another order")
        elif self.rows != fingerprint or (isinstance(self.source, np.ndarray) and self.source.size != len(budgets)):
            raise self._of_others("data set: they are of rows, and a row was edited, added or moved since")

    def squares(self, budgets: Budgets) -> FloatArray:
        """μ² of each person in these budgets, to whom they belong."""
        spent = self.source if isinstance(self.source, np.ndarray) else _squares_in(self.source, len(budgets))
        if self.ids is not None:
            return np.append(spent, np.zeros(budgets.people - spent.size))
        return np.asarray(np.square(np.bincount(budgets.owner, np.sqrt(spent), minlength=budgets.people)))

    def _of_others(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"the purses {self.path} belong to another {what}; give --table as it was when the last question was "
            "answered, with the column of ids by which the ledger knows people"
        )


def read_earlier_purses(path: Path) -> EarlierPurses:
    """From a file of purses as earlier versions kept, or a private ledger that knows rows by number."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InvalidInput(f"the purses {path} cannot be read: {error.strerror}; name the file") from None
    return _from_ledger(path) if head.startswith(b"SQLite format 3") else _from_file(path)


def not_taken_in(table: Path, ledger: Ledger | None) -> Path | None:
    """A file of purses beside a table that this ledger, or the one that is still to be made, does not know of."""
    whole = table.resolve()
    for path in (Path(f"{table}.purses"), whole.with_name(f"{whole.name}.purses")):
        if path.exists() and (ledger is None or ledger.run(read_earlier_purses(path).name) is None):
            return path
    return None


def _from_file(path: Path) -> EarlierPurses:
    held = HeldFile(path, "purses", b"")  # it exists: nothing is made
    try:
        said, _, packed = held.content.partition(b"\n")
    finally:
        held.close()
    try:
        identity: dict[str, str] = json.loads(said)
        rows, ids, unit = identity[DATA_SET], identity.get("list of ids"), _IN_SQUARES[identity["currency"]]
        spent = np.zeros(0)
        if packed:
            with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
                spent = np.array(arrays["spent"], dtype=np.float64)
        if spent.ndim != 1 or not (np.isfinite(spent) & (spent >= 0)).all():
            raise ValueError("what was spent must be one number from 0 on for each")
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"the purses {path} cannot be read: {error}") from None
    if not packed:
        raise InvalidInput(f"nothing was ever spent from the purses {path}; remove the file instead")
    name = f"purses {digest_of([identity, spent.tolist()])}"
    return EarlierPurses(path, name, None if ids else rows, ids, frozen(spent * unit))


def _from_ledger(path: Path) -> EarlierPurses:
    ledger = opened(path)
    rows = identity_of(ledger).get(DATA_SET)
    if rows is None:
        raise InvalidInput(f"the ledger {path} knows people by id, so nothing has to be moved; name it by --ledger")
    if other := [run.what for run in ledger.runs() if run.what not in _ONLY and run.run_id != MOVED]:
        raise InvalidInput(f"the ledger {path} was used for {other[0]!r} too; go on with it by --ledger")
    return EarlierPurses(path, f"purses {ledger.id}", rows, None, ledger)


def _squares_in(ledger: Ledger, rows: int) -> FloatArray:
    """μ² of rows by number: α·μ²/2 is at most the sum at every order, where that is below its limit.

    What was beyond all limits is charged as the last level of a grid (`charge_earlier_purses`), which is itself
    beyond them and may be less than was spent. ∞ where no sum is below its limit.
    """
    spent = ledger.spent(ledger.members(np.arange(rows)))[:, : len(ledger.rungs)]
    limits, orders = np.array([rung.limit for rung in ledger.rungs]), np.array([rung.order for rung in ledger.rungs])
    bounds = 2 * np.ldexp(spent.astype(np.float64), -40) / orders * _ADDED_UP
    return np.asarray(np.where(spent < limits, bounds, np.inf).min(axis=1))


def charge_earlier_purses(
    earlier: EarlierPurses,
    ledger: Ledger,
    budgets: Budgets,
    fingerprint: str,
    at_most: float | None = None,
    *,
    dry_run: bool = False,
) -> bool:
    """Charge each person of the budgets α·μ²/2 at every order; False if it was done before. ``dry_run`` only raises
    where that cannot be.

    μ is rounded up to a public grid, whose end is beyond what any rung holds. ``at_most`` is the public cap: the ε
    that all those questions together could cost somebody. The file does not tell it, and nothing tells whether
    somebody spent more; without it all of the public balances is gone.
    """
    earlier.require_of(budgets, fingerprint)
    members = ledger.members(budgets.people_ids())
    new = ledger.run(earlier.name) is None
    if dry_run or not new:  # by its name it is the same, also where people came later
        return new
    if not isinstance(earlier.source, np.ndarray):
        close_for(earlier.source, np.arange(len(budgets)), ledger.id)
    most = max(np.sqrt(2 * np.ldexp(float(rung.limit), -40) / rung.order) for rung in ledger.rungs) * _ADDED_UP
    levels = most * SHARES  # the last costs more than any rung holds
    ratio = np.sqrt(earlier.squares(budgets) * _ADDED_UP)
    place = np.minimum(np.searchsorted(levels, ratio), levels.size - 1)
    return ledger.charge_past(
        earlier.name,
        members,
        charges_of_ratios(ledger.lifetime, levels),
        np.where(ratio > 0, place, -1),
        at_most=at_most,
        what="earlier questions",
    )

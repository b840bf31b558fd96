"""The ledger: one purse a person, one promise, for life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from privypurse.accounting.releases import ClientSampled, Release
from privypurse.arrays import AnyArray, IntArray
from privypurse.budgets.person_ids import ids_of, texts_of
from privypurse.errors import InvalidInput
from privypurse.ledger import begun, consents, entries, history, keys, past, people, runs, standing
from privypurse.ledger.begun import Begun
from privypurse.ledger.consent_tables import Difference, read_consents, require_right
from privypurse.ledger.consents import Consent
from privypurse.ledger.history import Event, Run
from privypurse.ledger.lifetime import ApproximateDP, added, checked_charges, holds
from privypurse.ledger.opened import OpenLedger
from privypurse.ledger.people import Members
from privypurse.ledger.receipts import Receipt, receipt_of
from privypurse.ledger.runs import Request, Reserved, Settled


@dataclass(frozen=True, eq=False)
class Reservation:
    """What a run may take. Internal: who could pay is a function of data (rule 15)."""

    ledger: Ledger
    reserved: Reserved
    """The reservation as it is in the ledger, in the order of the members that were given."""

    @property
    def run_id(self) -> str:
        return str(self.reserved.entry.run)

    @property
    def admitted(self) -> AnyArray:
        """For each member whether they take part; the others pay nothing and must contribute nothing."""
        return self.reserved.admitted

    @property
    def repeated(self) -> bool:
        """Whether this run was reserved before. Then releases may have been made on its account already."""
        return self.reserved.repeated

    def standing(self) -> AnyArray:
        """For each member whether they still take part: admitted, and not withdrawn, expired or lowered since."""
        return self.ledger._still_standing(self.reserved)

    def settle(self, charges: Any = None, class_of: Any = None, holder: str | None = None) -> Settled:
        """Charge what was really taken: ``charges`` [classes, columns], ``class_of`` for each member, -1 for nothing.

        Nobody's charge may exceed what was reserved at any column. Without arguments everything reserved is charged.
        ``holder`` has to be the one that the run's steps are handed to, where they are (`Ledger.take_over`).
        Idempotent: the same again does nothing, anything else is an error.
        """
        return self.ledger._settle(self.reserved, charges, class_of, {}, holder)


class Ledger(OpenLedger):
    """Who granted what, what was taken out of it, and what is left, for everybody and for life.

    Guarantee: whatever is asked of it in whatever order, by however many processes, nobody's charges at the orders of
    their rung and those above exceed its limits; a charge is on disk before `reserve` or `charge` returns; nothing
    that was charged is given back but by settling a reservation at less. Entries are only ever added, in a chain of
    hashes. Balances, and who could pay, are sensitive (rules 6 and 15).
    """

    def join(self, ids: Any, epsilon: Any, purpose: str = "", valid_until: Any = None, recorded_by: str = "") -> None:
        """People grant an ε, one of the rungs': one for all, or one each.

        Who had withdrawn or been forgotten comes back with what they had spent. ``purpose`` is free text or a term of
        DPV.
        """
        self._grant(ids, epsilon, Consent.of(purpose, valid_until, recorded_by), joining=True)

    def change(
        self, ids: Any, epsilon: Any, purpose: str | None = None, valid_until: Any = None, recorded_by: str = ""
    ) -> None:
        """People raise or lower their ε to another rung, or renew their consent to the same one.

        Purpose and end are as before where they are not given; ``valid_until="until withdrawn"`` takes an end away.
        Who has spent more than the new rung holds is kept out.
        """
        self._grant(ids, epsilon, Consent.of(purpose, valid_until, recorded_by), joining=False)

    def _grant(self, ids: Any, epsilon: Any, consent: Consent, *, joining: bool) -> None:
        key = keys.required(self._key)
        with self._writing() as connection:
            consents.refuse_past(consent, entries.time_now(connection))
            people.grant(connection, self.lifetime, ids, epsilon, consent, key, joining=joining)

    def withdraw(self, ids: Any, recorded_by: str = "") -> None:
        """No further charge to these people; a run that is on its way leaves them out from its next step on."""
        with self._writing() as connection:
            people.leave(connection, "withdraw", ids, keys.required(self._key), Consent.of(None, None, recorded_by))

    def forget(self, ids: Any, recorded_by: str = "") -> None:
        """Withdraw, and show from then on only that, and what was spent in all, under this id.

        Pseudonymous, not erased: the entries stay, with the keyed hash of the id, grants, charges and their times.
        """
        with self._writing() as connection:
            people.leave(connection, "forget", ids, keys.required(self._key), Consent.of(None, None, recorded_by))

    def merge(self, one: Any, other: Any) -> NoReturn:
        """Refused, with the reason: what two ids spent does not add up where both were in the same release."""
        people.refuse_merging(*texts_of(ids_of([one, other])))

    def import_table(
        self,
        table: Any,
        *,
        person: str = "person",
        epsilon: str = "epsilon",
        purpose: str = "",
        recorded_by: str = "",
        returning: bool = False,
        raising: bool = False,
        levels: Mapping[str, float] | None = None,
        dry_run: bool = True,
    ) -> Difference:
        """Take consents from a CSV or Parquet file or a data frame: who is new joins, who has another ε changes.

        Columns "purpose", "valid_until" and "recorded_by" are read where there are such. Another purpose or end with
        the same ε renews a consent; an empty end is none. Where the table says nothing of them they stay. Nobody
        leaves by being absent. Who has withdrawn or been forgotten stays out, or a table from before would undo it;
        ``returning`` brings them back, with what they had spent. Nobody is raised, or comes back, above what was
        recorded for them last since they joined by another way than a table of this ``recorded_by``, as by `change`:
        a table from before would undo that; ``raising`` does so. Nobody joins by a row whose end is past; a consent
        that has ended is renewed by a row that names a later end, or none, not by one that says nothing of it.
        ``dry_run`` (the default) only says what would happen. With ``levels``, as in {"strict": 0.5}, the column
        ``epsilon`` holds choices.
        """
        said = {"person": person, "epsilon": epsilon, "purpose": purpose, "recorded_by": recorded_by}
        more = {"levels": levels, "returning": returning, "raising": raising}
        return self.import_tables([table], dry_run=dry_run, **said, **more)[0]

    def import_tables(self, tables: Sequence[Any], *, dry_run: bool = True, **said: Any) -> list[Difference]:
        """As `import_table`, of several tables at once: all of them, or none where one is wrong or ids come twice."""
        self._require_takes_people()
        rows, key = [read_consents(table, **said) for table in tables], keys.required(self._key)
        require_right(rows, self.lifetime)
        with self._reading() if dry_run else self._writing() as connection:
            return [one.applied(connection, self.lifetime, key, write=not dry_run) for one in rows]

    def members(self, ids: Any) -> Members:
        """People by id, as numbers. Unknown and doubled ids are errors; who has withdrawn is not."""
        self._require_takes_ids()
        with self._reading() as connection:
            return people.members(connection, self.id, self.lifetime, ids, keys.required(self._key))

    def numbered(self, numbers: Any) -> Members:
        """People by the numbers that `members` gave them before; an id is always the same number."""
        self._require_takes_ids()
        with self._reading() as connection:
            return people.numbered(connection, self.id, self.lifetime, numbers, self._key)

    def consenting(self, members: Members) -> AnyArray:
        """For each whether their consent is in force: joined, and not withdrawn, forgotten, ended or frozen."""
        self._require_ours(members)
        with self._reading() as connection:
            stand, places = people.of(connection, self.lifetime, members.numbers, self._key)
            return np.asarray(stand.active(self._time())[places])

    def knows(self, person: Any) -> bool:
        """Whether this person ever joined."""
        return bool(self.known([person])[0])

    def known(self, ids: Any) -> AnyArray:
        """For each id whether that person ever joined."""
        with self._reading() as connection:
            return people.known(connection, ids, keys.required(self._key))

    def charges_of(self, releases: Sequence[Release | ApproximateDP]) -> IntArray:
        """What releases cost, in units: int64 [releases, columns], a column for each order (see `Lifetime`).

        Against the server nothing is saved by who joins a round: it sees that (rule 8).
        """
        known = [release for release in releases if not isinstance(release, ApproximateDP)]
        if self.adversary == "server" and (hiding := [one for one in known if holds(one, ClientSampled)]):
            raise InvalidInput(
                f"{hiding[0]} costs less because nobody sees who joined, and this ledger promises against the "
                "server, who does; charge what is released in a round for each round joined"
            )
        return self.lifetime.charges_of(releases)

    def caps(self, charges: Any, at_most: float | None) -> IntArray:
        """The public cap of a run with this public table of charges: int64 [rungs, columns] (see `Lifetime.caps`)."""
        return self.lifetime.caps(checked_charges(charges, self.lifetime.columns), at_most)

    def balances(self, members: Members) -> IntArray:
        """What each may still be charged at the order of their own rung, in units; 0 for who has left. Sensitive."""
        return self._room(members, public=False, own=True)

    def public_balances(self, members: Members) -> IntArray:
        """The grant less the public caps of all runs that listed the person, in units at their rung's order."""
        return self._room(members, public=True, own=True)

    def room(self, members: Members) -> IntArray:
        """[people, columns]: what each may still be charged at each column. Sensitive.

        A charge has to fit at every column. Those below one's own rung do not limit and show 2^61.
        """
        return self._room(members, public=False)

    def public_room(self, members: Members) -> IntArray:
        """As `room`, from grants and public caps alone. Never more than the real one."""
        return self._room(members, public=True)

    def spent(self, members: Members) -> IntArray:
        """[people, columns]: what each was charged at each column, without what open runs reserve. Sensitive."""
        self._require_ours(members)
        with self._reading() as connection:
            stand, places = people.of(connection, self.lifetime, members.numbers, self._key)
        return np.ascontiguousarray(stand.spent[:, places].T)

    def _room(self, members: Members, *, public: bool, own: bool = False) -> IntArray:
        self._require_ours(members)
        with self._reading() as connection:
            stand, places = people.of(connection, self.lifetime, members.numbers, self._key)
            active = stand.active(self._time())[places]
        left = np.where(active[:, None], standing.room(stand, places, public=public), 0)
        if not own:
            return left
        rung = np.minimum(stand.rung[places], len(self.rungs) - 1).astype(np.int64)
        return np.asarray(left[np.arange(len(members)), rung])

    def _require_ours(self, members: Members) -> None:
        if not isinstance(members, Members) or members.ledger != self.id:
            raise InvalidInput("members must be people of this ledger: ledger.members(ids)")

    def reserve(
        self,
        run_id: str,
        members: Members,
        charges: Any,
        class_of: Any,
        at_most: float | None = None,
        what: str = "train",
        purpose: str = "",
    ) -> Reservation:
        """Set aside the whole cost of a run, in one transaction, before its first release.

        ``charges`` [classes, columns] is a *public* table: which rows it has must not follow from real balances.
        ``class_of`` is everybody's row, their own affair, -1 for who takes no part. ``at_most`` is the run's public
        cap, an ε at the person's δ, which public balances lose whether it is used up or not; None: all of them.
        Whom their balance, their consent or the cap keeps out is not `admitted`, silently. Idempotent by ``run_id``.
        """
        return self._reserve("reserve", self._request(run_id, members, charges, class_of, at_most, what, purpose))

    def charge(
        self,
        run_id: str,
        members: Members,
        charges: Any,
        class_of: Any,
        at_most: float | None = None,
        what: str = "question",
        purpose: str = "",
    ) -> Reservation:
        """Reserve and settle at once, for a single release such as an answer; nothing comes back.

        Called again with the same ``run_id`` it charges once and says ``repeated``; release then only what certainly
        was not released the first time.
        """
        return self._reserve("charge", self._request(run_id, members, charges, class_of, at_most, what, purpose))

    def charge_past(
        self,
        run_id: str,
        members: Members,
        charges: Any,
        class_of: Any,
        at_most: float | None = None,
        what: str = "earlier use",
        purpose: str = "",
    ) -> bool:
        """Charge releases that were made without the ledger; whoever does not hold all of it is left with nothing.

        False, and nothing is done, where the ledger has this ``run_id`` already; one of another use is refused.
        Nobody is passed over, whether they have left, or owe more than ``at_most``; a run that is open and lists some
        of them has to be settled first. ``charges`` is public, and ``at_most`` has to be known beforehand: nothing
        tells whether somebody owes more.
        """
        request = self._request(run_id, members, charges, class_of, at_most, what, purpose)
        with self._writing() as connection:
            return past.charge(connection, self.lifetime, request)

    def _request(
        self, run_id: str, members: Members, charges: Any, class_of: Any, at_most: Any, what: str, purpose: str
    ) -> Request:
        self._require_ours(members)
        said = {"what": what, "purpose": purpose}
        return Request.of(run_id, members, charges, class_of, at_most, self.lifetime.columns, said)

    def _reserve(self, kind: str, request: Request) -> Reservation:
        with self._writing() as connection:
            return Reservation(self, runs.reserve(connection, self.lifetime, request, self._key, kind))

    def reservation(self, run_id: str) -> Reservation:
        """What was reserved for a run, its people by rising number (``reserved.numbers``)."""
        with self._reading() as connection:
            return Reservation(self, runs.reservation(connection, run_id))

    def recover(
        self, run_id: str, charges: Any = None, class_of: Any = None, members: Members | None = None
    ) -> Settled:
        """Settle a run that died: at all that it had reserved, unless its journal proves less.

        ``class_of`` is in the order of ``members``, or by rising number where they are not given.
        """
        reserved = self.reservation(run_id).reserved
        if members is not None:
            self._require_ours(members)
            if not np.array_equal(np.sort(members.numbers), reserved.numbers):
                raise InvalidInput(f"members are not those for whom run {run_id!r} was reserved")
            place = np.searchsorted(reserved.numbers, members.numbers)
            reserved = Reserved(reserved.entry, members.numbers, reserved.values[place], repeated=True)
        return self._settle(reserved, charges, class_of, {"recovered": True})

    def _settle(
        self, reserved: Reserved, charges: Any, class_of: Any, said: dict[str, Any], holder: str | None = None
    ) -> Settled:
        with self._writing() as connection:
            if holder is not None:
                begun.require_holder(connection, str(reserved.entry.run), holder)
            return runs.settle(connection, self.lifetime, reserved, charges, class_of, said)

    def take_over(self, run_id: str, holder: str, known: Sequence[str] = ()) -> int:
        """Hand the steps, or rounds, of a reserved run to ``holder`` from now on; how many have begun before.

        ``holder`` is a new random name for every process that works on the run, kept beside what it goes on from
        before this is called; ``known`` are those kept there. A run that went on from another copy is refused.
        """
        with self._writing() as connection:
            return begun.take_over(connection, run_id, holder, known)

    def begin(self, run_id: str, holder: str, count: int) -> None:
        """Say that ``count`` steps, or rounds, of the run have begun; before they are released.

        Refused if somebody else has taken it over. Fewer than before gives back what will never be released.
        """
        with self._writing() as connection:
            begun.begin(connection, run_id, holder, count)

    def begun(self, run_id: str) -> Begun | None:
        """How many steps, or rounds, of a run have begun at most; None where they are not counted here."""
        with self._reading() as connection:
            return begun.of(connection, run_id)

    def _still_standing(self, reserved: Reserved) -> AnyArray:
        with self._reading() as connection:
            stand, places = people.of(connection, self.lifetime, reserved.numbers, self._key)
            fits = stand.active(self._time())[places]
            for column in range(self.lifetime.columns):
                taken = added(stand.spent[column, places], stand.reserved[column, places])
                fits &= taken <= stand.limits(column)[places]
        return np.asarray(reserved.admitted & fits)

    def consent_counter(self) -> int:
        """Rises whenever anybody's consent changes: cheap to ask before every step.

        The database is asked only if something was written since it was asked last.
        """
        mark = self._database.mark()  # before it is asked: what is written meanwhile changes the next mark
        if mark is None or self._consents is None or self._consents[0] != mark:
            with self._reading() as connection:
                self._consents = mark, entries.consent_counter(connection)
        return self._consents[1]

    def history(self, person: Any) -> list[Event]:
        """What the ledger has about one person, oldest first; before a forget only a sum. For that person's eyes."""
        with self._reading() as connection:
            number = int(people.resolve(connection, [person], keys.required(self._key), people.CHECK)[0])
            return history.of_person(connection, self.lifetime, number)

    def receipt(self, person: Any, contact: str = "") -> Receipt:
        """What one person allowed, what each use took of it and what is left. For that person's eyes.

        `Receipt.text`, `Receipt.html` and `Receipt.json_ld` tell it; ``contact`` says there whom to tell to withdraw.
        """
        [name] = texts_of(ids_of([person]))
        with self._reading() as connection:
            made = entries.moment(entries.time_now(connection))
        about = {"person": name, "ledger_id": self.id, "unit": self.unit, "adversary": self.adversary}
        return receipt_of(self.history(person), self.lifetime, made=made, contact=contact, **about)

    def runs(self) -> list[Run]:
        """All runs, oldest first: what, when, the public cap, whether settled."""
        with self._reading() as connection:
            return history.runs(connection)

    def run(self, run_id: str) -> Run | None:
        """One run by its id, as `runs` has it; None where there is no such."""
        with self._reading() as connection:
            return history.run(connection, run_id)

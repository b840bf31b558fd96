"""A run's account in a ledger: reserved before the first step, watched for withdrawals, settled at what was begun.

What comes back at settling is what was never begun, for everybody or for who withdrew, and, where contributions were
clipped to the norm that they are charged at, what was reserved above that. Never for not being drawn (rule 14).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.arrays import AnyArray, IntArray, distinct
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.plans import Plan
from privypurse.plans.plan_base import PlanBase
from privypurse.plans.price_list import PriceList
from privypurse.plans.reserved_shares import ReservedShares
from privypurse.training.begun_steps import BegunSteps
from privypurse.training.individual.lifetime_charges import lifetime_charges
from privypurse.training.journal import STEPS, Journal
from privypurse.training.remembered_run import RememberedRun, anchor_of

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger, Reservation
    from privypurse.ledger.people import Members
    from privypurse.training.distributed import Processes
    from privypurse.training.individual.accounting import Accounting
    from privypurse.training.individual.spending import Spending

ROUNDS = "rounds"
"""The journal in a checkpoint folder, of a plan or of a schedule."""
_SECONDS = 60.0
_FOREVER = np.iinfo(np.int64).max


def require_plan(plan: Any) -> None:
    """Raise for what is no plan and no schedule."""
    if not isinstance(plan, PlanBase):
        raise InvalidInput(f"plan is a {type(plan).__name__}; make one: pp.plan(budgets, steps=…, batch_size=…)")


def require_ledger(plan: PlanBase, ledger: Any, seed: int | None) -> None:
    """Raise unless the plan or schedule may be trained with this ledger, or with none."""
    require_plan(plan)
    if isinstance(ledger, Account):  # of rounds, which reserve as a whole
        return
    if ledger is None:
        if plan.ledger is not None and seed is None:
            raise InvalidInput(
                f"the {plan.WHAT} was made with the ledger {plan.ledger.id}, and its people are charged there; give "
                "it as ledger=. Only seeded runs, which are for tests, go without"
            )
        return
    from privypurse.ledger.ledger import Ledger  # here, not above: who has no ledger needs no database

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    if plan.ledger is None:
        raise InvalidInput(
            f"the {plan.WHAT} was made without a ledger, so it may cost more for life than people have left; make it "
            "anew with ledger="
        )
    if plan.ledger.id != ledger.id:
        raise InvalidInput(
            f"the {plan.WHAT} was made with the ledger {plan.ledger.id}, and this one is {ledger.id}; give the one "
            "it was made with"
        )
    _require_bounded(plan)


def _require_bounded(plan: PlanBase) -> None:
    """Raise for a plan with extra steps that `pp.plan` does not make under a ledger: a file may have been altered."""
    if not isinstance(plan, Plan):
        return
    assert plan.ledger is not None
    if plan.shape.stop is not None or (plan.shape.extra_steps and plan.ledger.at_most is None):
        raise InvalidInput(
            f"the plan has extra_steps = {plan.shape.extra_steps:,}, stop = {plan.shape.stop} and at_most = "
            f"{plan.ledger.at_most}: under a ledger they need at_most, and no rule stops them. It was altered: "
            "make it anew with pp.plan(…, ledger=ledger)"
        )


def require_journal(journal: Path) -> None:
    """Raise if a run's reservation is remembered, but the journal beside it, which was made before, is gone."""
    remembered = RememberedRun.read(journal)
    if remembered is not None and not journal.exists():
        raise InvalidInput(
            f"{journal}, which counts the steps of run {remembered.run!r}, is gone; settle the run (privypurse "
            f"ledger recover --checkpoint {journal.parent}), and train in another folder"
        )


class Account:
    """What a run has reserved in a ledger, and who of its people takes part.

    Guarantee: all steps of the plan are reserved before the first one; whoever could not pay, has withdrawn or
    lowered their grant below what is taken contributes to no further step; settled is at least what every step that
    was begun costs. Everybody planned is listed, so that public balances follow from plans and grants alone; who has
    no record pays nothing, and loses the public cap. With a journal the ledger hands out the steps (`BegunSteps`).
    ``takes_part`` is internal: it follows from what people have left (rule 15).
    """

    def __init__(
        self,
        ledger: Ledger,
        plan: PlanBase,
        processes: Processes,
        journal: Path | None = None,
        purpose: str = "",
        counted: int | None = None,
    ) -> None:
        """Beside the journal stands the run's id: a run that goes on later goes on with its reservation.

        ``counted`` is what the journal counted when it was opened; None where it does not say which steps are left.
        """
        self._counted, self._journal = counted, journal
        self._ledger, self._plan, self._processes = ledger, plan, processes
        self._counter, self._looked, self._settled = -1, 0.0, False
        self._ended, self._process = False, os.getpid()
        self._begun_steps: BegunSteps | None = None
        self.takes_part: AnyArray = np.zeros(plan.people, dtype=bool)
        """For each unit of the plan whether they may contribute; another array whenever that changes."""
        self.run_id = ""
        if processes.first:
            self._reserve(purpose)
        self.takes_part = processes.same(self.takes_part)

    def _reserve(self, purpose: str) -> None:
        plan, ledger = self._plan, self._ledger
        assert plan.ledger is not None
        members = ledger.numbered(plan.ledger.numbers)
        present = self._present()
        remembered = RememberedRun.of(self._journal, ledger, *self._identity(), whole=self._whole)
        self.run_id = remembered.run
        known = {run.run_id: run for run in ledger.runs()}.get(self.run_id)
        self._settled = known is not None and known.settled is not None
        self._require_consistent(known is not None)
        if known is None:
            charges, row, cap = self._asked(members)
            self._require_payable(members, charges, row, cap)
            row = np.where(present, row, -1)
            ledger.reserve(self.run_id, members, charges, row, at_most=cap, what="train", purpose=purpose)
        self._reservation = ledger.reservation(self.run_id)
        if self._journal is not None and self._counted is not None and not self._settled:
            self._begun_steps = BegunSteps(ledger, remembered, self._journal, self._identity()[1])
        numbers = self._reservation.reserved.numbers
        self._stands = np.array(self._reservation.admitted) & (not self._settled)
        self._begun = np.full(numbers.size, _FOREVER)  # steps that each was in, where that is not all of them
        self._places = np.searchsorted(numbers, members.numbers)
        self._spread()

    def _present(self) -> AnyArray:
        """For each unit of the plan whether they have a record here; their number in the ledger has to be theirs."""
        plan = self._plan
        assert plan.person is not None
        assert plan.owner is not None
        assert plan.ledger is not None
        units, first = np.unique(plan.owner, return_index=True)
        if not np.array_equal(self._ledger.members(plan.person[first]).numbers, plan.ledger.numbers[units]):
            raise InvalidInput(
                f"the {plan.WHAT} has other people by number than by id, and would charge those; it was altered: "
                f"make it anew with {plan.MADE_BY}(…, ledger=ledger)"
            )
        present = np.zeros(plan.people, dtype=bool)
        present[units] = True
        return present

    @property
    def begun(self) -> int:
        """How many steps the ledger had handed out before: they stay taken, whoever took them."""
        return self._processes.same(0 if self._begun_steps is None else self._begun_steps.before)

    def count(self, step: int) -> None:
        """Before step ``step`` is released: the ledger says that it has begun."""
        self._require_going_on()
        self._require_reserved(step)
        if self._begun_steps is not None:
            self._begun_steps.count(step)

    def close(self) -> None:
        """No further step is taken here for now; the reservation stands."""
        if self._begun_steps is not None:
            self._begun_steps.close()

    def _require_going_on(self) -> None:
        """Raise once the run was settled here, or is about to be: what comes then would be charged to nobody."""
        if self._ended:
            raise InvalidInput(f"run {self.run_id!r} is settled in its ledger; make a new plan for further steps")

    def _require_reserved(self, steps: int) -> None:
        if steps > self._identity()[1]:
            raise PrivyPurseError(
                f"run {self.run_id!r} has {self._identity()[1]:,} steps reserved in its ledger, and this is number "
                f"{steps:,}; nothing comes back. This is a bug, please report it"
            )

    def _require_consistent(self, known: bool) -> None:
        """Raise where steps were counted of a run that the ledger does not know, or how far it had come is lost."""
        if not self._counted or self._journal is None:
            return
        counted = f"the journal has counted {self._counted:,} steps of run {self.run_id!r}"
        if not known:
            raise InvalidInput(
                f"{counted}, which the ledger does not know: it is an older copy of the one it was reserved in. Put "
                "the newer one back"
            )
        if not (anchor := anchor_of(self._journal)).is_file():
            raise InvalidInput(
                f"{counted}, and {anchor}, by which an older copy of the ledger is told, is gone. Put it back, or "
                f"settle the run (privypurse ledger recover --checkpoint {anchor.parent}) and train in another folder"
            )

    def _identity(self) -> tuple[str, int]:
        """A fingerprint of the plan, and how many steps it has."""
        assert isinstance(self._plan, Plan)
        return self._plan.digest(), self._plan.all_steps

    @property
    def _whole(self) -> bool:
        """Whether single steps have no price of their own: where a filter lets people go on, one may cost all."""
        assert isinstance(self._plan, Plan)
        return self._plan.filter is not None

    def _asked(self, members: Members) -> tuple[IntArray, IntArray, float | None]:
        """A public table of charges, everybody's row of it, and the public cap."""
        plan, ledger = self._plan, self._ledger
        assert isinstance(plan, Plan)
        assert plan.ledger is not None
        prices, at_most = PriceList.of_plan(ledger, plan), plan.ledger.at_most
        row = prices.rows_of(plan)[plan.level_of]
        if plan.filter is None:
            return prices.charges, row, at_most
        assert at_most is not None  # see `require_ledger`
        shares = ReservedShares.of(ledger, prices, at_most)
        share = shares.largest(ledger.room(members), members.rung.astype(np.int64))
        pays = (row >= 0) & (prices.charges[row] <= shares.held(share)).all(axis=1)  # for the fixed steps at least
        return shares.charges, np.where(pays, share, -1), at_most

    def _require_payable(self, members: Members, charges: IntArray, row: IntArray, at_most: float | None) -> None:
        """Nothing to ask: rates were chosen by what people had left."""

    def _charges(self, begun: AnyArray) -> IntArray:
        """[people, columns]: what so many steps cost everybody for whom something is reserved."""
        if self._whole:
            return np.where(np.asarray(begun)[:, None] > 0, self._reserved_units(), 0)
        return charges_of_steps(self._reservation, self._identity()[1], begun)

    def _reserved_units(self) -> IntArray:
        """[people, columns]: what is reserved, in units."""
        reserved, columns = self._reservation.reserved, self._ledger.lifetime.columns
        return np.stack(reserved.entry.charged(reserved.values[None], columns), axis=1).astype(np.int64)

    def hold(self, accounting: Accounting) -> None:
        """Who goes on after the fixed steps goes on within what is reserved for them."""
        held = self._reserved_units()[self._places] if self._processes.first else np.zeros((0, 0), dtype=np.int64)
        accounting.hold_to(self._processes.same(held), self._ledger)

    def _spread(self) -> None:
        self.takes_part = self._stands[self._places]

    def require_open(self, steps_left: int) -> None:
        """Raise if steps are left to take, but the run was settled: nothing more may be released on its account."""
        if self._processes.same(self._settled) and steps_left:
            raise InvalidInput(
                f"run {self.run_id!r} is settled in its ledger, with {steps_left:,} steps not taken; what it gave "
                "back may be spent by now. Make a new plan, and train it in another folder"
            )

    def poll(self, steps_taken: int) -> bool:
        """Before a step: whether somebody takes no part in it who did in the last.

        Who comes back after withdrawing takes part in later runs. Consent that ends at a time is looked at every
        minute.
        """
        changed = False
        if self._processes.first and self._due():
            left = self._stands & ~self._reservation.standing()
            changed = bool(left.any())
            self._begun[left] = steps_taken
            self._stands &= ~left
            self._spread()
        changed = self._processes.same(changed)
        if changed:
            self.takes_part = self._processes.same(self.takes_part)
        return changed

    def _due(self) -> bool:
        """Whether consent has changed, or may have ended, since it was last looked at."""
        before, self._counter = self._counter, self._ledger.consent_counter()
        due = self._counter != before or time.monotonic() - self._looked > _SECONDS
        if due:
            self._looked = time.monotonic()
        return due

    def settle(self, steps_taken: int, spending: Spending | None = None) -> None:
        """Charge the steps that were begun: at what each person was clipped to, where that was exact."""
        if self._settled or not self._processes.first or os.getpid() != self._process:
            return
        self._ended = True  # before anything is asked for or written
        self._require_reserved(steps_taken)
        charges = self._charges(np.minimum(self._begun, steps_taken))
        own = None if spending is None else lifetime_charges(spending, self._ledger)
        if spending is not None and own is not None:
            self._require_held(own, charges[self._places], spending)
            charges[self._places] = np.minimum(charges[self._places], own)
        table, class_of = distinct(*charges.T)
        handed = self._begun_steps
        self._reservation.settle(np.stack(table, axis=1), class_of, None if handed is None else handed.holder)
        self._settled = True
        if handed is not None:
            handed.settled()

    def _require_held(self, own: IntArray, held: IntArray, spending: Spending) -> None:
        """Raise if a filter let somebody go on beyond what is reserved: then all of it stays reserved.

        Each step's charge is rounded up, that of all fixed steps together once: so many units may be between them.
        """
        steps = self._identity()[1]
        if self._whole and not spending.lost and (own > held + steps)[self.takes_part].any():
            raise PrivyPurseError(
                f"run {self.run_id!r} cost somebody more than was reserved for them, so nothing of that comes back; "
                "this is a bug, please report it"
            )


def charges_of_steps(reservation: Reservation, steps: int, begun: AnyArray) -> IntArray:
    """[people, columns]: what is reserved for ``begun`` of ``steps`` steps, in units, rounded up.

    All steps of a plan cost the same at every order, so the share of a sum that was rounded up is a bound.
    """
    reserved = reservation.reserved
    columns = reservation.ledger.lifetime.columns
    held = np.stack(reserved.entry.charged(reserved.values[None], columns), axis=1).astype(np.int64)
    count = np.asarray(begun, dtype=np.int64)[:, None]
    each, rest = np.divmod(held, steps)
    return np.asarray(np.minimum(each * count - (-rest * count // steps), held))


def recover(journal: str | Path, ledger: Ledger) -> int:
    """Settle a run that died, by its journal or checkpoint folder; how many steps that counts.

    Charged are at least the steps that it took, in whatever copy of the folder. It cannot go on afterwards.
    """
    path = Path(journal)
    if path.is_dir():
        path /= STEPS if RememberedRun.read(path / ROUNDS) is None else ROUNDS
    remembered = RememberedRun.read(path)
    if remembered is None:
        raise InvalidInput(f"{journal} is no journal or checkpoint folder of a run with a ledger; name one")
    if remembered.ledger != ledger.id:
        raise InvalidInput(f"{journal} is of a run in the ledger {remembered.ledger}, and this one is {ledger.id}")
    if not path.is_file():
        return _recovered(remembered, ledger, None)
    held = Journal(path, remembered.plan, remembered.steps)
    try:  # nobody else holds the journal, so the run is not under way
        return _recovered(remembered, ledger, held.counted)
    finally:
        held.close()


def _recovered(remembered: RememberedRun, ledger: Ledger, counted: int | None) -> int:
    """Settle at what the journal and the ledger cannot rule out: without either, at all that was reserved.

    Of rounds too, and where a filter let people go on: what the first steps cost alone is not known here.
    """
    handed = ledger.begun(remembered.run)
    known = [count for count in (counted, None if handed is None else handed.count) if count is not None]
    if not known or remembered.whole:
        ledger.recover(remembered.run)
        return remembered.steps
    reservation = ledger.reservation(remembered.run)
    begun = np.full(reservation.reserved.numbers.size, max(known))
    table, class_of = distinct(*charges_of_steps(reservation, remembered.steps, begun).T)
    ledger.recover(remembered.run, np.stack(table, axis=1), class_of)
    return max(known)

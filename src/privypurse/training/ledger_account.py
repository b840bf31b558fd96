"""A run's account in a ledger: reserved before the first step, watched for withdrawals, settled at what was begun.

What comes back at settling is what was never begun, for everybody or for who withdrew, and, where contributions were
clipped to the norm that they are charged at, what was reserved above that. Never for not being drawn (rule 14).
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse._storage import make_folder, replace_text
from privypurse.arrays import AnyArray, IntArray, distinct
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.plans.plan_base import PlanBase
from privypurse.plans.price_list import PriceList
from privypurse.training.individual.lifetime_charges import lifetime_charges
from privypurse.training.journal import Journal

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger, Reservation
    from privypurse.ledger.people import Members
    from privypurse.training.distributed import Processes
    from privypurse.training.individual.spending import Spending

STEPS = "steps"
"""The journal in a checkpoint folder."""
_SECONDS = 60.0
_FOREVER = np.iinfo(np.int64).max


def require_ledger(plan: Plan, ledger: Any, seed: int | None) -> None:
    """Raise unless the plan may be trained with this ledger, or with none."""
    if isinstance(ledger, Account):  # of rounds, which reserve as a whole
        return
    if ledger is None:
        if plan.ledger is not None and seed is None:
            raise InvalidInput(
                f"the plan was made with the ledger {plan.ledger.id}, and its people are charged there; give "
                "ledger=pp.Ledger.open(url). Only seeded runs, which are for tests, go without"
            )
        return
    from privypurse.ledger.ledger import Ledger  # here, not above: who has no ledger needs no database

    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is {ledger!r}; give pp.Ledger.open(url)")
    if plan.ledger is None:
        raise InvalidInput(
            "the plan was made without a ledger, so its rates may cost more for life than people have left; make it "
            "with pp.plan(…, ledger=ledger)"
        )
    if plan.ledger.id != ledger.id:
        raise InvalidInput(
            f"the plan was made with the ledger {plan.ledger.id}, and this one is {ledger.id}; give the one it was "
            "made with"
        )


def require_journal(journal: Path) -> None:
    """Raise if a run's reservation is remembered, but the journal beside it, which was made before, is gone."""
    if _beside(journal).is_file() and not journal.exists():
        raise InvalidInput(
            f"{journal}, which counts the steps of run {_read(_beside(journal))['run']!r}, is gone, and so is how "
            "many were taken; settle the run at all it has reserved (privypurse ledger recover), and train in "
            "another folder"
        )


class Account:
    """What a run has reserved in a ledger, and who of its people takes part.

    Guarantee: all steps of the plan are reserved before the first one; whoever could not pay, has withdrawn or
    lowered their grant below what is taken contributes to no further step; settled is at least what every step that
    was begun costs. ``takes_part`` is internal: it follows from what people have left (rule 15).
    """

    def __init__(
        self,
        ledger: Ledger,
        plan: PlanBase,
        processes: Processes,
        journal: Path | None = None,
        purpose: str = "",
        counted: int = 0,
    ) -> None:
        """Beside the journal stands the run's id: a run that goes on later goes on with its reservation.

        ``counted`` is what the journal counted when it was opened.
        """
        self._counted = counted
        self._ledger, self._plan, self._processes = ledger, plan, processes
        self._file = None if journal is None else _beside(journal)
        self._counter, self._looked, self._settled = -1, 0.0, False
        self.takes_part: AnyArray = np.zeros(plan.people, dtype=bool)
        """For each unit of the plan whether they may contribute; another array whenever that changes."""
        self.run_id = ""
        if processes.first:
            self._reserve(purpose)
        self.takes_part = processes.same(self.takes_part)

    def _reserve(self, purpose: str) -> None:
        plan, ledger = self._plan, self._ledger
        assert plan.person is not None
        assert plan.owner is not None
        units, first = np.unique(plan.owner, return_index=True)  # planned people who have records here
        members = ledger.members(plan.person[first])
        self.run_id = _remembered(self._file, ledger, *self._identity())
        known = {run.run_id: run for run in ledger.runs()}.get(self.run_id)
        self._settled = known is not None and known.settled is not None
        self._require_consistent(known is not None)
        if known is None:
            charges, row_of, cap = self._asked()
            row = row_of[plan.level_of[units]]
            self._require_payable(members, charges, row, cap)
            ledger.reserve(self.run_id, members, charges, row, at_most=cap, what="train", purpose=purpose)
        self._reservation = ledger.reservation(self.run_id)
        numbers = self._reservation.reserved.numbers
        self._stands = np.array(self._reservation.admitted) & (not self._settled)
        self._begun = np.full(numbers.size, _FOREVER)  # steps that each was in, where that is not all of them
        place = np.minimum(np.searchsorted(numbers, members.numbers), numbers.size - 1)
        here = numbers[place] == members.numbers  # who joined the data since the run began is not in it
        self._units, self._places = units[here], place[here]
        self._spread()

    def _require_consistent(self, known: bool) -> None:
        """Raise where steps were counted of a run that the ledger does not know."""
        if not known and self._counted:
            raise InvalidInput(
                f"the journal has counted {self._counted:,} steps of run {self.run_id!r}, which the ledger does not "
                "know: it is an older copy of the one it was reserved in. Put the newer one back"
            )

    def _identity(self) -> tuple[str, int]:
        """A fingerprint of the plan, and how many steps it has."""
        assert isinstance(self._plan, Plan)
        return self._plan.digest(), self._plan.steps

    def _asked(self) -> tuple[IntArray, IntArray, float | None]:
        """A public table of charges, each level's row of it, and the public cap."""
        assert isinstance(self._plan, Plan)
        assert self._plan.ledger is not None
        prices = PriceList.of_plan(self._ledger, self._plan)
        return prices.charges, prices.rows_of(self._plan), self._plan.ledger.at_most

    def _require_payable(self, members: Members, charges: IntArray, row: IntArray, at_most: float | None) -> None:
        """Nothing to ask: rates were chosen by what people had left."""

    def _charges(self, begun: AnyArray) -> IntArray:
        """[people, columns]: what so many steps cost everybody for whom something is reserved."""
        return charges_of_steps(self._reservation, self._identity()[1], begun)

    def _spread(self) -> None:
        takes_part = np.zeros(self._plan.people, dtype=bool)
        takes_part[self._units] = self._stands[self._places]
        self.takes_part = takes_part

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
        if self._settled or not self._processes.first:
            return
        charges = self._charges(np.minimum(self._begun, steps_taken))
        own = None if spending is None else lifetime_charges(spending, self._ledger)
        if own is not None:
            charges[self._places] = np.minimum(charges[self._places], own[self._units])
        table, class_of = distinct(*charges.T)
        self._reservation.settle(np.stack(table, axis=1), class_of)
        self._settled = True


def charges_of_steps(reservation: Reservation, steps: int, begun: AnyArray) -> IntArray:
    """[people, columns]: what is reserved for ``begun`` of ``steps`` steps, in units, rounded up.

    All steps of a plan cost the same at every order, so the share of a sum that was rounded up is a bound.
    """
    reserved = reservation.reserved
    columns = reservation.ledger.lifetime.columns
    held = np.stack(reserved.entry.charged(reserved.values[None], columns), axis=1).astype(np.int64)
    whole, rest = np.divmod(held, steps)
    count = np.asarray(begun, dtype=np.int64)[:, None]
    return np.asarray(np.minimum(whole * count - (-rest * count // steps), held))


def recover(journal: str | Path, ledger: Ledger) -> int:
    """Settle a run that died, by its journal or checkpoint folder; how many steps that counts.

    Charged are at least the steps that it took. It cannot go on afterwards.
    """
    path = Path(journal) / STEPS if Path(journal).is_dir() else Path(journal)
    if not _beside(path).is_file():
        raise InvalidInput(f"{journal} is no journal or checkpoint folder of a run with a ledger; name one")
    content = _read(_beside(path))
    if content["ledger"] != ledger.id:
        raise InvalidInput(f"{journal} is of a run in the ledger {content['ledger']}, and this one is {ledger.id}")
    steps = int(content["steps"])
    if not path.is_file():  # rounds have none; of a run whose journal is gone nothing can be ruled out
        ledger.recover(content["run"])
        return steps
    held = Journal(path, content["plan"], steps)
    try:  # nobody else holds the journal, so the run is not under way
        reservation = ledger.reservation(content["run"])
        begun = np.full(reservation.reserved.numbers.size, held.counted)
        table, class_of = distinct(*charges_of_steps(reservation, steps, begun).T)
        ledger.recover(content["run"], np.stack(table, axis=1), class_of)
        return held.counted
    finally:
        held.close()


def _beside(journal: Path) -> Path:
    return journal.with_name(journal.name + ".ledger")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
        return {name: content[name] for name in ("ledger", "run", "plan", "steps")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} is damaged, so which run of the ledger this is is not known: {error!r}") from None


def _remembered(file: Path | None, ledger: Ledger, digest: str, steps: int) -> str:
    """The run's id: that of the file, or a new one, which is written there before anything is reserved by it."""
    if file is not None and file.exists():
        content = _read(file)
        if content["ledger"] != ledger.id or content["plan"] != digest:
            raise InvalidInput(f"{file} is of another plan or ledger; give each run a folder of its own")
        return str(content["run"])
    run_id = f"train-{uuid.uuid4()}"
    if file is not None:
        content = {"ledger": ledger.id, "run": run_id, "plan": digest, "steps": steps}
        make_folder(file.parent)
        replace_text(file, json.dumps(content) + "\n")
    return run_id

"""A schedule's account in a ledger: all rounds are reserved before the first; one that has begun is charged whole.

One hidden coin draws a person for all steps of a round, so its single steps have no price of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privypurse.arrays import AnyArray, IntArray
from privypurse.plans.round_prices import RoundPrices
from privypurse.plans.schedule import Schedule
from privypurse.training.distributed import Processes
from privypurse.training.individual.spending import Spending
from privypurse.training.journal import Journal
from privypurse.training.ledger_account import ROUNDS, Account, require_journal

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members


class RoundsAccount(Account):
    """What a schedule has reserved in a ledger, and who of its people takes part.

    Guarantee: that of `Account`, by whole rounds. The schedule follows from budgets alone, so what it costs is
    public, and whether everybody can pay is asked of public balances; real ones are never below.
    """

    def __init__(
        self,
        ledger: Ledger,
        schedule: Schedule,
        digest: str,
        folder: Path | None = None,
        purpose: str = "",
        *,
        seeded: bool = False,
    ) -> None:
        """``digest`` is a fingerprint of the schedule; in ``folder`` are the run's id and a journal of all steps."""
        self._digest, self._steps = digest, schedule.steps
        self._ends: IntArray = np.cumsum([0, *(one.steps for one in schedule.rounds)])
        """How many steps the rounds before each have."""
        self._prices = RoundPrices.of(ledger, schedule)
        self._number = self._rounds_begun = self._in_round = 0
        journal = None if folder is None else folder / ROUNDS
        self._held = None if journal is None else _held(journal, digest, schedule.steps)
        counted = None if seeded or self._held is None else self._held.counted
        try:
            super().__init__(ledger, schedule, Processes(), journal, purpose, counted)
        except BaseException:
            self.close()
            raise

    def _identity(self) -> tuple[str, int]:
        return self._digest, self._steps

    @property
    def _whole(self) -> bool:
        return True  # one coin for all steps of a round

    def _asked(self, members: Members) -> tuple[IntArray, IntArray, float | None]:
        assert self._plan.ledger is not None
        return self._prices.until[-1], self._plan.level_of.astype(np.int64), self._plan.ledger.at_most

    def _require_payable(self, members: Members, charges: IntArray, row: IntArray, at_most: float | None) -> None:
        assert isinstance(self._plan, Schedule)
        self._prices.require_payable(self._ledger, members, self._plan)

    def _charges(self, begun: AnyArray) -> IntArray:
        """Of whole rounds."""
        reserved = self._reservation.reserved
        until = self._prices.until
        level = np.where(self._reservation.admitted, reserved.values, 0).astype(np.int64)
        return np.asarray(np.where(self._reservation.admitted[:, None], until[begun, level], 0))

    def begin(self, number: int, *, drawn_before: bool = False) -> bool:
        """Round ``number`` (from 0) is about to draw people: whoever has withdrawn until now is not in it.

        ``drawn_before`` says that its draw is kept, to go on with. False: it began, and its draw is not here. Then it
        takes no further step, and nobody is to be drawn: a second draw would be a second release of the round.
        """
        self._require_going_on()
        before = 0 if self._begun_steps is None else self._begun_steps.before
        steps = int(self._ends[number + 1] - self._ends[number])
        handed = min(max(before - int(self._ends[number]), 0), steps)
        lost = handed > 0 and not drawn_before
        self._number, self._in_round = number, steps if lost else handed
        # Who has left since a round of an earlier process began was in it, and pays for it whole.
        begun_before = int(np.count_nonzero(self._ends[:-1] < before))
        super().poll(max(number, begun_before))
        self._rounds_begun = max(number + 1, begun_before)
        return not lost

    @property
    def begun(self) -> int:
        """Of the steps of this round."""
        return self._in_round

    def count(self, step: int) -> None:
        """Before step ``step`` of this round is released; none of a later round is handed out before it begins."""
        self._require_going_on()
        if self._begun_steps is None or self._held is None:
            return
        place, end = (int(self._ends[self._number + later]) for later in (0, 1))
        self._begun_steps.count(place + step, end)
        self._held.count(place + step)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        super().close()

    def poll(self, steps_taken: int) -> bool:
        return super().poll(self._rounds_begun)

    def settle(self, steps_taken: int, spending: Spending | None = None) -> None:
        """A round's end settles nothing; `finish` does."""

    def finish(self) -> None:
        """Charge the rounds that have begun."""
        super().settle(self._rounds_begun)
        self.close()


def _held(journal: Path, digest: str, steps: int) -> Journal:
    """The journal of all rounds: nobody else works in this folder meanwhile."""
    require_journal(journal)
    return Journal(journal, digest, steps)

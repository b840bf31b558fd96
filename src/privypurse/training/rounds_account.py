"""A schedule's account in a ledger: all rounds are reserved before the first; one that has begun is charged whole.

One hidden coin draws a person for all steps of a round, so its single steps have no price of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import SampledRound
from privypurse.arrays import AnyArray, IntArray
from privypurse.errors import InfeasibleBudget, InvalidInput
from privypurse.ledger.lifetime import added
from privypurse.plans.schedule import Schedule
from privypurse.training.distributed import Processes
from privypurse.training.individual.spending import Spending
from privypurse.training.ledger_account import Account

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
    ) -> None:
        """``digest`` is a fingerprint of the schedule; in ``folder`` stands the run's id."""
        self._digest, self._rounds = digest, len(schedule.rounds)
        self._prices: IntArray = np.stack(
            [
                ledger.charges_of([SampledRound(chance, one.release) for chance in one.chance.tolist()])
                for one in schedule.rounds
            ]
        )
        """[rounds, levels, columns]"""
        self._rounds_begun = 0
        super().__init__(ledger, schedule, Processes(), None if folder is None else folder / "rounds", purpose)

    def _identity(self) -> tuple[str, int]:
        return self._digest, self._rounds

    def _until(self) -> IntArray:
        """[rounds + 1, levels, columns]: what the rounds before each cost together, exact up to the ceiling."""
        sums = [np.zeros_like(self._prices[0])]
        for price in self._prices:
            sums.append(added(sums[-1], price))
        return np.stack(sums)

    def _require_consistent(self, known: bool) -> None:
        """Rounds keep no journal of their own, so which have begun is not known once they were broken off."""
        if known and not self._settled:
            raise InvalidInput(
                f"run {self.run_id!r} was broken off, and rounds under a ledger cannot go on: settle it at all it "
                "has reserved (privypurse ledger recover), and begin anew in another folder"
            )

    def _asked(self) -> tuple[IntArray, IntArray, float | None]:
        assert self._plan.ledger is not None
        return self._until()[-1], np.arange(self._prices.shape[1]), self._plan.ledger.at_most

    def _require_payable(self, members: Members, charges: IntArray, row: IntArray, at_most: float | None) -> None:
        """Raise if somebody's grant less public caps does not pay for it. Who has withdrawn does not stop others."""
        caps = self._ledger.caps(charges, at_most)[members.rung.astype(np.int64)]
        short = (charges[row] > np.minimum(self._ledger.public_room(members), caps)).any(axis=1)
        short &= self._ledger.consenting(members)
        if short.any():
            assert isinstance(self._plan, Schedule)
            level = int(row[int(np.argmax(short))])
            epsilon, delta = self._plan.epsilon_by_level[level], self._plan.delta_by_level[level]
            raise InfeasibleBudget(
                f"ε = {epsilon:g} for these rounds costs {int(short.sum()):,} people more for life than their public "
                "balance or at_most= holds; make the schedule for a smaller ε",
                float(epsilon),
                float(delta),
            )

    def _charges(self, begun: AnyArray) -> IntArray:
        """Of whole rounds."""
        reserved = self._reservation.reserved
        until = self._until()
        level = np.where(self._reservation.admitted, reserved.values, 0).astype(np.int64)
        return np.asarray(np.where(self._reservation.admitted[:, None], until[begun, level], 0))

    def begin(self, number: int) -> None:
        """Round ``number`` (from 0) is about to draw people: whoever has withdrawn until now is not in it."""
        super().poll(number)
        self._rounds_begun = number + 1

    def poll(self, steps_taken: int) -> bool:
        return super().poll(self._rounds_begun)

    def settle(self, steps_taken: int, spending: Spending | None = None) -> None:
        """A round's end settles nothing; `finish` does."""

    def finish(self) -> None:
        """Charge the rounds that have begun."""
        super().settle(self._rounds_begun)

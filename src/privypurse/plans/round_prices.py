"""Schedules under a ledger: what their rounds cost everybody for life, and whether public balances pay for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import SampledRound
from privypurse.arrays import AnyArray, IntArray, frozen
from privypurse.errors import InfeasibleBudget
from privypurse.ledger.lifetime import added
from privypurse.plans.schedule import Schedule

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members


@dataclass(frozen=True, eq=False)
class RoundPrices:
    """Of a schedule, which follows from budgets alone; so all of it is public."""

    until: IntArray
    """[rounds + 1, levels, columns]: what the rounds before each cost together, exact up to the ceiling."""

    @classmethod
    def of(cls, ledger: Ledger, schedule: Schedule) -> RoundPrices:
        sums = [np.zeros((schedule.epsilon_by_level.size, ledger.lifetime.columns), dtype=np.int64)]
        for one in schedule.rounds:
            price = ledger.charges_of([SampledRound(chance, one.release) for chance in one.chance.tolist()])
            sums.append(added(sums[-1], price))
        return cls(frozen(np.stack(sums)))

    def require_payable(self, ledger: Ledger, members: Members, schedule: Schedule) -> None:
        """Raise if somebody's grant less public caps does not pay for it. Who has withdrawn does not stop others.

        The error names rungs, not people or how many: who has withdrawn stays unsaid (rule 15).
        """
        assert schedule.ledger is not None
        level_of, rung = schedule.level_of.astype(np.int64), members.rung.astype(np.int64)
        charges, room = self.until[-1][level_of], ledger.public_room(members)
        caps = ledger.caps(self.until[-1], schedule.ledger.at_most)
        short = (charges > np.minimum(room, caps[rung])).any(axis=1) & ledger.consenting(members)
        if not short.any():
            return
        rungs = [f"{ledger.rungs[one].epsilon:g}" for one in np.unique(rung[short]).tolist()]
        raise InfeasibleBudget(
            f"these rounds cost more for life than the public balance, or at_most=, of people on ε = "
            f"{' and '.join(rungs)} holds. {self._what_would_do(schedule, caps, room, rung, charges, short)}",
            float(schedule.epsilon_by_level[level_of[short]].min()),
            float(schedule.delta_by_level[level_of[short]].min()),
        )

    def _what_would_do(
        self, schedule: Schedule, caps: IntArray, room: IntArray, rung: IntArray, charges: IntArray, short: AnyArray
    ) -> str:
        """About how much less everybody would have to ask for: an estimate, as if costs went as the square of ε."""
        own = np.arange(rung.size), rung
        room = np.array(room)
        room[own] = np.minimum(room[own], caps.diagonal()[rung])  # at other orders a cap follows from what fits here
        paid = np.where(short, (room / np.maximum(charges, 1)).min(axis=1), np.inf)
        share = math.floor(95 * math.sqrt(max(float(paid.min()), 0.0))) / 100
        if not share:
            return "Nothing is left there: leave those people out, or plan steps with noise_multiplier= (pp.plan)"
        least = float(schedule.epsilon_by_level.min())
        return (
            f"Ask for less: about {share:g} times everybody's ε, or at_most= a little below the least of them, "
            f"{least:g}, which treats all alike"
        )

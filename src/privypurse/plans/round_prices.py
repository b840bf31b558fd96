"""Schedules under a ledger: what their rounds cost everybody for life, and whether public balances pay for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import SampledRound
from privypurse.arrays import IntArray, frozen
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
        """Raise if somebody's grant less public caps does not pay for it. Who has withdrawn does not stop others."""
        assert schedule.ledger is not None
        charges, rung = self.until[-1][schedule.level_of], members.rung.astype(np.int64)
        caps, room = ledger.caps(self.until[-1], schedule.ledger.at_most), np.array(ledger.public_room(members))
        short = (charges > np.minimum(room, caps[rung])).any(axis=1) & ledger.consenting(members)
        if not short.any():
            return
        own = np.arange(rung.size), rung
        room[own] = np.minimum(room[own], caps.diagonal()[rung])  # at other orders a cap follows from what fits here
        paid = np.where(short, (room / np.maximum(charges, 1)).min(axis=1), np.inf)
        worst = int(np.argmin(paid))
        level = schedule.level_of[worst]
        epsilon, delta = float(schedule.epsilon_by_level[level]), float(schedule.delta_by_level[level])
        said = "is empty" if paid[worst] <= 0 else f"pays for about {epsilon * math.sqrt(paid[worst]):.2g}"
        raise InfeasibleBudget(
            f"ε = {epsilon:g} for these rounds costs {int(short.sum()):,} people more for life than their public "
            f"balance or at_most= holds; what is there {said}. Make the schedule for a smaller ε",
            epsilon,
            delta,
        )

"""What a run with extra steps reserves: its public cap, or the largest share of it that a person's balance holds.

A filter decides how many steps each person takes, so none of them is the run's worst case but all that may be taken.
The table of shares is public; whose share is which is not (rule 15).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privypurse.arrays import FloatArray, IntArray, frozen
from privypurse.budgets import ladder
from privypurse.plans.price_list import PriceList

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_LEAST = 1e-4  # of the cap: whose balance holds less takes no part
_DIGITS = 1000  # units from which on a quotient of them, rounded up as they are, tells something
_ABOVE = 1 + 1e-9  # more than the rounding of a quotient


@dataclass(frozen=True, eq=False)
class ReservedShares:
    """Shares of the cap for people of each rung, each at most 1 % above the one before. All of it is public."""

    charges: IntArray
    """[rungs · shares, columns] in units; those of one rung stand together, rising."""
    rungs: int

    @classmethod
    def of(cls, ledger: Ledger, prices: PriceList, at_most: float) -> ReservedShares:
        """At a person's own order: the share of the cap. At the others: the most that any step costs there beside it.

        That is by the run's own price list, or for contributions next to nothing, whose cost grows with the order
        (Mironov 2017, arXiv 1702.07476, Proposition 7).
        """
        low, high = ladder.rung_below(np.array([_LEAST, 1.0]))
        shares = ladder.rung_value(np.arange(low, high + 1))
        own = np.diag(ledger.caps(prices.charges, at_most)[:, : len(ledger.rungs)])
        table = [
            np.ceil(shares[:, None] * units * _beside(ledger, prices, rung, int(units)))
            for rung, units in enumerate(own.tolist())
        ]
        charges = np.minimum(np.concatenate(table), ledger.lifetime.limits.max()).astype(np.int64)
        for rung, units in enumerate(own.tolist()):
            some = slice(rung * shares.size, (rung + 1) * shares.size)
            charges[some] = np.minimum(charges[some], ledger.lifetime.limits[rung])
            charges[some, rung] = np.floor(shares * units)
        return cls(frozen(charges), len(own))

    def largest(self, room: IntArray, rung: IntArray) -> IntArray:
        """For each person the row of the largest share that fits what they have left; -1 where none does."""
        each = len(self.charges) // self.rungs
        out = np.full(rung.size, -1, dtype=np.int64)
        for own in range(self.rungs):
            who = np.flatnonzero(rung == own)
            rows = self.charges[own * each : (own + 1) * each]
            place = np.full(who.size, each - 1, dtype=np.int64)
            for column in range(own, rows.shape[1]):  # orders below one's own do not limit
                fits = np.searchsorted(rows[:, column], room[who, column], side="right") - 1
                place = np.minimum(place, fits)
            out[who] = np.where(place < 0, -1, own * each + place)
        return out

    def held(self, row: IntArray) -> IntArray:
        """[people, columns]: what is reserved at these rows; nothing at -1."""
        return np.asarray(np.where((row < 0)[:, None], 0, self.charges[row]))


def _beside(ledger: Ledger, prices: PriceList, rung: int, units: int) -> FloatArray:
    """For each column the most that a release costs there for each unit at this rung's order."""
    orders = np.array([each.order for each in ledger.rungs])
    most = np.zeros(ledger.lifetime.columns)
    most[: orders.size] = orders / orders[rung]
    payable = prices.charges[: max(1, int(np.searchsorted(prices.charges[:, rung], units, side="right")))]
    payable = payable[payable[:, rung] >= _DIGITS]
    beside = (payable / np.maximum(payable[:, [rung]], 1)).max(axis=0, initial=0.0)
    return np.asarray(np.maximum(most, beside) * _ABOVE)

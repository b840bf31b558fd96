"""What each person's own steps cost for life, where contributions were clipped to the norm that is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import SampledGaussian
from privypurse.accounting.odometer import Odometer, Reading
from privypurse.arrays import FloatArray, IntArray
from privypurse.ledger.lifetime import CEILING, units_up
from privypurse.training.individual.spending import Spending

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_SUMMED = 1 + 1e-9  # more than adding up the squares of ten million steps may hide
_PEOPLE = 2**16  # at a time
_MOST_STEPS = 2**24  # of a run whose charges are added up one by one


def lifetime_charges(spending: Spending, ledger: Ledger) -> IntArray | None:
    """[people, columns] in units: the sum of what every step costs at the norm that it was clipped to.

    None for an estimate, which the steps may have exceeded: it gives nothing back (rule 14).
    """
    if spending.reading is not Reading.EXACT:
        return None
    if isinstance(spending.meter, Odometer):
        if spending.plan.all_steps > _MOST_STEPS:
            return None
        return _counted(spending.meter, ledger)
    return _squares(spending.meter, ledger)


def _counted(odometer: Odometer, ledger: Ledger) -> IntArray:
    """Counts of steps at each grid norm times the units of one such step, each rounded up: whole numbers."""
    out = np.zeros((odometer.people, ledger.lifetime.columns), dtype=np.int64)
    for level in np.unique(odometer.level_of).tolist():
        rate, noise = float(odometer.rate[level]), odometer.noise_multipliers(level)
        if rate == 0:
            continue
        units = np.zeros((noise.size, out.shape[1]), dtype=np.int64)
        units[1:] = ledger.charges_of([SampledGaussian(rate, one) for one in noise[1:].tolist()])
        huge = units > CEILING // _MOST_STEPS  # their products might not fit; nobody's purse holds a few of them
        units[huge] = 0
        who = np.flatnonzero(odometer.level_of == level)
        for some in np.array_split(who, -(-who.size // _PEOPLE)):
            counts = odometer.counts[some].astype(np.int64)
            used = np.flatnonzero(counts.any(axis=0))
            beyond = counts[:, used] @ huge[used] > 0
            out[some] = np.where(beyond, CEILING, np.minimum(counts[:, used] @ units[used], CEILING))
    return out


def _squares(squares: FloatArray, ledger: Ledger) -> IntArray:
    """Of steps that everyone was in: α·μ²/2 (Mironov 2017, arXiv 1702.07476, Proposition 7), μ² added up."""
    orders = np.array([rung.order for rung in ledger.rungs])
    out = np.zeros((squares.size, ledger.lifetime.columns), dtype=np.int64)
    out[:, : orders.size] = units_up(squares[:, None] * orders / 2 * _SUMMED)
    return out

"""What each person's own steps cost for life, where contributions were clipped to the norm that is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import SampledGaussian
from privypurse.accounting.lasting_step_filter import charged
from privypurse.accounting.odometer import Odometer, Reading
from privypurse.arrays import FloatArray, IntArray
from privypurse.ledger.lifetime import CEILING, UNIT, units_up
from privypurse.training.individual.spending import Spending

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

SUMMED = 1 + 1e-9
"""More than adding up the squares of ten million steps may hide."""
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
        odometer = spending.meter
        return np.minimum(charged(odometer.counts, odometer.level_of, step_units(odometer, ledger)), CEILING)
    return _squares(spending.meter, ledger)


def step_units(odometer: Odometer, ledger: Ledger) -> IntArray:
    """[levels, grid norms, columns]: what one step costs, rounded up; a larger grid norm never less."""
    out = np.zeros((odometer.rate.size, odometer.grid_size + 1, ledger.lifetime.columns), dtype=np.int64)
    for level in np.unique(odometer.level_of).tolist():
        rate, noise = float(odometer.rate[level]), odometer.noise_multipliers(level)[1:]
        if rate > 0:
            out[level, 1:] = ledger.charges_of([SampledGaussian(rate, one) for one in noise.tolist()])
    return np.maximum.accumulate(out, axis=1)


def squares_within(held: IntArray, ledger: Ledger) -> FloatArray:
    """For each person the sum of μ² whose charges stay within what is held [people, columns], at every order."""
    orders = np.array([rung.order for rung in ledger.rungs])
    return np.asarray((held[:, : orders.size] * (2 * UNIT / orders)).min(axis=1) / SUMMED * (1 - 1e-12))


def _squares(squares: FloatArray, ledger: Ledger) -> IntArray:
    """Of steps that everyone was in: α·μ²/2 (Mironov 2017, arXiv 1702.07476, Proposition 7), μ² added up."""
    orders = np.array([rung.order for rung in ledger.rungs])
    out = np.zeros((squares.size, ledger.lifetime.columns), dtype=np.int64)
    out[:, : orders.size] = units_up(squares[:, None] * orders / 2 * SUMMED)
    return out

"""The filter at orders for life: nobody passes what is held at any of them, and no step more would have fitted."""

from __future__ import annotations

import numpy as np
import pytest

from privypurse.accounting.lasting_step_filter import Affordable, LastingStepFilter, charged
from privypurse.accounting.odometer import Odometer
from privypurse.accounting.sampled_step_filter import StepFilter

PEOPLE, GRID, LEVELS, COLUMNS = 40, 8, 3, 3
LEVEL_OF = np.arange(PEOPLE) % LEVELS
RNG = np.random.default_rng(3)
COST = np.zeros((LEVELS, GRID + 1, COLUMNS), dtype=np.int64)
COST[:, 1:] = np.cumsum(RNG.integers(1, 50, (LEVELS, GRID, COLUMNS)), axis=1)
HELD = RNG.integers(0, 3000, (PEOPLE, COLUMNS))
RICH = np.full(3, 1e6)
"""ε of purses that stop nobody, for the run by itself."""


def plainly_charged(counts: np.ndarray) -> np.ndarray:
    """In Python's own numbers, one step after another."""
    out = np.zeros((PEOPLE, COLUMNS), dtype=object)
    for person in range(PEOPLE):
        for norm in range(GRID + 1):
            for column in range(COLUMNS):
                out[person, column] += int(counts[person, norm]) * int(COST[LEVEL_OF[person], norm, column])
    return out


def run(lasting: LastingStepFilter, passes: int = 12, every: int = 7) -> np.ndarray:
    """Counts after norm passes that find whatever they find; every step is taken by whoever may."""
    rate, noise = np.full(LEVELS, 0.1), np.full(LEVELS, 1e3)
    purses = StepFilter(rate, noise, RICH, np.full(LEVELS, 1e-5), LEVEL_OF, GRID)
    odometer = Odometer(rate, noise, LEVEL_OF, grid_size=GRID, purses=purses)
    odometer.lasting = lasting
    rng = np.random.default_rng(0)
    for _ in range(passes):
        odometer.new_norms(rng.random(PEOPLE), filtering=True)
        for _ in range(every):
            odometer.advance()
    return np.array(odometer.counts)


def passed(counts: np.ndarray) -> bool:
    return bool((plainly_charged(counts) > HELD).any())


def test_nobody_passes_what_is_held_at_any_order_and_all_of_it_can_be_used():
    lasting = LastingStepFilter(COST, HELD, LEVEL_OF)
    counts = run(lasting, passes=60)
    spent = plainly_charged(counts)
    assert (spent <= HELD).all()
    smallest = COST[LEVEL_OF, 1]
    assert ((spent + smallest) > HELD).any(axis=1).mean() > 0.9
    assert np.array_equal(charged(counts, LEVEL_OF, COST), spent.astype(np.int64))


class OnlyTheFirstOrder(LastingStepFilter):
    def affordable(self, counts: np.ndarray, grid_norm: np.ndarray) -> Affordable:
        return LastingStepFilter(self.cost[..., :1], self.held[:, :1], self.level_of).affordable(counts, grid_norm)


class ChargingAfterTheStep(LastingStepFilter):
    """It asks whether anything is left, not whether the step fits."""

    def affordable(self, counts: np.ndarray, grid_norm: np.ndarray) -> Affordable:
        return super().affordable(counts, grid_norm)[0], grid_norm


class NotCountingStepsSinceTheLastPass(LastingStepFilter):
    before = np.zeros((PEOPLE, GRID + 1), dtype=np.int64)

    def affordable(self, counts: np.ndarray, grid_norm: np.ndarray) -> Affordable:
        found = super().affordable(self.before, grid_norm)
        object.__setattr__(self, "before", np.array(counts))
        return found


@pytest.mark.parametrize("twin", [OnlyTheFirstOrder, ChargingAfterTheStep, NotCountingStepsSinceTheLastPass])
def test_broken_twins_are_seen(twin):
    assert not passed(run(LastingStepFilter(COST, HELD, LEVEL_OF)))
    assert passed(run(twin(COST, HELD, LEVEL_OF)))


def test_who_is_left_out_pays_nothing_from_then_on():
    odometer = Odometer(np.full(3, 0.1), np.full(3, 1.0), LEVEL_OF, grid_size=GRID)
    odometer.new_norms(np.ones(PEOPLE))
    odometer.advance(5)
    out = np.arange(PEOPLE) < 10
    odometer.leave_out(out)
    odometer.advance(4)
    assert np.array_equal(odometer.counts[:, GRID], np.where(out, 5, 9))
    assert np.array_equal(odometer.counts[:, 0], np.where(out, 4, 0))


def test_costs_that_no_purse_holds_do_not_overflow():
    counts = np.zeros((PEOPLE, GRID + 1), dtype=np.uint32)
    counts[:, GRID] = 2**32 - 1
    huge = np.where(COST > 0, 2**61, 0)
    assert (charged(counts, LEVEL_OF, huge) == 2**62).all()
    lasting = LastingStepFilter(huge, HELD, LEVEL_OF)
    allowed, last = lasting.affordable(counts * 0, np.full(PEOPLE, GRID, dtype=np.uint16))
    assert (allowed == 0).all()
    assert (last == 0).all()

"""Plans under a ledger: the public list of releases that everybody's rate or clip norm is taken from.

What a person has left is a function of data. So only their own rate or clip norm follows from it, and even that is
one of a list which follows from public constants alone: what a run may charge is public, who is charged what is not
(rule 15).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privypurse.accounting import Release, SampledGaussian
from privypurse.arrays import FloatArray, IntArray, frozen
from privypurse.budgets import ladder
from privypurse.errors import InvalidInput
from privypurse.plans.planned_training import PlannedTraining
from privypurse.plans.training_shape import TrainingShape
from privypurse.plans.under_ledger import Own

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_RATES = 1e-8, 1.0
_CONTRIBUTIONS = 1e-6, 100.0  # a clip norm, in standard deviations of the noise
_ROUND_DOWN = 1 - 1e-12
_SAME = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class PriceList:
    """Releases from the cheapest to the dearest, each at most 1 % above the one before, and what they cost for life.

    Sampling rates at one noise multiplier, or contributions (clip norms in standard deviations of the noise) at one
    sampling rate, both from the ladder of round numbers; or one rate alone, to be taken or left. Everything in it is
    public.
    """

    value: FloatArray
    """Rates, or contributions, rising."""
    charges: IntArray
    """[releases, columns]: units of all steps at each order of the ledger, rising."""
    rate: float | None = None
    """That at which contributions are drawn; None: the values are rates."""

    @classmethod
    def of(cls, ledger: Ledger, shape: TrainingShape, own: Own, rate: float | None) -> PriceList:
        """The list by what people have of their own, and the one ``rate`` where they have none."""
        assert shape.noise_multiplier is not None
        if own is Own.RATE:
            return cls.of_rates(ledger, shape.noise_multiplier, shape.steps)
        assert rate is not None
        if own is Own.CLIP_NORM:
            return cls.of_contributions(ledger, rate, shape.steps)
        return cls._of(ledger, np.array([rate]), [SampledGaussian(rate, shape.noise_multiplier, shape.steps)])

    @classmethod
    def of_plan(cls, ledger: Ledger, plan: PlannedTraining) -> PriceList:
        """The list that a plan's rates or clip norms are from, by its public constants."""
        assert plan.ledger is not None
        return cls.of(ledger, plan.shape, plan.ledger.own, plan.ledger.rate)

    @classmethod
    def of_rates(cls, ledger: Ledger, noise_multiplier: float, steps: int, every: int = 1) -> PriceList:
        """``every`` so many of them, for solving."""
        values = _on_ladder(*_RATES)[::-every][::-1]
        return cls._of(ledger, values, [SampledGaussian(rate, noise_multiplier, steps) for rate in values.tolist()])

    @classmethod
    def of_contributions(cls, ledger: Ledger, rate: float, steps: int, every: int = 1) -> PriceList:
        values = _on_ladder(*_CONTRIBUTIONS)[::-every][::-1]
        return cls._of(ledger, values, [SampledGaussian(rate, 1.0 / value, steps) for value in values.tolist()], rate)

    @classmethod
    def _of(cls, ledger: Ledger, values: FloatArray, releases: list[Release], rate: float | None = None) -> PriceList:
        # A larger rate or norm never costs less: rounding may not say otherwise.
        charges = np.maximum.accumulate(ledger.charges_of(releases), axis=0)
        limits = np.array([rung.limit for rung in ledger.rungs])
        count = max(1, int(np.count_nonzero((charges[:, : limits.size] <= limits).any(axis=1))))
        return cls(frozen(values[:count]), frozen(charges[:count]), rate)

    def affordable(self, room: IntArray) -> IntArray:
        """For each row of ``room`` (units at each column) the place of the dearest that fits all; -1 where none."""
        place = np.full(len(room), self.value.size - 1, dtype=np.int64)
        for column, prices in enumerate(self.charges.T):
            place = np.minimum(place, np.searchsorted(prices, room[:, column], side="right") - 1)
        return place

    def about(self, room: IntArray) -> FloatArray:
        """About the value that each row of ``room`` pays for: interpolated, for solving; 0 where there is nothing."""
        found = np.full(len(room), self.value[-1])
        for column, prices in enumerate(self.charges.T):
            if prices[-1] == 0:
                continue
            units = np.maximum(room[:, column], 1).astype(np.float64)
            at = np.exp(np.interp(np.log(units), np.log(prices), np.log(self.value)))
            found = np.minimum(found, at * np.minimum(1.0, units / prices[0]))
            found = np.where(room[:, column] == 0, 0.0, found)
        return np.asarray(found)

    def at_most(self, values: FloatArray) -> IntArray:
        """For each value the place of the largest in the list that is not above it; -1 where none is."""
        return np.searchsorted(self.value, values, side="right") - 1

    def rows_of(self, plan: PlannedTraining) -> IntArray:
        """For each level of a plan its place in the list; -1 where it takes no part."""
        levels, noise = plan.levels, plan.noise_multiplier * plan.clip_norm
        values = np.where(levels.rate > 0, levels.rate if self.rate is None else levels.clip_norm / noise, 0.0)
        rows = np.searchsorted(self.value, values / _SAME, side="left")  # the next one that is not below
        rows = np.where(values == 0, -1, np.minimum(rows, self.value.size - 1))
        known = np.append(self.value, 0.0)[rows]
        fits = (known >= values) & (known <= values * _SAME**2)
        fits &= (levels.clip_norm == plan.clip_norm) if self.rate is None else np.isin(levels.rate, (0.0, self.rate))
        if not fits.all():
            raise InvalidInput(
                "the plan's rates or clip norms are not those that a plan under a ledger chooses from; it was "
                "altered, or made by hand: make it anew with pp.plan(…, ledger=ledger)"
            )
        return rows

    def table(self, place: IntArray, shape: TrainingShape) -> tuple[FloatArray, FloatArray]:
        """Sampling rates and clip norms at these places; rate 0 at -1."""
        assert shape.noise_multiplier is not None
        values, inside = self.value[np.maximum(place, 0)], place >= 0
        if self.rate is None:
            return np.where(inside, values, 0.0), np.full(place.size, shape.clip_norm)
        # Rounded down, so that the noise over the clip norm, once computed, is not a hair below what was charged.
        norms = shape.clip_norm * shape.noise_multiplier * values * _ROUND_DOWN
        return np.where(inside, self.rate, 0.0), np.where(inside, norms, shape.clip_norm)


def _on_ladder(lowest: float, highest: float) -> FloatArray:
    low, high = ladder.rung_below(np.array([lowest, highest]))
    return ladder.rung_value(np.arange(low, high + 1))

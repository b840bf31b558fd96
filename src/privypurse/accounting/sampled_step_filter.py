"""The filter for sampled steps: how many more each person can pay for, by how large their gradients are (rule 5).

A gradient norm is known rounded up to one of a few grid norms, shares of the person's clip norm; see `odometer`.
"""

import threading

import numpy as np

from privypurse.accounting import sampled_gaussian
from privypurse.accounting.accountant import ROUND_UP
from privypurse.accounting.filters import RenyiCurrency, best_order, renyi_purse
from privypurse.accounting.rdp import ORDERS
from privypurse.arrays import AnyArray, FloatArray, IntArray

_TYPICAL = {1.0: 0.1, 0.5: 0.2, 0.3: 0.3, 0.1: 0.4}
"""Shares of the clip norm, and of the steps: gradients shrink. Orders are chosen for such a course of training."""
_SUMMING = 1 - 1e-8  # of a purse: more than adding up ten million costs may hide
_MOST = 2**40  # steps that are as good as for ever


class StepFilter:
    """Purses in Rényi divergence, at one order for each level that is chosen before the first step.

    Guarantee: if steps are taken as `affordable` allows, and each is clipped to the grid norm that it is charged at,
    then nobody's sum at their own order exceeds what their (ε, δ) holds, whatever grid norms came about. Fixed steps
    that are charged without asking may exceed it; then nothing is allowed any more. Who asks and charges while other
    threads may do the same holds ``lock`` meanwhile.
    """

    def __init__(
        self,
        rate: FloatArray,
        noise_multiplier: FloatArray,
        epsilon: FloatArray,
        delta: FloatArray,
        level_of: AnyArray,
        grid_size: int,
    ) -> None:
        """Rate, noise and purses have one entry for each level; ``level_of`` says which level each person has."""
        self._level_of, self._row_of = level_of, level_of.astype(np.int64) * (grid_size + 1)
        typical = np.zeros((rate.size, ORDERS.size))
        for share, weight in _TYPICAL.items():
            typical += weight * sampled_gaussian.rdp(rate, noise_multiplier / share, ORDERS)
        self.order = best_order(typical, epsilon, delta)
        self.currency = RenyiCurrency(self.order)
        self.cost = np.zeros((rate.size, grid_size + 1))
        shares = np.arange(1, grid_size + 1) / grid_size
        for order in np.unique(self.order).tolist():
            rows = np.flatnonzero(self.order == order)
            noise = noise_multiplier[rows, None] / shares
            rates = np.broadcast_to(rate[rows, None], noise.shape)
            at_order = sampled_gaussian.rdp(rates.ravel(), noise.ravel(), np.array([order]))
            self.cost[rows, 1:] = at_order.reshape(noise.shape) * ROUND_UP
        # A larger grid norm never costs less: rounding may not say otherwise.
        self.cost = np.maximum.accumulate(self.cost, axis=1)
        self.total = renyi_purse(self.order, epsilon, delta) * _SUMMING
        self.reserve = np.zeros(rate.size)
        self.spent = np.zeros(level_of.size)
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """A copy, to be read later, has a lock of its own."""
        self.__dict__.update(state)
        self.lock = threading.RLock()

    def set_aside(self, reserve: FloatArray) -> None:
        """Keep this much (for each level) of every purse for questions: steps cannot use it.

        A purse that does not hold so much pays for no step beyond the fixed ones.
        """
        self.reserve = np.broadcast_to(np.asarray(reserve, dtype=np.float64), self.total.shape)

    @property
    def left(self) -> FloatArray:
        """What steps may still cost each person. Sensitive."""
        return np.asarray(np.maximum((self.total - self.reserve)[self._level_of] - self.spent, 0.0))

    def affordable(self, grid_norm: AnyArray) -> tuple[IntArray, AnyArray]:
        """How many steps at their grid norm each person can pay for, and the largest that then pays for one more."""
        cost, left = self._cost_of(grid_norm), self.left
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(cost > 0, np.floor(left / cost * (1 - 1e-12)), _MOST)
        allowed = np.minimum(times, _MOST).astype(np.int64)
        taken = allowed * np.where(allowed > 0, cost, 0.0)  # a cost that nobody can pay may be infinite
        rest = np.maximum(left - taken, 0.0) * (1 - 1e-12)
        last = np.zeros(grid_norm.size, dtype=np.uint16)
        ends = np.flatnonzero(allowed < _MOST)  # whose purse may run out
        which = self._level_of[ends]
        for level in np.unique(which).tolist():
            some = ends[which == level]
            last[some] = np.searchsorted(self.cost[level], rest[some], side="right") - 1
        return allowed, np.minimum(last, grid_norm)

    def charge(self, grid_norm: AnyArray, steps: IntArray | int, who: IntArray | slice = slice(None)) -> None:
        """Take ``steps`` at these grid norms out of the purses (of everyone, or of ``who``)."""
        with self.lock:  # two threads that add to the same number would lose one of the sums
            self.spent[who] += self._cost_of(grid_norm, who) * steps

    def _cost_of(self, grid_norm: AnyArray, who: IntArray | slice = slice(None)) -> FloatArray:
        return self.cost.ravel().take(self._row_of[who] + grid_norm)

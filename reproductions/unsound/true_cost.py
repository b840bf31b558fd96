"""What a record really spends that pays only when it is drawn: the published bookkeeping of threshold sampling.

Heo et al. (2023), Algorithm 1 line 11: a record below the threshold is drawn by a coin; if it is, its budget is
used up, and if not, it keeps all of it for the next round. So it stays in until it is drawn. With L_R the likelihood
ratio of round R (P with the record against Q without it, both fixed by that round's noise, rate and steps) the ratio
of everything that is seen is V_1, where from round R on

    V_R = L_R · V_{R+1}                   if it is drawn for sure and something is left,
    V_R = (1 - π)·V_{R+1} + π·L_R         if a coin decides, and being drawn uses it up.

Under Q the L_R are independent. So the law of V_1 follows backwards, round by round, and with it the δ of removing
the record, E_Q[(V - e^ε)₊], and of adding it, E_Q[(1 - e^ε·V)₊]. Ratios are put on a logarithmic grid by
connect-the-dots, which keeps E_Q[1] and E_Q[V] and spreads V out; both expectations are of convex functions of V, and
V is linear in each L_R, so the answer is an upper bound. It holds for the rounds as they were; that later thresholds
followed from who was drawn is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from privypurse.accounting import pld
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.releases import Release
from privypurse.arrays import FloatArray

_POINTS = 700  # of a grid of log V
_CUT = 1e-10  # of P's mass: above it the ratio counts as infinite, below it moves up


@dataclass(frozen=True)
class Turn:
    """One round for one record: drawn with this chance; after a sure draw something may be left."""

    chance: float
    release: Release


@dataclass(frozen=True, eq=False)
class _Ratio:
    """The law of a likelihood ratio: log values ascending, their mass under Q, and P's mass where Q has none."""

    log: FloatArray
    mass: FloatArray
    infinity: float

    @classmethod
    def of(cls, losses: LossDistribution) -> _Ratio:
        """From the losses of removing the record, which have P's masses."""
        values = np.asarray((losses.lower + np.arange(losses.mass.size)) * losses.step, dtype=np.float64)
        return cls._gridded(values, losses.mass, losses.infinity + losses.slop)

    @classmethod
    def _gridded(cls, log: FloatArray, p: FloatArray, infinity: float) -> _Ratio:
        """P's masses at these log ratios, split onto an even grid; what Q has left sits at a ratio of almost 0."""
        order = np.argsort(log)
        log, p = log[order], p[order]
        # Far below, Q's mass would be arithmetic noise times e^-log; far above there is nothing that matters.
        below, above = np.cumsum(p), np.cumsum(p[::-1])[::-1]
        first, last = int(np.argmax(below > _CUT)), int(np.flatnonzero(above > _CUT)[-1])
        infinity += float(above[last + 1]) if last + 1 < p.size else 0.0
        lowest = float(below[first])
        log, p = log[first : last + 1], p[first : last + 1].copy()
        p[0] = lowest
        low, high = float(log[0]), float(log[-1])
        step = max((high - low) / (_POINTS - 2), 1e-12)
        place = np.clip(np.floor((log - low) / step).astype(np.int64), 0, _POINTS - 2)
        grid = low + step * np.arange(_POINTS)
        up = p * np.clip(np.expm1(grid[place] - log) / math.expm1(-step), 0.0, 1.0)
        with_ = np.bincount(place, p - up, _POINTS) + np.bincount(place + 1, up, _POINTS)
        mass = with_ * np.exp(-grid)
        rest = max(0.0, 1.0 - float(mass.sum()))
        return cls(np.append(-700.0, grid), np.append(rest, mass), infinity)

    def times(self, other: _Ratio) -> _Ratio:
        return self._combined(other, np.add.outer(self.log, other.log))

    def unless(self, chance: float, drawn: _Ratio) -> _Ratio:
        """(1 - π)·self + π·drawn."""
        log = np.logaddexp.outer(math.log1p(-chance) + self.log, math.log(chance) + drawn.log)
        return self._combined(drawn, log, 1 - chance, chance)

    def _combined(self, other: _Ratio, log: FloatArray, own: float = 1.0, others: float = 1.0) -> _Ratio:
        joint = np.multiply.outer(self.mass, other.mass)
        return self._gridded(
            log.ravel(), (joint * np.exp(log)).ravel(), own * self.infinity + others * other.infinity
        )

    def epsilon(self, delta: float) -> float:
        value = np.exp(self.log)

        def excess(epsilon: float) -> float:
            grown = math.exp(epsilon)
            removing = float(self.mass @ np.maximum(value - grown, 0.0)) + self.infinity
            adding = float(self.mass @ np.maximum(1.0 - grown * value, 0.0))
            return max(removing, adding) - delta

        if self.infinity >= delta:
            return math.inf
        if excess(0.0) <= 0:
            return 0.0
        if excess(float(self.log.max()) + 1.0) > 0:  # the cut hides too much of Q to say anything at this δ
            return math.inf
        return float(optimize.brentq(excess, 0.0, float(self.log.max()) + 1.0, xtol=1e-9)) + 1e-9


def epsilon(turns: Sequence[Turn], delta: float) -> float:
    """At most this ε is really spent at δ by a record that goes through these rounds and leaves once it is used up.

    A turn with chance 1 is a sure draw after which something is left; one with a smaller chance uses everything up.
    """
    rest: _Ratio | None = None
    for turn in reversed(turns):
        if turn.chance == 0:
            continue
        step = pld.discretisation(turn.release)
        ratio = _Ratio.of(pld.distributions(turn.release, step)[0])
        if turn.chance == 1:
            rest = ratio if rest is None else ratio.times(rest)
        else:
            nothing = _Ratio(np.zeros(1), np.ones(1), 0.0)
            rest = (nothing if rest is None else rest).unless(turn.chance, ratio)
    return 0.0 if rest is None else rest.epsilon(delta)

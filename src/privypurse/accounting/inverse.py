"""Accounting backwards: the sampling rate or the clip norm that an ε buys.

What a record spends rises with its rate and with its clip norm. So points at which an accountant evaluated it give
safe answers everywhere, both ways: the ε of a parameter is at most that of the next larger point, and an ε buys the
largest point that costs no more. Nothing between the points is believed (rule 4: round toward privacy).

Which points are evaluated for an ε follows from that ε, its δ and public constants alone, never from who else is in
the data (rule 7): the nodes are fixed, and interpolation, which only guesses where to search, is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from privypurse._validate import float_vector, refuse
from privypurse.accounting.accountant import Accountant, Progress
from privypurse.accounting.rdp import RDP
from privypurse.accounting.releases import Release
from privypurse.arrays import FloatArray, IntArray, frozen
from privypurse.errors import InfeasibleBudget, InvalidInput

_MOST_TRIES = 60
_SLACK = 5e-4  # of ε: what may stay unused
_HAIR = 1e-4
"""Of ε: how far below what was asked for an answer stays at least, so that the same release, priced once more, cannot
come out above it: with σ·(C/c) for 1/(1/σ); on another machine (Fourier transforms: 4e-7 seen at 100,000 steps and
δ = 1e-10); or at a larger δ, where a bound by loss distributions may be coarser (7e-6 seen)."""
_SECTIONS = 9  # nodes of an axis that are looked at together
_FLAT = 1e-9  # a step in log ε below this is no rise to interpolate on


GUIDE = RDP()
"""A quick accountant that says where a search begins. It decides how long that takes, not what is found."""


@dataclass(frozen=True)
class Axis:
    """A parameter on a logarithmic scale, with fixed nodes at whole numbers: node k is 10^(k / per_decade)."""

    lowest_decade: int
    highest_decade: int
    per_decade: int = 8

    @property
    def lowest(self) -> int:
        return self.lowest_decade * self.per_decade

    @property
    def highest(self) -> int:
        return self.highest_decade * self.per_decade

    def at(self, position: FloatArray) -> FloatArray:
        """The parameter at a position, kept to ten digits so that it does not depend on how it was reached."""
        raw = np.power(10.0, np.asarray(position, dtype=np.float64) / self.per_decade)
        digits = np.power(10.0, 9 - np.floor(np.log10(raw)))
        return np.asarray(np.floor(raw * digits * (1 + 1e-13)) / digits, dtype=np.float64)


RATE = Axis(lowest_decade=-12, highest_decade=0)
"""Sampling rates from 1e-12 to 1."""
INVERSE_NOISE = Axis(lowest_decade=-6, highest_decade=2)
"""1/σ for effective noise multipliers from a million down to 0.01."""


@dataclass(frozen=True, eq=False)
class CertifiedTable:
    """Points (parameter, ε) that an accountant certified, for look-ups by the million."""

    parameter: FloatArray
    epsilon: FloatArray

    def __post_init__(self) -> None:
        parameter, epsilon = float_vector(self.parameter, "parameter"), float_vector(self.epsilon, "epsilon")
        if parameter.size != epsilon.size:
            raise InvalidInput(f"parameter has {parameter.size} points but epsilon has {epsilon.size}")
        refuse(~(np.isfinite(parameter) & (parameter > 0)), parameter, "parameter", "but must be positive")
        refuse(~(epsilon >= 0), epsilon, "epsilon", "but must not be negative")
        order = np.argsort(parameter, kind="stable")
        # What a larger parameter is certified for holds for a smaller one too.
        certified = np.minimum.accumulate(epsilon[order][::-1])[::-1]
        object.__setattr__(self, "parameter", frozen(parameter[order]))
        object.__setattr__(self, "epsilon", frozen(certified))

    def within(self, epsilon: FloatArray) -> FloatArray:
        """For each ε the largest tabulated parameter that is certified to cost no more; 0 where none is."""
        value = np.asarray(epsilon, dtype=np.float64)
        place = np.searchsorted(self.epsilon, value, side="right")
        return np.where(np.isnan(value), 0.0, np.concatenate([[0.0], self.parameter])[place])  # NaN sorts last

    def cost(self, parameter: FloatArray) -> FloatArray:
        """For each parameter a certified bound on ε: that of the next larger point; ∞ beyond the last."""
        value = np.asarray(parameter, dtype=np.float64)
        place = np.searchsorted(self.parameter, value, side="left")
        bound = np.concatenate([self.epsilon, [np.inf]])[place]
        return np.where(value == 0, 0.0, bound)


class Inverse:
    """Finds the parameter that each ε buys, for one family of releases."""

    def __init__(
        self,
        accountant: Accountant,
        release_at: Callable[[float], Release],
        axis: Axis,
        progress: Progress | None = None,
    ) -> None:
        self._accountant, self._release_at, self._axis, self._progress = accountant, release_at, axis, progress
        self._nodes: dict[tuple[str, Release, float], float] = {}

    def guess(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        """About what each ε buys: interpolated, not certified; the least parameter where that costs too much."""
        return self._axis.at(self._curves(epsilon, delta)[0].position(epsilon, delta)[0])

    def certified(self, epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For each ε a parameter, and the ε that the accountant evaluated there: at most the one asked for.

        It is at least 1 - `_SLACK` of it, unless even the largest parameter costs less. ε that even the smallest
        parameter exceeds are an `InfeasibleBudget`.
        """
        wanted = np.asarray(epsilon, dtype=np.float64)
        curves, feasible = self._curves(wanted * (1 - _HAIR), delta)
        if not feasible:
            self._refuse(wanted, delta)
        search = _Search(curves, wanted, np.asarray(delta))
        for _ in range(_MOST_TRIES):
            rows = search.open_rows()
            if rows.size == 0:
                break
            position = search.next_positions(rows)
            found = self._accountant.epsilons(self._releases(position), delta[rows], self._progress)
            search.learn(rows, position, found)
        return self._axis.at(search.low), search.low_epsilon

    def for_all(self, epsilon: FloatArray, delta: FloatArray) -> tuple[float, float]:
        """One parameter for everybody: what the strictest ε and δ buy, and the ε evaluated there."""
        found, spent = self.certified(epsilon.min(keepdims=True), delta.min(keepdims=True))
        return float(found[0]), float(spent[0])

    def _releases(self, position: FloatArray) -> list[Release]:
        return [self._release_at(parameter) for parameter in self._axis.at(position).tolist()]

    def _at_nodes(self, accountant: Accountant, nodes: Sequence[int], deltas: FloatArray) -> FloatArray:
        """ε at each node (row) and δ (column), remembered by release: several nodes may have the same one."""
        releases = self._releases(np.array(nodes, dtype=np.float64))
        wanted = [(accountant.name, release, delta) for release in releases for delta in deltas.tolist()]
        missing = [key for key in dict.fromkeys(wanted) if key not in self._nodes]
        if missing:
            _, asked, at = zip(*missing, strict=True)
            values = accountant.epsilons(asked, np.array(at))
            self._nodes.update(zip(missing, values.tolist(), strict=True))
        return np.array([self._nodes[key] for key in wanted]).reshape(len(nodes), deltas.size)

    def _curves(self, epsilon: FloatArray, delta: FloatArray) -> tuple[_Curves, bool]:
        """The curves around every ε asked for, and whether all of those can be reached."""
        deltas, which = np.unique(delta, return_inverse=True)
        least, most = np.full(deltas.size, np.inf), np.zeros(deltas.size)
        np.minimum.at(least, which, epsilon)
        np.maximum.at(most, which, epsilon)
        axis = self._axis
        low = high = self._first_above(deltas, most)
        while (values := self._at_nodes(self._accountant, [low], deltas)[0] > least).any() and low > axis.lowest:
            low = max(axis.lowest, low - axis.per_decade // 2)
        feasible = not values.any()
        while (self._at_nodes(self._accountant, [high], deltas)[0] <= most).any() and high < axis.highest:
            high += 1
        # Two nodes beyond each end, or the end of the axis, so that every ε has its four nodes.
        low, high = max(axis.lowest, low - 2), min(axis.highest, high + 2)
        nodes = np.arange(low, high + 1)
        return _Curves(nodes, deltas, self._at_nodes(self._accountant, nodes.tolist(), deltas)), feasible

    def _first_above(self, deltas: FloatArray, most: FloatArray) -> int:
        """The first node that costs more than everything asked for, as far as the guide can tell.

        By sections instead of halves: a few nodes at once take the guide hardly longer than one.
        """
        low, high = self._axis.lowest, self._axis.highest
        while low < high:
            nodes = np.unique(np.linspace(low, high - 1, _SECTIONS).astype(np.int64)).tolist()
            above = (self._at_nodes(GUIDE, nodes, deltas) > most).all(axis=1)
            first = int(np.argmax(above)) if above.any() else len(nodes)
            low, high = nodes[first - 1] + 1 if first else low, nodes[first] if first < len(nodes) else high
        return high

    def _refuse(self, epsilon: FloatArray, delta: FloatArray) -> None:
        deltas = np.unique(delta)
        lowest = self._at_nodes(self._accountant, [self._axis.lowest], deltas)[0]
        floor = lowest[np.searchsorted(deltas, delta)]
        worst = int(np.argmax(np.where(epsilon * (1 - _HAIR) < floor, floor / epsilon, 0.0)))
        advice = 'try accountant="pld", ' if self._accountant.name == "rdp" else ""
        raise InfeasibleBudget(
            f"ε = {epsilon[worst]:g} at δ = {delta[worst]:g} is below {floor[worst]:.3g}, the least that the "
            f"{self._accountant.name} accountant can certify for any take-part at all with this training shape; "
            f"{advice}raise that ε or δ, take fewer steps or more noise (a larger "
            "batch_size), or leave those people out",
            epsilon=float(epsilon[worst]),
            delta=float(delta[worst]),
        )


class _Curves:
    """log ε over the nodes, one curve for each δ. What it says about an ε rests on the four nodes around it alone."""

    def __init__(self, nodes: IntArray, deltas: FloatArray, epsilon: FloatArray) -> None:
        self._nodes, self._deltas, self._epsilon = nodes.astype(np.float64), deltas, epsilon

    def bracket(self, epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, ...]:
        """The highest node within each ε and the ε there; the next node and its ε (∞ at the end of the axis)."""
        place, which = self._place(epsilon, delta)
        nodes = np.concatenate([self._nodes, [np.inf]])
        values = np.concatenate([self._epsilon, np.full((1, self._deltas.size), np.inf)])
        return nodes[place], values[place, which], nodes[place + 1], values[place + 1, which]

    def _place(self, epsilon: FloatArray, delta: FloatArray) -> tuple[IntArray, IntArray]:
        which = np.searchsorted(self._deltas, delta)
        fits = self._epsilon[:, which] <= epsilon
        last = self._nodes.size - 1 - np.argmax(fits[::-1], axis=0)
        return np.where(fits.any(axis=0), last, 0).astype(np.int64), which

    def position(self, epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Where on the axis about this ε is reached, and how fast that moves with log ε.

        Monotone cubic interpolation (Fritsch & Butland 1984) of the node number as a function of log ε.
        """
        place, which = self._place(epsilon, delta)
        log_epsilon = np.log(np.maximum(self._epsilon, 1e-300))
        last = self._nodes.size - 1
        before, here, there, beyond = (log_epsilon[np.clip(place + shift, 0, last), which] for shift in (-1, 0, 1, 2))
        width = np.maximum(there - here, _FLAT)
        secant = 1.0 / width
        # At an end of the axis there is no neighbour; the slope there is that of the cell.
        at_here = np.where(place > 0, _harmonic(1.0 / np.maximum(here - before, _FLAT), secant), secant)
        at_there = np.where(place + 1 < last, _harmonic(secant, 1.0 / np.maximum(beyond - there, _FLAT)), secant)
        t = ((np.log(epsilon) - here) / width).clip(0.0, 1.0)
        cubic = (t**3 - 2 * t**2 + t) * width * at_here + (3 * t**2 - 2 * t**3) + (t**3 - t**2) * width * at_there
        return np.where(place == last, self._nodes[last], self._nodes[place] + cubic.clip(0.0, 1.0)), secant


def _harmonic(one: FloatArray, other: FloatArray) -> FloatArray:
    return np.asarray(2.0 / (1.0 / one + 1.0 / other), dtype=np.float64)


class _Search:
    """A bracketed search for many ε at once. Each row sees its own evaluations only."""

    def __init__(self, curves: _Curves, target: FloatArray, delta: FloatArray) -> None:
        self._least, self._most = target * (1 - _SLACK), target * (1 - _HAIR)
        self._aim = np.log(target) + np.log1p(-_SLACK / 2)
        self.low, self.low_epsilon, self._high, self._high_epsilon = curves.bracket(self._most, delta)
        self._first, self._slope = curves.position(np.exp(self._aim), delta)
        self._tries = 0

    def open_rows(self) -> np.ndarray:
        reached = self.low_epsilon >= self._least
        stuck = self._high - self.low < 1e-7
        return np.flatnonzero(~(reached | stuck | np.isinf(self._high)))

    def next_positions(self, rows: np.ndarray) -> FloatArray:
        """First the interpolated guess, then a step along its slope, then secants with a bisection in between."""
        low, high = self.low[rows], self._high[rows]
        if self._tries < 2:
            wish = self._first[rows]
        elif self._tries % 3 == 1:
            wish = (low + high) / 2
        else:
            bottom = np.log(np.maximum(self.low_epsilon[rows], 1e-300))
            top = np.log(self._high_epsilon[rows])
            wish = low + (high - low) * (self._aim[rows] - bottom) / np.maximum(top - bottom, 1e-300)
        margin = (high - low) * 1e-3
        inside = (wish > low + margin) & (wish < high - margin)
        return np.asarray(np.where(inside, wish, (low + high) / 2), dtype=np.float64)

    def learn(self, rows: np.ndarray, position: FloatArray, epsilon: FloatArray) -> None:
        fits = epsilon <= self._most[rows]
        better = fits & (position > self.low[rows])
        self.low[rows] = np.where(better, position, self.low[rows])
        self.low_epsilon[rows] = np.where(better, epsilon, self.low_epsilon[rows])
        self._high[rows] = np.where(fits, self._high[rows], position)
        self._high_epsilon[rows] = np.where(fits, self._high_epsilon[rows], epsilon)
        self._first[rows] = position + (self._aim[rows] - np.log(np.maximum(epsilon, 1e-300))) * self._slope[rows]
        self._tries += 1

"""Threshold sampling: who grants less than a threshold τ is drawn less often, and which τ wastes least.

Heo et al. (2023, arXiv 2305.15165), Definition 4.1 and Equations 6 and 7. The exact search is ours: with budgets
sorted, both wastes have closed forms between two neighbouring budgets, so prefix sums give the best threshold.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from privypurse._validate import float_vector, refuse
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

_MOST_HALVINGS = 80
_CLOSE = 1e-9  # relative: an interval whose lower bound is no better than this is done


def probabilities(epsilon: FloatArray, threshold: float) -> FloatArray:
    """πᵢ = (e^εᵢ - 1)/(e^τ - 1) for εᵢ below τ, 1 for the others (Heo et al. 2023, Definition 4.1)."""
    eps = _checked(epsilon)
    if not (np.isfinite(threshold) and threshold > 0):
        raise InvalidInput(f"threshold is {threshold}; it must be finite and positive, an ε")
    below = np.minimum(eps, threshold)
    return np.asarray(np.exp(_log_expm1(below) - _log_expm1(np.asarray(float(threshold)))))


class Loss(Protocol):
    """Weighs two wastes: of people who are not drawn (u), and of budget beyond the threshold (s)."""

    def __call__(self, u: FloatArray, s: FloatArray) -> FloatArray: ...

    def least(self, u: tuple[FloatArray, FloatArray], s: tuple[FloatArray, FloatArray]) -> FloatArray:
        """At most the smallest loss for wastes between these lowest and highest ones."""
        ...


@dataclass(frozen=True)
class FixedLoss:
    """w₁·u + w₂·s (Equation 6), with the paper's weights."""

    unsampled: float = 0.7
    surplus: float = 0.3

    def __post_init__(self) -> None:
        for name in ("unsampled", "surplus"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} is {value}; a weight must be finite and not negative")

    def __call__(self, u: FloatArray, s: FloatArray) -> FloatArray:
        return np.asarray(self.unsampled * u + self.surplus * s)

    def least(self, u: tuple[FloatArray, FloatArray], s: tuple[FloatArray, FloatArray]) -> FloatArray:
        return self(u[0], s[0])


@dataclass(frozen=True)
class AdaptiveLoss:
    """Weights u/(u+s) and s/(u+s), put in: (u² + s²)/(u + s).

    Equation 7 prints 2us/(u+s) for the same weights, which is 0 at both ends of the range; see `PrintedLoss`.
    """

    def __call__(self, u: FloatArray, s: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(u + s > 0, (u * u + s * s) / (u + s), 0.0))

    def least(self, u: tuple[FloatArray, FloatArray], s: tuple[FloatArray, FloatArray]) -> FloatArray:
        # For a given s it falls in u down to u = (√2 - 1)·s and rises from there, and the same with both exchanged;
        # it is convex, so the least lies on that line, on its mirror image, or at a corner.
        best = np.full(u[0].shape, np.inf)
        line = np.sqrt(2.0) - 1
        for some in s:
            best = np.minimum(best, self(np.clip(line * some, u[0], u[1]), some))
        for some in u:
            best = np.minimum(best, self(some, np.clip(line * some, s[0], s[1])))
        return best


@dataclass(frozen=True)
class PrintedLoss:
    """2us/(u+s), as Equation 7 prints it: 0, and therefore smallest, at both ends. For comparison."""

    def __call__(self, u: FloatArray, s: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(u + s > 0, 2 * u * s / (u + s), 0.0))

    def least(self, u: tuple[FloatArray, FloatArray], s: tuple[FloatArray, FloatArray]) -> FloatArray:
        return self(u[0], s[0])  # it rises in both


class Wastes:
    """Both wastes as functions of the threshold, for many thresholds at once."""

    def __init__(self, epsilon: FloatArray, people: AnyArray | None = None) -> None:
        """``people`` says how many hold each ε; one each by default."""
        values = _checked(epsilon)
        order = np.argsort(values)
        self._sorted = values[order]
        weight = np.ones(values.size) if people is None else _counted(people, values.size)[order]
        with np.errstate(divide="ignore"):
            grown = np.log(self._sorted) + _log_expm1(self._sorted) + np.log(weight)
        self._log_drawn = np.concatenate([[-np.inf], np.logaddexp.accumulate(grown)])  # Σ ε(e^ε - 1), logarithm
        self._granted = np.concatenate([[0.0], np.cumsum(weight * self._sorted)])
        self._below = np.concatenate([[0.0], np.cumsum(weight)])

    @property
    def budgets(self) -> FloatArray:
        """The different budgets, ascending: between them both wastes are smooth."""
        return np.unique(self._sorted)

    def at(self, threshold: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of those below it, Σ ε(1 - π); of those above it, Σ (ε - τ)."""
        tau = np.asarray(threshold, dtype=np.float64)
        below = np.searchsorted(self._sorted, tau, side="left")
        drawn = np.exp(self._log_drawn[below] - _log_expm1(tau))
        u = np.maximum(self._granted[below] - drawn, 0.0)
        above = self._below[-1] - self._below[below]
        s = np.maximum(self._granted[-1] - self._granted[below] - above * tau, 0.0)
        return u, s


def best_threshold(epsilon: FloatArray, loss: Loss | None = None, people: AnyArray | None = None) -> float:
    """The τ between the smallest and the largest budget with the smallest loss (default: `AdaptiveLoss`).

    ``people`` says how many hold each ε; one each by default.

    The loss is evaluated at every different budget. u rises and s falls with τ, so between two neighbouring budgets
    it is at least ``loss.least`` of their values; intervals that might hold something smaller are halved until none
    does, by more than a billionth. What is left is one valley, whose bottom a line search finds.
    """
    chosen = AdaptiveLoss() if loss is None else loss
    wastes = Wastes(epsilon, people)
    points = wastes.budgets
    u, s = wastes.at(points)
    values = chosen(u, s)
    place = int(np.argmin(values))
    best, at = float(values[place]), float(points[place])
    low, high = points[:-1], points[1:]
    (u_low, u_high), (s_high, s_low) = (u[:-1], u[1:]), (s[:-1], s[1:])
    for _ in range(_MOST_HALVINGS):
        open_ = chosen.least((u_low, u_high), (s_low, s_high)) < best * (1 - _CLOSE)
        middle = (low + high) / 2
        open_ &= (middle > low) & (middle < high)
        if not open_.any():
            break
        low, middle, high = low[open_], middle[open_], high[open_]
        u_low, u_high, s_low, s_high = u_low[open_], u_high[open_], s_low[open_], s_high[open_]
        u_mid, s_mid = wastes.at(middle)
        values = chosen(u_mid, s_mid)
        place = int(np.argmin(values))
        if values[place] < best:
            best, at = float(values[place]), float(middle[place])
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        u_low, u_high = np.concatenate([u_low, u_mid]), np.concatenate([u_mid, u_high])
        s_low, s_high = np.concatenate([s_mid, s_low]), np.concatenate([s_high, s_mid])
    return _bottom(wastes, chosen, at, best)


def _bottom(wastes: Wastes, loss: Loss, at: float, best: float) -> float:
    """The bottom of the valley around ``at``, between the budgets next to it."""
    points = wastes.budgets
    place = int(np.searchsorted(points, at))
    if points[min(place, points.size - 1)] == at:  # on a budget the loss has a kink: both sides were searched
        return at
    found = scipy.optimize.minimize_scalar(
        lambda tau: float(loss(*wastes.at(np.array([tau])))[0]),
        bounds=(float(points[place - 1]), float(points[place])),
        method="bounded",
        options={"xatol": 1e-12 * at},
    )
    return float(found.x) if found.fun < best else at


def _log_expm1(value: FloatArray) -> FloatArray:
    """log(e^x - 1), for x too large for e^x as well."""
    return np.asarray(value + np.log(-np.expm1(-value)))


def _checked(epsilon: FloatArray) -> FloatArray:
    values = float_vector(epsilon, "epsilon")
    refuse(~(np.isfinite(values) & (values > 0)), values, "epsilon", "but a budget must be finite and positive")
    return values


def _counted(people: AnyArray, size: int) -> FloatArray:
    counts = float_vector(people, "people")
    if counts.size != size:
        raise InvalidInput(f"people has {counts.size} entries, but there are {size} budgets; give one each")
    refuse(~(np.isfinite(counts) & (counts > 0)), counts, "people", "but a count must be positive")
    return counts

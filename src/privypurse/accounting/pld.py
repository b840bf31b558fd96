"""Accounting by privacy loss distributions: pessimistic, connect-the-dots, both directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from privypurse.accounting import loss_distribution
from privypurse.accounting.accountant import ROUND_UP, Progress, deltas_for
from privypurse.accounting.loss_distribution import NEARLY_ONE_EPSILON, LossDistribution
from privypurse.accounting.releases import (
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    Release,
    SampledGaussian,
    SampledRound,
    costs_nothing,
    leaves,
    made_of,
)
from privypurse.arrays import FloatArray
from privypurse.errors import Unsupported

_RELATIVE_STEP = 0.05  # of a step's loss deviation: costs about 0.03 % of ε
_MOST_POINTS = 60_000  # of one step's distribution
_MOST_COMPOSED = 2**21  # about, of a composed one
_WIDEST = 0.01
_LEAST_SPREAD = 1e-30
_ROUNDING = 1e-15  # what arithmetic beside 1 may have lost of an ε that is far smaller
_WORTH_MORE_DIGITS = 1e-3  # of δ: arithmetic may lose that much before it is done again in long double


@dataclass(frozen=True)
class PLD:
    """Numerical composition of privacy losses, the tightest bound here for steps that are fixed beforehand.

    Guarantee: pessimistic, for adding and for removing the record; the rounding of the Fourier transforms is
    bounded and taken off δ, and where that would matter they are done again in long double. δ must be at least
    1e-10 (rule 4), and more for a million steps and above, where rounding alone may reach that.
    Not for filters, whose later steps depend on earlier outputs (rule 5).
    """

    name: str = "pld"
    smallest_delta: float = 1e-10

    def supports(self, release: Release) -> bool:
        return made_of(release, SampledGaussian, Gaussian, PureDP)

    def epsilons(
        self, releases: Sequence[Release], delta: FloatArray | float, progress: Progress | None = None
    ) -> FloatArray:
        each = deltas_for(self, releases, delta)
        wanted: dict[Release, list[int]] = {}
        for index, release in enumerate(releases):
            wanted.setdefault(release, []).append(index)
        out = np.empty(len(releases))
        for done, (release, indices) in enumerate(wanted.items()):
            out[indices] = _epsilons(release, each[indices])
            if progress:
                progress(done + 1, len(wanted))
        return np.where(out > 0, out * ROUND_UP + _ROUNDING, out)


def _epsilons(release: Release, deltas: FloatArray) -> FloatArray:
    step = discretisation(release)
    quick = distributions(release, step)
    wide: tuple[LossDistribution, ...] | None = None
    out = np.empty(deltas.size)
    for index, delta in enumerate(deltas.tolist()):
        directions = quick
        if _slop(quick) > _WORTH_MORE_DIGITS * delta:  # each δ decides for itself, whoever else is asked about
            directions = wide = wide or distributions(release, step, np.longdouble)
        if _slop(directions) > delta / 2:
            raise Unsupported(
                f"δ = {delta:g} is too small for {release}: rounding alone may reach {_slop(directions):.1g}; "
                'choose a larger δ, or the accountant "rdp"'
            )
        out[index] = max(one.epsilon(delta) for one in directions)
    return out


def _slop(directions: tuple[LossDistribution, ...]) -> float:
    return max(one.slop for one in directions)


def discretisation(release: Release) -> float:
    """The step of the loss grid: a twentieth of one step's loss deviation, within what memory allows.

    Connect-the-dots adds at most a quarter of the squared step to the variance of each loss (and less to losses that
    are small beside the step), so the error in ε falls with its square. Where releases differ the step may be coarse
    for those that matter little. Any step is sound; this one decides how tight the bound is and how long it takes.
    """
    parts = [_moments(leaf) for leaf in leaves(release) if not costs_nothing(leaf)]
    if not parts:
        return _WIDEST
    finest = _finest([spread for spread, _ in parts], _weights(release))
    furthest = max(furthest for _, furthest in parts)
    one_step = 2 * furthest / (_MOST_POINTS if len(parts) == 1 else 8 * _MOST_POINTS)
    step = max(finest, one_step, 30 * _total_spread(release) / _MOST_COMPOSED)
    if all(isinstance(leaf, PureDP) for leaf in leaves(release)):
        # A whole number of steps to the smallest ε, so that with one ε nothing is rounded; a bit more with several.
        each = {leaf.epsilon for leaf in leaves(release) if isinstance(leaf, PureDP)}
        over = 1.0 if len(each) == 1 else 1 + NEARLY_ONE_EPSILON
        return min(each) * over / max(1, math.floor(min(each) / step))
    return step


def _finest(spreads: list[float], weights: list[float]) -> float:
    """The widest step that adds no more variance, in all, than a twentieth of the deviation would to equal losses.

    A deviation too small for a float would never let the search end: it counts as `_LEAST_SPREAD`.
    """
    spread, weight = np.maximum(spreads, _LEAST_SPREAD), np.array(weights)
    step = float(min(_RELATIVE_STEP * spread.min(), _WIDEST))
    allowed = _RELATIVE_STEP**2 / 4 * float(weight @ spread**2)
    while 1.25 * step <= _WIDEST and weight @ np.minimum((1.25 * step) ** 2 / 4, 1.25 * step * spread) <= allowed:
        step *= 1.25
    return step


def _weights(release: Release, times: float = 1.0) -> list[float]:
    """How often each leaf that costs anything occurs, about; in the order of `leaves`."""
    if costs_nothing(release):
        # Leaves of a part that costs nothing may cost something by themselves: a round that nobody enters.
        return [0.0 for leaf in leaves(release) if not costs_nothing(leaf)]
    match release:
        case Composed(releases):
            return [weight for part in releases for weight in _weights(part, times)]
        case ClientSampled(rate, inner, count) | SampledRound(rate, inner, count):
            return _weights(inner, times * rate * count)
        case Gaussian(_, count) | SampledGaussian(_, _, count) | PureDP(_, count):
            return [times * count]


def _moments(leaf: Release) -> tuple[float, float]:
    """About the deviation of one step's loss, and how far it reaches."""
    match leaf:
        case Gaussian(noise_multiplier, _):
            rate = 1.0
        case SampledGaussian(rate, noise_multiplier, _):
            pass
        case PureDP(epsilon, _):
            return 20 * epsilon, epsilon
        case _:
            raise AssertionError(f"not a leaf: {leaf}")
    # The second moment of the loss is about log E[(p/p')²] = log(1 + q²(e^{1/σ²} - 1)).
    spread = math.sqrt(math.log1p(rate**2 * math.expm1(min(noise_multiplier**-2, 700.0))))
    exponent = math.log(rate) + (8 + 0.5 / noise_multiplier) / noise_multiplier
    return spread, float(np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, exponent))


def _total_spread(release: Release) -> float:
    """About the deviation of all losses together."""
    match release:
        case ClientSampled(rate, inner, count):
            inside = _total_spread(inner)
            return math.sqrt(count * rate) * (inside + inside**2 / 2)
        case SampledRound(rate, inner, count):
            return math.sqrt(count * math.log1p(rate**2 * math.expm1(min(_total_spread(inner) ** 2, 700.0))))
        case Composed(releases):
            return math.sqrt(sum(_total_spread(part) ** 2 for part in releases))
        case PureDP(epsilon, count):
            return math.sqrt(count) * epsilon
        case Gaussian(noise_multiplier, count):
            return math.sqrt(count) / noise_multiplier
        case SampledGaussian(_, noise_multiplier, count):
            return (
                0.0 if costs_nothing(release) else math.sqrt(count) * min(_moments(release)[0], 1 / noise_multiplier)
            )


def distributions(release: Release, step: float, precision: Any = np.float64) -> tuple[LossDistribution, ...]:
    """The losses of removing the record and of adding it; a single one where they are alike."""
    match release:
        case Gaussian(noise_multiplier, count):
            return distributions(SampledGaussian(1.0, noise_multiplier, count), step, precision)
        case SampledGaussian(rate, noise_multiplier, count):
            if rate == 0 or count == 0:
                return (loss_distribution.identity(step),)
            return _steps(rate, noise_multiplier, count, step, precision)
        case PureDP(epsilon, count):
            return (loss_distribution.two_point(epsilon, step).repeated(count, precision),)
        case ClientSampled(rate, inner, count):
            # Telling the coin as well can only cost more, and then a round that was not joined loses nothing:
            # the loss is that of the inner release with probability λ, else 0.
            inside = distributions(inner, step, precision)
            return tuple(one.mixed(rate).repeated(count, precision) for one in inside)
        case SampledRound(rate, inner, count):
            inside = distributions(inner, step, precision)
            rounds = inside[0].drawn(rate), inside[-1].drawn(rate, adding=True)
            return tuple(one.repeated(count, precision) for one in rounds)
        case Composed(releases):
            parts = [distributions(part, step, precision) for part in releases]
            # Direction by direction: a part with one distribution has the same in both.
            return tuple(
                reduce(
                    LossDistribution.plus,
                    (part[k % len(part)] for part in parts),
                    loss_distribution.identity(step),
                )
                for k in range(max((len(part) for part in parts), default=1))
            )


@lru_cache(maxsize=32)
def _steps(
    rate: float, noise_multiplier: float, count: int, step: float, precision: Any
) -> tuple[LossDistribution, ...]:
    """Sampled Gaussian steps composed, remembered: people of a round share them."""
    once = loss_distribution.sampled_gaussian(rate, noise_multiplier, step, count)
    return tuple(one.repeated(count, precision) for one in once)

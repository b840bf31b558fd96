"""Accounting by privacy loss distributions: pessimistic, connect-the-dots, both directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from privypurse.accounting import loss_distribution
from privypurse.accounting.accountant import Progress, deltas_for, leaves
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.releases import ClientSampled, Composed, Gaussian, PureDP, Release, SampledGaussian
from privypurse.arrays import FloatArray
from privypurse.errors import Unsupported

_RELATIVE_STEP = 0.05  # of a step's loss deviation: costs about 0.03 % of ε
_MOST_POINTS = 60_000  # of one step's distribution
_WIDEST = 0.01
_ROUND_UP = 1 + 1e-12
_WORTH_MORE_DIGITS = 1e-3  # of δ: arithmetic may lose that much before it is done again in long double


@dataclass(frozen=True)
class PLD:
    """Numerical composition of privacy losses, the tightest bound here for steps that are fixed beforehand.

    Guarantee: pessimistic, for adding and for removing the record; the rounding of the Fourier transforms is
    bounded and taken off δ, and where that would matter they are done again in long double. δ must be at least
    1e-10 (rule 4). Not for filters, whose later steps depend on earlier outputs (rule 5).
    """

    name: str = "pld"
    smallest_delta: float = 1e-10

    def supports(self, release: Release) -> bool:
        return isinstance(release, Release)

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
        return out * _ROUND_UP


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
                'choose a larger δ, or accountant="rdp"'
            )
        out[index] = max(one.epsilon(delta) for one in directions)
    return out


def _slop(directions: tuple[LossDistribution, ...]) -> float:
    return max(one.slop for one in directions)


def discretisation(release: Release) -> float:
    """The step of the loss grid: a twentieth of one step's loss deviation, within what memory allows.

    Connect-the-dots adds at most a quarter of the squared step to the variance of each loss, so the error in ε
    falls with its square. Any step is sound; this one decides only how tight the bound is.
    """
    return min((_leaf_step(leaf) for leaf in leaves(release)), default=_WIDEST)


def _leaf_step(release: Release) -> float:
    match release:
        case Gaussian(noise_multiplier, _):
            rate = 1.0
        case SampledGaussian(rate, noise_multiplier, _):
            if rate == 0:
                return _WIDEST
        case PureDP(epsilon, _):  # a whole number of steps, so that nothing is rounded
            return epsilon / math.ceil(epsilon / _WIDEST)
        case _:
            raise AssertionError(f"not a leaf: {release}")
    # The loss of a step has second moment about log E[(p/p')²] = log(1 + q²(e^{1/σ²} - 1)).
    spread = math.sqrt(math.log1p(rate**2 * math.expm1(min(noise_multiplier**-2, 700.0))))
    # Its range: the loss eight deviations out.
    furthest = float(np.logaddexp(0.0, math.log(rate) + (8 + 0.5 / noise_multiplier) / noise_multiplier))
    return min(max(_RELATIVE_STEP * spread, 2 * furthest / _MOST_POINTS), _WIDEST)


def distributions(release: Release, step: float, precision: Any = np.float64) -> tuple[LossDistribution, ...]:
    """The losses of removing the record and of adding it; a single one where they are alike."""
    match release:
        case Gaussian(noise_multiplier, count):
            return distributions(SampledGaussian(1.0, noise_multiplier, count), step, precision)
        case SampledGaussian(rate, noise_multiplier, count):
            if rate == 0 or count == 0:
                return (loss_distribution.identity(step),)
            once = loss_distribution.sampled_gaussian(rate, noise_multiplier, step, count)
            return tuple(one.repeated(count, precision) for one in once)
        case PureDP(epsilon, count):
            return (loss_distribution.two_point(epsilon, step).repeated(count, precision),)
        case ClientSampled(rate, inner, count):
            # Telling the coin as well can only cost more, and then a round that was not joined loses nothing:
            # the loss is that of the inner release with probability λ, else 0.
            inside = distributions(inner, step, precision)
            return tuple(one.mixed(rate).repeated(count, precision) for one in inside)
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

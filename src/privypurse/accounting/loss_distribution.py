"""Privacy loss distributions on a grid: built pessimistically, composed by Fourier transform, read off as ε.

Connect-the-dots (Doroshenko et al. 2022, arXiv 2207.04380): the mass P and its counterpart Q of every loss between
two grid points are split onto those two points so that both are kept. The split dominates the true pair, and is the
best that does on this grid. What arithmetic may lose is counted in ``slop`` and taken off δ in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft, special

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import Unsupported

_LONGEST = 2**25  # grid points of a composed distribution: a quarter of a gigabyte
_CUT = 1e-11  # mass of the lowest losses of a round, where e^-ℓ would blow up arithmetic noise
_TAIL = 1e-16  # mass that each cut may move to an infinite loss
_ULP = float(np.finfo(np.float64).eps)
NEARLY_ONE_EPSILON = 2e-9
"""ε of pure releases that differ by no more than this share are put on one point of the grid, above all of them."""


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Losses (lower + i)·step with mass[i], an infinite loss with mass ``infinity``; δ is right within ``slop``."""

    step: float
    lower: int
    mass: AnyArray
    infinity: float
    slop: float = 0.0

    def repeated(self, count: int, precision: Any = np.float64) -> LossDistribution:
        """The distribution of ``count`` independent losses added up."""
        if count == 0:
            return identity(self.step)
        if count == 1:
            return self
        first, last = _chernoff_span(self.mass, count)
        length = fft.next_fast_len(max(last - first + 1, self.mass.size), real=True)
        if length > _LONGEST:
            raise Unsupported(
                f"{count:,} steps span {length:,} grid points, more than {_LONGEST:,}: a loss distribution is not "
                'made for ε in the thousands; use the accountant "rdp"'
            )
        spectrum = fft.rfft(self.mass.astype(precision), length)
        size = np.abs(spectrum)
        off = float(transform_error(length, precision))
        weight = math.sqrt(2 * float(np.sum(np.minimum(size + off, 1.0) ** (2 * count - 2))))
        slop = (count + 2) * off * weight  # the power multiplies what the transform is off by
        spectrum **= count
        mass = np.roll(fft.irfft(spectrum, length), -(first % length))[: last - first + 1]
        return LossDistribution(
            step=self.step,
            lower=self.lower * count + first,
            mass=np.maximum(mass, 0.0).astype(np.float64),
            infinity=1.0 if self.infinity >= 1 else -math.expm1(count * math.log1p(-self.infinity)) + 2 * _TAIL,
            slop=count * self.slop + slop,
        )

    def plus(self, other: LossDistribution) -> LossDistribution:
        """The distribution of one loss from each, added up."""
        size = self.mass.size + other.mass.size - 1
        length = fft.next_fast_len(size, real=True)
        spectrum = fft.rfft(self.mass, length) * fft.rfft(other.mass, length)
        off = float(transform_error(length + 1, np.float64))
        weight = math.sqrt(2 * float(np.sum(np.abs(spectrum) ** 2)))
        mass = np.maximum(fft.irfft(spectrum, length)[:size], 0.0)
        # Cut tails of less than _TAIL: the upper goes to infinity, the lower up to the first point that is kept.
        below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
        kept = np.flatnonzero((below > _TAIL) & (above > _TAIL))
        first, last = int(kept[0]), int(kept[-1])
        cut = float(above[last + 1]) if last + 1 < size else 0.0
        mass[first] = below[first]
        return LossDistribution(
            step=self.step,
            lower=self.lower + other.lower + first,
            mass=mass[first : last + 1].copy(),
            infinity=self.infinity + other.infinity + cut,
            slop=self.slop + other.slop + 4 * off * weight + 2e-16,
        )

    def mixed(self, rate: float) -> LossDistribution:
        """This loss with probability ``rate``, else no loss at all."""
        first, last = min(self.lower, 0), max(self.lower + self.mass.size - 1, 0)
        mass = np.zeros(last - first + 1)
        mass[self.lower - first : self.lower - first + self.mass.size] = rate * self.mass
        mass[-first] += 1.0 - rate
        return LossDistribution(self.step, first, mass, rate * self.infinity, rate * self.slop + 2e-16)

    def drawn(self, rate: float, *, adding: bool = False) -> LossDistribution:
        """The loss of a round that the record enters with probability ``rate`` = π, unseen, and that loses this.

        With P the outcome with the record and Q without it a round is P' = (1-π)Q + πP. Removing the record, ℓ = log
        P/Q becomes log(1 - π + π·e^ℓ), and δ'(ε) = π·δ(log(1 + (e^ε - 1)/π)). Adding it, ℓ = log Q/P becomes
        -log(1 - π + π·e^-ℓ), which an infinite loss does not make infinite. Both are pessimistic where this one is
        (Zhu, Dong & Wang 2022, arXiv 2106.08567, Theorem 11); what falls between grid points is split onto them,
        which is too.
        """
        if rate == 1:
            return self
        if rate == 0:
            return identity(self.step)
        log_out, log_in = math.log1p(-rate), math.log(rate)
        losses = (self.lower + np.arange(self.mass.size)) * self.step
        if adding:
            moved, mass = -np.logaddexp(log_out, log_in - losses), self.mass
            at_end, end, infinity, slop = self.infinity, -log_out, 0.0, self.slop
        else:
            mass = self.mass.copy()
            # Far to the left Q is e^-ℓ times a mass that is arithmetic noise. So what is below the cut moves up to
            # it, which is pessimistic, and Q's share of it goes to where the record was surely not drawn.
            cut = int(np.argmax(np.cumsum(mass) > _CUT))
            mass[cut] += mass[:cut].sum()
            losses, mass = losses[cut:], mass[cut:]
            with np.errstate(divide="ignore"):
                mass = rate * mass + np.exp(log_out + np.log(mass) - losses)
            moved = np.logaddexp(log_out, log_in + losses)
            infinity, slop = rate * self.infinity, rate * self.slop
            at_end, end = max(0.0, 1.0 - float(mass.sum()) - infinity), log_out
        moved, mass = np.append(moved, end), np.append(mass, at_end)
        lower, split = _on_grid(moved, mass, self.step)
        return LossDistribution(self.step, lower, split, infinity, slop + 4e-16)

    def epsilon(self, delta: float) -> float:
        """The least ε with δ(ε) ≤ delta - slop; ∞ where there is none."""
        left = delta - self.slop - self.infinity
        if left <= 0:
            return math.inf
        losses = (self.lower + np.arange(self.mass.size)) * self.step
        above = np.cumsum(self.mass[::-1])[::-1]  # mass of this loss and all larger ones
        # δ(ε) = Σ_{ℓ > ε} mass·(1 - e^{ε-ℓ}); exponentials relative to a loss near the answer do not overflow.
        pivot = float(losses[max(int(np.searchsorted(-above, -left, side="right")) - 1, 0)])
        weighted = self.mass * np.exp(np.clip(pivot - losses, -700.0, 700.0))
        counterpart = np.cumsum(weighted[::-1])[::-1]
        at_loss = np.append(above[1:] - np.exp(np.clip(losses[:-1] - pivot, -700.0, 700.0)) * counterpart[1:], 0.0)
        place = int(np.argmax(at_loss <= left))
        if counterpart[place] <= 0 or above[place] <= left:
            return max(0.0, float(losses[place]) if place else 0.0)
        # Within the cell below losses[place], δ(ε) = above - e^ε·counterpart: solved for ε.
        epsilon = pivot + math.log((above[place] - left) / counterpart[place])
        return max(0.0, min(epsilon, float(losses[place])))


def transform_error(length: Any, precision: Any) -> Any:
    """A transform of a mass of 1 over so many points is off by less than this: 4·log2(n) roundings."""
    return float(np.finfo(precision).eps) * 4 * np.log2(length)


def identity(step: float) -> LossDistribution:
    """No loss, for sure."""
    return LossDistribution(step, 0, np.ones(1), 0.0)


def _on_grid(losses: FloatArray, mass: AnyArray, step: float) -> tuple[int, AnyArray]:
    """Split each mass onto the two grid points around its loss so that P and Q are kept: connect-the-dots."""
    below = np.floor(losses / step).astype(np.int64)
    up = mass * (-np.expm1(below * step - losses) / -math.expm1(-step))
    up = np.clip(up + mass * (64 * np.finfo(np.float64).eps / step), 0.0, mass)
    lower, length = int(below.min()), int(below.max()) - int(below.min()) + 2
    if length > _LONGEST:
        raise Unsupported(
            f"losses of one release span {length:,} grid points, more than {_LONGEST:,}: the mechanism inside of a "
            'sampled round costs next to nothing beside the coin; use the accountant "rdp"'
        )
    out = np.bincount(below - lower, mass - up, length)
    return lower, out + np.bincount(below - lower + 1, up, out.size)


def two_point(epsilon: float, step: float) -> LossDistribution:
    """Randomised response, which dominates every ε-DP mechanism: loss ε or -ε, rounded up to the grid.

    Where the grid has a point just above ε it is that of this larger ε, which dominates it too.
    """
    nearest = round(epsilon / step)
    at = nearest * step
    if epsilon * (1 - 8 * _ULP) <= at <= epsilon * (1 + 2 * NEARLY_ONE_EPSILON):
        top, bottom, epsilon = nearest, -nearest, max(at, epsilon)
    else:
        top, bottom = math.ceil(epsilon / step), math.ceil(-epsilon / step)
    assert top > bottom, "the grid is finer than ε"
    mass = np.zeros(top - bottom + 1)
    mass[-1] = 1.0 / (1.0 + math.exp(-epsilon))
    mass[0] = 1.0 - mass[-1]
    return LossDistribution(step, bottom, mass, 0.0)


def sampled_gaussian(rate: float, noise_multiplier: float, step: float, count: int) -> tuple[LossDistribution, ...]:
    """One step's losses for removing and for adding the record; one distribution where both are alike.

    The pair is P = (1-q)·N(0,σ²) + q·N(1,σ²) against Q = N(0,σ²), and the reverse; as a function of the noisy
    value x the loss of the first is log(1 - q + q·e^{(2x-1)/2σ²}), which rises. ``count`` only decides how far
    out the tail is cut: so far that all steps together move less than 1e-16 to an infinite loss.
    """
    q, sigma = rate, noise_multiplier
    far = -float(special.ndtri(max(_TAIL / count, 1e-300)))
    top = float(np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, math.log(q) + (0.5 + far * sigma) / sigma**2))
    low_x = (-2 * far * sigma - 1) / (2 * sigma**2)
    floor = float(np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, math.log(q) + low_x))
    grid = np.arange(math.floor(floor / step), math.ceil(top / step) + 1)
    remove = _split(grid, step, _edges((grid * step).astype(np.float64), q, sigma), q, sigma, rising=True)
    if q == 1:
        return (remove,)
    grid = -grid[::-1]
    return remove, _split(grid, step, _edges((-grid * step).astype(np.float64), q, sigma), q, sigma, rising=False)


def _edges(loss: FloatArray, q: float, sigma: float) -> FloatArray:
    """The noisy value at which the loss of removal is reached; -∞ where it lies below all losses."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log(e^ℓ - (1-q)): near ℓ = 0 by expm1, elsewhere relative to e^ℓ, where neither form cancels.
        near = np.log(np.maximum(np.expm1(np.clip(loss, -1, 1)) + q, 0.0))
        share = np.minimum((1 - q) * np.exp(-np.maximum(loss, -700.0)), 1.0)
        elsewhere = loss + np.log1p(-share)
        odds = np.where(np.abs(loss) < 0.7, near, elsewhere)
        return np.asarray(sigma**2 * (odds - math.log(q)) + 0.5)


def _split(grid: AnyArray, step: float, edges: FloatArray, q: float, sigma: float, rising: bool) -> LossDistribution:
    """Split what lies between neighbouring grid points onto them; below the grid goes up, above it to infinity."""
    bounds = np.concatenate([[-np.inf], edges, [np.inf]]) if rising else np.concatenate([[np.inf], edges, [-np.inf]])
    without, with_ = _between(bounds / sigma), _between((bounds - 1) / sigma)
    mixture = (1 - q) * without + q * with_
    p, other = (mixture, without) if rising else (without, mixture)
    inner_p, inner_q, losses = p[1:-1], other[1:-1], grid[:-1] * step
    # Keep P and Q: up + down = P, up·e^-(ℓ+h) + down·e^-ℓ = Q.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        up = (inner_p - np.exp(losses + np.log(inner_q))) / -math.expm1(-step)
    # The difference loses about 1/step units in the last place; lean upwards by more than that.
    up = np.clip(np.nan_to_num(up, nan=0.0) + inner_p * (64 * np.finfo(np.float64).eps / step), 0.0, inner_p)
    mass = np.zeros(grid.size)
    mass[1:] += up
    mass[:-1] += inner_p - up
    mass[0] += p[0]
    return LossDistribution(step, int(grid[0]), mass, float(p[-1]), slop=4e-16)


def _between(z: FloatArray) -> FloatArray:
    """Standard normal mass between neighbouring bounds, by whichever tail is the smaller."""
    low, high = np.minimum(z[:-1], z[1:]), np.maximum(z[:-1], z[1:])
    flip = low + high > 0  # mostly in the right tail: use the mirror image
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.asarray(np.maximum(special.ndtr(high) - special.ndtr(low), 0.0), dtype=np.float64)


def _chernoff_span(mass: AnyArray, count: int) -> tuple[int, int]:
    """Indices outside of which the sum of ``count`` losses has less than _TAIL mass on each side."""
    index = np.arange(mass.size, dtype=np.float64)
    mean = float(mass @ index) / float(mass.sum())
    variance = max(float(mass @ (index - mean) ** 2) / float(mass.sum()), 1e-12)
    need = math.log(1 / _TAIL)
    gaussian = math.sqrt(2 * need / (count * variance))  # the best order if the sum is about normal
    heavy = 40.0 / mass.size  # beyond about this order a single loss at the end of the grid decides
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    reach = []
    for sign in (-1.0, 1.0):
        best = math.inf
        for order in (*gaussian / np.array([1, 2, 4]), *heavy / np.array([2, 4, 8, 1, 16, 40])):
            exponent = log_mass + sign * order * (index - mean)
            peak = float(exponent.max())
            log_moment = peak + math.log(float(np.exp(exponent - peak).sum()))
            best = min(best, (count * log_moment + need) / order)
            if best < 12 * math.sqrt(count * variance):  # as narrow as a normal sum: no need to look further
                break
        reach.append(best)
    first, last = count * mean - reach[0], count * mean + reach[1]
    return max(math.floor(first), 0), min(math.ceil(last), (mass.size - 1) * count)

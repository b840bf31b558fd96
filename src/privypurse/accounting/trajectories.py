"""What a fixed trajectory cost each record, by privacy loss distributions, for all records at once.

A record that took c_l steps at level l (rate q, noise multiplier σ_l) has a loss whose characteristic function is
Π φ_l(ω)^{c_l}: for all records together one product of the counts with a table of log φ_l. δ(ε) is linear in the
distribution of the loss, so that a second transform gives δ on a whole grid of ε without the distribution itself
being made; and since the spectrum of thousands of steps dies out early, a few dozen frequencies do.

Why the answer is an upper bound, piece by piece:

- One step's losses are put on a grid by connect-the-dots, which is pessimistic (`loss_distribution`).
- The grid is periodic with N points. A loss that lies above ε by at most N/2 points keeps its weight 1 - e^{ε-ℓ}.
  One that wraps around can only add, since no weight is negative. What lies higher is bounded by Chernoff and added.
- Frequencies that are left out are bounded band by band, the rounding of all that is used is bounded, and both are
  added to δ.
- δ is convex in e^ε (not in ε: one atom shows that), so a chord in e^ε between two bounds lies above it.

Step and period follow from a record's own counts. Any choice is sound; company changes roundings only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft, special

from privypurse.accounting import loss_distribution, sampled_gaussian
from privypurse.accounting.accountant import Progress
from privypurse.accounting.loss_distribution import LossDistribution
from privypurse.accounting.pld import PLD
from privypurse.accounting.rdp import ORDERS
from privypurse.accounting.releases import Composed, SampledGaussian
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.errors import InvalidInput, Unsupported

_GRID = 5e-4  # of ε, about: what putting the losses on a grid may cost
_CHORD = 4e-4  # of ε, about: what reading δ off at some ε only may cost
_SETTLED = 1e-3  # of ε: a grid four times as fine that helps less than this is the last
_TAIL = 1e-6  # of δ: aim for that much loss above the window
_OMITTED = 1e-4  # of δ: frequencies may be left out until they add up to this
_WORTH_MORE_DIGITS = 1e-4  # of δ: arithmetic may lose that much before tables are made in long double
_TOO_LOOSE = 1e-2  # of δ: where more is lost the record is done again by `PLD`
_MOST_TABLE = 2**24  # levels times grid points: a few hundred megabytes for all tables
_MOST_POINTS = 2**20
_MOST_ONE_STEP = 2**19
_ELEMENTS = 2**21  # of one work array
_FLOOR = 1e-14  # smaller moduli are taken to be this, so that their logarithm stays finite
_ROUND_UP = 1 + 1e-12
_EPS = float(np.finfo(np.float64).eps)
_MOMENTS = np.array([30.0, 45.0, 65.0, 100.0, 150.0, 220.0, 330.0, 500.0])  # Chernoff orders times half a period


def epsilons(
    counts: IntArray,
    rate: float,
    noise_multipliers: FloatArray,
    delta: FloatArray | float,
    progress: Progress | None = None,
) -> FloatArray:
    """The ε of every record at its δ, float64[n]: record i took ``counts[i, l]`` steps at level l.

    A step at level l is ``SampledGaussian(rate, noise_multipliers[l])``; an infinite noise multiplier costs nothing.

    Guarantee: never below the true ε of that composition, for adding and for removing the record. It is about 0.1 %
    above it (of the loss's deviation, where ε is less than that). Of a trajectory that depended on earlier outputs it
    is a description, and no guarantee (rule 11).
    """
    steps, sigma, each = _checked(counts, rate, noise_multipliers, delta)
    out = np.zeros(steps.shape[0])
    used = np.flatnonzero(np.isfinite(sigma)) if rate > 0 else np.zeros(0, dtype=np.int64)
    paying = np.flatnonzero(_took_steps(steps, used))
    first, place = _distinct(steps, each, paying)
    if first.size:
        levels = _Levels.of(float(rate), sigma, used)
        out[paying] = _spent(levels, steps, each, first, progress)[place]
    return out


def _checked(
    counts: IntArray, rate: float, noise_multipliers: FloatArray, delta: FloatArray | float
) -> tuple[IntArray, FloatArray, FloatArray]:
    steps, sigma = np.asarray(counts), np.asarray(noise_multipliers, dtype=np.float64)
    if steps.ndim != 2 or steps.dtype.kind not in "iu":
        raise InvalidInput(
            f"counts must be whole numbers [records, levels]; got {steps.dtype} of shape {steps.shape}"
        )
    if sigma.shape != steps.shape[1:]:
        raise InvalidInput(f"noise_multipliers has shape {sigma.shape}; counts has {steps.shape[1]} levels")
    if not (sigma > 0).all():
        raise InvalidInput(f"noise_multipliers must be positive; the smallest is {sigma.min()}")
    if steps.size and steps.min() < 0:
        raise InvalidInput(f"counts must be 0 or more; the smallest is {steps.min()}")
    if not 0 <= rate <= 1:
        raise InvalidInput(f"rate is {rate}; a probability must lie in [0, 1]")
    each = np.broadcast_to(np.asarray(delta, dtype=np.float64), steps.shape[0])
    least = PLD().smallest_delta
    if each.size and not (each.min() >= least and each.max() < 1):
        raise Unsupported(
            f"δ = {each.min():g} is outside [{least:g}, 1) where loss distributions hold in double precision; "
            'choose a larger δ, or accountant="rdp"'
        )
    return steps, sigma, each


def _distinct(steps: IntArray, each: FloatArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """The first record of each kind (same counts, same δ) among ``rows``, and which kind each row is.

    By a hash of 64 bits: sorting whole rows takes longer than all the rest. Rows that share a hash are compared.
    """
    keys = np.random.default_rng(0).integers(1, 2**62, steps.shape[1]).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = np.empty(rows.size, dtype=np.uint64)
    for part in _chunks(rows.size, steps.shape[1]):
        mixed[part] = steps[rows[part]].astype(np.uint64) @ keys
    mixed ^= np.ascontiguousarray(each[rows]).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    like = rows[first][place]
    for part in _chunks(rows.size, steps.shape[1]):
        same = (steps[rows[part]] == steps[like[part]]).all() and (each[rows[part]] == each[like[part]]).all()
        if not same:
            return rows, np.arange(rows.size)
    return rows[first], place


def _took_steps(steps: IntArray, columns: IntArray) -> AnyArray:
    out = np.zeros(steps.shape[0], dtype=np.bool_)
    for part in _chunks(steps.shape[0], steps.shape[1]):
        out[part] = steps[part][:, columns].any(axis=1)
    return out


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices of so many rows that a work array of that width stays small."""
    size = max(1, _ELEMENTS // max(width, 1))
    return (slice(begin, min(begin + size, rows)) for begin in range(0, rows, size))


# --- How fine a grid, and how long: for each record, from its own counts -------------------------------------------


@dataclass(frozen=True, eq=False)
class _Levels:
    """One step at each level that costs anything: estimates. They decide how tight and how fast, no more."""

    rate: float
    sigma: FloatArray
    columns: IntArray
    variance: FloatArray  # of one step's loss, about
    size: FloatArray  # mean modulus of it, about
    top: FloatArray  # how far it reaches
    renyi: FloatArray

    @classmethod
    def of(cls, rate: float, sigma: FloatArray, columns: IntArray) -> _Levels:
        s = sigma[columns]
        with np.errstate(over="ignore"):
            variance = np.minimum(np.log1p(rate**2 * np.expm1(np.minimum(s**-2, 700.0))), s**-2)
        top = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (9 + 0.5 / s) / s)
        size = 2 * rate * (2 * special.ndtr(0.5 / s) - 1)
        renyi = sampled_gaussian.rdp(np.full(s.size, rate), s, ORDERS)
        return cls(rate, s, columns, variance, np.maximum(size, 1e-300), np.maximum(top, 1e-300), renyi)


@dataclass(frozen=True, eq=False)
class _Plans:
    """For each record how fine a grid to begin and to end with (exponents of 2), and how long a period."""

    total: FloatArray
    window: FloatArray
    spread: FloatArray
    step: IntArray
    finest: IntArray

    @classmethod
    def of(cls, levels: _Levels, steps: IntArray, delta: FloatArray, records: IntArray) -> _Plans:
        parts = [
            _plan(levels, steps[records[part]][:, levels.columns].astype(np.float64), delta[records[part]])
            for part in _chunks(records.size, 2 * ORDERS.size)
        ]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def groups(self, levels: _Levels, some: IntArray, delta: FloatArray) -> Iterator[_Group]:
        """Those of ``some`` that share step, period and precision, together."""
        step = self.step[some]
        length = np.maximum(np.ceil(np.log2(self.window[some]) - step), 6).astype(np.int64)
        more_digits = self.total[some] * _unit(2.0**length, np.float64) > _WORTH_MORE_DIGITS * delta
        for (h, points, wide), members in _alike(np.stack([step, length, more_digits.astype(np.int64)], axis=1)):
            precision = np.longdouble if wide else np.float64
            yield _Group(levels, 2.0**h, 2**points, precision, some[members], self.spread[some[members]])


def _spent(
    levels: _Levels, steps: IntArray, each: FloatArray, records: IntArray, progress: Progress | None
) -> FloatArray:
    """ε of each of these records, on ever finer grids until that no longer helps: each grid gives an upper bound."""
    plans = _Plans.of(levels, steps, each, records)
    found = np.full(records.size, np.inf)
    pending, done = np.arange(records.size), 0
    while pending.size:
        open_ = []
        for group in plans.groups(levels, pending, each[records[pending]]):
            some = group.members
            now = group.epsilons(steps, each, records)
            settled = (now >= (1 - _SETTLED) * found[some]) | (plans.step[some] <= plans.finest[some])
            found[some] = np.minimum(found[some], now)
            open_.append(some[~settled])
            done += int(settled.sum())
            if progress:
                progress(done, records.size)
        pending = np.concatenate(open_)
        plans.step[pending] = np.maximum(plans.step[pending] - 2, plans.finest[pending])
    return found


def _alike(kinds: IntArray) -> Iterator[tuple[list[int], IntArray]]:
    """Each different row of a few small numbers, and where it occurs."""
    key = kinds[:, 0].copy()
    for column in kinds.T[1:]:
        key = (key << 8) + column  # columns after the first are below 256
    for kind in np.unique(key).tolist():
        where = np.flatnonzero(key == kind)
        yield kinds[where[0]].tolist(), where


def _plan(levels: _Levels, counts: FloatArray, delta: FloatArray) -> tuple[AnyArray, ...]:
    """The fields of `_Plans` for these records."""
    variance = counts @ levels.variance
    furthest = np.where(counts > 0, levels.top, 0.0).max(axis=1)
    divergence = counts @ levels.renyi

    def reach(log_inverse: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far the loss reaches but for this probability, by Chernoff or about by Bernstein; and ε/κ."""
        bounds = divergence + log_inverse[:, None] / (ORDERS - 1)
        best = bounds.argmin(axis=1)
        chernoff = bounds[np.arange(best.size), best]
        bernstein = variance + np.sqrt(2 * variance * log_inverse) + 2 / 3 * furthest * log_inverse
        return np.minimum(chernoff, bernstein), chernoff / (ORDERS[best] - 1)

    answer, square = reach(np.log(1 / delta))
    window = 2 * (answer + reach(np.log(1 / (_TAIL * delta)))[0])
    # Connect-the-dots adds h²/6 to the variance of a loss, less to losses that are small beside h. A variance v
    # moves ε by κ·v/2 with κ = -d log δ/dε, a share v/(2·ε/κ) of ε. For a normal loss ε/κ is its variance; where the
    # losses are rare and large it is more, but Rényi orders may be far off it: so begin with more, end with less.
    ladder = np.arange(-60, 11)
    h = 2.0**ladder
    added = counts @ np.minimum(h**2 / 6, h * levels.size[:, None])
    most = min(_MOST_POINTS, 2 ** math.floor(math.log2(_MOST_TABLE / levels.columns.size)))
    coarsest = np.ceil(np.maximum(np.log2(window / most), np.log2(furthest / _MOST_ONE_STEP))).astype(np.int64)

    def exponent(allowed: FloatArray) -> IntArray:
        fine = ladder[np.maximum((added <= 2 * _GRID * allowed[:, None]).sum(axis=1) - 1, 0)]
        return np.asarray(np.maximum(fine, coarsest))

    finest, first = exponent(np.minimum(square, variance)), exponent(square)
    first = np.where(first <= finest + 1, finest, first)
    return counts.sum(axis=1), window, np.sqrt(np.minimum(square, variance)), first, finest


def _unit(length: Any, precision: Any) -> Any:
    """A transform of a mass of 1 is off by less than this: 4·log2(n) roundings."""
    return 4 * np.log2(length) * float(np.finfo(precision).eps)


# --- The tables of a group, and what follows for its records -----------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Group:
    """Records that share a grid: ``length`` points a ``step`` of loss apart, periodic."""

    levels: _Levels
    step: float
    length: int
    precision: Any
    members: IntArray
    spread: FloatArray

    def epsilons(self, steps: IntArray, each: FloatArray, records: IntArray) -> FloatArray:
        rows = records[self.members]
        columns = self.levels.columns
        active = np.flatnonzero(np.any([steps[rows[p]][:, columns].any(axis=0) for p in self._parts()], axis=0))
        most = max(int(steps[rows[p]][:, columns].sum(axis=1).max()) for p in self._parts())
        # The tail is cut for a number of steps; a power of two leaves it alike for records of a kind.
        directions = self._one_step(active, 2 ** math.ceil(math.log2(most)))
        worst = np.zeros(rows.size)
        for losses in directions:
            table = _Spectra.of(losses, self.step, self.length, self.precision)
            worst = np.maximum(worst, self._read(table, steps, columns[active], each, rows))
        lost = np.flatnonzero(~np.isfinite(worst))
        if lost.size:  # few, and only where rounding matters or the plan went wrong
            releases = [_as_release(steps[row], self.levels) for row in rows[lost].tolist()]
            worst[lost] = PLD().epsilons(releases, each[rows[lost]])
        return worst * _ROUND_UP

    def _parts(self) -> Iterator[slice]:
        return _chunks(self.members.size, self.levels.columns.size)

    def _one_step(self, active: IntArray, count: int) -> list[list[_Folded]]:
        """For each direction every level's losses of one step, folded into the period."""
        out: list[list[_Folded]] = [[], []]
        for sigma in self.levels.sigma[active].tolist():
            both = loss_distribution.sampled_gaussian(self.levels.rate, sigma, self.step, count)
            for direction, one in enumerate(both):
                out[direction].append(_Folded.of(one, self.length))
        return [direction for direction in out if direction]

    def _read(
        self, table: _Spectra, steps: IntArray, columns: IntArray, each: FloatArray, rows: IntArray
    ) -> FloatArray:
        """ε of each row by one direction's spectra; ∞ where too much was lost to say."""
        out = np.empty(rows.size)
        kinds = np.empty((rows.size, 2), dtype=np.int64)
        omitted = np.empty(rows.size)
        for part in _chunks(rows.size, max(columns.size, table.edges.size)):
            counts = steps[rows[part]][:, columns].astype(np.float64)
            kinds[part, 0], omitted[part] = table.cut(counts, _OMITTED * each[rows[part]])
        # Enough points for the chord, and for the frequencies: powers of two.
        chord = np.ceil(np.log2(self.length * self.step / (self.spread * math.sqrt(8 * _CHORD)))).astype(np.int64)
        needed = 2 + np.floor(np.log2(kinds[:, 0])).astype(np.int64)
        kinds[:, 1] = np.minimum(np.maximum(chord, needed), int(math.log2(self.length)))
        logs = _Logarithms.of(table, int(kinds[:, 0].max()))
        for (last, points), these in _alike(kinds):
            for part in _chunks(these.size, max(2**points, columns.size)):
                some = these[part]
                counts = steps[rows[some]][:, columns].astype(np.float64)
                bound, loss = logs.deltas(counts, last, 2**points)
                loss += omitted[some] + table.above(counts)
                bound += (loss + counts @ table.lost)[:, None]
                wanted = each[rows[some]]
                answer = _first_below(bound, wanted, self.length * self.step / 2**points)
                out[some] = np.where(loss <= _TOO_LOOSE * wanted, answer, np.inf)
        return out


@dataclass(frozen=True, eq=False)
class _Folded:
    """One step's losses wrapped around the period, and what of them wrapping would hide."""

    mass: FloatArray
    log_moments: FloatArray
    lost: float

    @classmethod
    def of(cls, one: LossDistribution, length: int) -> _Folded:
        index = one.lower + np.arange(one.mass.size)
        with np.errstate(divide="ignore"):
            exponents = np.log(one.mass) + np.multiply.outer(_MOMENTS / (length // 2), index)
        peak = exponents.max(axis=1)
        moments = peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1))
        mass = np.zeros(length)
        np.add.at(mass, index % length, one.mass)
        return cls(mass, moments, one.infinity + one.slop)


@dataclass(frozen=True, eq=False)
class _Spectra:
    """One direction's characteristic functions, a row for each level, and what can be left out of them."""

    values: AnyArray
    unit: float  # how far off they may be
    weight: AnyArray  # the transform of the weights 1 - e^-loss
    weight_norm: float
    edges: IntArray  # frequencies up to one of these are used; the last of them is the last of all
    band_peak: FloatArray  # of each level, the largest log modulus from one edge to the next
    band_weight: FloatArray
    log_moments: FloatArray
    lost: FloatArray

    @classmethod
    def of(cls, losses: list[_Folded], step: float, length: int, precision: Any) -> _Spectra:
        half, unit = length // 2, float(_unit(length, precision))
        edges = np.unique(np.minimum(np.round(12 * 2 ** (np.arange(0, 80) / 2)), half)).astype(np.int64)
        values = np.empty((len(losses), half + 1), dtype=np.result_type(precision, np.complex64))
        band_peak = np.empty((len(losses), edges.size - 1))
        for level, one in enumerate(losses):
            values[level] = fft.rfft(one.mass.astype(precision))
            band_peak[level] = np.log(np.maximum.reduceat(np.abs(values[level, 1:]), edges[:-1]) + unit)
        weights = np.zeros(length)
        weights[1 : half + 1] = -np.expm1(-step * np.arange(1, half + 1))
        weight = np.conj(fft.rfft(weights))
        return cls(
            values,
            unit,
            weight,
            float(np.linalg.norm(weights)),
            edges,
            band_peak,
            np.add.reduceat(np.abs(weight[1:]), edges[:-1]) * 2.02 / length,  # both signs, and 1 % for rounding
            np.array([one.log_moments for one in losses]),
            np.array([one.lost for one in losses]),
        )

    def cut(self, counts: FloatArray, allowed: FloatArray) -> tuple[IntArray, FloatArray]:
        """For each record the last frequency to use, and a bound on what all above it could add to δ."""
        with np.errstate(under="ignore"):
            bands = np.exp(np.minimum(counts @ self.band_peak, 1.0)) * self.band_weight
        above = np.cumsum(np.append(bands, np.zeros((counts.shape[0], 1)), axis=1)[:, ::-1], axis=1)[:, ::-1]
        band = np.argmax(above <= allowed[:, None], axis=1)
        return self.edges[band], above[np.arange(band.size), band]

    def above(self, counts: FloatArray) -> FloatArray:
        """Chernoff: the probability of a loss of more than half a period."""
        exponents = counts @ self.log_moments - _MOMENTS
        return np.asarray(np.exp(np.minimum(exponents.min(axis=1), 0.0)) * 1.001)


@dataclass(frozen=True, eq=False)
class _Logarithms:
    """Logarithms of the spectra up to some frequency: what counts are multiplied with."""

    log_size: FloatArray
    angle: FloatArray
    error: FloatArray
    spectra: _Spectra

    @classmethod
    def of(cls, spectra: _Spectra, last: int) -> _Logarithms:
        shape = (spectra.values.shape[0], last + 1)
        log_size, angle, error = np.empty(shape), np.empty(shape), np.empty(shape)
        for level, values in enumerate(spectra.values[:, : last + 1]):
            size = np.abs(values)
            floored = np.maximum(size, _FLOOR)
            log_size[level], angle[level] = np.log(floored), np.angle(values)
            # A value that is off by e has a c-th power that is off by a factor of at most e^{c·e/size}.
            error[level] = np.where(size < _FLOOR, spectra.unit + _FLOOR, spectra.unit) / floored
        # The rounding of these logarithms, and of a sum of so many of them.
        error += (shape[0] + 8) * _EPS * (np.abs(log_size) + np.abs(angle))
        return cls(log_size, angle, error, spectra)

    def deltas(self, counts: FloatArray, last: int, points: int) -> tuple[FloatArray, FloatArray]:
        """δ of each record at ``points``/2 equally spaced ε from 0 on, and how much too small it may be."""
        length = 2 * (self.spectra.weight.size - 1)
        weight, used = self.spectra.weight[: last + 1], slice(0, last + 1)
        with np.errstate(under="ignore"):
            size = np.exp(counts @ self.log_size[:, used])
        phase = counts @ self.angle[:, used]
        spectrum = np.empty(size.shape, dtype=np.complex128)
        spectrum.real, spectrum.imag = size * np.cos(phase), size * np.sin(phase)
        delta = fft.irfft(spectrum * weight, points)[:, : points // 2] * (points / length)
        unit = float(_unit(length, np.float64)) + 8 * _EPS
        relative = np.expm1(np.minimum(counts @ self.error[:, used], 700.0)) + unit
        rounding = 2 / length * ((size * relative) @ np.abs(weight))
        # The weights' own transform is off by that share of its norm (Cauchy & Schwarz).
        rounding += unit * self.spectra.weight_norm / math.sqrt(length) * np.sqrt(2 * (size**2).sum(axis=1))
        return delta, rounding * 1.01


def _first_below(bound: FloatArray, wanted: FloatArray, spacing: float) -> FloatArray:
    """The first ε at which the bound on δ is at most what is wanted, by a chord in e^ε; ∞ where there is none."""
    fits = bound <= wanted[:, None]
    place = np.argmax(fits, axis=1)
    row = np.arange(place.size)
    after, before = bound[row, place], bound[row, np.maximum(place - 1, 0)]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(place > 0, (before - wanted) / (before - after), 1.0)
    # log of x_before + share·(x_after - x_before) with x = e^ε, rounded up; for wide spacings without overflow.
    share = np.minimum(share * (1 + 1e-9), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = (
            np.log1p(share * math.expm1(spacing))
            if spacing < 1
            else np.logaddexp(np.log1p(-share), np.log(share) + spacing)
        )
    epsilon = np.maximum(place - 1, 0) * spacing + beyond
    return np.where(fits.any(axis=1), np.where(place > 0, epsilon, 0.0), np.inf)


def _as_release(counts: IntArray, levels: _Levels) -> Composed:
    pairs = zip(levels.sigma.tolist(), counts[levels.columns].tolist(), strict=True)
    return Composed(tuple(SampledGaussian(levels.rate, sigma, count) for sigma, count in pairs if count))

"""What a fixed trajectory cost each record, by privacy loss distributions, for all records at once.

A record that took c_k steps of kind k (rate q, noise multiplier σ_k) has a loss whose characteristic function is
Π φ_k(ω)^{c_k}: for all records together one product of the counts with a table of log φ_k. δ(ε) is linear in the
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
from scipy import special

from privypurse.accounting import loss_distribution, sampled_gaussian
from privypurse.accounting.accountant import ROUND_UP, Progress, checked_deltas
from privypurse.accounting.characteristic_functions import Folded, Logarithms, Spectra, first_below
from privypurse.accounting.pld import PLD
from privypurse.accounting.rdp import ORDERS
from privypurse.accounting.releases import Composed, SampledGaussian
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.errors import InvalidInput

_GRID = 5e-4  # of ε, about: what putting the losses on a grid may cost
_CHORD = 4e-4  # of ε, about: what reading δ off at some ε only may cost
_SETTLED = 1e-3  # of ε: a grid four times as fine that helps less than this is the last
_TAIL = 1e-6  # of δ: aim for that much loss above the window
_OMITTED = 1e-4  # of δ: frequencies may be left out until they add up to this
_WORTH_MORE_DIGITS = 1e-4  # of δ: arithmetic may lose that much before tables are made in long double
_TOO_LOOSE = 1e-2  # of δ: where more is lost the record is done again by `PLD`
_MOST_TABLE = 2**24  # kinds of step times grid points: a few hundred megabytes for all tables
_MOST_POINTS = 2**20
_MOST_ONE_STEP = 2**19
_ELEMENTS = 2**21  # of one work array


def epsilons(
    counts: IntArray,
    rate: float,
    noise_multipliers: FloatArray,
    delta: FloatArray | float,
    progress: Progress | None = None,
) -> FloatArray:
    """The ε of every record at its δ, float64[n]: record i took ``counts[i, k]`` steps of kind k.

    A step of kind k is ``SampledGaussian(rate, noise_multipliers[k])``; an infinite noise multiplier costs nothing.

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
        kinds = _StepKinds.of(float(rate), sigma, used)
        out[paying] = _spent(kinds, steps, each, first, progress)[place]
    return out


def _checked(
    counts: IntArray, rate: float, noise_multipliers: FloatArray, delta: FloatArray | float
) -> tuple[IntArray, FloatArray, FloatArray]:
    steps, sigma = np.asarray(counts), np.asarray(noise_multipliers, dtype=np.float64)
    if steps.ndim != 2 or steps.dtype.kind not in "iu":
        raise InvalidInput(
            f"counts must be whole numbers [records, kinds of step]; got {steps.dtype} of shape {steps.shape}"
        )
    if sigma.shape != steps.shape[1:]:
        raise InvalidInput(f"noise_multipliers has shape {sigma.shape}; counts has {steps.shape[1]} kinds of step")
    if not (sigma > 0).all():
        raise InvalidInput(f"noise_multipliers must be positive; the smallest is {sigma.min()}")
    if steps.size and steps.min() < 0:
        raise InvalidInput(f"counts must be 0 or more; the smallest is {steps.min()}")
    if not 0 <= rate <= 1:
        raise InvalidInput(f"rate is {rate}; a probability must lie in [0, 1]")
    return steps, sigma, checked_deltas(PLD(), delta, steps.shape[0])


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
class _StepKinds:
    """One step of each kind that costs anything: estimates. They decide how tight and how fast, no more."""

    rate: float
    sigma: FloatArray
    columns: IntArray
    variance: FloatArray  # of one step's loss, about
    size: FloatArray  # mean modulus of it, about
    top: FloatArray  # how far it reaches
    renyi: FloatArray

    @classmethod
    def of(cls, rate: float, sigma: FloatArray, columns: IntArray) -> _StepKinds:
        s = sigma[columns]
        with np.errstate(over="ignore"):
            variance = np.minimum(np.log1p(rate**2 * np.expm1(np.minimum(s**-2, 700.0))), s**-2)
        top = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (9 + 0.5 / s) / s)
        size = 2 * rate * (2 * special.ndtr(0.5 / s) - 1)
        renyi = sampled_gaussian.rdp(np.full(s.size, rate), s, ORDERS)
        return cls(rate, s, columns, variance, np.maximum(size, 1e-300), np.maximum(top, 1e-300), renyi)


@dataclass(frozen=True, eq=False)
class _Grids:
    """For each record how fine a grid to begin and to end with (exponents of 2), and how long a period."""

    total: FloatArray
    window: FloatArray
    spread: FloatArray
    step: IntArray
    finest: IntArray

    @classmethod
    def of(cls, kinds: _StepKinds, steps: IntArray, delta: FloatArray, records: IntArray) -> _Grids:
        parts = [
            _grid(kinds, steps[records[part]][:, kinds.columns].astype(np.float64), delta[records[part]])
            for part in _chunks(records.size, 2 * ORDERS.size)
        ]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def groups(self, kinds: _StepKinds, some: IntArray, delta: FloatArray) -> Iterator[_Group]:
        """Those of ``some`` that share step, period and precision, together."""
        step = self.step[some]
        length = np.maximum(np.ceil(np.log2(self.window[some]) - step), 6).astype(np.int64)
        off = loss_distribution.transform_error(2.0**length, np.float64)
        more_digits = self.total[some] * off > _WORTH_MORE_DIGITS * delta
        for (h, points, wide), members in _alike(np.stack([step, length, more_digits.astype(np.int64)], axis=1)):
            precision = np.longdouble if wide else np.float64
            yield _Group(kinds, 2.0**h, 2**points, precision, some[members], self.spread[some[members]])


def _spent(
    kinds: _StepKinds, steps: IntArray, each: FloatArray, records: IntArray, progress: Progress | None
) -> FloatArray:
    """ε of each of these records, on ever finer grids until that no longer helps: each grid gives an upper bound."""
    grids = _Grids.of(kinds, steps, each, records)
    found = np.full(records.size, np.inf)
    pending, done = np.arange(records.size), 0
    while pending.size:
        open_ = []
        for group in grids.groups(kinds, pending, each[records[pending]]):
            some = group.members
            now = group.epsilons(steps, each, records)
            settled = (now >= (1 - _SETTLED) * found[some]) | (grids.step[some] <= grids.finest[some])
            found[some] = np.minimum(found[some], now)
            open_.append(some[~settled])
            done += int(settled.sum())
            if progress:
                progress(done, records.size)
        pending = np.concatenate(open_)
        grids.step[pending] = np.maximum(grids.step[pending] - 2, grids.finest[pending])
    return found


def _alike(rows: IntArray) -> Iterator[tuple[list[int], IntArray]]:
    """Each different row of a few small numbers, and where it occurs."""
    key = rows[:, 0].copy()
    for column in rows.T[1:]:
        key = (key << 8) + column  # columns after the first are below 256
    for one in np.unique(key).tolist():
        where = np.flatnonzero(key == one)
        yield rows[where[0]].tolist(), where


def _grid(kinds: _StepKinds, counts: FloatArray, delta: FloatArray) -> tuple[AnyArray, ...]:
    """The fields of `_Grids` for these records."""
    variance = counts @ kinds.variance
    furthest = np.where(counts > 0, kinds.top, 0.0).max(axis=1)
    divergence = counts @ kinds.renyi

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
    exponents = np.arange(-60, 11)
    h = 2.0**exponents
    added = counts @ np.minimum(h**2 / 6, h * kinds.size[:, None])
    most = min(_MOST_POINTS, 2 ** math.floor(math.log2(_MOST_TABLE / kinds.columns.size)))
    coarsest = np.ceil(np.maximum(np.log2(window / most), np.log2(furthest / _MOST_ONE_STEP))).astype(np.int64)

    def exponent(allowed: FloatArray) -> IntArray:
        fine = exponents[np.maximum((added <= 2 * _GRID * allowed[:, None]).sum(axis=1) - 1, 0)]
        return np.asarray(np.maximum(fine, coarsest))

    finest, first = exponent(np.minimum(square, variance)), exponent(square)
    first = np.where(first <= finest + 1, finest, first)
    return counts.sum(axis=1), window, np.sqrt(np.minimum(square, variance)), first, finest


# --- The tables of a group, and what follows for its records -----------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Group:
    """Records that share a grid: ``length`` points a ``step`` of loss apart, periodic."""

    kinds: _StepKinds
    step: float
    length: int
    precision: Any
    members: IntArray
    spread: FloatArray

    def epsilons(self, steps: IntArray, each: FloatArray, records: IntArray) -> FloatArray:
        rows = records[self.members]
        columns = self.kinds.columns
        active = np.flatnonzero(np.any([steps[rows[p]][:, columns].any(axis=0) for p in self._parts()], axis=0))
        most = max(int(steps[rows[p]][:, columns].sum(axis=1).max()) for p in self._parts())
        # The tail is cut for a number of steps; a power of two leaves it alike for records of a kind.
        directions = self._one_step(active, 2 ** math.ceil(math.log2(most)))
        worst = np.zeros(rows.size)
        for losses in directions:
            table = Spectra.of(losses, self.step, self.length, self.precision)
            worst = np.maximum(worst, self._read(table, steps, columns[active], each, rows))
        lost = np.flatnonzero(~np.isfinite(worst))
        if lost.size:  # few, and only where rounding matters or the grid was chosen badly
            releases = [_as_release(steps[row], self.kinds) for row in rows[lost].tolist()]
            worst[lost] = PLD().epsilons(releases, each[rows[lost]])
        return worst * ROUND_UP

    def _parts(self) -> Iterator[slice]:
        return _chunks(self.members.size, self.kinds.columns.size)

    def _one_step(self, active: IntArray, count: int) -> list[list[Folded]]:
        """For each direction the losses of one step of every kind, folded into the period."""
        out: list[list[Folded]] = [[], []]
        for sigma in self.kinds.sigma[active].tolist():
            both = loss_distribution.sampled_gaussian(self.kinds.rate, sigma, self.step, count)
            for direction, one in enumerate(both):
                out[direction].append(Folded.of(one, self.length))
        return [direction for direction in out if direction]

    def _read(
        self, table: Spectra, steps: IntArray, columns: IntArray, each: FloatArray, rows: IntArray
    ) -> FloatArray:
        """ε of each row by one direction's spectra; ∞ where too much was lost to say."""
        out = np.empty(rows.size)
        sizes = np.empty((rows.size, 2), dtype=np.int64)
        omitted = np.empty(rows.size)
        for part in _chunks(rows.size, max(columns.size, table.edges.size)):
            counts = steps[rows[part]][:, columns].astype(np.float64)
            sizes[part, 0], omitted[part] = table.cut(counts, _OMITTED * each[rows[part]])
        # Enough points for the chord, and for the frequencies: powers of two.
        chord = np.ceil(np.log2(self.length * self.step / (self.spread * math.sqrt(8 * _CHORD)))).astype(np.int64)
        needed = 2 + np.floor(np.log2(sizes[:, 0])).astype(np.int64)
        sizes[:, 1] = np.minimum(np.maximum(chord, needed), int(math.log2(self.length)))
        logs = Logarithms.of(table, int(sizes[:, 0].max()))
        for (last, points), these in _alike(sizes):
            for part in _chunks(these.size, max(2**points, columns.size)):
                some = these[part]
                counts = steps[rows[some]][:, columns].astype(np.float64)
                bound, loss = logs.deltas(counts, last, 2**points)
                loss += omitted[some] + table.above(counts)
                bound += (loss + counts @ table.lost)[:, None]
                wanted = each[rows[some]]
                answer = first_below(bound, wanted, self.length * self.step / 2**points)
                out[some] = np.where(loss <= _TOO_LOOSE * wanted, answer, np.inf)
        return out


def _as_release(counts: IntArray, kinds: _StepKinds) -> Composed:
    pairs = zip(kinds.sigma.tolist(), counts[kinds.columns].tolist(), strict=True)
    return Composed(tuple(SampledGaussian(kinds.rate, sigma, count) for sigma, count in pairs if count))

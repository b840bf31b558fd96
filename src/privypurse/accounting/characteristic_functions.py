"""Characteristic functions of privacy losses: δ on a whole grid of ε, for many records at once.

Ours; `trajectories` says how they are used and why the answer is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft

from privypurse.accounting.loss_distribution import LossDistribution, transform_error
from privypurse.arrays import AnyArray, FloatArray, IntArray

_FLOOR = 1e-14  # smaller moduli are taken to be this, so that their logarithm stays finite
_EPS = float(np.finfo(np.float64).eps)
_MOMENTS = np.array([30.0, 45.0, 65.0, 100.0, 150.0, 220.0, 330.0, 500.0])  # Chernoff orders times half a period


@dataclass(frozen=True, eq=False)
class Folded:
    """One step's losses wrapped around the period, and what of them wrapping would hide."""

    mass: FloatArray
    log_moments: FloatArray
    lost: float

    @classmethod
    def of(cls, one: LossDistribution, length: int) -> Folded:
        index = one.lower + np.arange(one.mass.size)
        with np.errstate(divide="ignore"):
            exponents = np.log(one.mass) + np.multiply.outer(_MOMENTS / (length // 2), index)
        peak = exponents.max(axis=1)
        moments = peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1))
        mass = np.zeros(length)
        np.add.at(mass, index % length, one.mass)
        return cls(mass, moments, one.infinity + one.slop)


@dataclass(frozen=True, eq=False)
class Spectra:
    """One direction's characteristic functions, a row for each kind of step, and what can be left out of them."""

    values: AnyArray
    off: float  # how far off they may be
    weight: AnyArray  # the transform of the weights 1 - e^-loss
    weight_norm: float
    edges: IntArray  # frequencies up to one of these are used; the last of them is the last of all
    band_peak: FloatArray  # of each kind, the largest log modulus from one edge to the next
    band_weight: FloatArray
    log_moments: FloatArray
    lost: FloatArray

    @classmethod
    def of(cls, losses: list[Folded], step: float, length: int, precision: Any) -> Spectra:
        half, off = length // 2, float(transform_error(length, precision))
        edges = np.unique(np.minimum(np.round(12 * 2 ** (np.arange(0, 80) / 2)), half)).astype(np.int64)
        values = np.empty((len(losses), half + 1), dtype=np.result_type(precision, np.complex64))
        band_peak = np.empty((len(losses), edges.size - 1))
        for kind, one in enumerate(losses):
            values[kind] = fft.rfft(one.mass.astype(precision))
            band_peak[kind] = np.log(np.maximum.reduceat(np.abs(values[kind, 1:]), edges[:-1]) + off)
        weights = np.zeros(length)
        weights[1 : half + 1] = -np.expm1(-step * np.arange(1, half + 1))
        weight = np.conj(fft.rfft(weights))
        return cls(
            values,
            off,
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
class Logarithms:
    """Logarithms of the spectra up to some frequency: what counts are multiplied with."""

    log_size: FloatArray
    angle: FloatArray
    error: FloatArray
    spectra: Spectra

    @classmethod
    def of(cls, spectra: Spectra, last: int) -> Logarithms:
        shape = (spectra.values.shape[0], last + 1)
        log_size, angle, error = np.empty(shape), np.empty(shape), np.empty(shape)
        for kind, values in enumerate(spectra.values[:, : last + 1]):
            size = np.abs(values)
            floored = np.maximum(size, _FLOOR)
            log_size[kind], angle[kind] = np.log(floored), np.angle(values)
            # A value that is off by e has a c-th power that is off by a factor of at most e^{c·e/size}.
            error[kind] = np.where(size < _FLOOR, spectra.off + _FLOOR, spectra.off) / floored
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
        off = float(transform_error(length, np.float64)) + 8 * _EPS
        relative = np.expm1(np.minimum(counts @ self.error[:, used], 700.0)) + off
        rounding = 2 / length * ((size * relative) @ np.abs(weight))
        # The weights' own transform is off by that share of its norm (Cauchy & Schwarz).
        rounding += off * self.spectra.weight_norm / math.sqrt(length) * np.sqrt(2 * (size**2).sum(axis=1))
        return delta, rounding * 1.01


def first_below(bound: FloatArray, wanted: FloatArray, spacing: float) -> FloatArray:
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

"""What each person adds to an answer, as vectors: clipped, put on a grid, added up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray

_INSIDE = 1 - 1e-12
UP = 1 + 1e-12
"""More than the rounding of a norm."""


@dataclass(frozen=True, eq=False)
class Dense:
    """A row of numbers for each person."""

    values: FloatArray

    @property
    def size(self) -> int:
        """How many numbers each person has."""
        return int(self.values.shape[1])

    def norms(self) -> FloatArray:
        """Everybody's Euclidean norm, correct but for rounding far below `UP`."""
        if self.values.shape[1] == 1:
            return np.abs(self.values[:, 0])
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", self.values, self.values))
            huge = np.flatnonzero(np.isinf(norms))  # their squares overflow
            if huge.size:
                largest = np.abs(self.values[huge]).max(axis=1)
                norms[huge] = largest * np.sqrt(np.square(self.values[huge] / largest[:, None]).sum(axis=1))
        return np.asarray(norms)

    def clipped(self, limit: float) -> Dense:
        """Vectors longer than ``limit`` scaled down into it, the others as they are."""
        factor = _factors(self.norms(), limit)
        return self if factor is None else Dense(self.values * factor[:, None])

    def rounded(self, grain: float) -> Dense:
        """Every number cut towards zero to a multiple of ``grain``, a power of two: no vector gets longer."""
        return Dense(np.trunc(self.values / grain) * grain)

    def total(self, taking_part: AnyArray) -> FloatArray:
        """The sum over those who take part. Exact on a grid (see `grain`); takes as long whoever they are."""
        return np.asarray(taking_part.astype(np.float64) @ self.values)


@dataclass(frozen=True, eq=False)
class Sparse:
    """Few numbers for each person: ``value`` of ``person`` at ``place``, each pair at most once."""

    person: IntArray
    place: IntArray
    value: FloatArray
    people: int
    size: int

    def norms(self) -> FloatArray:
        return np.sqrt(np.bincount(self.person, np.square(self.value), minlength=self.people))

    def clipped(self, limit: float) -> Sparse:
        factor = _factors(self.norms(), limit)
        return self if factor is None else replace(self, value=self.value * factor[self.person])

    def rounded(self, grain: float) -> Sparse:
        return replace(self, value=np.trunc(self.value / grain) * grain)

    def total(self, taking_part: AnyArray) -> FloatArray:
        kept = np.where(taking_part[self.person], self.value, 0.0)
        return np.asarray(np.bincount(self.place, kept, minlength=self.size), dtype=np.float64)


Contributions = Dense | Sparse
"""One vector for each person. Guarantee: each depends on that person's rows alone, and is finite."""


def _factors(norms: FloatArray, limit: float) -> FloatArray | None:
    over = norms > limit
    if not over.any():
        return None
    return np.where(over, limit * _INSIDE / np.where(over, norms, 1.0), 1.0)


def by_person(rows: FloatArray, owner: IntArray | None, people: int) -> Dense:
    """Rows of numbers added up for each person; ``owner`` None: every record is a person.

    A row with a NaN or ∞ counts as zero, and so does a sum that overflows (rule 12: isolation).
    """
    sums = _finite(rows)
    if owner is not None:
        columns = [np.bincount(owner, sums[:, place], minlength=people) for place in range(rows.shape[1])]
        sums = _finite(np.stack(columns, axis=1))
    return Dense(sums)


def _finite(rows: FloatArray) -> FloatArray:
    fine = np.isfinite(rows)
    return rows if fine.all() else np.where(np.asarray(fine.all(axis=1))[:, None], rows, 0.0)


def in_bins(place: IntArray, owner: IntArray | None, people: int, size: int) -> Sparse:
    """How many rows each person has in each of ``size`` bins; ``place`` is -1 for a row in none."""
    chosen = np.flatnonzero(place >= 0)
    if owner is None:
        return Sparse(chosen, place[chosen], np.ones(chosen.size), people, size)
    pairs, counts = np.unique(owner[chosen] * size + place[chosen], return_counts=True)
    return Sparse(pairs // size, pairs % size, counts.astype(np.float64), people, size)


def grain(people: int, clip: float, noise: float) -> float:
    """The grid on which contributions and noise are put: a power of two that follows from public numbers alone.

    Sums of numbers on it are exact, whatever the order, because they stay below 2^53 grains. Then noise rounded to
    the grid and added to the sum is the same as the sum with exact noise added, rounded afterwards: what is released
    follows from the Gaussian mechanism on real numbers, and no low-order digit of a float tells what was added to it
    (Mironov 2012). It is at least 2^32 times finer than the noise unless the sum itself does not fit a float so
    finely.
    """
    finest = max(math.ldexp(noise, -32), math.ldexp(people * clip, -52))
    return math.ldexp(1.0, math.ceil(math.log2(finest)))

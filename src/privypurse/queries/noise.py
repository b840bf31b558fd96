"""Noise for answers: from the operating system's cryptographic generator, or from a seed for tests (rule 10)."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput, PrivyPurseWarning


class Noise(Protocol):
    """A source of independent noise in float64."""

    @property
    def secure(self) -> bool: ...

    def normal(self, count: int) -> FloatArray:
        """Standard normals."""
        ...

    def laplace(self, count: int) -> FloatArray:
        """Laplace of scale 1, so of variance 2."""
        ...


class _FromBits(ABC):
    """Transforms of independent 64-bit words.

    Uniforms lie in (0, 1] and reach down to 2^-64, so a normal reaches 9.4 and a Laplace 44 deviations or scales:
    what is missing beyond has a probability below 2^-63 for each number.
    """

    @abstractmethod
    def _words(self, count: int) -> npt.NDArray[np.uint64]: ...

    def _uniform(self, count: int) -> FloatArray:
        return (self._words(count).astype(np.float64) + 1.0) * 2.0**-64

    def normal(self, count: int) -> FloatArray:
        """By Box and Muller's transform."""
        half = (count + 1) // 2
        uniform = self._uniform(2 * half)
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = 2.0 * np.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def laplace(self, count: int) -> FloatArray:
        size = -np.log(self._uniform(count))
        return np.where(self._words(count) >> np.uint64(63) == 0, size, -size)


class SecureNoise(_FromBits):
    """Words from the operating system, drawn when they are needed: there is no state to save, fork or guess."""

    secure = True

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class SeededNoise(_FromBits):
    """Words from a seed: repeatable, and therefore for tests only. Says so."""

    secure = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidInput(f"seed is {seed!r}; it must be a whole number from 0 on")
        warnings.warn(
            f"seed={seed}: whoever knows the seed can subtract the noise, so nothing is private; for tests only",
            PrivyPurseWarning,
            stacklevel=4,
        )
        self._generator = np.random.default_rng(seed)

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._generator.bytes(8 * count), dtype=np.uint64)


def noise_source(seed: int | None = None) -> Noise:
    """The cryptographic source, or a seeded one (with a warning)."""
    return SecureNoise() if seed is None else SeededNoise(seed)

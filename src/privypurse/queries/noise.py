"""Noise for answers: from the operating system's cryptographic generator, or from a seed for tests."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from privypurse._validate import seed_for_tests
from privypurse.arrays import FloatArray


class Noise(ABC):
    """A source of independent standard normals in float64, made of independent 64-bit words.

    Uniforms lie in (0, 1] and reach down to 2^-64, so a normal reaches 9.4 deviations: what is missing beyond has a
    probability below 2^-63 for each number.
    """

    secure: bool

    @abstractmethod
    def _words(self, count: int) -> npt.NDArray[np.uint64]: ...

    def normal(self, count: int) -> FloatArray:
        """By Box and Muller's transform."""
        half = (count + 1) // 2
        uniform = (self._words(2 * half).astype(np.float64) + 1.0) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = 2.0 * np.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class SecureNoise(Noise):
    """Words from the operating system, drawn when they are needed: there is no state to save, fork or guess."""

    secure = True

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class SeededNoise(Noise):
    """Words from a seed: repeatable, and therefore for tests only. Says so."""

    secure = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed_for_tests(seed, stacklevel=5))

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._generator.bytes(8 * count), dtype=np.uint64)


def noise_source(seed: int | None = None) -> Noise:
    """The cryptographic source, or a seeded one (with a warning)."""
    return SecureNoise() if seed is None else SeededNoise(seed)

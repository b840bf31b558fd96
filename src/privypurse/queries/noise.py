"""Noise for answers: from the operating system's cryptographic generator, or from a seed for tests."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from privypurse._validate import seed_for_tests
from privypurse.arrays import FloatArray


class Noise:
    """A source of independent standard normals in float64, made of independent 64-bit words.

    The words come from the operating system when they are needed, so that there is no state to save, fork or guess;
    with a seed they can be repeated, which is for tests only and says so. Uniforms lie in (0, 1] and reach down to
    2^-64, so a normal reaches 9.4 deviations: what is missing beyond has a probability below 2^-63 for each number.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.secure = seed is None
        generator = None if seed is None else np.random.default_rng(seed_for_tests(seed, stacklevel=4))
        self._bytes = os.urandom if generator is None else generator.bytes

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._bytes(8 * count), dtype=np.uint64)

    def normal(self, count: int) -> FloatArray:
        """By Box and Muller's transform."""
        half = (count + 1) // 2
        uniform = (self._words(2 * half).astype(np.float64) + 1.0) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = 2.0 * np.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

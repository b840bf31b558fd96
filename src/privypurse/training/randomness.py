"""Where coins and noise come from: a cryptographic stream keyed by the operating system, or a seed for tests."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privypurse.arrays import FloatArray
from privypurse.errors import PrivyPurseWarning


class Randomness(Protocol):
    """A source of independent coins and noise."""

    @property
    def secure(self) -> bool: ...

    def uniform(self, count: int) -> FloatArray:
        """Independent uniforms in (0, 1], multiples of 2^-53 (rule 3)."""
        ...

    def normal(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent standard normals."""
        ...


class SecureRandomness:
    """AES-256 in counter mode, keyed with 32 bytes from the operating system.

    Guarantee: whoever cannot break AES cannot tell the coins and the noise from truly random ones, even after seeing
    all the others (rule 10). The key exists in this process only; there is no state to save.

    Normals are made by Box and Muller's transform. The radius comes from 63 bits, so it reaches 9.3 deviations: what
    is missing beyond has a probability below 2^-62 for each number.
    """

    secure = True

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        self._zeros = bytes(0)

    def _bits(self, count: int, dtype: torch.dtype) -> Tensor:
        size = count * dtype.itemsize
        if len(self._zeros) < size:
            self._zeros = bytes(size)
        out = bytearray(size + 15)
        self._stream.update_into(memoryview(self._zeros)[:size], out)
        return torch.frombuffer(out, dtype=dtype, count=count)

    def uniform(self, count: int) -> FloatArray:
        if count == 0:
            return np.empty(0)
        whole = self._bits(count, torch.int64).numpy().view(np.uint64) >> np.uint64(11)
        return (whole.astype(np.float64) + 1.0) * 2.0**-53

    def normal(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if count == 0:
            return torch.empty(0, dtype=dtype)
        half = (count + 1) // 2
        # A float keeps 24 (or 53) digits however small it is: u reaches down to 2^-63.
        u = self._bits(half, torch.int64).to(dtype).abs_().mul_(2.0**-63).clamp_(min=2.0**-64)
        radius = u.log_().mul_(-2.0).sqrt_()
        turns = torch.int32 if dtype == torch.float32 else torch.int64
        angle = self._bits(half, turns).to(dtype).mul_(math.pi / 2.0 ** (8 * turns.itemsize - 1))
        out = torch.empty(2 * half, dtype=dtype)
        torch.cos(angle, out=out[:half]).mul_(radius)
        torch.sin(angle, out=out[half:]).mul_(radius)
        return out[:count]


class SeededRandomness:
    """An ordinary generator from a seed: repeatable, and therefore for tests only. Says so."""

    secure = False

    def __init__(self, seed: int) -> None:
        warnings.warn(
            f"seed={seed}: whoever knows the seed can repeat noise and coins, so nothing is private; for tests only",
            PrivyPurseWarning,
            stacklevel=3,
        )
        self._coins = np.random.default_rng([seed, 1])
        self._noise = torch.Generator().manual_seed(seed)

    def uniform(self, count: int) -> FloatArray:
        return 1.0 - self._coins.random(count)

    def normal(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(count, generator=self._noise, dtype=dtype)

    def state(self) -> dict[str, Any]:
        """For a checkpoint of a seeded run; an unseeded one has none (rule 10)."""
        return {"coins": self._coins.bit_generator.state, "noise": self._noise.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._coins.bit_generator.state = state["coins"]
        self._noise.set_state(state["noise"])


def randomness(seed: int | None = None) -> SecureRandomness | SeededRandomness:
    """The cryptographic source, or a seeded one (with a warning)."""
    return SecureRandomness() if seed is None else SeededRandomness(seed)

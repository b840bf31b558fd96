"""Where coins and noise come from: a cryptographic stream keyed by the operating system, or a seed for tests."""

from __future__ import annotations

import importlib.util
import math
import os
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from privypurse._validate import seed_for_tests
from privypurse.arrays import FloatArray

if TYPE_CHECKING:
    from privypurse._chacha import ChaCha

Device = torch.device | str


class SecureRandomness:
    """Streams keyed by the operating system: AES-256 in counter mode, and on a GPU ChaCha20.

    Guarantee: whoever cannot break AES or ChaCha20 cannot tell the coins and the noise from truly random ones, even
    after seeing all the others (rule 10: cryptographic noise). The keys exist in this process only; there is no state
    to save, and a process that was forked from this one has keys of its own.

    Normals are made by Box and Muller's transform in float64. The radius comes from 63 bits or more, so it reaches
    9.3 deviations: what is missing beyond has a probability below 2^-62 for each number.
    """

    secure = True

    def __init__(self) -> None:
        self._zeros = bytes(0)
        self._key()

    def _key(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._process = os.getpid()
        self._stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        self._on_device: dict[torch.device, ChaCha] = {}

    def for_step(self, step: int, rank: int = 0) -> SecureRandomness:
        """The source of one step: this one."""
        return self

    def _bits(self, count: int) -> Tensor:
        if os.getpid() != self._process:
            self._key()  # a fork would repeat its parent's noise
        size = 8 * count
        if len(self._zeros) < size:
            self._zeros = bytes(size)
        out = bytearray(size + 15)
        self._stream.update_into(memoryview(self._zeros)[:size], out)
        return torch.frombuffer(out, dtype=torch.int64, count=count)

    def uniform(self, count: int) -> FloatArray:
        """Independent uniforms in (0, 1], multiples of 2^-53 (rule 3: Poisson sampling)."""
        if count == 0:
            return np.empty(0)
        found = (self._bits(count).numpy().view(np.uint64) >> np.uint64(11)).astype(np.float64)
        found += 1.0
        found *= 2.0**-53
        return found

    def normal(self, count: int, device: Device = "cpu", deviation: float = 1.0) -> Tensor:
        """Independent normals in float64."""
        if count == 0:
            return torch.empty(0, dtype=torch.float64, device=device)
        stream = self.stream(torch.device(device))
        if stream is not None:
            return stream.normal(count).mul_(deviation)
        half = (count + 1) // 2
        u, angle = self._bits(2 * half).to(torch.float64).view(2, half)
        # A float keeps 53 digits however small it is: u reaches down to 2^-63.
        u.abs_().mul_(2.0**-63).clamp_(min=2.0**-64)
        radius = u.log_().mul_(-2.0 * deviation**2).sqrt_()
        angle.mul_(math.pi / 2.0**63)
        out = torch.empty(2 * half, dtype=torch.float64)
        torch.cos(angle, out=out[:half]).mul_(radius)
        torch.sin(angle, out=out[half:]).mul_(radius)
        return out[:count].to(device)

    def stream(self, device: torch.device) -> ChaCha | None:
        """What makes noise on this device without a detour, if there is something."""
        if not _makes_noise(device):
            return None
        if os.getpid() != self._process:
            self._key()
        if device not in self._on_device:
            from privypurse._chacha import ChaCha

            self._on_device[device] = ChaCha(device)
        return self._on_device[device]


@cache
def _makes_noise(device: torch.device) -> bool:
    """Whether there is a kernel for it."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class SeededRandomness:
    """Made from a seed and a step's number alone: no state, but repeatable, so for tests only.

    Does what `SecureRandomness` does, on a GPU by the same kernel, and says that it is no such thing. A GPU and a CPU
    have different numbers.
    """

    secure = False

    def __init__(self, seed: int) -> None:
        self.seed = seed_for_tests(seed, stacklevel=4)
        self._where: tuple[int, ...] = (self.seed,)
        self._keyed: dict[torch.device, ChaCha] = {}  # for all steps, which begin at places far apart
        self._on_device: dict[torch.device, ChaCha] = {}

    def for_step(self, step: int, rank: int = 0) -> SeededRandomness:
        source = object.__new__(SeededRandomness)
        source.seed, source._where = self.seed, (self.seed, step, rank)
        source._keyed, source._on_device = self._keyed, {}
        return source

    @cached_property
    def _coins(self) -> np.random.Generator:
        return np.random.default_rng([1, *self._where])

    @cached_property
    def _noise(self) -> torch.Generator:
        word = np.random.SeedSequence([2, *self._where]).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(word >> np.uint64(1)))

    def uniform(self, count: int) -> FloatArray:
        return 1.0 - self._coins.random(count)

    def normal(self, count: int, device: Device = "cpu", deviation: float = 1.0) -> Tensor:
        stream = self.stream(torch.device(device)) if count else None
        if stream is not None:
            return stream.normal(count).mul_(deviation)
        return torch.randn(count, generator=self._noise, dtype=torch.float64).mul_(deviation).to(device)

    def stream(self, device: torch.device) -> ChaCha | None:
        if not _makes_noise(device):
            return None
        if device not in self._keyed:
            from privypurse._chacha import ChaCha

            key = np.random.SeedSequence([3, self.seed]).generate_state(5, np.uint64)
            self._keyed[device] = ChaCha(device, key.tobytes())
        if device not in self._on_device:
            place = np.random.SeedSequence([4, *self._where]).generate_state(1, np.uint64)[0]
            self._on_device[device] = self._keyed[device].at(int(place >> np.uint64(2)))
        return self._on_device[device]


Randomness = SecureRandomness | SeededRandomness
"""A source of independent coins and noise."""


def randomness(seed: int | None = None) -> Randomness:
    """The cryptographic source, or a seeded one (with a warning)."""
    return SecureRandomness() if seed is None else SeededRandomness(seed)

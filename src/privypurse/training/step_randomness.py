"""What is random in a step beside coins and noise: dropout, augmentation, a choice of what is checked.

Such numbers go by row, and rows by who was drawn. With numbers that somebody knows, one absence shifts everybody's
mask, and with it the sum by many clip norms. With secret ones that are alike for every row it shifts nothing: whoever
is beside me, my mask is drawn alike (releases are mixtures over masks that can be paired person by person, and
divergences are jointly convex). So Python's, NumPy's and torch's own generators are keyed by the run's source.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from privypurse.randomness import Randomness

_KEY_STREAM = 2**22  # of a seeded run's random numbers: none of its processes has such a rank
_WORDS = 624  # of a Mersenne twister's state
_BEFORE_WORDS = 3  # numbers of 64 bits in torch's state of one: seed, how many are left, which is next
_FIRST = 2  # times that something is checked in any case
_SHORT = 256  # entries of a list that is gone through in search of generators: transforms, not people
_LATER = 1 / 100  # and later by chance: how likely

Made = TypeVar("Made")
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class Keys:
    """One secret root a step, of the run's source; keys for all that the step does follow from it.

    A step that is begun again has the same ones: whoever breaks off has nothing to choose from. A seeded run's follow
    from its seed and the step.
    """

    def __init__(self, source: Randomness, rank: int = 0) -> None:
        self.source, self._rank = source, rank
        self._roots: dict[int, bytes] = {}
        self._step, self._turn = 0, 0
        self._asked: dict[str, int] = {}

    def begin(self, step: int) -> None:
        """The step is begun, perhaps not for the first time; no earlier one will be again, but in a seeded run."""
        self._roots = {number: root for number, root in self._roots.items() if number >= step}
        self._step, self._turn = step, 0

    def of(self, step: int, what: str) -> bytes:
        """A key for this use in this step."""
        if step not in self._roots:
            self._roots[step] = self.source.for_step(step, _KEY_STREAM + self._rank).uniform(5).tobytes()
        return hashlib.sha256(self._roots[step] + what.encode()).digest()

    def next(self) -> bytes:
        """A key for the next use in the step that is begun: no two uses share their numbers."""
        self._turn += 1
        return self.of(self._step, f"turn {self._turn}")

    def due(self, what: str, later: float | None = None) -> bool:
        """Whether to check now: the first few times that one could, and at random ones that nobody can foresee."""
        self._asked[what] = number = self._asked.get(what, 0) + 1
        if number <= _FIRST:
            return True
        key = self.of(self._step, f"{what} {number}")
        return int.from_bytes(key[:8], "big") < (_LATER if later is None else later) * 2**64


def _global(device: torch.device | None, everything: bool = True) -> list[Any]:
    """Torch's generators, of the CPU and of this device, and Python's and NumPy's if these count too."""
    found: list[Any] = [torch.default_generator]
    if device is not None and device.type == "cuda":
        found.append(
            torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        )
    return [*found, random, np.random] if everything else found


def key_cuda(key: bytes, device: torch.device) -> None:
    """Key the generator of a GPU. Graphs that were captured read its seed at every replay."""
    _key(_global(device, everything=False)[-1], key)


def key_all(key: bytes, device: torch.device | None = None) -> None:
    """Key torch's, Python's and NumPy's global generators."""
    for generator in _global(device):
        _key(generator, key)


def borrowed(device: torch.device | None = None, everything: bool = True) -> AbstractContextManager[None]:
    """The global generators are afterwards what they were."""
    return _given_back(_global(device, everything))


_alone = threading.RLock()


def _renew() -> None:
    """A process that was forked in the middle of another thread's training has no such thread."""
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def alone() -> AbstractContextManager[Any]:
    """One thread of the process at a time: two would key the same generators, and each find the other's numbers.

    In the same thread one may stand inside another.
    """
    return _alone


@contextmanager
def keyed(key: bytes, device: torch.device | None = None, everything: bool = True) -> Iterator[None]:
    """Whatever draws inside takes numbers of this key, and the generators are afterwards what they were."""
    generators = _global(device, everything)
    with _given_back(generators):
        for generator in generators:
            _key(generator, key)
        yield


@contextmanager
def keyed_apart(generators: list[Any], key: bytes) -> Iterator[None]:
    """These generators give numbers of this key, each its own, and are afterwards what they were."""
    with _given_back(generators):
        for number, generator in enumerate(generators):
            _key(generator, hashlib.sha256(key + f"generator {number}".encode()).digest())
        yield


def made_with(key: bytes, make: Callable[[], Made], device: torch.device | None = None) -> tuple[Made, bool]:
    """What ``make`` gives with numbers of this key, and whether it drew any."""
    with keyed(key, device):
        before = _all_states(device)
        return make(), before != _all_states(device)


def _all_states(device: torch.device | None) -> list[bytes]:
    """Of torch's, Python's and NumPy's generators, to compare."""
    found = map(state_of, _global(device))
    return [state.numpy().tobytes() if isinstance(state, Tensor) else pickle.dumps(state) for state in found]


def own_generators(thing: Any, deepest: int = 4) -> list[Any]:
    """Generators that a data set holds, or what it changes records with, in attributes and short lists."""
    found: dict[int, Any] = {}
    waiting, seen = [(thing, 0)], set()
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, GENERATORS):
            found[id(value)] = value
        elif id(value) not in seen and depth <= deepest and not isinstance(value, type | Tensor | np.ndarray):
            seen.add(id(value))
            inside = vars(value) if hasattr(value, "__dict__") else value
            several = list(inside.values()) if isinstance(inside, dict) else inside
            if isinstance(several, list | tuple) and len(several) <= _SHORT:
                waiting += [(each, depth + 1) for each in several]
    return list(found.values())


@contextmanager
def _given_back(generators: list[Any]) -> Iterator[None]:
    before = [state_of(generator) for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            if isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            else:
                (generator.setstate if hasattr(generator, "setstate") else generator.set_state)(state)


def state_of(generator: Any) -> Any:
    """The state of a generator of Python, NumPy or torch; modules ``random`` and ``np.random`` are theirs too."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()


def _key(generator: Any, key: bytes) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(int.from_bytes(key, "big")).state
    elif not isinstance(generator, torch.Generator):
        generator.seed(
            int.from_bytes(key, "big") if hasattr(generator, "getstate") else np.frombuffer(key, np.uint32)
        )
    elif generator.device.type == "cpu":
        generator.set_state(_twister(key))
    else:
        generator.manual_seed(int.from_bytes(key[:8], "big") >> 1)


def states(device: torch.device | None = None) -> list[Tensor]:
    """Of torch's generators: they tell for certain whether something drew from them."""
    return [generator.get_state() for generator in _global(device, everything=False)]


def restore_states(before: list[Tensor], device: torch.device | None = None) -> None:
    """Torch's generators go on from these states."""
    for generator, state in zip(_global(device, everything=False), before, strict=False):
        generator.set_state(state.cpu())


def seeds(device: torch.device | None = None) -> list[int]:
    """What torch's generators were seeded with."""
    return [generator.initial_seed() for generator in _global(device, everything=False)]


def _twister(key: bytes) -> Tensor:
    """A state of torch's CPU generator all of whose words follow from the key; a seed would give 32 bits of it."""
    seed, fresh = int.from_bytes(key[:8], "big") >> 1, _fresh_state()
    if fresh is None:
        return torch.Generator().manual_seed(seed).get_state()
    words = np.frombuffer(hashlib.shake_256(key).digest(4 * _WORDS), np.uint32).astype(np.int64)
    state = fresh.clone()
    state.view(torch.int64)[0] = seed  # which only tells if it changes
    state.view(torch.int64)[_BEFORE_WORDS : _BEFORE_WORDS + _WORDS] = torch.from_numpy(words)
    return state


@cache
def _fresh_state() -> Tensor | None:
    """The state right after seeding, when no number was handed out.

    None if this release of torch keeps the words of its state elsewhere than where they have been since 1.0.
    """
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    begin, end = 8 * _BEFORE_WORDS, 8 * (_BEFORE_WORDS + _WORDS)
    fresh = one.get_state()
    if fresh.numel() < end:
        return None
    one.set_state(torch.cat([fresh[:begin], other.get_state()[begin:end], fresh[end:]]))
    same = torch.equal(torch.rand(2000, generator=one), torch.rand(2000, generator=other))
    return fresh if same else None

"""What is random in a step beside coins and noise: dropout, augmentation, a choice of what is looked at.

Such numbers go by row, and rows by who was drawn. With numbers that somebody knows, one absence shifts everybody's
mask, and with it the sum by many clip norms. With secret ones that are alike for every row it shifts nothing: whoever
is beside me, my mask is drawn alike (releases are mixtures over masks that can be paired person by person, and
divergences are jointly convex). So Python's, NumPy's and torch's own generators are keyed by the run's source.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from privypurse.randomness import Randomness

_KEY_STREAM = 2**22  # of a seeded run's random numbers: none of its processes has such a rank
_WORDS = 624  # of a Mersenne twister's state
_BEFORE_WORDS = 3  # numbers of 64 bits in torch's state of one: seed, how many are left, which is next
_FIRST = 2  # times that something is looked at in any case
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
        self._looks: dict[str, int] = {}

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
        """Whether to look now: at the first few times that one could, and at random ones that nobody can foresee."""
        self._looks[what] = number = self._looks.get(what, 0) + 1
        if number <= _FIRST:
            return True
        key = self.of(self._step, f"{what} {number}")
        return int.from_bytes(key[:8], "big") < (_LATER if later is None else later) * 2**64


def key_torch(key: bytes, device: torch.device | None = None) -> None:
    """Key torch's generators, of the CPU and of this device."""
    torch.default_generator.set_state(_twister(key))
    if device is not None and device.type == "cuda":
        key_cuda(key, device)


def key_cuda(key: bytes, device: torch.device) -> None:
    """Key the generator of a GPU. Graphs that were captured read its seed at every replay."""
    torch.cuda.default_generators[_index(device)].manual_seed(int.from_bytes(key[:8], "big") >> 1)


def key_all(key: bytes, device: torch.device | None = None) -> None:
    """Key Python's and NumPy's global generators too."""
    key_torch(key, device)
    random.seed(int.from_bytes(key, "big"))
    np.random.seed(np.frombuffer(key, np.uint32))  # noqa: NPY002


@contextmanager
def keyed(key: bytes, device: torch.device | None = None, everything: bool = True) -> Iterator[None]:
    """Whatever draws inside takes numbers of this key, and the generators are afterwards what they were."""
    with borrowed(device, everything):
        (key_all if everything else key_torch)(key, device)
        yield


@contextmanager
def borrowed(device: torch.device | None = None, everything: bool = True) -> Iterator[None]:
    """The global generators are afterwards what they were."""
    cuda = None
    if device is not None and device.type == "cuda":
        cuda = torch.cuda.default_generators[_index(device)]
    ours, theirs = torch.default_generator.get_state(), None if cuda is None else cuda.get_state()
    others: Any = (random.getstate(), np.random.get_state()) if everything else None  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(ours)
        if cuda is not None and theirs is not None:
            cuda.set_state(theirs)
        if others is not None:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002


def made_with(key: bytes, make: Callable[[], Made], device: torch.device | None = None) -> tuple[Made, bool]:
    """What ``make`` gives with numbers of this key, and whether it drew any from torch's generators."""
    with keyed(key, device):
        before = states(device)
        return make(), not all(map(torch.equal, before, states(device)))


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
def keyed_apart(generators: list[Any], key: bytes) -> Iterator[None]:
    """These generators give numbers of this key, and are afterwards what they were."""
    before = [_state_of(generator) for generator in generators]
    for number, generator in enumerate(generators):
        _set(generator, hashlib.sha256(key + f"generator {number}".encode()).digest())
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            _put_back(generator, state)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)


def _set(generator: Any, key: bytes) -> None:
    number = int.from_bytes(key, "big")
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(number).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(number % 2**63)
        if generator.device.type == "cpu":
            generator.set_state(_twister(key))
    else:
        generator.seed(number if isinstance(generator, random.Random) else np.frombuffer(key, np.uint32))


def states(device: torch.device | None = None) -> list[Tensor]:
    """Of torch's generators: they tell for certain whether something drew from them."""
    found = [torch.default_generator.get_state()]
    if device is not None and device.type == "cuda":
        found.append(torch.cuda.default_generators[_index(device)].get_state())
    return found


def seeds(device: torch.device | None = None) -> list[int]:
    """What torch's generators were seeded with."""
    found = [torch.default_generator.initial_seed()]
    if device is not None and device.type == "cuda":
        found.append(torch.cuda.default_generators[_index(device)].initial_seed())
    return found


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _twister(key: bytes) -> Tensor:
    """A state of torch's CPU generator all of whose words follow from the key; a seed would give 32 bits of it."""
    words = np.frombuffer(hashlib.shake_256(key).digest(4 * _WORDS), np.uint32).astype(np.int64)
    state = _template().clone()
    if _known_layout():
        state.view(torch.int64)[0] = int.from_bytes(key[:8], "big") >> 1  # its seed, which only tells if it changes
        state.view(torch.int64)[_BEFORE_WORDS : _BEFORE_WORDS + _WORDS] = torch.from_numpy(words)
        return state
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1).get_state()


@cache
def _template() -> Tensor:
    """The state right after seeding: no number was handed out."""
    return torch.Generator().manual_seed(0).get_state()


@cache
def _known_layout() -> bool:
    """Whether this release of torch keeps the words of its state where they have been since 1.0."""
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    begin, end = 8 * _BEFORE_WORDS, 8 * (_BEFORE_WORDS + _WORDS)
    state, words = one.get_state(), other.get_state()
    if state.numel() < end:
        return False
    state[begin:end] = words[begin:end]
    one.set_state(state)
    return bool(torch.equal(torch.rand(2000, generator=one), torch.rand(2000, generator=other)))

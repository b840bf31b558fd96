"""All that a model holds: what a forward pass leaves behind, and putting it back."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.training.step_randomness import GENERATORS, state_of

_DEEPEST = 12  # containers inside of containers, and objects inside of objects
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, torch.dtype)
_left_alone: set[type] = set()


def leave_alone(kind: type) -> None:
    """Nothing of this kind is gone through: what runs the model, which its modules point back to, is none of it."""
    _left_alone.add(kind)


class Memory:
    """What a model's modules, or any object, hold now, in buffers and plain attributes, with all that is reachable.

    Tensors, arrays, numbers, strings and generators are leaves; lists, dictionaries and objects are gone through.
    Parameters are left to `fingerprint`. What only a closure, a global or a class holds is not seen.
    """

    def __init__(self, model: Any) -> None:
        self.leaves: dict[str, Any] = {}
        self._held: list[tuple[Any, Any]] = []
        self._values: list[tuple[Any, Any]] = []
        self._seen: dict[int, Any] = {}
        self._walk(model, "", 0)

    def _walk(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self.leaves[path] = value
            return
        if id(value) in self._seen or isinstance(value, (nn.Parameter, *_CLOSED, *_left_alone)) or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor | np.ndarray):
            self.leaves[path] = copy = value.detach().clone() if isinstance(value, Tensor) else value.copy()
            self._values.append((value, copy))
        elif isinstance(value, GENERATORS):
            state = state_of(value)
            self.leaves[path] = state if isinstance(state, Tensor) else repr(state)
        else:
            self._inside(value, path, depth)

    def _inside(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, set | frozenset):
            self.leaves[path] = frozenset(value)
            return
        several = isinstance(value, list | tuple | deque)
        holder = value if several or isinstance(value, dict) else getattr(value, "__dict__", ())
        before: Any = list(holder) if several else dict(holder)
        if not isinstance(holder, tuple):
            self._held.append((holder, before))
        for name, inner in enumerate(before) if several else before.items():
            plain = name in ("_buffers", "_modules") and isinstance(value, nn.Module)
            self._walk(inner, path if plain else f"{path}.{name}" if path else str(name), depth + (not plain))

    def restore(self) -> None:
        """Put everything back that is not what it was."""
        for value, before in self._held:
            if isinstance(value, dict):
                if list(value) != list(before) or any(value[key] is not before[key] for key in before):
                    value.clear()
                    value.update(before)
            elif len(value) != len(before) or any(map(lambda a, b: a is not b, value, before)):
                value.clear()
                value.extend(before)
        for value, copy in self._values:
            if isinstance(value, Tensor) and not _alike(value, copy):
                value.detach().copy_(copy)
            elif isinstance(value, np.ndarray) and value.flags.writeable:
                value[...] = copy

    def other_than(self, other: Memory) -> list[str]:
        """The paths at which the two differ."""
        names = self.leaves.keys() | other.leaves.keys()
        missing = object()
        return sorted(
            name for name in names if not _alike(self.leaves.get(name, missing), other.leaves.get(name, missing))
        )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.is_sparse or one.is_quantized or one.is_meta:
            return True  # not judged
        floats = one.is_floating_point() or one.is_complex()
        return bool(((one == other) | ((one != one) & (other != other))).all()) if floats else torch.equal(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def require_no_memory(names: list[str], which: str = "forward") -> None:
    """Raise if something of the records stays in what has these names after a pass."""
    if names:
        raise InvalidInput(
            f"the {which} pass keeps something of the records in {', '.join(names[:3])}: what a model remembers of "
            "them (running statistics, a queue, the last activations) is released without clipping and noise. "
            "Turn that off, and write nothing of the inputs into attributes, through .data neither"
        )


def fingerprint(parameters: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Two numbers of each parameter: a write that goes past autograd shows in them. No second copy of the model."""
    wide, values = torch.float64, [_floats(value.detach()) for _, value in parameters]
    made = [(value.sum(dtype=wide), torch.linalg.vector_norm(value, dtype=wide)) for value in values]
    return torch.stack([number.to(values[0].device) for pair in made for number in pair]).cpu().view(-1, 2)


def _floats(value: Tensor) -> Tensor:
    """Numbers of which there are a sum and a norm; those of a parameter as they are."""
    if value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value if value.is_floating_point() and value.itemsize > 1 else value.double()

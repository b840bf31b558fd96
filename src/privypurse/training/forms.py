"""Batches and outputs in whatever form they come: tuples, dictionaries, dataclasses, objects with tensors in them."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput

_PLAIN = (str, bytes, int, float, complex, bool, type(None), enum.Enum, torch.Size, torch.dtype, torch.device)


def mapped(change: Callable[[Tensor], Any], value: Any, seen: dict[int, Any] | None = None) -> Any:
    """The same form with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, _PLAIN) or callable(value):
        return value
    if type(value) is list:
        return [mapped(change, each, seen) for each in value]
    if isinstance(value, deque):
        return type(value)((mapped(change, each, seen) for each in value), value.maxlen)
    if isinstance(value, list | tuple | set | frozenset):
        found = [mapped(change, each, seen) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    if type(value) is dict:
        return {key: mapped(change, each, seen) for key, each in value.items()}
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = value  # what points back to itself keeps pointing to the original
        seen[id(value)] = _object(change, value, seen)
    return seen[id(value)]


def _object(change: Callable[[Tensor], Any], value: Any, seen: dict[int, Any]) -> Any:
    """A dictionary of some kind, a dataclass, any object: its entries, and its attributes."""
    names = _attributes(value)
    if not names and not isinstance(value, dict):
        return value
    try:  # another of the same class, without asking for what it is made of
        made = type(value).__new__(type(value)) if isinstance(value, dict) else copy.copy(value)
    except Exception:
        if any(isinstance(each, Tensor) for each in leaves(value)):
            raise InvalidInput(f"a {type(value).__name__} that holds tensors cannot be copied; use a tuple") from None
        return value
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        for key, each in value.items():
            kind.__setitem__(made, key, mapped(change, each, seen))  # whatever the class does besides, it has done
    for name in names:
        mine = isinstance(value, dict) and name in value
        object.__setattr__(made, name, made[name] if mine else mapped(change, getattr(value, name), seen))
    return made


def tensors(value: Any) -> list[Tensor]:
    """All of them, in the order in which `mapped` meets them."""
    found: list[Tensor] = []

    def note(each: Tensor) -> Tensor:
        found.append(each)
        return each

    mapped(note, value)
    return found


def leaves(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Everything that it is made of in the end: tensors, arrays, numbers, words; no functions and no shapes."""
    if callable(value) or isinstance(value, torch.Size):
        return
    if isinstance(value, (Tensor, *_PLAIN)):
        yield value
        return
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    held = value if isinstance(value, dict) else {}
    names = [name for name in _attributes(value) if name not in held]
    if isinstance(value, list | tuple | set | frozenset | deque):
        parts = list(value)
    elif names or isinstance(value, dict):
        parts = [*held.values(), *(getattr(value, name) for name in names)]
    else:
        yield value
        return
    for part in parts:
        yield from leaves(part, seen)


def _attributes(value: Any) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    return [*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))]


def _slots(kind: type) -> list[str]:
    """By the names under which they are found: those of a class alone carry its name."""
    said = kind.__dict__.get("__slots__", ())
    names = [name for name in ([said] if isinstance(said, str) else said) if name not in ("__dict__", "__weakref__")]
    own = f"_{kind.__name__.lstrip('_')}"
    return [own + name if name.startswith("__") and not name.endswith("__") else name for name in names]

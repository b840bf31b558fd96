"""Batches and outputs in whatever form they come: tuples, dictionaries, dataclasses, objects with tensors in them."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.isolation.tracking.record_sum import Gate
from privypurse.training.isolation.tracking.states import Mixed, Places, Rows, plain, state_of
from privypurse.training.isolation.tracking.tensor import Tracked, tracked

_PLAIN = (str, bytes, int, float, complex, bool, type(None), enum.Enum, torch.Size, torch.dtype, torch.device)


def mapped(change: Callable[[Tensor], Any], value: Any, seen: dict[int, Any] | None = None) -> Any:
    """The same form with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, _PLAIN) or callable(value):
        return value
    if type(value) is list:
        return [mapped(change, each, seen) for each in value]
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
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))]
    if not names and not isinstance(value, dict):
        return value
    # Another of the same class, without asking for what it is made of.
    made = type(value).__new__(type(value)) if isinstance(value, dict) else copy.copy(value)
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        for key, each in value.items():
            kind.__setitem__(made, key, mapped(change, each, seen))  # whatever the class does besides, it has done
    for name in names:
        mine = isinstance(value, dict) and name in value
        object.__setattr__(made, name, made[name] if mine else mapped(change, getattr(value, name), seen))
    return made


def handed(data: Any, places: Places, gate: list[int] | None = None) -> Any:
    """What the loader or the model gives, with its records known.

    Behind a model stands a gate for what comes back; ``gate`` is where it notes to which output something did: the
    number of that tensor among those that ask for gradients.
    """
    origin, number = "the loader" if gate is None else "the model", count()

    def known(value: Tensor) -> Tensor:
        value = plain(value) if isinstance(value, Tracked) else value
        if gate is not None and value.requires_grad:
            value = Gate.apply(value, places.drawn, gate, next(number))  # type: ignore[no-untyped-call]
        rows = value.dim() > 0 and value.shape[0] == places.size
        return tracked(value, Rows(places, 0) if rows else Mixed(origin))

    return mapped(known, data)


def mixed(data: Any, origin: str) -> Any:
    """What was made of several records at once."""
    return mapped(lambda value: tracked(value, Mixed(origin)), data)


def untracked(data: Any) -> Any:
    """The same with ordinary tensors."""
    return mapped(lambda value: plain(value) if isinstance(value, Tracked) else value, data)


def place_of(data: Any) -> tuple[Places | None, list[Tensor]]:
    """Whose rows a model's inputs are, and its inputs that are not known to be records'."""
    found: list[Places] = []
    others: list[Tensor] = []

    def note(value: Tensor) -> Tensor:
        state = state_of(value)
        if state is None:
            others.append(value)
            return value
        if not isinstance(state, Rows):
            origin = state.origin if isinstance(state, Mixed) else "a loss"
            raise InvalidInput(
                f"an input of the model was made of several records by {origin}; the model takes rows of the "
                "loader's batch, each changed by itself if need be (see docs/soundness.md#isolation)"
            )
        if state.dim != 0 or state.places.each != 1 or not state.places.regular:
            raise InvalidInput(
                "the model's inputs must have records in their first dimension, each once: keep (records, tokens, "
                "features)"
            )
        found.append(state.places)
        return value

    mapped(note, data)
    if any(not found[0].same(each) for each in found[1:]):
        raise InvalidInput("the model's inputs are rows of different records; give it the same rows of each input")
    return (found[0] if found else None), others

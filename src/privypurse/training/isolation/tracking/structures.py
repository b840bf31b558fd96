"""Batches and outputs of a loop of one's own, each tensor knowing whose its rows are."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.forms import mapped
from privypurse.training.isolation.tracking.record_sum import Gate
from privypurse.training.isolation.tracking.states import Mixed, Places, Rows, plain, state_of
from privypurse.training.isolation.tracking.tensor import Tracked, tracked


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

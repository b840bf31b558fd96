"""The server's side of a round: who is asked, and how answers become the next model. No budget ever comes here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.federated.parameters import State, Update, mismatch
from privypurse.federated.terms import Terms


def asked(terms: Terms, uniforms: FloatArray) -> list[int]:
    """Which clients are asked in a round: Poisson subsampling, each by its own coin, so that it may be nobody.

    ``uniforms`` lie in (0, 1], one for each client. Against the public everybody is asked: there a client flips its
    own coin for a round, once, so that a server that begins again has no other (`Client.answer`).
    """
    if terms.adversary == "public":
        return list(range(len(uniforms)))
    return np.flatnonzero(np.asarray(uniforms) <= terms.client_rate).tolist()


@dataclass(frozen=True)
class Aggregated:
    """What a round came to."""

    state: State
    used: tuple[Any, ...]
    """Whose answers are in it."""
    refused: Mapping[Any, str]
    """Whose are not, and why."""


def aggregate(terms: Terms, state: State, answers: Sequence[tuple[Any, Update]]) -> Aggregated:
    """The next global parameters: each usable update times the public weight 1 / (λ·M).

    Never an average over those who answered: how many did, and how many records they have, is nobody's business
    (rule 2: a public divisor). An answer that is not finite, has another shape, or comes twice is left
    out; the weights stay. What it cost its records is paid for all the same, in the client's book.
    """
    weight = 1.0 / (terms.client_rate * terms.clients)
    shapes = {name: value.shape for name, value in state.items()}
    total = {name: value.astype(np.float64) for name, value in state.items()}
    used: list[Any] = []
    refused: dict[Any, str] = {}
    for who, update in answers:
        reason = "answered twice" if who in used else mismatch(update, shapes)
        if reason:
            refused[who] = reason
            continue
        with np.errstate(over="ignore"):
            added = {name: total[name] + weight * np.asarray(value, np.float64) for name, value in update.items()}
            fits = all(np.isfinite(value.astype(np.float32)).all() for value in added.values())
        if not fits:
            refused[who] = "too large: the model would not be finite"
            continue
        used.append(who)
        total = added
    return Aggregated({name: value.astype(np.float32) for name, value in total.items()}, tuple(used), refused)

"""What the tests of clients are made of: small terms, nine records, and clients of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from held_files import read_held
from privypurse.federated.client import Client
from privypurse.federated.terms import Offer, Terms

Arrays = dict[str, np.ndarray]
TERMS = Terms(
    rounds=5,
    local_steps=2,
    noise_multiplier=1.0,
    batch_size=4,
    learning_rate=0.5,
    clients=2,
    client_rate=0.5,
    most_joined=3,
    delta=1e-3,
    accountant="rdp",
)
OFFER = Offer.of(TERMS)
EPSILON = np.array([0.01, 0.5, 1.0, 1.0, 2.0, 3.0, 4.5, 8.0, 30.0])  # the first affords nothing, the last rate 1
STATE = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}

losses = partial(F.cross_entropy, reduction="none")
linear = partial(nn.Linear, 3, 2)


def terms_with(**other: Any) -> Terms:
    """`TERMS`, but for what is named."""
    return replace(TERMS, **other)


def records(size: int = EPSILON.size, seed: int = 0) -> TensorDataset:
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.normal(size=(size, 3)).astype(np.float32))
    return TensorDataset(x, torch.as_tensor(rng.integers(0, 2, size)))


def granted(epsilon: Any, size: int | None = None, **other: Any) -> pp.Budgets:
    """The budgets of so many records with that ε, or of one for each ε."""
    each = epsilon if size is None else np.full(size, epsilon)
    return pp.Budgets(each, **{"delta": TERMS.delta, **other})


def maker(offer: Offer, epsilon: Any, **usual: Any) -> Callable[..., Client]:
    """A function that makes clients of a folder, whose people grant ``epsilon``, one for each or one for all."""

    def made(folder: Path, **other: Any) -> Client:
        parts: dict[str, Any] = {"dataset": records(), "offer": offer, "seed": 7, **usual, **other}
        dataset = parts["dataset"]
        parts.setdefault("budgets", granted(epsilon, len(dataset) if np.isscalar(epsilon) else None))
        parts.setdefault("example", None if type(dataset) is TensorDataset else (torch.zeros(3), 0))
        return Client(folder=folder, **{"new_model": linear, "loss_fn": losses, **parts})

    return made


made = maker(OFFER, EPSILON)


def bits(update: Arrays) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in update.items()}


def flat(update: Arrays) -> np.ndarray:
    return np.concatenate([value.ravel() for value in update.values()]).astype(np.float64)


def book_in(folder: Path) -> dict[str, Any]:
    """What the book of a client says, whoever holds it."""
    return json.loads(read_held(folder / "book"))


def joins_all(client: Client) -> None:
    """Let the client's own coins, which it has against the public, keep it out of no round."""
    client._book.keep_out([])


class PowerFailure(SystemExit):
    """Nothing in between catches it."""


def raises(error: BaseException) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails

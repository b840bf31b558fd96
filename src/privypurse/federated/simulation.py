"""All clients in one process: the same rounds as on Flower, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from privypurse.errors import InvalidInput
from privypurse.federated.client import Client, Declined
from privypurse.federated.server import Aggregated, State, aggregate, asked
from privypurse.federated.terms import Terms
from privypurse.randomness import randomness


@dataclass(frozen=True)
class Held:
    """One round of a simulation."""

    number: int
    asked: tuple[int, ...]
    declined: tuple[int, ...]
    outcome: Aggregated
    state: State = field(repr=False)


def state_of(model: nn.Module) -> State:
    """A model's parameters as arrays: what travels."""
    return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in model.named_parameters()}


def load(model: nn.Module, state: State) -> nn.Module:
    """The model with these parameters."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.as_tensor(state[name], device=value.device))
    return model


def rounds(terms: Terms, state: State, clients: Sequence[Client], seed: int | None = None) -> Iterator[Held]:
    """Hold all rounds; gives each one when it is over. A round that nobody is asked for is a round."""
    if len(clients) != terms.clients:
        raise InvalidInput(f"there are {len(clients)} clients, but the terms were made for {terms.clients}")
    source = randomness(seed)
    for number in range(1, terms.rounds + 1):
        who = asked(terms, source.for_step(number).uniform(len(clients)))
        answers, declined = [], []
        for index, client in enumerate(clients):
            if index not in who:
                client.held(number)
                continue
            try:
                answers.append((index, client.answer(number, state)))
            except Declined:
                declined.append(index)
        outcome = aggregate(terms, state, answers)
        state = outcome.state
        yield Held(number, tuple(who), tuple(declined), outcome, state)


def new_state(new_model: Callable[[], nn.Module], seed: int | None = None) -> State:
    """The parameters to begin with."""
    if seed is not None:
        torch.manual_seed(seed)
    return state_of(new_model())

"""All clients in one process: the same rounds as on Flower, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from privypurse.errors import InvalidInput
from privypurse.federated.client import Client, Declined
from privypurse.federated.parameters import State, put, state_of
from privypurse.federated.server import Aggregated, aggregate, asked
from privypurse.federated.terms import Terms
from privypurse.randomness import randomness


@dataclass(frozen=True)
class Round:
    """One round of a simulation: who was asked, who declined, what came of it.

    Against the public everybody is asked, and who declines was kept out by their own coin, or by the cap.
    """

    number: int
    asked: tuple[int, ...]
    declined: tuple[int, ...]
    outcome: Aggregated
    state: State = field(repr=False)


def load(model: nn.Module, state: State) -> nn.Module:
    """The model with these parameters, whether they are frozen in it or not."""
    put(state, {name: value for name, value in model.named_parameters() if value.requires_grad or name in state})
    return model


def rounds(terms: Terms, state: State, clients: Sequence[Client], seed: int | None = None) -> Iterator[Round]:
    """Hold all rounds; gives each one when it is over. A round that nobody joins is a round."""
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
        yield Round(number, tuple(who), tuple(declined), outcome, state)


def new_state(new_model: Callable[[], nn.Module], seed: int | None = None) -> State:
    """The parameters to begin with."""
    if seed is not None:
        torch.manual_seed(seed)
    return state_of(new_model())

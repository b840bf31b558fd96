"""A federation on Flower's simulation engine: every client a virtual node with a book on disk."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from privypurse.errors import PrivyPurseError, PrivyPurseWarning
from privypurse.federated import flower, silos, simulation
from privypurse.federated.client import Client
from privypurse.federated.federation_run import Purses, Trial, client_of, ended
from privypurse.federated.parameters import State
from privypurse.federated.server import Aggregated
from privypurse.federated.terms import Offer, Terms


def new_client(
    data: str,
    preferences: str,
    index: int,
    offer: Offer,
    folder: Path,
    seed: int | None,
    adversary: str = "server",
    purses: Purses | None = None,
) -> Client:
    """One silo of a built-in federation as its own client; simulated budgets that hold against ``adversary``."""
    federation = silos.federation(data, seed or 0)
    granted = silos.granted_in(federation, preferences, seed or 0)[index]
    return client_of(federation, index, granted, offer, folder, seed=seed, adversary=adversary, purses=purses)


def run(
    data: str,
    preferences: str,
    terms: Terms,
    folder: Path,
    *,
    seed: int | None = None,
    purses: Purses | None = None,
    told: Callable[[int, Aggregated], None] = lambda number, outcome: None,
) -> Trial:
    """Train by the same rounds as `federation_run.run`; ``told`` hears of each of them.

    ``folder`` keeps the clients' books; it has to be that of the same terms, or new. With ``purses`` people pay for
    life, from ledgers elsewhere.
    """
    federation, offer = silos.federation(data, seed or 0), Offer.of(terms)
    granted = silos.granted_in(federation, preferences, seed or 0)

    def client(index: int, offer: Offer) -> Client:
        whose = (federation, index, granted[index], offer, folder)
        return client_of(*whose, seed=seed, adversary=terms.adversary, purses=purses)

    def client_on(context: Context, offer: Offer) -> Client:  # by name, for data do not travel to a virtual node
        index = int(context.node_config["partition-id"])
        return new_client(data, preferences, index, offer, folder, seed, terms.adversary, purses)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # seeded, for measuring
        warnings.simplefilter("ignore", FutureWarning)  # Ray's, about itself
        client(0, offer).close()  # a folder of other terms is refused here and not by every client in every round
        strategy = flower.PersonalisedAverage(offer, seed, told=told)
        _hold_rounds(strategy, terms, simulation.new_state(federation.new_model, seed), client_on)
        state = strategy.history[-1].state
        clients = [client(index, offer) for index in range(len(granted))]
        for each in clients:
            each.held(terms.rounds)  # nobody tells a client on Flower of rounds that it is not asked for
        rows, model = ended(federation, clients, granted, state)
    return Trial(terms, (silos.accuracy(model, federation.test),), rows, state)


def _hold_rounds(
    strategy: flower.PersonalisedAverage, terms: Terms, begin: State, new_client: flower.NewClient
) -> None:
    """All rounds of the terms, every client a process of the simulation engine."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, flower.to_record(begin), num_rounds=terms.rounds)

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # not 15: beside other work clients would hardly get to train
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"log_to_driver": False}}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(server, flower.client_app(new_client), terms.clients, backend_config=backend)
    if not any(held.used for held in strategy.history):
        raise PrivyPurseError(
            f"no client's answer was used in {terms.rounds} rounds; Ray's logs of its last session say why"
        )

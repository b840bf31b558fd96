"""A federation on Flower's simulation engine: every client a virtual node with a book on disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from privypurse.budgets import Budgets
from privypurse.errors import PrivyPurseError
from privypurse.federated import flower, silos, simulation
from privypurse.federated.client import Client
from privypurse.federated.server import State
from privypurse.federated.terms import Offer, Terms


def new_client(
    data: str, preferences: str, index: int, offer: Offer, folder: Path, seed: int | None, adversary: str = "server"
) -> Client:
    """One silo of a built-in federation as its own client; simulated budgets that hold against ``adversary``."""
    federation = silos.federation(data, 0 if seed is None else seed)
    silo = federation.silos[index]
    rng = np.random.default_rng([0 if seed is None else seed, 5, index])
    granted = silos.budgets_of(preferences, len(silo), rng, federation.levels)
    budgets = Budgets(granted, delta=offer.terms.delta)
    own = None if seed is None else 1000 * seed + index
    data_of = (silo.train, budgets, federation.new_model, silos.losses, offer, folder / str(index))
    return Client(*data_of, adversary=adversary, seed=own)


def run(data: str, preferences: str, terms: Terms, folder: Path, *, seed: int | None = None, cpus: int = 1) -> State:
    """Train on Flower's simulation engine; gives the last global parameters.

    ``folder`` keeps the clients' books: who calls this again goes on with what is left.
    """
    federation = silos.federation(data, 0 if seed is None else seed)
    offer = Offer.of(terms)
    strategy = flower.PersonalisedAverage(offer, seed)
    server = ServerApp()
    out: dict[str, State] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        begin = flower.to_record(simulation.new_state(federation.new_model, seed))
        strategy.start(grid, begin, num_rounds=terms.rounds)
        out["state"] = strategy.history[-1].state

    def client_of(context: Context, told: Offer) -> Client:
        index = int(context.node_config["partition-id"])
        return new_client(data, preferences, index, told, folder, seed, terms.adversary)

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    backend: Any = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}, "init_args": {"log_to_driver": False}}
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(server, flower.client_app(client_of), len(federation.silos), backend_config=backend)
    if not any(held.used for held in strategy.history):
        raise PrivyPurseError(
            f"no client ever answered in {terms.rounds} rounds; books of other terms in {folder}? Ray's logs say why"
        )
    return out["state"]

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

from privypurse.budgets import Budgets
from privypurse.errors import PrivyPurseError, PrivyPurseWarning
from privypurse.federated import flower, silos, simulation
from privypurse.federated.client import Client
from privypurse.federated.federation_run import Trial, row_of
from privypurse.federated.parameters import State
from privypurse.federated.server import Aggregated
from privypurse.federated.terms import Offer, Terms
from privypurse.training.evaluation import losses


def new_client(
    data: str, preferences: str, index: int, offer: Offer, folder: Path, seed: int | None, adversary: str = "server"
) -> Client:
    """One silo of a built-in federation as its own client; simulated budgets that hold against ``adversary``."""
    federation = silos.federation(data, 0 if seed is None else seed)
    silo = federation.silos[index]
    granted = silos.granted_in(federation, preferences, 0 if seed is None else seed)[index]
    budgets = Budgets(granted, delta=offer.terms.delta)
    own = None if seed is None else 1000 * seed + index
    data_of = (silo.train, budgets, federation.new_model, losses, offer, folder / str(index))
    return Client(*data_of, adversary=adversary, seed=own)


def run(
    data: str,
    preferences: str,
    terms: Terms,
    folder: Path,
    *,
    seed: int | None = None,
    cpus: int = 1,
    told: Callable[[int, Aggregated], None] = lambda number, outcome: None,
) -> Trial:
    """Train on Flower's simulation engine, by the same rounds as `trials.run`; ``told`` hears of each of them.

    ``folder`` keeps the clients' books; it has to be that of the same terms, or new.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # seeded, for measuring
        warnings.simplefilter("ignore", FutureWarning)  # Ray's, about itself
        return _run(data, preferences, terms, folder, seed, cpus, told)


def _run(
    data: str,
    preferences: str,
    terms: Terms,
    folder: Path,
    seed: int | None,
    cpus: int,
    told: Callable[[int, Aggregated], None],
) -> Trial:
    federation = silos.federation(data, 0 if seed is None else seed)
    offer = Offer.of(terms)
    # A folder of other terms is refused here and not by every client in every round.
    new_client(data, preferences, 0, offer, folder, seed, terms.adversary).close()
    strategy = flower.PersonalisedAverage(offer, seed, told=told)
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
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(server, flower.client_app(client_of), len(federation.silos), backend_config=backend)
    if not any(held.used for held in strategy.history):
        raise PrivyPurseError(
            f"no client's answer was used in {terms.rounds} rounds; Ray's logs of its last session say why"
        )
    model = simulation.load(federation.new_model(), out["state"])
    rows = []
    for index, silo in enumerate(federation.silos):
        client = new_client(data, preferences, index, offer, folder, seed, terms.adversary)
        client.held(terms.rounds)  # nobody tells a client on Flower of rounds that it is not asked for
        granted = silos.granted_in(federation, preferences, 0 if seed is None else seed)[index]
        rows.append(row_of(silo.name, client, granted, silos.accuracy(model, silo.train)))
        client.close()
    return Trial(terms, (silos.accuracy(model, federation.test),), tuple(rows), out["state"])

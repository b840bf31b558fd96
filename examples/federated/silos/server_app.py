"""The server: makes the terms, waits for its clients, holds the rounds, writes the model."""

import logging

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privypurse.federated import flower, simulation
from privypurse.federated.terms import Offer, Terms
from privypurse.training.evaluation import score
from silos import data

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    logging.getLogger("privypurse.federated").setLevel(logging.INFO)
    logging.getLogger("privypurse.federated").handlers = log.handlers
    terms = Terms(
        rounds=int(config["rounds"]),
        local_steps=int(config["local-steps"]),
        noise_multiplier=float(config["noise-multiplier"]),
        batch_size=int(config["batch-size"]),
        learning_rate=float(config["learning-rate"]),
        clients=int(config["clients"]),
        client_rate=float(config["client-rate"]),
        delta=float(config["delta"]),
        adversary=str(config["adversary"]),
        accountant=str(config["accountant"]),
        answer_seconds=float(config["answer-seconds"]),
    )
    strategy = flower.PersonalisedAverage(Offer.of(terms), patience=float(config["timeout"]))
    # The same for each run of these terms: clients do not answer a round again from other parameters.
    begin = flower.to_record(simulation.new_state(data.new_model, seed=0))
    strategy.start(grid, begin, num_rounds=terms.rounds, timeout=float(config["timeout"]))
    if not any(held.used for held in strategy.history):
        raise RuntimeError("no client's update was used in any round; the log says why")
    state = strategy.history[-1].state
    # Of the server's own data there is only a test set.
    right = score(simulation.load(data.new_model(), state), *data.test_records().tensors)
    log.info("test accuracy %.2f %% on people of no silo", 100 * right.accuracy)
    np.savez(str(config["out"]), **state)

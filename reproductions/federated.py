"""Federated cells (Liu et al. 2024, §7.2): personalised training beside its baselines, over simulated clients."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privypurse.errors import PrivyPurseError
from privypurse.federated import federation_run, silos, simulation
from privypurse.federated.federation_run import Setting
from privypurse.federated.parameters import State, state_of
from privypurse.federated.silos import Federation, Silo
from privypurse.training.evaluation import losses
from reproductions.cell import Cell
from reproductions.cell_data import Inputs
from reproductions.networks import placed
from reproductions.plans import epsilon_of, groups_of
from reproductions.results import Line

_NOBODY = 1e-6
"""An ε that buys no rate at all: whoever is left out."""


def outcome(cell: Cell, seed: int, inputs: Inputs, device: torch.device) -> Line:
    """Train once, all rounds, and say what everybody granted and spent against the adversary."""
    assert cell.federation is not None
    federation = _federation(cell, seed, inputs, device)
    rng = np.random.default_rng([seed, 5])
    granted = [epsilon_of(cell.budgets, silo.train.tensors[1].cpu().numpy(), rng) for silo in federation.silos]
    rate = cell.federation.learning_rates.get(cell.method, cell.training.learning_rate)
    setting = Setting(
        rounds=cell.federation.rounds,
        local_steps=cell.training.steps_for(federation.records),
        client_rate=cell.federation.client_rate,
        delta=cell.delta,
        batch_size=cell.training.batch(federation.records),
        learning_rate=rate,
        clip_norm=cell.training.clip_norm,
        records_per_client=federation.records / len(federation.silos),
        reference=cell.federation.reference,
        accountant=cell.accountant,
    )
    if cell.method == "none":
        course = _without_privacy(federation, setting, seed)
        return {"accuracy": course[-1], "course": course}
    used, common = _as_the_method_sees_them(cell.method, granted)
    clients, adversary = len(federation.silos), cell.federation.adversary
    terms = federation_run.terms_of(setting, clients, adversary=adversary, epsilon=common)
    trial = federation_run.run(federation, terms, used, seed=seed)
    everybody, spent = np.concatenate(granted), np.concatenate([row.spent for row in trial.clients])
    values, which, people = np.unique(everybody, return_inverse=True, return_counts=True)
    most = np.zeros(values.size)
    np.maximum.at(most, which, spent)
    return {
        "accuracy": trial.accuracy[-1],
        "course": list(trial.accuracy),
        "noise_multiplier": terms.noise_multiplier,
        "promise": "data",
        "accountant": terms.accountant,
        **groups_of(values, people, most),
    }


def _federation(cell: Cell, seed: int, inputs: Inputs, device: torch.device) -> Federation:
    """The data set's own silos, or its records over ten clients."""
    assert cell.federation is not None
    if cell.federation.split == "silos":
        try:
            whole = silos.federation(cell.data, seed, str(device))
        except PrivyPurseError:
            if not inputs.made_up:
                raise
            whole = _split(cell, inputs, np.array_split(np.arange(len(inputs.train)), 4), device)
        if not cell.quick:
            return whole
        few = tuple(Silo(silo.name, TensorDataset(*(t[:24] for t in silo.train.tensors))) for silo in whole.silos)
        return replace(whole, silos=few)
    rng, labels = np.random.default_rng([seed, 11]), inputs.labels
    if cell.federation.split == "evenly":
        return _split(cell, inputs, np.array_split(rng.permutation(labels.size), 10), device)
    # Sorted by label, cut into 20 shards, two for each client (McMahan et al. 2017).
    shards, order = np.array_split(np.argsort(labels, kind="stable"), 20), rng.permutation(20)
    pairs = [np.concatenate([shards[order[2 * k]], shards[order[2 * k + 1]]]) for k in range(10)]
    return _split(cell, inputs, pairs, device)


def _split(cell: Cell, inputs: Inputs, rows: Sequence[np.ndarray], device: torch.device) -> Federation:
    x, y = inputs.train.tensors

    def records(some: np.ndarray) -> TensorDataset:
        where = torch.as_tensor(some, device=device)
        return TensorDataset(x[where], y[where])

    clients = tuple(Silo(f"client {k + 1}", records(some)) for k, some in enumerate(rows))
    shape, classes = tuple(x.shape[1:]), inputs.classes
    return Federation(cell.data, clients, inputs.test, lambda: placed(cell.model, shape, classes, device))


def _as_the_method_sees_them(method: str, granted: list[np.ndarray]) -> tuple[list[np.ndarray], float | None]:
    """Budgets as a baseline takes them, and the ε that it trains everybody with, for which its noise is solved."""
    if method == "personalised":
        return granted, None
    everybody = np.concatenate(granted)
    common = float(everybody.min() if method == "minimum" else everybody.mean())
    return [np.where(each >= common, common, _NOBODY) for each in granted], common


def _without_privacy(federation: Federation, setting: Setting, seed: int) -> list[float]:
    """The test accuracy after each round."""
    states = ordinary_rounds(federation, setting, seed)
    return [silos.accuracy(simulation.load(federation.new_model(), state), federation.test) for state in states]


def ordinary_rounds(federation: Federation, setting: Setting, seed: int) -> Iterator[State]:
    """Vanilla FedAvg: random batches, no clipping, no noise. The parameters after each round."""
    state = simulation.new_state(federation.new_model, seed)
    rng = np.random.default_rng([seed, 6])
    for _ in range(setting.rounds):
        total = {name: np.zeros_like(value) for name, value in state.items()}
        joined = [silo for silo in federation.silos if rng.random() < setting.client_rate]
        for silo in joined:
            model = simulation.load(federation.new_model(), state)
            _ordinary(model, silo.train.tensors, setting, rng)
            for name, value in state_of(model).items():
                total[name] += (value - state[name]) / len(joined)
        state = {name: value + total[name] for name, value in state.items()}
        yield state


def _ordinary(model: nn.Module, tensors: tuple[Any, ...], setting: Setting, rng: np.random.Generator) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
    x, y = tensors
    for _ in range(setting.local_steps):
        some = torch.as_tensor(rng.choice(len(y), min(setting.batch_size, len(y)), replace=False), device=y.device)
        optimizer.zero_grad()
        torch.autograd.backward(losses(model(x[some]), y[some]).mean())
        optimizer.step()

"""Personalised federated training beside its baselines, in one process (Liu et al. 2024, §7.2)."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privypurse.accounting import CertifiedTable, accountant_named
from privypurse.arrays import FloatArray
from privypurse.assignment import curve_fit
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.federated import simulation
from privypurse.federated.client import Client
from privypurse.federated.parameters import State, state_of
from privypurse.federated.silos import Federation, accuracy, granted_in, losses
from privypurse.federated.terms import Offer, Terms

Told = Callable[[int, float], None]
"""Called after each round, with its number and the test accuracy."""
METHODS = ("personalised", "minimum", "dropout", "privacy-free")
"""Minimum and dropout need the smallest and the mean ε of everybody: they exist in simulations only."""


@dataclass(frozen=True)
class Setting:
    """How a federation is trained: public, and chosen without looking at budgets."""

    rounds: int
    local_steps: int
    client_rate: float
    delta: float
    batch_size: int
    learning_rate: float
    clip_norm: float
    reference: float = 1.0
    """The noise is such that a record with this ε would be drawn like everybody in ordinary training."""


SETTINGS = {
    "adult": Setting(15, 20, 1.0, 1e-5, 256, 1.0, 1.0, 0.5),
    "heart": Setting(15, 10, 1.0, 1e-3, 20, 0.3, 1.0, 0.5),
}
LEARNING_RATES = {
    ("heart", "minimum"): 0.1,
    ("heart", "dropout"): 0.1,
}
"""Of methods that do better with another one than the setting's."""


@dataclass(frozen=True)
class Row:
    """One client at the end."""

    name: str
    records: int
    joined: int
    granted: tuple[float, float]
    spent: tuple[float, float]
    """Smallest and largest ε against the adversary of the terms."""
    overdrawn: int
    accuracy: float


@dataclass(frozen=True)
class Trial:
    """One training."""

    method: str
    terms: Terms
    accuracy: tuple[float, ...]
    """Of the global model on test records, after each round."""
    clients: tuple[Row, ...]
    state: State


def terms_of(
    setting: Setting, federation: Federation, *, adversary: str = "server", epsilon: float | None = None
) -> Terms:
    """Terms with the noise at which ``epsilon`` (default: the reference) buys the rate of ordinary training."""
    typical = federation.records / len(federation.silos)
    rate = min(1.0, setting.batch_size / typical)
    terms = replace(_with_some_noise(setting, federation), adversary=adversary)
    return terms.with_noise_for(setting.reference if epsilon is None else epsilon, rate)


def _with_some_noise(setting: Setting, federation: Federation) -> Terms:
    """Terms whose noise is still to be solved, or does not matter."""
    return Terms(
        rounds=setting.rounds,
        local_steps=setting.local_steps,
        noise_multiplier=1.0,
        batch_size=setting.batch_size,
        learning_rate=setting.learning_rate,
        clients=len(federation.silos),
        client_rate=setting.client_rate,
        clip_norm=setting.clip_norm,
        delta=setting.delta,
    )


def run(
    federation: Federation,
    setting: Setting,
    preferences: str,
    method: str = "personalised",
    *,
    adversary: str = "server",
    seed: int = 0,
    told: Told = lambda number, accuracy: None,
) -> Trial:
    """Train once, all rounds. Seeded: for measuring, not for publishing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        return _run(federation, setting, preferences, method, adversary, seed, told)


def _run(
    federation: Federation,
    setting: Setting,
    preferences: str,
    method: str,
    adversary: str,
    seed: int,
    told: Told,
) -> Trial:
    setting = replace(setting, learning_rate=LEARNING_RATES.get((federation.name, method), setting.learning_rate))
    if method not in METHODS:
        raise InvalidInput(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    granted = granted_in(federation, preferences, seed)
    if method == "privacy-free":
        return _without_privacy(federation, setting, granted, seed, told)
    used, terms = _as_the_method_sees_them(method, federation, setting, adversary, granted)
    offer = Offer.of(terms)
    state = simulation.new_state(federation.new_model, seed)
    with tempfile.TemporaryDirectory() as folder:
        clients = [
            Client(
                silo.train,
                Budgets(each, delta=setting.delta),
                federation.new_model,
                losses,
                offer,
                Path(folder) / str(k),
                adversary=adversary,
                seed=1000 * seed + k,
            )
            for k, (silo, each) in enumerate(zip(federation.silos, used, strict=True))
        ]
        course = []
        for held in simulation.rounds(terms, state, clients, seed=seed):
            state = held.state
            course.append(accuracy(simulation.load(federation.new_model(), state), federation.test))
            told(held.number, course[-1])
        model = simulation.load(federation.new_model(), state)
        rows = tuple(
            row_of(silo.name, client, each, accuracy(model, silo.train))
            for silo, client, each in zip(federation.silos, clients, granted, strict=True)
        )
        for client in clients:
            client.close()
    return Trial(method, terms, tuple(course), rows, state)


def row_of(name: str, client: Client, granted: FloatArray, right: float) -> Row:
    """What became of a client's records, whose owners granted that."""
    account = client.spent()
    spent = account.against_server if client.offer.terms.adversary == "server" else account.against_public
    over = int((spent > granted).sum())
    ends = (float(granted.min()), float(granted.max())), (float(spent.min()), float(spent.max()))
    return Row(name, granted.size, client.joined, *ends, over, right)


def _as_the_method_sees_them(
    method: str, federation: Federation, setting: Setting, adversary: str, granted: list[FloatArray]
) -> tuple[list[FloatArray], Terms]:
    """Budgets as a baseline takes them; its noise is solved for the ε that it trains everybody with."""
    if method == "personalised":
        return granted, terms_of(setting, federation, adversary=adversary)
    everybody = np.concatenate(granted)
    common = float(everybody.min() if method == "minimum" else everybody.mean())
    # Whoever is below takes no part: an ε that buys no rate at all.
    nobody = 1e-6
    used = [np.where(each >= common, common, nobody) for each in granted]
    return used, terms_of(setting, federation, adversary=adversary, epsilon=common)


def _without_privacy(
    federation: Federation, setting: Setting, granted: list[FloatArray], seed: int, told: Told
) -> Trial:
    """Vanilla FedAvg: shuffled batches, no clipping, no noise."""
    terms = _with_some_noise(setting, federation)
    state = simulation.new_state(federation.new_model, seed)
    rng = np.random.default_rng([seed, 6])
    course: list[float] = []
    for number in range(1, terms.rounds + 1):
        total = {name: np.zeros_like(value) for name, value in state.items()}
        joined = [silo for silo in federation.silos if rng.random() < terms.client_rate]
        for silo in joined:
            model = simulation.load(federation.new_model(), state)
            _ordinary(model, silo.train.tensors, setting, rng)
            for name, value in state_of(model).items():
                total[name] += (value - state[name]) / len(joined)
        state = {name: value + total[name] for name, value in state.items()}
        course.append(accuracy(simulation.load(federation.new_model(), state), federation.test))
        told(number, course[-1])
    model = simulation.load(federation.new_model(), state)
    rows = tuple(
        Row(
            name=silo.name,
            records=each.size,
            joined=terms.rounds,
            granted=(float(each.min()), float(each.max())),
            spent=(np.inf, np.inf),
            overdrawn=each.size,
            accuracy=accuracy(model, silo.train),
        )
        for silo, each in zip(federation.silos, granted, strict=True)
    )
    return Trial("privacy-free", terms, tuple(course), rows, state)


def _ordinary(model: torch.nn.Module, tensors: tuple[Any, ...], setting: Setting, rng: np.random.Generator) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
    x, y = tensors
    for _ in range(setting.local_steps):
        some = torch.as_tensor(rng.choice(len(y), min(setting.batch_size, len(y)), replace=False), device=y.device)
        optimizer.zero_grad()
        torch.autograd.backward(losses(model(x[some]), y[some]).mean())
        optimizer.step()


@dataclass(frozen=True)
class Compared:
    """Rates by the certified table and by the published curve, for the same budgets and terms."""

    records: int
    overspent_certified: int
    overspent_published: int
    left_certified: float
    """Mean share of ε that is left."""
    left_published: float
    worst_published: float
    """The largest ε spent over the ε granted."""


def _rounded(rates: FloatArray) -> FloatArray:
    """To three digits, so that a million rates are a few thousand different ones."""
    size = np.power(10.0, np.floor(np.log10(np.maximum(rates, 1e-12))) - 2)
    return np.asarray(np.minimum(np.round(rates / size) * size, 1.0))


def compare_rates(terms: Terms, epsilon: FloatArray, table: CertifiedTable | None = None) -> Compared:
    """Simulation-CurveFitting as published against the certified table (rule 4)."""
    known = terms.table() if table is None else table
    certified = known.within(epsilon)
    fitted = curve_fit.fit(terms.faced, terms.delta).rate(epsilon)
    accountant = accountant_named(terms.accountant)

    def spent(rates: FloatArray) -> FloatArray:
        values, place = np.unique(rates, return_inverse=True)
        return np.asarray(accountant.epsilons([terms.faced(r) for r in values.tolist()], terms.delta)[place])

    ours, theirs = spent(certified), spent(_rounded(fitted))
    return Compared(
        int(epsilon.size),
        int((ours > epsilon).sum()),
        int((theirs > epsilon).sum()),
        float((1 - ours / epsilon).mean()),
        float(np.maximum(1 - theirs / epsilon, 0).mean()),
        float((theirs / epsilon).max()),
    )

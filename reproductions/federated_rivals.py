"""Rivals over simulated clients: everybody's ε against the server, by the rounds of `privypurse.federated`.

The levels of ε that people may choose among are public, as are Liu et al.'s (2024, §7) three, so that the server
tabulates their rates alone. Uniform, exclude and the ceiling need everybody's ε in one place: they exist in
simulations only.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.accounting import CertifiedTable, SampledGaussian, accountant_named
from privypurse.assignment.method import Calibrator
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.federated import simulation
from privypurse.federated.client import Client
from privypurse.federated.federation_run import Setting
from privypurse.federated.parameters import State
from privypurse.federated.silos import Federation, Silo
from privypurse.federated.terms import Offer, Terms
from privypurse.plans import TrainingShape
from reproductions.averages import Averages
from reproductions.choice import Clients, Settings
from reproductions.feature_models import losses
from reproductions.federated import ordinary_rounds
from reproductions.plans import best_threshold

_NOBODY = 1e-6
"""An ε that buys no rate at all: whoever is left out."""
_ROUND_DOWN = 1 - 1e-12


class ScaledClient(Client):
    """A client by Scale (Boenisch et al. 2023, Algorithm 2): one public rate, and clip norms by everyone's ε.

    At that rate ε buys an effective noise multiplier σ(ε), over all rounds that the client may join: c = C·σ/σ(ε).
    """

    def scaled(self, rate: float) -> ScaledClient:
        """Before the first round."""
        levels, terms = self.plan.levels, self.offer.terms
        inverse = _calibrator(terms).inverse_noise(rate)
        buys, _ = inverse.certified(levels.epsilon, levels.delta)
        clip_norm = terms.clip_norm * terms.noise_multiplier * buys * _ROUND_DOWN
        table = replace(levels, rate=np.full(buys.size, rate), clip_norm=clip_norm, capped=np.zeros(buys.size, bool))
        self.plan = replace(self.plan, levels=table)
        return self


def spent_by_level(client: Client) -> np.ndarray:
    """What each level spent against the server: every joined round, at its own rate and clip norm."""
    terms, levels = client.offer.terms, client.plan.levels
    if not client.joined:
        return np.zeros(levels.rate.size)
    steps, full = terms.local_steps * client.joined, terms.noise_multiplier * terms.clip_norm
    releases = [
        SampledGaussian(rate, full / clip, steps)
        for rate, clip in zip(levels.rate.tolist(), levels.clip_norm.tolist(), strict=True)
    ]
    return accountant_named(terms.accountant).epsilons(releases, terms.delta)


def _calibrator(terms: Terms) -> Calibrator:
    """For a record whose client joins as often as it may."""
    shape = TrainingShape(steps=terms.local_steps * terms.cap, batch_size=terms.batch_size)
    return Calibrator(shape, accountant_named(terms.accountant))


def offer_of(terms: Terms, levels: np.ndarray) -> Offer:
    """The terms, and the largest rates that public levels of ε buy."""
    delta = np.full(levels.size, terms.delta)
    rates, costs = _calibrator(terms).rates(terms.noise_multiplier).certified(levels, delta)
    return Offer(terms, CertifiedTable(np.minimum(rates, 1.0), costs))


def terms_of(
    method: str, clients: Clients, settings: Settings, epsilon: np.ndarray, delta: float
) -> tuple[Terms, np.ndarray, float]:
    """A method's terms without their step length, everybody's ε as it takes them, and the rate in ordinary training.

    Sample's and Scale's noise is solved for a public reference ε, whatever people granted; that of the others for
    the ε that they train everybody with.
    """
    if settings.momentum:
        raise InvalidInput(f"settings.momentum is {settings.momentum}; local steps have none, give 0.0")
    batch = max(1, settings.batch_size // clients.number)
    terms = Terms(
        rounds=clients.rounds,
        local_steps=settings.steps,
        noise_multiplier=1.0,
        batch_size=batch,
        learning_rate=1.0,
        clients=clients.number,
        client_rate=clients.client_rate,
        clip_norm=settings.clip_norm,
        delta=delta,
    )
    if method in ("sample", "scale"):
        used, common = epsilon, clients.reference
    elif method in ("uniform", "ceiling"):
        common = float(epsilon.min() if method == "uniform" else epsilon.max())
        used = np.full_like(epsilon, common)
    elif method == "exclude":
        whole = pp.Budgets(epsilon, delta=delta)
        steps = terms.local_steps * terms.cap  # of a record, at most
        common = best_threshold(whole, steps=steps, batch_size=batch * clients.number)
        used = np.where(epsilon >= common, common, _NOBODY)
    else:
        raise InvalidInput(
            f"method is {method!r}; over clients choose uniform, exclude, sample, scale, ceiling or none"
        )
    taking_part = int((used > _NOBODY).sum())
    rate = min(1.0, batch * clients.number / taking_part)
    return terms.with_noise_for(common, rate), used, rate


def step_length(terms: Terms, walk: float) -> float:
    """The local learning rate with which noise alone moves a weight of the global model by ``walk`` in all rounds.

    A local step adds noise of deviation lr·σ·C/B to each weight; a round adds up τ of them from about λ·M clients
    with weight 1 / (λ·M), and T rounds are independent: lr·σ·C/B·√(T·τ / (λ·M)).
    """
    steps = terms.rounds * terms.local_steps / (terms.client_rate * terms.clients)
    return walk * terms.batch_size / (terms.noise_multiplier * terms.clip_norm * math.sqrt(steps))


def trained(
    clients: Clients,
    method: str,
    settings: Settings,
    network: Callable[[], nn.Module],
    records: tuple[Tensor, Tensor],
    epsilon: np.ndarray,
    delta: float,
    seed: int,
) -> tuple[nn.Module, Averages, dict[str, Any]]:
    """The global model with its averages over rounds, and what there is to say about the terms and what was spent."""
    rows = np.array_split(np.random.default_rng([seed, 11]).permutation(len(records[1])), clients.number)
    federation = _federation(records, rows, network)
    begin = simulation.new_state(federation.new_model, seed)
    model = simulation.load(federation.new_model(), begin)
    averages = Averages(model, settings.decays)

    def follow(states: Iterable[State]) -> None:
        for state in states:
            simulation.load(model, state)
            averages.step()

    if method == "none":
        batch = max(1, settings.batch_size // clients.number)
        setting = Setting(
            rounds=clients.rounds,
            local_steps=settings.steps,
            client_rate=clients.client_rate,
            delta=delta,
            batch_size=batch,
            learning_rate=settings.learning_rate,
            clip_norm=settings.clip_norm,  # of no use here
            records_per_client=federation.records / clients.number,
        )
        follow(ordinary_rounds(federation, setting, seed))
        return model, averages, {"learning_rate": settings.learning_rate}
    terms, used, rate = terms_of(method, clients, settings, epsilon, delta)
    terms = replace(terms, learning_rate=step_length(terms, settings.walk))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", PrivyPurseWarning)  # seeded, for measuring
        own = (offer_of(terms, np.unique(used[used > _NOBODY])), federation.new_model, Path(folder))
        every = [
            _client(silo, used[some], *own, 1000 * seed + k, rate if method == "scale" else None)
            for k, (silo, some) in enumerate(zip(federation.silos, rows, strict=True))
        ]
        follow(held.state for held in simulation.rounds(terms, begin, every, seed))
        spent = np.concatenate([spent_by_level(each)[each.plan.level_of] for each in every])
        joined = [each.joined for each in every]
        for each in every:
            each.close()
    granted = np.full(epsilon.size, epsilon.max()) if method == "ceiling" else epsilon[np.concatenate(rows)]
    said = {
        "learning_rate": terms.learning_rate,
        "noise_multiplier": terms.noise_multiplier,
        "people": int((used > _NOBODY).sum()),
        "spent": sorted({round(float(each), 4) for each in np.unique(spent)}),
        "overspent": int((spent > granted).sum()),
        "joined": joined,
    }
    return model, averages, said


def _federation(
    records: tuple[Tensor, Tensor], rows: Sequence[np.ndarray], network: Callable[[], nn.Module]
) -> Federation:
    """Everybody's records at the client where they lie. There is nothing to test on here."""
    x, y = records

    def part(some: np.ndarray) -> TensorDataset:
        where = torch.as_tensor(some, device=x.device)
        return TensorDataset(x[where], y[where])

    silos = tuple(Silo(f"client {k + 1}", part(some)) for k, some in enumerate(rows))
    return Federation("rivals", silos, part(np.zeros(0, np.int64)), lambda: network().to(x.device))


def _client(
    silo: Silo,
    granted: np.ndarray,
    offer: Offer,
    new_model: Callable[[], nn.Module],
    folder: Path,
    seed: int,
    rate: float | None,
) -> Client:
    """A client with its book; by Scale where there is a rate for all."""
    own = (pp.Budgets(granted, delta=offer.terms.delta), new_model, losses, offer, folder / silo.name)
    if rate is not None:
        return ScaledClient(silo.train, *own, seed=seed).scaled(rate)
    return Client(silo.train, *own, seed=seed)

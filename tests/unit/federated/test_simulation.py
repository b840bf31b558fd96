"""Rounds in one process: whoever does not join one has seen that it was held, and accounts are kept accordingly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import linear, maker, records, terms_with

from privypurse.accounting import RDP, ClientSampled, SampledGaussian
from privypurse.federated import engine, flower, silos, simulation
from privypurse.federated.client import Client
from privypurse.federated.server import Aggregated
from privypurse.federated.terms import Offer, Terms

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
TERMS = terms_with(rounds=12, noise_multiplier=1.5, clients=4, client_rate=0.3, most_joined=12, adversary="public")
EPSILON = np.array([1.0, 1.5, 2.0, 3.0, 4.0])


def clients(folder: Path, terms: Terms) -> list[Client]:
    made = maker(Offer.of(terms), EPSILON, adversary="public")
    return [
        made(folder / str(index), dataset=records(EPSILON.size, seed=index), seed=index)
        for index in range(terms.clients)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.05])
def test_every_round_that_was_held_counts_against_the_public_joined_or_not(tmp_path: Path, rate: float) -> None:
    """At a rate of 0.05 most clients join none at all, and pay all the same for what might have been."""
    terms = replace(TERMS, client_rate=rate)
    everyone = clients(tmp_path, terms)
    held = list(simulation.rounds(terms, simulation.new_state(linear, 0), everyone, seed=4))
    assert [one.asked for one in held] == [(0, 1, 2, 3)] * 12
    own = [[one.number for one in held if index not in one.declined] for index in range(4)]
    joined, late = [len(numbers) for numbers in own], [max(numbers, default=0) for numbers in own]
    assert max(joined) < 12
    assert min(late) < 12  # somebody did not join the last round, and has seen it all the same
    for index, client in enumerate(everyone):
        rates = client.plan.rates.tolist()
        seen = [ClientSampled(rate, SampledGaussian(each, 1.5, 2), 12) for each in rates]
        full = [SampledGaussian(each, 1.5, 2 * 12) for each in rates]
        expected = np.minimum(RDP().epsilons(seen, 1e-3), RDP().epsilons(full, 1e-3))
        account = client.spent()
        assert client.joined == joined[index]
        np.testing.assert_allclose(account.against_public, expected, rtol=1e-9)
        assert (account.against_public <= EPSILON).all()
        # The broken twin: what was seen when it joined for the last time.
        if 0 < late[index] < 12:
            fewer = [ClientSampled(rate, SampledGaussian(each, 1.5, 2), late[index]) for each in rates]
            assert (RDP().epsilons(fewer, 1e-3) < account.against_public).all()


@pytest.mark.slow
def test_a_client_that_declines_has_seen_the_round(tmp_path: Path) -> None:
    terms = replace(TERMS, client_rate=1.0, most_joined=2)
    everyone = clients(tmp_path, terms)
    held = list(simulation.rounds(terms, simulation.new_state(linear, 0), everyone, seed=4))
    assert [one.declined for one in held] == [()] * 2 + [(0, 1, 2, 3)] * 10
    for client in everyone:
        full = [SampledGaussian(each, 1.5, 2 * 2) for each in client.plan.rates.tolist()]
        np.testing.assert_allclose(client.spent().against_public, RDP().epsilons(full, 1e-3), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.needs("data/heart_disease")
def test_on_flower_rounds_count_that_a_client_never_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation whose server never asks anybody: the rows at its end are those of all rounds all the same."""
    terms = replace(TERMS, rounds=3, most_joined=3)

    class NobodyAsked:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.history: list[Aggregated] = []

        def start(self, grid: Any, begin: Any, num_rounds: int) -> None:
            self.history = [Aggregated(flower.from_record(begin), used=(0,), refused={})] * num_rounds

    monkeypatch.setattr(flower, "PersonalisedAverage", NobodyAsked)
    monkeypatch.setattr(engine, "run_simulation", lambda server, *_, **__: server(None, None))
    trial = engine.run("heart", "three-levels", terms, tmp_path, seed=0)
    granted = silos.granted_in(silos.federation("heart", 0), "three-levels", 0)
    for row, each in zip(trial.clients, granted, strict=True):
        assert row.joined == 0
        assert row.overdrawn == 0
        assert 0.9 * each.max() < row.spent.max() <= each.max()  # what three rounds may cost against the public

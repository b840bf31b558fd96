"""Attacks on a client's book, and by a server's offer."""

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, granted, maker, terms_with

import privypurse as pp
from privypurse.accounting import PLD, CertifiedTable, ClientSampled, Composed, SampledGaussian
from privypurse.federated.client import Declined
from privypurse.federated.terms import Offer, Terms

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests

TERMS = terms_with(rounds=3, local_steps=4, noise_multiplier=1.7, batch_size=7, client_rate=1.0)
OFFER = Offer.of(TERMS)
made = maker(OFFER, 5.0)


def test_a_removed_lock_lets_no_second_client_in(tmp_path: Path) -> None:
    """A cap of one round, and two updates."""
    offer = Offer.of(replace(TERMS, most_joined=1))
    clients = [made(tmp_path, offer=offer, seed=None)]
    (tmp_path / "lock").unlink(missing_ok=True)
    with contextlib.suppress(pp.InvalidInput):
        clients.append(made(tmp_path, offer=offer, seed=None))
    updates = []
    for number, client in enumerate(clients, 1):
        updates.append(client.answer(number, STATE))
    assert len(updates) == 1
    with pytest.raises(Declined):
        clients[0].answer(2, STATE)


def test_a_book_that_was_taken_away_is_not_begun_anew(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    (tmp_path / "book").unlink()
    with pytest.raises(pp.InvalidInput, match="removed or replaced"):
        client.answer(2, STATE)
    client.close()
    for left in ("answer-1.npz", "offer.json"):
        with pytest.raises(pp.InvalidInput, match=f"missing beside {left}"):
            made(tmp_path)
        (tmp_path / left).unlink()
    assert made(tmp_path).joined == 0  # an empty folder is a new one


def test_rates_belong_to_their_terms(tmp_path: Path) -> None:
    """What was certified for much noise, kept while the book is removed, spent 8 of 1 under terms with little."""
    epsilon = np.ones(9)
    made(tmp_path, budgets=granted(epsilon), offer=Offer.of(replace(TERMS, noise_multiplier=30.0))).close()
    for path in tmp_path.iterdir():
        if path.name != "rates.json":
            path.unlink()
    client = made(tmp_path, budgets=granted(epsilon), offer=Offer.of(replace(TERMS, noise_multiplier=0.8)))
    for number in range(1, 4):
        client.answer(number, STATE)
    assert client.spent().against_server.max() <= 1.0


def in_time(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the call gives, or an error if it takes longer than that."""

    def late(*_: Any) -> None:
        raise TimeoutError("no answer")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("least", [1e-300, 1e-160, 5e-324, 1e-13])
def test_an_offer_with_a_rate_below_the_least_is_refused_whoever_is_there(least: float) -> None:
    """Accounting for it never ended, and only if somebody's ε fell on that row."""
    content = OFFER.to_json()
    content["terms"]["accountant"] = "pld"
    content["rate"], content["epsilon"] = [least, 1.0], [0.5, 500.0]
    with pytest.raises(pp.InvalidInput, match="the least that is accepted is 1e-12"):
        Offer.from_json(content)
    content["rate"], content["epsilon"] = np.linspace(0.1, 1, 20_000).tolist(), np.linspace(1, 5, 20_000).tolist()
    with pytest.raises(pp.InvalidInput, match="at most 10,000"):
        Offer.from_json(content)


@pytest.mark.parametrize("rate", [1e-12, 1e-100, 1e-160, 1e-300, 5e-324])
def test_accounting_ends_for_every_rate_and_costs_no_more_than_a_larger_one(rate: float) -> None:
    accountant = PLD()
    for release in (
        lambda q: SampledGaussian(q, 0.7, 40),
        lambda q: ClientSampled(0.5, SampledGaussian(q, 0.7, 4), 10),
        lambda q: Composed((SampledGaussian(q, 0.7, 40), SampledGaussian(0.01, 2.0, 10))),
    ):
        small, larger = in_time(lambda release=release: accountant.epsilons([release(rate), release(1e-3)], 1e-5))
        assert 0 <= small <= larger


def test_what_is_certified_does_not_follow_from_who_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that takes long tells by the time it takes whether somebody's ε falls on it."""
    asked: list[list[float]] = []
    certified = Terms.certified

    def noted_down(self: Terms, rates: np.ndarray, progress: Any = None) -> np.ndarray:
        asked[-1].extend(np.asarray(rates).tolist())
        return certified(self, rates, progress)

    monkeypatch.setattr(Terms, "certified", noted_down)
    table = CertifiedTable(np.array([1e-3, 0.1, 1.0]), np.array([0.3, 3.0, 30.0]))
    for number, epsilon in enumerate(([0.5] * 9, [0.5] * 8 + [5.0], [0.1] * 9, [40.0] * 9)):
        asked.append([])
        made(tmp_path / str(number), budgets=granted(epsilon), offer=Offer(TERMS, table)).close()
    assert asked[0]
    assert all(one == asked[0] for one in asked)


@pytest.mark.parametrize("named", [8, 10])
def test_ids_for_other_records_are_refused_before_a_round_is_paid_for(tmp_path: Path, named: int) -> None:
    """Nine records: such a client would join, pay, fail, and be asked again until all its rounds are spent."""
    everybody = np.arange(10)
    budgets = pp.Budgets(np.full(10, 5.0), delta=TERMS.delta, person=everybody)
    with pytest.raises(pp.InvalidInput, match="person must hold one id for each of the 9 records"):
        made(tmp_path, budgets=budgets, person=everybody[:named])
    client = made(tmp_path, budgets=budgets, person=everybody[:9])
    assert client.joined == 0
    client.close()

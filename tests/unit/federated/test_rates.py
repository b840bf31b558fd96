"""What a record pays: the rate that its own ε buys, certified again by the client, whatever the server asks."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import EPSILON, OFFER, STATE, TERMS, PowerFailure, bits, joins_all, losses, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privypurse as pp
from privypurse.accounting import RDP, CertifiedTable, ClientSampled, SampledGaussian
from privypurse.federated.client import Client, Declined
from privypurse.federated.terms import Offer

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


def test_whoever_grants_a_stricter_delta_sits_out_and_the_server_is_not_told(tmp_path: Path) -> None:
    delta = np.full(EPSILON.size, 1e-2)
    looser = made(tmp_path / "looser", budgets=pp.Budgets(EPSILON, delta=delta))
    delta[4] = TERMS.delta / 10
    stricter = made(tmp_path / "stricter", budgets=pp.Budgets(EPSILON, delta=delta))
    assert stricter.sitting_out == looser.sitting_out + 1
    assert stricter.plan.rates[4] == 0 < looser.plan.rates[4]
    others = np.arange(EPSILON.size) != 4
    assert stricter.plan.rates[others].tolist() == looser.plan.rates[others].tolist()
    stricter.answer(1, STATE)
    assert stricter.spent().against_server[4] == 0
    everybody = made(tmp_path / "all", budgets=pp.Budgets(EPSILON, delta=TERMS.delta / 10))
    assert everybody.sitting_out == EPSILON.size
    everybody.answer(1, STATE)


def test_each_record_has_the_rate_that_its_own_epsilon_buys(tmp_path: Path) -> None:
    client = made(tmp_path)
    assert client.plan.rates.tolist() == OFFER.table.within(EPSILON).tolist()
    assert client.plan.rates[0] == 0
    assert client.plan.rates[-1] == 1
    assert client.sitting_out == 1


def test_a_lying_table_is_caught(tmp_path: Path) -> None:
    table = OFFER.table
    lie = Offer(TERMS, CertifiedTable(np.minimum(10 * table.parameter, 1), table.epsilon))
    believed = lie.table.within(EPSILON)
    assert (TERMS.certified(believed) > EPSILON).sum() >= 4  # what it would have done
    client = made(tmp_path, offer=lie)
    rates = client.plan.rates
    assert (rates == np.where(TERMS.certified(believed) > EPSILON, 0, believed)).all()
    assert client.sitting_out == (rates == 0).sum() >= 4
    for number in (1, 2, 3):
        client.answer(number, STATE)
    assert (client.spent().against_server <= EPSILON).all()


def test_a_table_of_rates_above_one_is_no_way_around(tmp_path: Path) -> None:
    client = made(tmp_path, offer=Offer(TERMS, CertifiedTable(np.array([0.5, 40.0]), np.array([3.0, 20.0]))))
    assert client.plan.rates.max() == 1
    assert (TERMS.certified(client.plan.rates) <= EPSILON).all()


@cache
def peer(rate: float, steps: int) -> float:
    """ε by Google's accountant, with some of the orders of ours."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    if rate == 0 or steps == 0:
        return 0.0
    event = GaussianDpEvent(TERMS.noise_multiplier)
    accountant = RdpAccountant([order for order in RDP().orders.tolist() if order < 3 or order in range(64)])
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, event) if rate < 1 else event, steps))
    return float(accountant.get_epsilon(TERMS.delta))


REQUEST = st.tuples(st.integers(-1, 6), st.sampled_from(["good", "nan", "other", "crash"]), st.booleans())


@pytest.mark.slow
@given(requests=st.lists(REQUEST, max_size=9))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nobody_is_overdrawn_whatever_is_asked(tmp_path_factory: Any, requests: list[tuple[int, str, bool]]) -> None:
    """Repeated, out of order, out of range, with wrong parameters, with crashes, and by one process after another."""
    folder = tmp_path_factory.mktemp("client")
    states = {
        "good": STATE,
        "crash": STATE,
        "nan": {**STATE, "bias": np.full(2, math.nan)},
        "other": {"weight": STATE["weight"]},
    }
    broken = False
    trained, answers = 0, {}

    def maybe(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if broken:
            raise PowerFailure
        return losses(output, label)

    client = made(folder, loss_fn=maybe)
    for number, how, anew in requests:
        broken = how == "crash"
        fits = 1 <= number <= 5 and how in ("good", "crash")
        if number in answers and how in ("good", "crash"):
            assert bits(client.answer(number, states[how])) == answers[number]
        elif fits and trained < 3:
            trained += 1  # whatever becomes of it
            try:
                answers[number] = bits(client.answer(number, states[how]))
            except PowerFailure:
                anew = True
        else:
            with pytest.raises((pp.InvalidInput, Declined)):
                client.answer(number, states[how])
        broken = False
        if anew:
            client.close()
            client = made(folder, loss_fn=maybe)
        assert client.joined == trained <= 3
    spent = client.spent().against_server
    client.close()
    assert (spent <= EPSILON).all()
    some = [0, 2, 5, 8]
    again = [peer(rate, TERMS.local_steps * trained) for rate in OFFER.table.within(EPSILON[some]).tolist()]
    assert spent[some] == pytest.approx(again, rel=0.03)  # ours has more orders
    assert (spent[some] <= np.array(again) * (1 + 1e-9)).all()


def test_all_joined_is_all_that_was_certified(tmp_path: Path) -> None:
    client = made(tmp_path)
    for number in (1, 2, 3):
        client.answer(number, STATE)
    spent = client.spent().against_server
    assert spent == pytest.approx(TERMS.certified(client.plan.rates))
    assert ((spent <= EPSILON) & (spent[0] == 0)).all()
    assert (spent[1:-1] > 0.9 * EPSILON[1:-1]).all()
    # The broken twin: one more round would overdraw nearly everybody.
    more = RDP().epsilons([SampledGaussian(rate, 1.0, 2 * 4) for rate in client.plan.rates.tolist()], TERMS.delta)
    assert (more > EPSILON).sum() >= 6


def against_public(client: Client, held: int) -> np.ndarray:
    """So many rounds, joined or not, or the cap in full, whichever is less; however often was really joined."""
    rates = client.plan.rates[1:].tolist()
    seen = [ClientSampled(0.5, SampledGaussian(rate, 1.0, 2), held) for rate in rates]
    full = [SampledGaussian(rate, 1.0, 2 * min(held, TERMS.cap)) for rate in rates]
    return np.minimum(RDP().epsilons(seen, TERMS.delta), RDP().epsilons(full, TERMS.delta))


def test_against_the_public_every_round_counts_that_was_held(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.held(1)
    assert client.joined == 0
    account = client.spent()
    assert account.against_server.max() == 0
    once = [ClientSampled(0.5, SampledGaussian(rate, 1.0, 2)) for rate in client.plan.rates[1:].tolist()]
    assert account.against_public[0] == 0
    assert account.against_public[1:] == pytest.approx(RDP().epsilons(once, TERMS.delta))
    client.answer(2, STATE)
    client.held(4)
    client.held(3)  # late news changes nothing
    expected = against_public(client, 4)
    assert client.spent().against_public[1:] == pytest.approx(expected)
    client.close()
    assert made(tmp_path).spent().against_public[1:] == pytest.approx(expected)


def test_terms_against_the_public_keep_epsilon_over_all_rounds(tmp_path: Path) -> None:
    terms = replace(TERMS, adversary="public", most_joined=5)
    client = made(tmp_path, offer=Offer.of(terms), adversary="public")
    joins_all(client)
    for number in range(1, 6):
        client.answer(number, STATE)
    account = client.spent()
    assert (account.against_public <= EPSILON).all()
    assert (account.against_public[1:-1] > 0.9 * EPSILON[1:-1]).all()
    assert (account.against_server > EPSILON).any()  # which is why it is not the default


def test_the_records_of_a_person_are_one(tmp_path: Path) -> None:
    person = [0, 0, 0, 1, 1, 2, 2, 3, 3]
    granted = np.array([1.0, 4.0, 0.01, 8.0])[person]
    client = made(tmp_path, budgets=pp.Budgets(granted, delta=1e-3, person=person), person=person)
    client.answer(1, STATE)
    spent = client.spent().against_server
    assert (spent <= granted).all()
    assert client.sitting_out == 1
    assert [len(set(spent[np.array(person) == who])) for who in range(4)] == [1, 1, 1, 1]


def test_an_account_cannot_be_changed(tmp_path: Path) -> None:
    account = made(tmp_path).spent()
    with pytest.raises(ValueError, match="read-only"):
        account.against_server[0] = 0


def test_a_declined_round_was_held_all_the_same(tmp_path: Path) -> None:
    client = made(tmp_path)
    for number in (1, 2, 3):
        client.answer(number, STATE)
    with pytest.raises(Declined):
        client.answer(5, STATE)
    assert client.spent().against_public[1:] == pytest.approx(against_public(client, 5))


def test_another_table_in_a_later_message_does_not_make_the_past_cheaper(tmp_path: Path) -> None:
    """The server sends the table with every message; the account is of the rates that were really used."""
    client = made(tmp_path)
    for number in (1, 2):
        client.answer(number, STATE)
    spent = client.spent().against_server
    client.close()
    lower = Offer(TERMS, CertifiedTable(OFFER.table.parameter / 100, OFFER.table.epsilon))
    try:
        client = made(tmp_path, offer=lower)
    except pp.InvalidInput:
        return  # refusing it is as good
    assert (client.spent().against_server >= spent).all()

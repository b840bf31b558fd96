"""Terms of federated training: checked at birth, and a table that gives nobody more than their ε pays for."""

import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation import terms_with
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import privypurse as pp
from privypurse.accounting import PLD, RDP, CertifiedTable, ClientSampled, SampledGaussian
from privypurse.federated.terms import Offer, Terms

TERMS = terms_with(rounds=6, local_steps=3, noise_multiplier=1.5, clients=4, most_joined=4)
BOTH = [replace(TERMS, adversary=adversary) for adversary in ("server", "public")]
TABLES = {terms.adversary: terms.table() for terms in BOTH}


def release(terms: Terms, rate: float) -> SampledGaussian | ClientSampled:
    """What a record faces in all, written down again (rule 8)."""
    if terms.adversary == "server":
        return SampledGaussian(rate, terms.noise_multiplier, terms.local_steps * terms.cap)
    return ClientSampled(
        terms.client_rate, SampledGaussian(rate, terms.noise_multiplier, terms.local_steps), terms.rounds
    )


def wrong_numbers() -> list[tuple[str, Any]]:
    whole = ("rounds", "local_steps", "batch_size", "clients", "most_joined")
    positive = ("noise_multiplier", "learning_rate", "clip_norm", "delta", "client_rate")
    return [
        *((name, value) for name in whole for value in (0, -1, True, 2.0, math.nan, "3")),
        *((name, value) for name in positive for value in (0, -0.5, True, math.nan, math.inf, "1", None)),
        *(("client_rate", value) for value in (1.0000001, 2)),
        *(("delta", value) for value in (1, 1.0, 2)),
        *(("momentum", value) for value in (1.0, -0.1, math.nan, True)),
    ]


@pytest.mark.parametrize(("name", "value"), wrong_numbers())
def test_a_wrong_number_is_an_error_that_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=rf"^{name} must be a "):
        replace(TERMS, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("momentum", "x"), ("momentum", None), ("momentum", False), pytest.param("clip_norm", 10**400, id="huge")],
)
def test_what_is_no_number_is_an_error_that_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=rf"^{name} must be a "):
        replace(TERMS, **{name: value})


def test_the_message_about_momentum_says_what_was_given() -> None:
    with pytest.raises(pp.InvalidInput, match=r"^momentum must be .*below 1, not 1\.5"):
        replace(TERMS, momentum=1.5)


@pytest.mark.parametrize("missing", ["rounds", "local_steps", "noise_multiplier", "batch_size", "clients"])
def test_nothing_that_matters_has_a_default(missing: str) -> None:
    content = {name: value for name, value in TERMS.to_json().items() if name != missing}
    with pytest.raises(pp.InvalidInput, match=missing):
        Terms.from_json(content)


def test_more_rounds_joined_than_held_is_an_error() -> None:
    assert replace(TERMS, most_joined=6).cap == 6
    with pytest.raises(pp.InvalidInput, match=r"most_joined must be .*from 1 to 6, not 7; a client cannot join more"):
        replace(TERMS, most_joined=7)


@pytest.mark.parametrize("adversary", ["", "Server", "nobody", None, 1])
def test_an_unknown_adversary_is_an_error_that_names_those_there_are(adversary: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=r"^adversary is .*'server', 'public'"):
        replace(TERMS, adversary=adversary)


def test_an_unknown_accountant_is_an_error() -> None:
    with pytest.raises(pp.InvalidInput, match="accountant is 'luck'"):
        replace(TERMS, accountant="luck")


def test_the_stricter_adversary_is_the_default() -> None:
    content = {name: value for name, value in TERMS.to_json().items() if name != "adversary"}
    assert Terms.from_json(content).adversary == "server"


@pytest.mark.parametrize("client_rate", [0.001, 0.1, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("rounds", [1, 2, 15, 400])
def test_by_default_a_client_is_rarely_asked_more_often_than_it_joins(rounds: int, client_rate: float) -> None:
    cap = replace(TERMS, rounds=rounds, client_rate=client_rate, most_joined=None).cap
    assert 1 <= cap <= rounds
    assert stats.binom.sf(cap, rounds, client_rate) <= 0.05
    # And no larger than that needs: every round joined is paid for by all.
    assert cap == 1 or stats.binom.sf(cap - 1, rounds, client_rate) > 0.05


def cost(terms: Terms, rate: float) -> float:
    """What a rate costs; the cap on joined rounds holds against the public too."""
    capped = SampledGaussian(rate, terms.noise_multiplier, terms.local_steps * terms.cap)
    return float(RDP().epsilons([release(terms, rate), capped], terms.delta).min())


@pytest.mark.parametrize("terms", BOTH, ids=lambda terms: terms.adversary)
@given(epsilon=st.floats(1e-3, 100))
@settings(max_examples=60, deadline=None)
def test_what_the_table_gives_costs_no_more_and_the_next_rate_would(terms: Terms, epsilon: float) -> None:
    table = TABLES[terms.adversary]
    rate = float(table.within(np.array([epsilon]))[0])
    if rate == 0:
        assert epsilon < table.epsilon[0]
        return
    assert rate in table.parameter  # a neighbour, never something in between (rule 4)
    assert cost(terms, rate) <= epsilon
    larger = table.parameter[table.parameter > rate][:1]
    if larger.size:
        assert cost(terms, float(larger[0])) > epsilon
        assert larger[0] / rate < 1.025  # so that little of ε is left
    else:
        assert rate == 1


@pytest.mark.slow
def test_the_tables_of_the_default_accountant_are_right_too() -> None:
    for terms in BOTH:
        exact = replace(terms, accountant="pld")
        some = np.geomspace(0.05, 50, 12)
        rates = exact.table().within(some)
        assert (rates > 0).all()
        assert (PLD().epsilons([release(exact, rate) for rate in rates.tolist()], exact.delta) <= some).all()


@pytest.mark.parametrize("adversary", TABLES)
def test_who_grants_less_than_the_smallest_rate_costs_gets_nothing(adversary: str) -> None:
    table = TABLES[adversary]
    least = float(table.epsilon[0])
    below, at = table.within(np.array([math.nextafter(least, 0), least])).tolist()
    assert below == 0
    assert at == table.parameter[table.epsilon <= least].max()
    assert table.within(np.array([1e9])).tolist() == [1.0]


@pytest.mark.parametrize("terms", BOTH, ids=lambda terms: terms.adversary)
def test_what_is_charged_is_what_the_adversary_sees(terms: Terms) -> None:
    assert terms.faced(0.25) == release(terms, 0.25)
    joined, seen = terms.joined(0.25, 2), terms.seen(0.25, 5)
    assert joined == SampledGaussian(0.25, 1.5, 6)
    assert seen == ClientSampled(0.5, SampledGaussian(0.25, 1.5, 3), 5)


@pytest.mark.parametrize("terms", BOTH, ids=lambda terms: terms.adversary)
def test_who_sits_out_pays_nothing(terms: Terms) -> None:
    assert terms.certified(np.zeros(2)).tolist() == [0, 0]


def test_an_offer_travels_as_text_and_comes_back_the_same() -> None:
    sent = Offer(TERMS, TABLES["server"])
    came = Offer.from_json(json.loads(json.dumps(sent.to_json())))
    assert came.terms == TERMS
    assert came.terms == TERMS
    assert came.table.parameter.tobytes() == sent.table.parameter.tobytes()
    assert came.table.epsilon.tobytes() == sent.table.epsilon.tobytes()


def test_an_offer_says_nothing_but_terms_and_table() -> None:
    assert set(Offer(TERMS, TABLES["server"]).to_json()) == {"terms", "rate", "epsilon"}


@pytest.mark.parametrize(
    "spoiled",
    [
        {"rate": None},
        {"rate": "much"},
        {"rate": [0.5]},
        {"rate": [-1.0, 1.0], "epsilon": [1.0, 2.0]},
        {"rate": [0.5, 1.0], "epsilon": [math.nan, 2.0]},
        {"terms": None},
        {"terms": {}},
        {"terms": {**TERMS.to_json(), "bribe": 1}},
        {"terms": {**TERMS.to_json(), "rounds": 0}},
    ],
)
def test_what_is_no_offer_is_refused(spoiled: dict[str, Any]) -> None:
    with pytest.raises(pp.InvalidInput):
        Offer.from_json({**Offer(TERMS, TABLES["server"]).to_json(), **spoiled})


@pytest.mark.parametrize("missing", ["terms", "rate", "epsilon"])
def test_an_offer_with_a_part_missing_is_refused(missing: str) -> None:
    content = Offer(TERMS, TABLES["server"]).to_json()
    del content[missing]
    with pytest.raises(pp.InvalidInput, match=missing):
        Offer.from_json(content)


@pytest.mark.parametrize("name", TERMS.to_json())
def test_every_term_is_part_of_the_fingerprint(name: str) -> None:
    other: dict[str, Any] = {
        "adversary": "public",
        "accountant": "pld",
        "momentum": 0.5,
        "most_joined": 5,
        "answer_seconds": 1.0,
    }
    value = other[name] if name in other else getattr(TERMS, name) * 2
    changed = replace(TERMS, **{name: value})
    assert Offer(changed, TABLES["server"]).digest != Offer(TERMS, TABLES["server"]).digest


def test_a_million_look_ups_take_no_time() -> None:
    epsilon = np.random.default_rng(0).uniform(0.01, 20, 1_000_000)
    begun = time.process_time()
    rates = TABLES["server"].within(epsilon)
    assert time.process_time() - begun < 2
    order = np.argsort(epsilon)
    assert (np.diff(rates[order]) >= 0).all()
    # The same as one by one, at a few places.
    for place in range(0, 1_000_000, 99_991):
        assert rates[place] == TABLES["server"].within(epsilon[place : place + 1])[0]


def test_a_look_up_between_points_would_be_too_much() -> None:
    """The broken twin: interpolating in the table gives rates that cost more than the ε they are for."""
    coarse = CertifiedTable(TABLES["server"].parameter[::40], TABLES["server"].epsilon[::40])
    epsilon = np.linspace(coarse.epsilon[2], coarse.epsilon[-1], 50)
    between = np.interp(epsilon, coarse.epsilon, coarse.parameter)
    assert (TERMS.certified(between) > epsilon).any()
    assert (TERMS.certified(coarse.within(epsilon)) <= epsilon).all()

"""Against the public every round is paid for, joined or not (rule 8), by whatever asks what a federation costs."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from paying_client import TERMS

import privypurse as pp
from privypurse.federated.ledger_account import charges_of_rounds
from privypurse.federated.terms import Terms
from privypurse.ledger.lifetime import Lifetime

RARELY = replace(TERMS, adversary="public", rounds=50, client_rate=0.1, most_joined=9)


def at_least(terms: Terms, order: float, rounds: int) -> float:
    """What so many rounds cost a record of rate 1 at the whole order below: the binomial sum of a client that joins
    by a coin (Mironov et al. 2019, arXiv 1908.10530, 3.3) with a round of Gaussian steps inside."""
    whole, rate, each = math.floor(order), terms.client_rate, terms.local_steps / (2 * terms.noise_multiplier**2)
    moment = math.fsum(
        math.comb(whole, j) * (1 - rate) ** (whole - j) * rate**j * math.exp(j * (j - 1) * each)
        for j in range(whole + 1)
    )
    return rounds * math.log(moment) / (whole - 1)


def in_full(terms: Terms, order: float, rounds: int) -> float:
    """What so many joined rounds cost at most (Mironov 2017, arXiv 1702.07476, Proposition 7)."""
    return order * terms.local_steps * rounds / (2 * terms.noise_multiplier**2)


@pytest.mark.parametrize("joined", [1, 9])
def test_a_ledger_charges_all_rounds_where_that_is_less_than_the_joined_ones_in_full(
    new_ledger: Callable[..., pp.Ledger], joined: int
) -> None:
    ledger = new_ledger("public")
    [charge] = charges_of_rounds(ledger, RARELY, np.array([1.0]), joined)
    for rung, units in zip(ledger.rungs, charge.tolist(), strict=True):
        every, in_these = at_least(RARELY, rung.order, RARELY.rounds), in_full(RARELY, rung.order, joined)
        assert at_least(RARELY, rung.order, RARELY.most_joined or 0) < 0.2 * every  # fewer would be told from all
        assert math.ldexp(units, -40) >= min(every, in_these) * (1 - 1e-9)
        assert math.ldexp(units, -40) <= in_these * (1 + 1e-6)


def test_the_share_of_a_purse_that_terms_take_counts_all_rounds() -> None:
    [rung] = Lifetime.of([(1.0, RARELY.delta)]).rungs
    share, held = RARELY.share_of_purse(1.0, 1.0), math.ldexp(rung.limit, -40)
    every = at_least(RARELY, rung.order, RARELY.rounds)
    assert every < in_full(RARELY, rung.order, 9)  # so the rounds of the cap in full do not decide
    assert every / held * (1 - 1e-9) <= share <= in_full(RARELY, rung.order, 9) / held

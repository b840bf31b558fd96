"""Rules 14, 15 and 16 where something stays hidden: coins, what is left in a purse, and what follows from it.

Tiny worlds as in `test_lifetime_promise`, but a transcript's probability is a sum over hidden coins, or its noise
follows from a settled balance. ε = 1, δ = 1e-5, order 16: all in exact rationals.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from lifetime_worlds import Channel, randomised_response, told, true_delta
from privypurse.accounting import PureDP, SampledRound
from privypurse.ledger.lifetime import Lifetime

EPSILON, DELTA = 1.0, 1e-5
LIFETIME = Lifetime.of([(EPSILON, DELTA)])
ORDER, LIMIT = LIFETIME.rungs[0].order, LIFETIME.rungs[0].limit
Pairs = list[tuple[Fraction, Fraction]]


def mixed(rate: Fraction, channel: Channel) -> Channel:
    """A channel that a person enters by a hidden coin."""
    return Channel(tuple((rate * p + (1 - rate) * q, q) for p, q in channel.outputs))


def composed(channel: Channel, steps: int) -> Channel:
    pairs = []
    for outputs in itertools.product(channel.outputs, repeat=steps):
        p = q = Fraction(1)
        for with_person, without in outputs:
            p, q = p * with_person, q * without
        pairs.append((p, q))
    return Channel(tuple(pairs))


# --- Not being drawn gives nothing back ---------------------------------------------------------------------------


def stay_until_drawn(rate: Fraction, response: Channel, draws: int, rounds: int) -> Pairs:
    """A person goes on until they were drawn so many times, which nobody sees: every transcript."""
    yes, no = response.outputs
    transcripts = [([Fraction(1)] + [Fraction(0)] * draws, Fraction(1))]  # by how often drawn; and without the person
    for _ in range(rounds):
        after = []
        for weights, absent in transcripts:
            for drawn, not_drawn in (yes, no):
                new = [Fraction(0)] * (draws + 1)
                new[draws] = weights[draws] * not_drawn
                for times in range(draws):
                    new[times] += weights[times] * (1 - rate) * not_drawn
                    new[times + 1] += weights[times] * rate * drawn
                after.append((new, absent * not_drawn))
        transcripts = after
    return [(sum(weights, Fraction(0)), absent) for weights, absent in transcripts]


COINS = {
    "a refund for not being drawn (rate 0.3, twelve rounds)": (Fraction(3, 10), "2", 2),
    "only the drawn are charged (rate 0.2, twelve rounds)": (Fraction(1, 5), "4", 1),
}


@pytest.mark.parametrize("twin", COINS)
def test_whoever_is_not_drawn_pays_too(twin: str) -> None:
    """The purse holds so many rounds at the amplified price. Drawn or not, they are used up after as many."""
    rate, odds, holds = COINS[twin]
    response = randomised_response(odds)
    price = mixed(rate, response).units(ORDER)
    assert LIMIT // price == holds
    assert true_delta(list(composed(mixed(rate, response), holds).outputs), EPSILON) <= DELTA
    reached = true_delta(stay_until_drawn(rate, response, holds, rounds=12), EPSILON)
    assert reached > 100 * DELTA
    assert told(twin) == pytest.approx(reached, rel=0.03)


def test_a_round_is_charged_what_its_hidden_coin_costs() -> None:
    for rate, odds, steps in (("3/10", 2, 1), ("1/5", 4, 1), ("1/1000", 30, 2)):
        epsilon = math.nextafter(math.log(odds), math.inf)
        charged = int(LIFETIME.charges_of([SampledRound(float(Fraction(rate)), PureDP(epsilon, steps))])[0, 0])
        assert charged >= mixed(Fraction(rate), composed(randomised_response(str(odds)), steps)).units(ORDER)


# --- A round with one coin is charged whole once it has begun -----------------------------------------------------

RATE, RESPONSE = Fraction(1, 1000), randomised_response("30")
AFTER_STOP = Channel.of("0.0001547", "0.0000532636")
AFTER_NO = Channel.of("0.0000048", "0.0000016527")
AFTER_YES = Channel.of("0.0741", "0.0484059")


def released_after(pair: tuple[Fraction, Fraction], channel: Channel) -> Pairs:
    return [(pair[0] * p, pair[1] * q) for p, q in channel.outputs]


def a_round_left_off(then: Channel) -> Pairs:
    """A round of two steps that is left off after a first "no"; and one more release in either case."""
    one, two = mixed(RATE, RESPONSE), mixed(RATE, composed(RESPONSE, 2))
    after_yes = [*released_after(two.outputs[0], AFTER_YES), *released_after(two.outputs[1], AFTER_NO)]
    return [*released_after(one.outputs[1], then), *after_yes]


def test_giving_back_the_rest_of_a_round_that_has_begun_overspends() -> None:
    one_step, whole = mixed(RATE, RESPONSE).units(ORDER), mixed(RATE, composed(RESPONSE, 2)).units(ORDER)
    for channel in (AFTER_YES, AFTER_NO):
        assert whole + channel.units(ORDER) <= LIMIT
    assert one_step + AFTER_STOP.units(ORDER) <= LIMIT < whole + AFTER_STOP.units(ORDER)
    twin = a_round_left_off(AFTER_STOP)  # only the step that was made is charged, so this still fits
    assert true_delta(twin, EPSILON) > 1.85 * DELTA
    assert told("the rest of a begun round given back") == pytest.approx(true_delta(twin, EPSILON), rel=0.03)
    for afterwards in (AFTER_YES, AFTER_NO):  # charged whole
        assert true_delta(a_round_left_off(afterwards), EPSILON) <= DELTA


# --- Nothing that is one for everybody follows from what is left ---------------------------------------------------


def answers_about_others(with_person: Fraction, without: Fraction, answers: int) -> Pairs:
    """Answers that are known but for their noise: how many of them were flipped, at each chance of a flip."""

    def chance(flip: Fraction, count: int) -> Fraction:
        return math.comb(answers, count) * flip**count * (1 - flip) ** (answers - count)

    return [(chance(with_person, count), chance(without, count)) for count in range(answers + 1)]


def test_noise_that_follows_from_a_settled_balance_tells_who_was_there() -> None:
    """A person's clipped contribution has left them half a purse; absent, they have a whole one.

    Answers about *other* people, whose data the adversary knows, get more noise so that the poorest can pay: flips
    with 1/(1 + 2) instead of 1/(1 + 4). The person takes no part in them and pays nothing for them.
    """
    half, whole = Fraction(1, 3), Fraction(1, 5)
    for answers, at_least in ((5, 0.05), (20, 0.28), (80, 0.73)):
        reached = true_delta(answers_about_others(half, whole, answers), EPSILON)
        count = np.arange(answers + 1)
        p, q = (stats.binom.pmf(count, answers, float(flip)) for flip in (half, whole))
        assert reached == pytest.approx(np.maximum(p - math.e * q, 0).sum(), rel=1e-9)
        assert reached > at_least
    row = "noise for everybody from settled balances, after 20 answers about others"
    assert told(row) == pytest.approx(true_delta(answers_about_others(half, whole, 20), EPSILON), rel=0.03)
    assert true_delta(answers_about_others(whole, whole, 80), EPSILON) == 0  # noise that was given beforehand


# --- Whoever is measured pays (rule 16) ----------------------------------------------------------------------------


def better_model(labels: tuple[int, ...]) -> int:
    """Of a model that says 1 of everybody and one that says 0, the one that is right more often; 1 in a tie."""
    return 1 if 2 * sum(labels) >= len(labels) else 0


def choice(labels: tuple[int, ...], truth: Fraction) -> dict[int, Fraction]:
    """Which model is published, if the better one is with probability ``truth``."""
    better = better_model(labels)
    return {better: truth, 1 - better: 1 - truth}


def worst_choice(truth: Fraction, epsilon: float) -> float:
    """δ(ε) of the choice: the worst over ten others' labels and the person's own."""
    worst = 0.0
    for ones, label in itertools.product(range(11), (0, 1)):
        others = (1,) * ones + (0,) * (10 - ones)
        with_person, without = choice((*others, label), truth), choice(others, truth)
        worst = max(worst, true_delta([(with_person[model], without[model]) for model in (0, 1)], epsilon))
    return worst


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_choosing_among_models_by_peoples_records_is_a_use(epsilon: float) -> None:
    assert worst_choice(Fraction(1), epsilon) == 1  # both models are public, and the choice was not charged
    odds = Fraction(math.exp(epsilon)).limit_denominator(10**6) * Fraction(999_999, 10**6)
    assert worst_choice(odds / (odds + 1), epsilon) == 0  # as a randomised response it costs what that costs

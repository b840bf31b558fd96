"""The server's round: everybody by their own coin, public weights, and what is no answer left out by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation import terms_with
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privypurse.federated.parameters import State
from privypurse.federated.server import aggregate, asked
from privypurse.randomness import SecureRandomness

TERMS = terms_with(rounds=4, local_steps=1, clients=5, client_rate=0.3, most_joined=None, delta=1e-5)
STATE: State = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(2, np.float32)}
WEIGHT = 1 / (0.3 * 5)


def update(seed: int) -> State:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=value.shape).astype(np.float32) for name, value in STATE.items()}


def moved(state: State) -> dict[str, np.ndarray]:
    """How far a round took the parameters."""
    return {name: state[name].astype(np.float64) - STATE[name] for name in STATE}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(np.allclose(left[name], right[name], rtol=0, atol=1e-5) for name in STATE)


# --- Who is asked -------------------------------------------------------------------------------------


def coins(rounds: int, clients: int = 5) -> np.ndarray:
    """For each round and client whether it was asked."""
    source = SecureRandomness()
    out = np.zeros((rounds, clients), dtype=bool)
    for number in range(rounds):
        out[number, asked(TERMS, source.for_step(number + 1).uniform(clients))] = True
    return out


def test_each_client_is_asked_with_the_rate_of_the_terms_and_by_itself() -> None:
    found = coins(20_000)
    counts = found.sum(axis=0)
    # Each client by itself: right for 0.3, wrong for rates that are 10 % off.
    assert all(stats.binomtest(int(count), 20_000, 0.3).pvalue > 1e-6 for count in counts)
    for wrong in (0.27, 0.33):
        assert all(stats.binomtest(int(count), 20_000, wrong).pvalue < 1e-6 for count in counts)
    # Together: how many are asked is binomial, and neither fixed nor at least one.
    sizes = np.bincount(found.sum(axis=1), minlength=6)
    assert stats.chisquare(sizes, 20_000 * stats.binom.pmf(np.arange(6), 5, 0.3)).pvalue > 1e-6
    assert stats.binomtest(int(sizes[0]), 20_000, 0.7**5).pvalue > 1e-6  # empty rounds occur, as often as they should
    assert stats.chisquare(sizes, 20_000 * stats.binom.pmf(np.arange(6), 5, 0.33)).pvalue < 1e-6


def test_nobody_or_everybody_may_be_asked() -> None:
    assert asked(TERMS, np.ones(5)) == []
    assert asked(TERMS, np.full(5, 2.0**-53)) == [0, 1, 2, 3, 4]
    assert asked(replace(TERMS, client_rate=1.0), np.ones(5)) == [0, 1, 2, 3, 4]
    assert asked(TERMS, np.empty(0)) == []


def test_a_uniform_at_the_rate_itself_counts() -> None:
    """Uniforms lie in (0, 1]: with ≤ the probability is the rate itself."""
    assert asked(TERMS, np.array([0.3, np.nextafter(0.3, 1)])) == [0]


def test_against_the_public_everybody_is_asked_whatever_coins_a_server_flips() -> None:
    """It may begin again as often as it likes; clients flip their own coins, once."""
    assert asked(replace(TERMS, adversary="public"), np.ones(5)) == [0, 1, 2, 3, 4]


# --- What a round comes to ----------------------------------------------------------------------------


def test_each_update_has_the_public_weight() -> None:
    one, two = update(1), update(2)
    outcome = aggregate(TERMS, STATE, [("a", one), ("b", two)])
    assert same(moved(outcome.state), {name: WEIGHT * (one[name] + two[name]) for name in STATE})
    assert outcome.used == ("a", "b")
    assert outcome.refused == {}
    assert {name: (value.shape, value.dtype) for name, value in outcome.state.items()} == {
        name: (value.shape, np.dtype(np.float32)) for name, value in STATE.items()
    }


def test_a_round_without_answers_changes_nothing() -> None:
    outcome = aggregate(TERMS, STATE, [])
    assert {name: value.tobytes() for name, value in outcome.state.items()} == {
        name: value.tobytes() for name, value in STATE.items()
    }


def test_what_was_there_is_not_changed() -> None:
    before = {name: value.copy() for name, value in STATE.items()}
    aggregate(TERMS, STATE, [("a", update(1))])
    assert all((STATE[name] == before[name]).all() for name in STATE)


@given(st.sets(st.integers(0, 4)), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_who_is_missing_changes_nobody_elses_weight(present: set[int], extra: int) -> None:
    some = [(who, update(who)) for who in sorted(present - {extra})]
    without = moved(aggregate(TERMS, STATE, some).state)
    added = moved(aggregate(TERMS, STATE, [*some, (extra, update(extra))]).state)
    assert same({name: added[name] - without[name] for name in STATE}, aggregate_alone(extra))


def aggregate_alone(who: int) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) / (0.3 * 5) for name, value in update(who).items()}


def test_averaging_over_those_who_answered_is_something_else() -> None:
    """The broken twin: with it a weight tells how many answered, and one more answer moves all the others."""
    answers = [("a", update(1)), ("b", update(2))]

    def averaged(some: list[tuple[str, State]]) -> dict[str, np.ndarray]:
        return {name: np.mean([one[name] for _, one in some], axis=0) for name in STATE}

    assert not same(moved(aggregate(TERMS, STATE, answers).state), averaged(answers))
    alone, both = averaged(answers[:1]), averaged(answers)
    assert not same({name: both[name] - alone[name] for name in STATE}, {n: v / 2 for n, v in update(2).items()})


def spoiled(**parts: Any) -> dict[str, Any]:
    return {**update(9), **parts}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": (spoiled(bias=np.array([0, np.nan], np.float32)), "'bias' is not finite"),
    "infinite": (spoiled(weight=np.full((2, 3), -np.inf)), "'weight' is not finite"),
    "shape": (spoiled(bias=np.zeros(3, np.float32)), r"'bias' has shape (3,), not (2,)"),
    "broadcastable": (spoiled(weight=np.zeros((1, 3), np.float32)), "'weight' has shape (1, 3), not (2, 3)"),
    "scalar": (spoiled(bias=np.float32(1)), "'bias' has shape (), not (2,)"),
    "missing": ({"weight": STATE["weight"]}, "another model: 'bias' is on one side only"),
    "more": (spoiled(extra=np.zeros(1, np.float32)), "another model: 'extra' is on one side only"),
    "other names": ({"a": STATE["weight"], "b": STATE["bias"]}, "another model: "),
    "empty": ({}, "another model: "),
    "integers": (spoiled(bias=np.array([1, 2])), "'bias' "),
    "booleans": (spoiled(bias=np.array([True, False])), "'bias' "),
    "complex": (spoiled(bias=np.array([1j, 0])), "'bias' "),
    "objects": (spoiled(bias=np.array([None, 1.0])), "'bias' "),
    "text": (spoiled(bias=np.array(["1", "2"])), "'bias' "),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_answer_is_left_out_with_the_reason(kind: str, place: int) -> None:
    wrong, reason = WRONG[kind]
    good = [("a", update(1)), ("b", update(2))]
    outcome = aggregate(TERMS, STATE, [*good[:place], ("bad", wrong), *good[place:]])
    assert outcome.used == ("a", "b")
    assert outcome.refused.keys() == {"bad"}
    assert reason in outcome.refused["bad"]
    plain = aggregate(TERMS, STATE, good).state
    assert all(outcome.state[name].tobytes() == plain[name].tobytes() for name in STATE)


def test_the_reason_is_the_reason() -> None:
    outcome = aggregate(TERMS, STATE, [("bad", WRONG["integers"][0])])
    assert "int64" in outcome.refused["bad"]


def test_a_second_answer_is_left_out() -> None:
    outcome = aggregate(TERMS, STATE, [("a", update(1)), ("b", update(2)), ("a", update(3)), ("a", update(1))])
    assert outcome.used == ("a", "b")
    assert outcome.refused == {"a": "answered twice"}
    plain = aggregate(TERMS, STATE, [("a", update(1)), ("b", update(2))])
    assert all((outcome.state[name] == plain.state[name]).all() for name in STATE)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "answers",
    [
        [("a", update(1)), ("bad", spoiled(bias=np.array([1e300, 0.0])))],
        [("a", update(1)), *((k, spoiled(bias=np.full(2, 3e38, np.float32))) for k in range(2))],
    ],
    ids=["float64", "sum"],
)
def test_no_client_makes_the_model_infinite(answers: list[tuple[Any, State]]) -> None:
    """One answer that overflows would end training for everybody: no client takes parameters that are not finite."""
    outcome = aggregate(TERMS, STATE, answers)
    assert "a" in outcome.used
    assert all(np.isfinite(value).all() for value in outcome.state.values())

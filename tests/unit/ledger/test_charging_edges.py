"""The edges of charging: numbers beyond every purse, places that nobody has, and runs that look alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger.lifetime import CEILING, Lifetime
from privypurse.ledger.standing import Standing

KEY = bytes(range(32))
ONE = np.ones((1, 3), dtype=np.int64)


@pytest.fixture
def joined(ledger: pp.Ledger) -> pp.Ledger:
    ledger.join(["ada", "bea", "cy"], [0.5, 1.0, 4.0])
    return ledger


@pytest.mark.parametrize(("share", "epsilon"), [(0.1, 0.7), (0.3, 1.1), (0.7, 0.1)])
def test_a_part_set_apart_is_rounded_down_to_whole_units(share: float, epsilon: float) -> None:
    limits = Lifetime.of([(epsilon, 3e-6)], share).limits[0, -2:].tolist()
    for units, unit, whole in zip(limits, (2**40, 2**60), (epsilon, 3e-6), strict=True):
        exact = Fraction(share) * Fraction(whole) * unit
        assert exact.denominator > 1
        assert units <= exact < units + 1


def test_charges_beyond_64_bits_are_charges_beyond_every_purse(joined: pp.Ledger) -> None:
    beyond = np.array([[2**63, 1, 1], [1, 2**64 - 1, 1]], dtype=np.uint64)
    for number in range(3):
        run = joined.charge(f"{number}", joined.members(["ada", "bea", "cy"]), beyond, [0, 1, 0])
        assert run.admitted.tolist() == [False, False, True]
    joined.change(["cy"], 0.5)
    assert joined.balances(joined.members(["cy"])).tolist() == [0]
    assert joined.verify().problems == []
    assert (joined.caps(beyond, 0.1)[2] <= CEILING).all()


def test_nobody_has_a_purse_where_nobody_joined(joined: pp.Ledger) -> None:
    empty = Standing(np.array([7]), joined.lifetime)
    assert not empty.active(0).any()
    assert all((empty.limits(column) == 0).all() for column in range(3))


def test_sums_are_written_down_every_few_entries(joined: pp.Ledger) -> None:
    """Or a balance would take the longer the older a ledger is."""
    for number in range(25):
        joined.charge(f"{number}", joined.members(["bea"]), ONE, [0])
    with closing(sqlite3.connect(str(joined._database.path))) as file:
        ((entry,),) = file.execute("SELECT entry FROM snapshot").fetchall()
    assert joined.show().entries - entry <= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run_id": "x" * 201}, "run_id"),
        ({"class_of": [0, -2, 0]}, "class_of"),
        ({"class_of": np.array([0, 2**64 - 1, 0], dtype=np.uint64)}, "class_of"),
        ({"class_of": [True, False, True]}, "class_of"),
        ({"charges": [[2**70, 1, 1]]}, "whole numbers"),
        ({"charges": np.array([[1, -(2**63), 1]])}, "negative"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(
    joined: pp.Ledger, change: dict[str, object], said: str
) -> None:
    members = joined.members(["ada", "bea", "cy"])
    with pytest.raises(pp.InvalidInput, match=said):
        joined.reserve(**{"run_id": "x", "members": members, "charges": ONE, "class_of": [0, 0, 0], **change})
    assert joined.runs() == []


def test_a_run_of_another_kind_is_another_run(joined: pp.Ledger) -> None:
    people = joined.members(["bea", "cy"])
    joined.reserve("one", people, ONE, [0, 0], what="train")
    with pytest.raises(pp.InvalidInput, match="id of its own"):
        joined.reserve("one", people, ONE, [0, 0], what="federated")
    with pytest.raises(pp.InvalidInput, match="id of its own"):
        joined.reserve("one", joined.members(["cy", "bea"]), ONE, [0, 0], what="train")


def test_a_reservation_of_another_copy_is_not_settled_here(fresh: Callable[..., pp.Ledger]) -> None:
    """Of two copies that were both written on: the same run, and other people admitted."""
    ledgers = fresh("one.db"), fresh("two.db")
    for ledger, taken in zip(ledgers, (0, 1), strict=True):
        ledger.join(["bea"], 1.0)
        ledger.charge("before", ledger.members(["bea"]), ONE * ledger.rungs[1].limit, [0 if taken else -1])
    one, two = (ledger.reserve("run", ledger.members(["bea"]), 5 * ONE, [0]) for ledger in ledgers)
    assert (one.admitted.tolist(), two.admitted.tolist()) == ([True], [False])
    with pytest.raises(pp.PrivyPurseError, match="another ledger or copy"):
        ledgers[1]._settle(one.reserved, None, None, {})
    assert ledgers[1].verify().problems == []


def test_settling_again_in_another_order_of_people_is_the_same(joined: pp.Ledger) -> None:
    people, turned = joined.members(["cy", "ada", "bea"]), joined.members(["bea", "cy", "ada"])
    charges = np.array([[3, 3, 3], [4, 4, 4]])
    assert not joined.reserve("one", people, 9 * ONE, [0, 0, 0]).settle(charges, [0, 1, -1]).repeated
    assert joined.recover("one", charges, [-1, 0, 1], members=turned).repeated
    with pytest.raises(pp.PrivyPurseError, match="otherwise"):
        joined.recover("one", charges, [0, 1, -1], members=turned)


def test_who_pays_nothing_does_so_beside_any_number_of_charges(joined: pp.Ledger) -> None:
    """Also where the number that stands for nothing is one of the rows."""
    people = joined.members(["ada", "bea", "cy"])
    before = joined.balances(people)
    many = np.repeat(np.minimum(np.arange(70_000), 900)[:, None], 3, axis=1)
    joined.reserve("one", people, 1000 * ONE, [0, 0, 0]).settle(many, [-1, 65_534, 7])
    assert (before - joined.balances(people)).tolist() == [0, 900, 7]
    assert joined.verify().problems == []

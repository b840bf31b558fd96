"""Reserve, settle, charge, recover: what is written, what comes back, and that a retry charges once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import lifetime, rounding, runs, standing
from privypurse.ledger.lifetime import CEILING

IDS = ["ada", "bea", "cy", "dan"]
EPSILONS = [0.5, 1.0, 4.0, 1.0]


@pytest.fixture
def joined(ledger: pp.Ledger) -> pp.Ledger:
    ledger.join(IDS, EPSILONS)
    return ledger


def flat(*units: int) -> np.ndarray:
    """Charges of the same number of units at each of three orders."""
    return np.repeat(np.array(units)[:, None], 3, axis=1)


def test_a_reservation_counts_until_it_is_settled_at_less(joined: pp.Ledger) -> None:
    people = joined.members(IDS)
    limits = np.array([joined.rungs[k].limit for k in (0, 1, 2, 1)])
    assert (joined.balances(people) == limits).all()
    run = joined.reserve("one", people, flat(100, 7), [0, 1, -1, 0])
    assert run.admitted.tolist() == [True, True, False, True]
    assert (joined.balances(people) == limits - [100, 7, 0, 100]).all()
    run.settle(flat(30, 60), [0, -1, -1, 1])
    assert (joined.balances(people) == limits - [30, 0, 0, 60]).all()
    assert joined.verify().sound


def test_public_balances_lose_the_cap_and_nothing_comes_back(joined: pp.Ledger) -> None:
    people = joined.members(IDS)
    run = joined.reserve("one", people, flat(5), [0, 0, 0, 0], at_most=0.1)
    run.settle(flat(1), [0, -1, -1, -1])
    caps = joined.caps(flat(5), 0.1)
    limits = np.array([joined.rungs[k].limit for k in (0, 1, 2, 1)])
    assert (joined.public_balances(people) == limits - [caps[k, k] for k in (0, 1, 2, 1)]).all()
    joined.charge("two", joined.members(["ada"]), flat(5), [0])
    assert joined.public_balances(people)[0] == 0
    assert (joined.public_room(people) <= joined.room(people)).all()


def test_whoever_cannot_pay_is_left_out_in_silence(joined: pp.Ledger) -> None:
    people = joined.members(IDS)
    limit = joined.rungs[1].limit
    first = joined.charge("one", people, flat(limit), [0, 0, 0, 0])
    assert first.admitted.tolist() == [False, True, True, True]
    again = joined.charge("two", people, flat(limit, 1), [1, 1, 1, 0])
    assert again.admitted.tolist() == [True, False, True, False]
    assert joined.verify().sound


def test_the_last_unit_can_be_spent_and_no_more(joined: pp.Ledger) -> None:
    people = joined.members(["bea"])
    limit = joined.rungs[1].limit
    for name, units, paid in (("a", limit - 1, True), ("b", 2, False), ("c", 1, True), ("d", 1, False)):
        assert joined.charge(name, people, flat(units), [0]).admitted.tolist() == [paid]
    assert joined.balances(people).tolist() == [0]


def test_a_charge_has_to_fit_at_the_orders_of_all_rungs_above(joined: pp.Ledger) -> None:
    people = joined.members(["ada"])
    beyond = joined.rungs[2].limit + 1
    table = np.array([[1, 1, beyond], [1, 1, 1]])
    assert not joined.charge("one", people, table, [0]).admitted.any()
    below = np.array([[CEILING, CEILING, 1]])
    assert joined.charge("two", joined.members(["cy"]), below, [0]).admitted.all()


def test_a_raise_finds_what_was_charged_at_its_order_all_along(joined: pp.Ledger) -> None:
    people = joined.members(["ada"])
    joined.charge("one", people, np.array([[50, 70, 90]]), [0])
    joined.change(["ada"], 4.0)
    assert joined.balances(people).tolist() == [joined.rungs[2].limit - 90]
    joined.charge("two", people, np.array([[CEILING, 1, 1]]), [0])
    joined.change(["ada"], 0.5)
    assert joined.balances(people).tolist() == [0]
    assert not joined.charge("three", people, flat(1), [0]).admitted.any()
    joined.change(["ada"], 1.0)
    assert joined.balances(people).tolist() == [joined.rungs[1].limit - 71]


def test_the_order_of_members_is_the_callers(fresh: Callable[..., pp.Ledger]) -> None:
    ledger = fresh()
    ids = list(range(5000))
    ledger.join(ids, 1.0)
    rng = np.random.default_rng(0)
    mixed = rng.permutation(5000)
    run = ledger.reserve("one", ledger.members(mixed), flat(*range(1, 5001)), mixed)
    run.settle(flat(*range(5001)), mixed)
    left = ledger.balances(ledger.members(ids))
    assert (ledger.rungs[1].limit - left == np.arange(5000)).all()
    few = ledger.members([4999, 3, 4097])
    assert (ledger.rungs[1].limit - ledger.balances(few) == [4999, 3, 4097]).all()


class TestRetries:
    def test_a_reservation_again_charges_once(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        first = joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        again = joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        assert (first.repeated, again.repeated) == (False, True)
        assert (first.admitted == again.admitted).all()
        assert joined.room(people)[1, 1] == joined.rungs[1].limit - 9

    def test_with_anything_else_it_is_an_error(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        for charges, class_of, at_most in (
            (flat(8), [0, 0, -1, 0], None),
            (flat(9), [0, 0, 0, 0], None),
            (flat(9), [0, 0, -1, 0], 0.1),
        ):
            with pytest.raises(pp.InvalidInput, match="id of its own"):
                joined.reserve("one", people, charges, class_of, at_most=at_most)
        with pytest.raises(pp.InvalidInput, match="id of its own"):
            joined.charge("one", people, flat(9), [0, 0, -1, 0])

    def test_a_settled_run_cannot_be_reserved_again(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        joined.reserve("one", people, flat(9), [0, 0, -1, 0]).settle()
        with pytest.raises(pp.InvalidInput, match="settled"):
            joined.reserve("one", people, flat(9), [0, 0, -1, 0])

    def test_settling_again_does_nothing_and_otherwise_is_an_error(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        run = joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        assert not run.settle(flat(4), [0, -1, -1, 0]).repeated
        before = joined.balances(people)
        assert run.settle(flat(4), [0, -1, -1, 0]).repeated
        with pytest.raises(pp.PrivyPurseError, match="stays spent"):
            run.settle(flat(3), [0, -1, -1, 0])
        with pytest.raises(pp.PrivyPurseError, match="stays spent"):
            run.settle()
        assert (joined.balances(people) == before).all()

    def test_a_question_asked_again_charges_once_and_says_so(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        assert not joined.charge("q", people, flat(9), [0, 0, 0, 0]).repeated
        assert joined.charge("q", people, flat(9), [0, 0, 0, 0]).repeated
        assert joined.balances(people)[0] == joined.rungs[0].limit - 9


class TestSettling:
    def test_more_than_reserved_is_refused_at_every_column(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        run = joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        for column in range(3):
            charges = flat(9)
            charges[0, column] = 10
            with pytest.raises(pp.PrivyPurseError, match="more than was reserved"):
                run.settle(charges, [0, -1, -1, -1])

    def test_who_was_not_admitted_cannot_be_charged(self, joined: pp.Ledger) -> None:
        run = joined.reserve("one", joined.members(IDS), flat(9), [0, 0, -1, 0])
        with pytest.raises(pp.PrivyPurseError, match="not admitted"):
            run.settle(flat(1), [0, 0, 0, 0])

    def test_many_kinds_of_charges_are_rounded_up_and_never_beyond_what_was_reserved(
        self, ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = 5000
        monkeypatch.setattr(runs, "MOST_CLASSES", 4000)
        ledger.join(list(range(count)), 1.0)
        people = ledger.members(list(range(count)))
        most = ledger.rungs[1].limit // 2
        run = ledger.reserve("one", people, flat(most), np.zeros(count, dtype=int))
        rng = np.random.default_rng(1)
        own = rng.integers(0, most, size=(count, 3), endpoint=True)
        own[0], own[1] = most, 0
        settled = run.settle(own, np.arange(count))
        taken = ledger.rungs[1].limit - ledger.balances(people)
        assert (taken >= own[:, 1]).all()
        assert (taken <= np.minimum(own[:, 1] * (1 + 1 / 1800) + 1, most)).all()
        assert taken[1] == 0
        assert 0 < settled.rounding < 0.001
        assert all("rounding" not in event.meta for event in ledger.history(7))  # of anybody, not theirs
        assert ledger.verify().sound

    def test_where_too_many_kinds_were_reserved_all_of_it_is_charged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rounding, "MOST_CLASSES", 4)
        held = np.array([10, 20, 30, 40, 10, 20, 30, 40])
        own = np.array([10, 20, 30, 40, 1, 0, 17, 2])
        tables, places, taken = rounding.rounded_up([own], [held])
        charged = np.append(tables[0], 0).take(places[0], mode="clip")
        assert tables[0].size <= 4
        assert ((own <= charged) & (charged <= held)).all()
        assert charged[5] == 0
        assert (taken[0] == charged - own).all()

    def test_rounding_is_told_of_the_purses_that_it_took_from(
        self, joined: pp.Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At the order of a rung below her own cy pays for more than that rung holds, which limits her not."""
        limit = joined.rungs[2].limit
        beyond = np.array([[10**5 * joined.rungs[0].limit, limit // 2, limit // 2]])
        run = joined.reserve("one", joined.members(["cy"]), beyond, [0])
        assert run.admitted.all()
        monkeypatch.setattr(runs, "MOST_CLASSES", 0)
        assert 0 < run.settle(beyond // 3 + 1, [0]).rounding < 1 / 1800

    def test_the_grid_has_every_small_number_and_fits_in_two_bytes(self) -> None:
        grid = rounding.grid(1800)
        assert grid[:1800].tolist() == list(range(1800))
        assert grid[-1] == CEILING
        assert grid.size <= lifetime.MOST_CLASSES
        assert (np.diff(grid) > 0).all()


class TestRecovering:
    def test_a_run_that_died_is_charged_all_that_it_had_reserved(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS)
        joined.reserve("one", people, flat(9), [0, 0, -1, 0])
        assert [run.settled for run in joined.runs()] == [None]
        joined.recover("one")
        assert joined.runs()[0].recovered
        assert joined.balances(people)[1] == joined.rungs[1].limit - 9
        assert joined.recover("one").repeated

    def test_or_what_its_journal_cannot_rule_out(self, joined: pp.Ledger) -> None:
        people = joined.members(IDS[::-1])
        joined.reserve("one", people, flat(9), [0, -1, 0, 0])
        joined.recover("one", flat(2, 3), [0, -1, 1, 1], members=people)
        assert joined.balances(people)[0] == joined.rungs[1].limit - 2
        assert joined.balances(people)[3] == joined.rungs[0].limit - 3

    def test_an_unknown_run_is_named(self, joined: pp.Ledger) -> None:
        with pytest.raises(pp.InvalidInput, match="'nothing'"):
            joined.recover("nothing")


def test_withdrawing_lowering_and_expiring_act_on_a_run_that_is_on_its_way(joined: pp.Ledger) -> None:
    people = joined.members(IDS)
    run = joined.reserve("one", people, flat(joined.rungs[0].limit + 1, 5), [1, 0, 0, 0])
    before = joined.consent_counter()
    assert run.standing().tolist() == [True] * 4
    joined.withdraw(["dan"])
    joined.change(["bea"], 0.5)
    assert joined.consent_counter() > before
    assert run.standing().tolist() == [True, False, True, False]
    run.settle()
    assert joined.verify().sound


def test_sums_that_stop_at_the_ceiling_are_the_same_for_who_verifies(
    joined: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the order of a rung below hers cy pays without limit, and more than 64 bits hold."""
    monkeypatch.setattr(standing, "SNAPSHOT_EVERY", 1)
    beyond = np.array([[2**61 - 1, 1, 1]])
    for number in range(6):
        assert joined.charge(f"{number}", joined.members(["cy"]), beyond, [0]).admitted.all()
    assert joined.reserve("open", joined.members(["cy"]), beyond, [0]).admitted.all()
    joined.change(["cy"], 0.5)
    assert joined.balances(joined.members(["cy"])).tolist() == [0]
    assert joined.verify().problems == []


def test_snapshots_change_no_balance(monkeypatch: pytest.MonkeyPatch, fresh: Callable[..., pp.Ledger]) -> None:
    left = {}
    for every in (1, 10**9):
        monkeypatch.setattr(standing, "SNAPSHOT_EVERY", every)
        ledger = fresh(f"{every}.db")
        ledger.join(list(range(6000)), 1.0)
        rng = np.random.default_rng(0)
        for number, size in enumerate((5000, 3, 4500, 900)):
            ids = rng.choice(6000, size=size, replace=False)
            run = ledger.reserve(
                f"{number}", ledger.members(ids), flat(*range(1, 50)), rng.integers(-1, 49, ids.size)
            )
            if number % 2:
                run.settle(flat(0), np.zeros(ids.size, dtype=int))
        people = ledger.members(list(range(6000)))
        left[every] = np.concatenate([ledger.room(people), ledger.public_room(people)], axis=1)
        assert ledger.verify().sound
    assert (left[1] == left[10**9]).all()


@pytest.mark.parametrize("name", ["", "r" * 201, "r\0", "r\ud800", 7])
def test_a_name_that_no_database_can_keep_is_refused(ledger: pp.Ledger, name: object) -> None:
    ledger.join(["a"], 1.0)
    for use in (ledger.reserve, ledger.charge, ledger.charge_past):
        with pytest.raises(pp.InvalidInput, match="run_id is"):
            use(name, ledger.members(["a"]), np.ones((1, 3), dtype=np.int64), [0])
    assert not ledger.runs()

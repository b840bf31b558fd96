"""Purses from before: what they say was spent becomes charges, never less than was released, at every order.

The files in ``purse_files`` were written by the version that kept them. Three questions were asked of visits.csv: a
count of age >= 40 with noise 20, the sum of cost with noise 900, and a count of everybody with noise 30.
"""

from __future__ import annotations

import math
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import privypurse as pp
from privypurse._storage import HeldFile
from privypurse.budgets.tables import read_table
from privypurse.queries import Analyst
from privypurse.queries.earlier_purses import EarlierPurses, charge_earlier_purses, read_earlier_purses
from privypurse.queries.rows import rows_of
from privypurse.queries.table_ledger import DATA_SET, opened, table_ledger

FOLDER = Path(__file__).parent / "purse_files"
TABLE = read_table(FOLDER / "visits.csv")
WHO = ["ada", "bea", "cyd", "bea", "dov", "eve"]
PEOPLE = ["ada", "bea", "cyd", "dov", "eve"]
FINGERPRINT = rows_of(TABLE).fingerprint()
GRANTED = [1.0, 1.0, 4.0, 0.5, 4.0]
BUDGETS = pp.Budgets(np.full(6, 4.0), person=WHO)
UNIT = Fraction(1, 2**40)
ROWS = [  # how far each row moves each answer, over the noise
    [Fraction(int(age >= 40), 20), Fraction(int(cost), 900), Fraction(1, 30)]
    for age, cost in zip(TABLE["age"].to_pylist(), TABLE["cost"].to_pylist(), strict=True)
]


@pytest.fixture
def ledger(new_ledger):
    made = new_ledger()
    made.join(PEOPLE, GRANTED)
    return made


def read(name: str, tmp_path: Path) -> EarlierPurses:
    shutil.copy(FOLDER / name, tmp_path / name)
    return read_earlier_purses(tmp_path / name)


def released(name: str) -> list[Fraction]:
    """μ² of each person, exactly: of what their rows together moved each answer."""
    if name == "by_id.purses":  # a person counts once, and bea's rows add up to 60
        each = {who: [Fraction(1, 20), Fraction(0), Fraction(1, 30)] for who in PEOPLE}
        each["ada"][0] = Fraction(0)
        for who, row in zip(WHO, ROWS, strict=True):
            each[who][1] += row[1]
    else:
        each = {who: [Fraction(0)] * 3 for who in PEOPLE}
        for who, row in zip(WHO, ROWS, strict=True):
            each[who] = [a + b for a, b in zip(each[who], row, strict=True)]
    return [sum(ratio**2 for ratio in each[who]) for who in PEOPLE]


@pytest.mark.parametrize("name", ["by_row.purses", "by_id.purses", "zcdp.purses"])
def test_charged_is_what_was_released_at_every_order_and_little_more(ledger, tmp_path, name):
    earlier = read(name, tmp_path)
    assert charge_earlier_purses(earlier, ledger, BUDGETS, FINGERPRINT)
    spent = ledger.spent(ledger.members(PEOPLE))
    for who, square in enumerate(released(name)):
        for column, rung in enumerate(ledger.rungs):
            exact = Fraction(rung.order) * square / 2 / UNIT
            charged = Fraction(int(spent[who, column]))
            if GRANTED[who] <= rung.epsilon and spent[who, column] == rung.limit:
                continue  # nothing is left, and no more can be charged
            assert exact <= charged
            loose = Fraction("1.03") if PEOPLE[who] != "bea" or name == "by_id.purses" else Fraction("1.25")
            assert charged <= exact * loose + 1
    assert ledger.verify().problems == []
    assert not charge_earlier_purses(read(name, tmp_path), ledger, BUDGETS, FINGERPRINT)  # twice charges once
    assert (ledger.spent(ledger.members(PEOPLE)) == spent).all()


def test_adding_squares_of_rows_would_charge_too_little(ledger, tmp_path):
    """The broken twin: bea's two rows were in the same answers, which they moved together."""
    earlier = read("by_row.purses", tmp_path)
    twin = np.bincount(BUDGETS.owner, earlier.source)
    exact = [float(square) for square in released("by_row.purses")]
    assert twin[1] < 0.7 * exact[1]
    assert (earlier.squares(BUDGETS) >= exact).all()


@settings(deadline=None)
@given(hnp.arrays(np.float64, (5, 3), elements=st.floats(0, 10)))
def test_lengths_of_rows_add_up_to_at_least_the_length_of_their_sum(ratios):
    """Five questions and a person's three rows, as vectors along one line, which is the worst there is."""
    earlier = EarlierPurses(Path("x"), "x", "f", None, np.square(ratios).sum(axis=0))
    together = float(np.square(ratios.sum(axis=1)).sum())
    assert earlier.squares(pp.Budgets(np.ones(3), person=["a"] * 3))[0] >= together * (1 - 1e-12)


def test_whoever_spent_more_than_the_ledger_holds_is_left_with_nothing(ledger, tmp_path):
    earlier = EarlierPurses(Path("x"), "x", "f", None, np.array([1e-9, 0.0, 1e6, 0.0, 0.02, np.inf]))
    charge_earlier_purses(earlier, ledger, BUDGETS, "f")
    members = ledger.members(PEOPLE)
    assert (ledger.balances(members) > 0).tolist() == [True, True, False, False, False]
    ledger.change(["dov"], 4.0)  # whoever raises has what the new rung holds, less all that was spent
    paid = ledger.spent(members)[3, 2]
    rung = ledger.rungs[2]
    assert paid >= rung.order * 0.02 / 2 * 2**40
    assert ledger.balances(members)[3] == rung.limit - paid
    assert ledger.verify().problems == []


def test_purses_of_others_are_refused(ledger, tmp_path):
    by_row, by_id = read("by_row.purses", tmp_path), read("by_id.purses", tmp_path)
    with pytest.raises(pp.InvalidInput, match="another data set: they are of rows"):
        charge_earlier_purses(by_row, ledger, BUDGETS, "other")
    with pytest.raises(pp.InvalidInput, match="another data set"):
        charge_earlier_purses(by_row, ledger, pp.Budgets(np.ones(5), person=PEOPLE), FINGERPRINT)
    with pytest.raises(pp.InvalidInput, match="another list of ids"):
        charge_earlier_purses(by_id, ledger, pp.Budgets(np.ones(5), person=PEOPLE[::-1]), "")
    with pytest.raises(pp.InvalidInput, match="never joined"):
        charge_earlier_purses(by_row, ledger, pp.Budgets(np.ones(6), person=[*"abcdef"]), FINGERPRINT)
    assert not ledger.runs()


def test_by_id_rows_may_have_changed_and_new_people_have_spent_nothing(ledger, tmp_path):
    ledger.join(["fay"], 1.0)
    later = pp.Budgets(np.ones(6), person=[*PEOPLE, "fay"])
    assert charge_earlier_purses(read("by_id.purses", tmp_path), ledger, later, "another fingerprint")
    spent = ledger.spent(ledger.members([*PEOPLE, "fay"]))
    assert (spent[:5] > 0).all()
    assert not spent[5].any()


def test_the_public_cap_may_be_named(ledger, tmp_path):
    members, earlier = ledger.members(PEOPLE), read("by_row.purses", tmp_path)
    assert charge_earlier_purses(earlier, ledger, BUDGETS, FINGERPRINT, at_most=0.499, dry_run=True)
    assert not ledger.runs()
    assert charge_earlier_purses(earlier, ledger, BUDGETS, FINGERPRINT, at_most=0.499)
    assert (ledger.public_balances(members)[[0, 1, 2, 4]] > 0).all()
    assert (ledger.public_balances(members) <= ledger.balances(members)).all()
    assert ledger.verify().problems == []


def test_what_is_no_file_of_purses_is_refused(tmp_path):
    (tmp_path / "notes").write_text("notes")
    for path, said in ((tmp_path / "notes", "holds no purses"), (tmp_path / "none", "cannot be read: No such file")):
        with pytest.raises(pp.InvalidInput, match=said):
            read_earlier_purses(path)
    for content, said in (
        (b'{"currency":"gdp","data set":"a"}\n', "nothing was ever spent"),
        (b'{"currency":"rdp","data set":"a"}\nx', "cannot be read"),
        (b'{"currency":"gdp","data set":"a"}\nx', "cannot be read"),
        (b"\n", "cannot be read"),
    ):
        HeldFile(tmp_path / "purses", "purses", content).close()
        with pytest.raises(pp.InvalidInput, match=said):
            read_earlier_purses(tmp_path / "purses")
        (tmp_path / "purses").unlink()
    whole = (FOLDER / "by_row.purses").read_bytes()
    (tmp_path / "purses").write_bytes(whole[:-9])
    with pytest.raises(pp.InvalidInput, match="damaged"):
        read_earlier_purses(tmp_path / "purses")


def test_a_private_ledger_of_rows_moves_to_one_that_knows_people(ledger, tmp_path):
    path, held = tmp_path / "visits.ledger", pp.Budgets(np.array([1.0, 1.0, 4.0, 1.0, 1.0, 4.0]))
    kept = table_ledger(path, held, {"people": "rows by number", DATA_SET: FINGERPRINT})
    asks = Analyst(TABLE, kept.budgets, person=kept.budgets.person, ledger=kept.ledger)
    asks.count("age >= 40", noise=20.0)
    asks.sum("cost", lower=0, upper=100, noise=900.0)
    asks.count(noise=30.0)
    with pytest.raises(pp.InvalidInput, match="another data set"):
        charge_earlier_purses(read_earlier_purses(path), ledger, BUDGETS, "other")
    assert kept.ledger.run("moved") is None
    assert charge_earlier_purses(read_earlier_purses(path), ledger, BUDGETS, FINGERPRINT)
    spent = ledger.spent(ledger.members(PEOPLE))
    for who, square in enumerate(released("by_row.purses")):
        own = ledger.rungs[int(ledger.members(PEOPLE).rung[who])]
        exact = float(Fraction(own.order) * square / 2 / UNIT)
        column = ledger.rungs.index(own)
        assert spent[who, column] >= min(math.ceil(exact), own.limit)
        assert spent[who, column] <= 1.3 * exact
    assert not charge_earlier_purses(read_earlier_purses(path), ledger, BUDGETS, FINGERPRINT)
    assert (ledger.spent(ledger.members(PEOPLE)) == spent).all()
    with pytest.raises(pp.InvalidInput, match=f"have moved to the ledger {ledger.id}"):
        table_ledger(path, held, {"people": "rows by number", DATA_SET: FINGERPRINT})
    assert opened(path).verify().problems == []


def test_a_ledger_that_was_used_for_more_than_questions_is_not_read_as_gaussian(tmp_path):
    path = tmp_path / "ledger"
    kept = table_ledger(path, pp.Budgets([1.0, 1.0]), {DATA_SET: "f"})
    members = kept.ledger.members([0, 1])
    kept.ledger.charge("run", members, np.ones((1, 1), dtype=np.int64), [0, 0], what="train")
    with pytest.raises(pp.InvalidInput, match="was used for 'train' too"):
        read_earlier_purses(path)
    by_id = table_ledger(tmp_path / "people", pp.Budgets([1.0], person=["ada"]), {"people": "column 'who'"})
    with pytest.raises(pp.InvalidInput, match="nothing has to be moved"):
        read_earlier_purses(tmp_path / "people")
    assert by_id.ledger.verify().problems == []


def test_an_empty_purse_of_a_row_moves_as_an_empty_purse(ledger, tmp_path):
    """What was cut to the limit is no upper bound of what was spent: whoever is at it brings nothing along."""
    path = tmp_path / "ledger"
    kept = table_ledger(path, pp.Budgets(np.ones(6)), {DATA_SET: "f"})
    too_much = EarlierPurses(Path("x"), "x", "f", None, np.array([5.0, 0, 0, 0, 0, 0]))
    charge_earlier_purses(too_much, kept.ledger, kept.budgets, "f")
    assert charge_earlier_purses(read_earlier_purses(path), ledger, BUDGETS, "f")
    ledger.change(["ada"], 4.0)
    assert ledger.balances(ledger.members(PEOPLE)).tolist()[0] == 0


def test_a_sum_beyond_its_limit_is_passed_over_and_one_below_is_not(ledger, tmp_path):
    """Row 0 is beyond its limit at ε = 1, not at ε = 4; row 1 is beyond all there is, and no sum tells how far."""
    path = tmp_path / "ledger"
    kept = table_ledger(path, pp.Budgets([1.0, 4.0, 1.0, 1.0, 1.0, 1.0]), {DATA_SET: "f"})
    squares = np.array([0.3, 1e6, 0, 0, 0, 0])  # 16/2 · 0.3 = 2.4 nats of 0.48, and 5/2 · 0.3 of 2.2
    charge_earlier_purses(EarlierPurses(Path("x"), "x", "f", None, squares), kept.ledger, kept.budgets, "f")
    found = read_earlier_purses(path).squares(pp.Budgets(np.ones(6), person=[*"abcdef"]))
    assert squares[0] <= found[0] <= 1.01 * squares[0]
    assert found[1] == np.inf
    orders = np.array([rung.order for rung in kept.ledger.rungs])
    twin = kept.ledger.spent(kept.ledger.members([1]))[0] * 2.0**-40 * 2 / orders
    assert twin.max() < 1e-3 * squares[1]  # what any of the sums would have said

"""What an answer says about whom it leaves out, what may be asked about purses, and what must not be told."""

import json
import math
import threading

import mpmath as mp
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from queries_brute_force import silenced

import privypurse as pp
from privypurse import cli
from privypurse.budgets import ladder
from privypurse.ledger.lifetime import Lifetime
from privypurse.queries import Analyst
from privypurse.queries.noisy_sums import priced
from privypurse.queries.rows import rows_of
from privypurse.queries.table_ledger import opened

PEOPLE = 1694


def analyst(epsilon=1.0, people=PEOPLE, **other):
    return Analyst({"x": np.ones(people)}, pp.Budgets(np.full(people, float(epsilon))), **other)


def test_every_answer_says_what_it_costs_and_who_is_not_counted():
    """A count of 1,694 people with noise 1 came back as if it were about all of them."""
    asks = silenced(Analyst({"x": np.ones(PEOPLE)}, pp.Budgets(np.where(np.arange(PEOPLE) < 766, 5.0, 1.0))))
    answer = asks.count(noise=1.0)
    assert float(answer) == 766
    said = "costs ε = 4.38 at δ = 1e-5 by itself; whoever has less left is not counted"
    assert answer.says == said
    assert said in str(answer)
    assert json.loads(json.dumps(answer.to_json()))["says"] == said
    other = asks.count(noise=1.0, delta=1e-8).cost
    with mp.workdps(30):  # δ(ε) of the Gaussian mechanism with σ = 1, from both sides of the figure told
        above, below = (mp.ncdf(0.5 - e) - mp.exp(e) * mp.ncdf(-0.5 - e) for e in (mp.mpf("5.78"), mp.mpf("5.77")))
    assert above < 1e-8 < below
    assert "ε = 5.78 at δ = 1e-8 by itself" in str(other)
    for other in (
        asks.sum("x", lower=0, upper=2, noise=9.0),
        asks.mean("x", lower=0, upper=2, noise=9.0),
        asks.ask(lambda rows: rows["x"], size=1, clip=2.0, noise=9.0),
    ):
        assert "costs at most ε = " in str(other)
        assert "whoever has less left than their own part costs is not counted" in str(other)


@pytest.mark.slow
@given(
    cost=st.floats(math.log(1e-3), math.log(30)).map(math.exp),
    delta=st.floats(math.log(1e-12), math.log(0.1)).map(math.exp),
    currency=st.sampled_from(["gdp", "zcdp"]),
)
@example(cost=math.exp(-6), delta=math.exp(-3), currency="zcdp")  # ε small beside δ: the best order is small
@settings(max_examples=25, deadline=None)
def test_a_cost_given_is_kept_and_used_up(cost, delta, currency):
    asks, rounded = analyst(people=2, currency=currency), ladder.rounded_down(cost)
    assert cost * (1 - ladder.LOOSEST_STEP) < rounded <= cost
    for answer in (asks.count(cost=cost, delta=delta), asks.sum("x", lower=-7, upper=3, cost=cost, delta=delta)):
        assert answer.cost.epsilon <= rounded
        assert answer.cost.epsilon > rounded * (1 - 1e-4)
    shown = float(str(answer.cost).split("ε = ")[1].split(" ")[0])
    assert answer.cost.epsilon * (1 - 1e-9) <= shown <= answer.cost.epsilon * 1.011


@pytest.mark.parametrize("currency", ["gdp", "zcdp"])
@pytest.mark.parametrize("epsilon", [0.1, 0.658, 1.0, 1.2345, 2.0, 8.0])
def test_a_full_purse_pays_for_a_question_of_its_own_epsilon(epsilon, currency):
    """Whoever granted just what a question costs is counted: rounding on the way must not leave everybody out."""
    asks = silenced(Analyst({"x": np.ones(50)}, pp.Budgets(np.full(50, epsilon)), currency=currency))
    assert float(asks.count(cost=epsilon)) == 50
    assert float(asks.count(cost=0.01 * epsilon)) == 0  # nothing is left
    more = silenced(Analyst({"x": np.ones(50)}, pp.Budgets(np.full(50, epsilon)), currency=currency))
    assert float(more.count(cost=1.02 * epsilon)) == 0


def test_noise_or_cost_one_of_them():
    asks = analyst(people=2)
    for wrong in ({}, {"noise": 1.0, "cost": 1.0}):
        with pytest.raises(pp.InvalidInput, match="either noise="):
            asks.count(**wrong)
    for wrong in ({"cost": -1.0}, {"cost": "much"}, {"cost": 1.0, "delta": 1.0}, {"noise": 1.0, "delta": 0.0}):
        with pytest.raises(pp.InvalidInput, match=r"cost|delta"):
            asks.count(**wrong)
    assert not asks.purses.spent.any()


# --- How many purses hold so much ------------------------------------------------------------------------------


def test_counting_purses_counts_who_can_pay_both_and_charges_them():
    epsilon = np.array([0.05, 0.1, 0.11, 0.12, 0.2, 0.5, 1.0, 3.0])
    asks = silenced(Analyst({"x": np.ones(8)}, pp.Budgets(epsilon)))
    wanted = priced(asks.purses, 1.0, cost=0.1, delta=1e-5).cost.amount
    price = priced(asks.purses, 1.0, cost=0.05, delta=1e-5).cost.amount
    enough = asks.purses.total >= wanted + price
    assert 0 < enough.sum() < (asks.purses.total >= wanted).sum()  # being counted has its price
    answer = asks.count_holding(0.1, cost=0.05)
    assert float(answer) == enough.sum()
    assert ((asks.purses.spent > 0) == enough).all()
    assert asks.purses.spent.max() <= price
    assert "hold ε = 0.1 at δ = 1e-5 by itself besides what being counted costs" in str(answer)
    assert float(asks.count(cost=0.1)) >= enough.sum()  # and they still can
    assert "whoever has less left" in answer.says


def test_counting_purses_moves_by_one_for_one_person_who_pays_for_it():
    """Whatever somebody's rows were, their part of the answer is 0 or 1, and they paid for it if it is 1."""
    for touched in (0, 1):
        asks = silenced(Analyst({"x": np.array([touched, 1, 1])}, pp.Budgets(np.full(3, 0.3))))
        asks.count("x == 1", cost=0.28)
        before = asks.purses.spent.copy()
        value = float(asks.count_holding(0.1, cost=0.05))
        assert value == 1 - touched
        assert (asks.purses.spent - before > 0).tolist() == [not touched, False, False]


def test_counting_purses_until_they_are_empty_overdraws_nobody():
    rng = np.random.default_rng(0)
    asks = Analyst({"x": np.ones(40)}, pp.Budgets(rng.uniform(0.05, 1.5, 40)))
    answers = [asks.count_holding(float(rng.uniform(0.01, 1)), cost=0.2) for _ in range(30)]
    assert (asks.purses.spent <= asks.purses.total).all()
    assert len({str(answer.cost) for answer in answers}) == 1
    assert (asks.purses.spent > 0).any()
    with pytest.raises(pp.InvalidInput, match="holding is in 'gdp'"):
        Analyst({"x": np.ones(2)}, pp.Budgets(np.ones(2)), currency="zcdp").count_holding(answers[0].cost, noise=9.0)


@pytest.mark.slow
def test_counting_purses_and_other_threads():
    """The look and the charge are one step: nobody who is counted has paid for something else in between."""
    asks = silenced(Analyst({"x": np.ones(20_000)}, pp.Budgets(np.full(20_000, 1.0))))
    wrong = []

    def counts():
        for _ in range(15):
            value = float(asks.count_holding(0.3, cost=0.05))
            wrong.extend([value] if value not in (0.0, 20_000.0) else [])

    threads = [threading.Thread(target=counts) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (asks.purses.spent <= asks.purses.total).all()


# --- What must not be told by the way --------------------------------------------------------------------------


def test_a_histograms_note_does_not_tell_that_somebody_has_a_second_row():
    table = {"x": np.array([1, 2, 1, 1])}
    notes = {
        Analyst(table, pp.Budgets(np.ones(4), person=person), person=person)
        .histogram("x", categories=[1, 2], noise=9.0)
        .note
        for person in (["ann", "bo", "cy", "di"], ["ann", "ann", "cy", "di"])
    }
    assert len(notes) == 1


@pytest.mark.parametrize("frame", [dict, pd.DataFrame])
def test_half_a_surrogate_pair_in_one_cell_raises_nothing(frame):
    plain = np.array(["Oslo", "Voss", None, "Oslo"], dtype=object)
    odd = np.array(["Oslo", "Voss\ud800", None, "Oslo"], dtype=object)
    for words, voss in ((plain, "Voss"), (odd, "Voss\ud800")):
        column = pd.Series(words, dtype=object) if frame is pd.DataFrame else words
        asks = silenced(Analyst(frame({"city": column}), pp.Budgets(np.ones(4))))
        assert float(asks.count("city == 'Oslo'", noise=9.0)) == 2
        assert float(asks.count("city != 'Oslo'", noise=9.0)) == 1
        assert float(asks.count("city >= 'P'", noise=9.0)) == 1
        assert asks.histogram("city", categories=["Oslo", voss], noise=9.0).value.tolist() == [2, 1]
    assert rows_of({"city": plain}).fingerprint() != rows_of({"city": odd}).fingerprint()
    fixed = silenced(Analyst({"city": np.array(["a", "\udfff"])}, pp.Budgets(np.ones(2))))
    assert float(fixed.count("city == 'a'", noise=9.0)) == 1


def spoils(rows):
    """What is written into one row follows from another: the next question would charge the wrong person."""
    column = rows["x"] if isinstance(rows, dict) or hasattr(rows, "columns") else rows
    if hasattr(column, "values") and not torch.is_tensor(column):
        column = column.to_numpy()
    out = column[:] * 1.0
    try:
        column[:] = 1000.0
    except ValueError:
        if "read-only" not in str(column.flags) and column.flags.writeable:
            raise
    return out


@pytest.mark.parametrize(
    "data",
    [
        {"x": torch.arange(6.0)},
        torch.arange(6.0),
        {"x": np.arange(6.0)},
        np.arange(6.0),
        pd.DataFrame({"x": np.arange(6.0)}),
    ],
    ids=["tensors", "tensor", "arrays", "array", "frame"],
)
def test_a_callable_that_writes_into_its_rows_changes_no_other_question(data):
    asks = silenced(Analyst(data, pp.Budgets(np.full(6, 9.0))))
    for _ in range(2):
        assert asks.ask(spoils, size=1, clip=5000.0, noise=9000.0).value.tolist() == [15.0]


def test_a_callable_that_writes_into_arrays_is_found_out_on_made_up_rows():
    def writes(rows):
        rows["x"][0] = 7
        return rows["x"]

    asks = analyst(people=3)
    with pytest.raises(pp.InvalidInput, match=r"failed on made-up rows.*read-only"):
        asks.ask(writes, size=1, clip=1.0, noise=9.0)


# --- On the command line ---------------------------------------------------------------------------------------


def run(capsys, *words):
    code = cli.main(["query", *map(str, words)])
    return code, *capsys.readouterr()


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,epsilon\n" + "".join(f"{20 + i % 60},1\n" for i in range(400)))
    return path


def test_a_first_count_at_the_whole_grant_is_refused_before_there_is_a_ledger(capsys, table):
    """It printed noise as the answer: for life a purse holds less than one question of its ε by Gaussian DP."""
    code, out, err = run(capsys, table, "count", "--cost", "1")
    assert (code, out) == (2, "")
    assert "noise alone would be told; take a --noise of 4." in " ".join(err.split())
    assert not table.with_name("people.csv.ledger").exists()
    code, out, err = run(capsys, table, "count", "--cost", "0.8")
    assert code == 0, err
    assert 370 < float(out.split()[1]) < 430  # noise of 4.6
    code, _, err = run(capsys, table, "count", "--cost", "1")  # and so it is when there is one
    assert code == 2
    assert "noise alone" in " ".join(err.split())


def test_a_linked_table_has_the_purses_of_its_own(capsys, table):
    """`alias.csv → people.csv` got new purses: 1.8 of one."""
    alias = table.with_name("alias.csv")
    alias.symlink_to(table)
    [rung] = Lifetime.of([(1.0, 1e-5)]).rungs
    noise = math.sqrt(rung.order / (2 * 0.9 * rung.limit * 2.0**-40))
    for path in (table, alias):
        code, _, err = run(capsys, path, "count", "--noise", noise)
        assert code == 0, err
    names = sorted(one.name for one in table.parent.glob("*.ledger*"))
    assert names == ["people.csv.ledger", "people.csv.ledger.anchor", "people.csv.ledger.key"]
    ledger = opened(table.with_name("people.csv.ledger"))
    assert ledger.spent(ledger.members([0]))[0, 0] / rung.limit == pytest.approx(0.9, rel=1e-6)


def test_a_table_with_two_names_has_its_purses_by_one(capsys, table):
    run(capsys, table, "count", "--noise", 20)
    alias = table.with_name("alias.csv")
    alias.hardlink_to(table)
    assert run(capsys, table, "count", "--noise", 20)[0] == 0
    code, _, err = run(capsys, alias, "count", "--noise", 20)
    assert code == 2
    assert "use that name" in err


def test_the_command_says_it_too_and_in_json(capsys, table):
    said = "; whoever has less left is not counted"
    code, out, err = run(capsys, table, "count", "--cost", 0.05, "--at-delta", 1e-6)
    assert code == 0, err
    assert f"costs ε = 0.05 at δ = 1e-6 by itself{said}" in out
    code, out, err = run(capsys, table, "--json", "count", "--noise", 20)
    assert code == 0, err
    told = json.loads(out)
    assert told["says"].endswith(said)
    assert told["cost"]["delta"] == 1e-5
    code, out, err = run(capsys, table, "holding", 0.05, "--cost", 0.02)
    assert code == 0, err
    assert "hold ε = 0.05" in out

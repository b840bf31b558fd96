"""Questions under a ledger: what is charged, to whom, and that it lasts."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from queries_brute_force import silenced

import privypurse as pp
from privypurse.queries import Analyst
from privypurse.queries.noisy_sums import priced

UNIT = Fraction(1, 2**40)
IDS = ["ada", "bea", "cyd", "dov"]
GRANTED = [0.5, 1.0, 1.0, 4.0]
ROWS = {"x": np.array([1.0, 0.25, 3.0, 0.0, 2.0]), "kind": np.array(["a", "b", "a", "b", "b"])}
OWNER = ["ada", "bea", "cyd", "dov", "bea"]


def budgets(owner=OWNER):
    held = dict(zip(IDS, GRANTED, strict=True))
    return pp.Budgets([held[who] for who in owner], person=owner)


def opened(ledger, rows=ROWS, owner=OWNER, **more):
    if not ledger.show().runs:
        ledger.join(IDS, GRANTED)
    return silenced(Analyst(rows, budgets(owner), person=owner, ledger=ledger, **more))


def spent(ledger, ids=IDS):
    """By the independent reading of everybody's events: [people, columns] units."""
    rows = []
    for who in ids:
        charged = [event.charged for event in ledger.history(who) if event.charged is not None]
        rows.append([sum(column) for column in zip(*charged, strict=True)] or [0] * len(ledger.rungs))
    return rows


def exact(rung, norm, noise):
    """α·r²/2 in units, as a fraction (Mironov 2017, Proposition 7)."""
    return Fraction(rung.order) * (Fraction(norm) / Fraction(noise)) ** 2 / 2 / UNIT


def test_everybody_pays_for_their_own_norm_at_the_order_of_every_rung(new_ledger):
    ledger = new_ledger()
    asks = opened(ledger, purpose="how tall")
    asks.count("kind == 'b'", noise=40.0)  # bea and dov
    norms = {"count": (40.0, 1.0, [0, 1, 0, 1])}
    asks.sum("x", lower=-2, upper=2.5, noise=90.0)  # bea's two rows are 2.25, cyd's 3 is clipped
    norms["sum"] = (90.0, 2.5, [1, 2.25, 2.5, 0])
    asks.ask(lambda rows: np.stack([rows["x"], 2 * rows["x"]], axis=1), size=2, clip=100.0, noise=3000.0)
    norms["ask"] = (3000.0, 100.0, [math.sqrt(5) * x for x in (1, 2.25, 3, 0)])
    for who, row in enumerate(spent(ledger)):
        for rung, charged in zip(ledger.rungs, row, strict=True):
            least = sum(exact(rung, each[who], noise) for noise, _, each in norms.values())
            # In the upper octaves 1/512 in norm, 1/8 in the lower ones, and rounding to whole units.
            most = exact(rung, norms["count"][2][who], 40) * Fraction("1.000001")
            most += exact(rung, norms["sum"][2][who], 90) * Fraction("1.02")
            most += exact(rung, norms["ask"][2][who], 3000) * Fraction("1.2")
            assert least <= charged <= most + 3
    told = [run for run in ledger.runs() if run.what == "question"]
    assert len(told) == 3
    assert {run.purpose for run in told} == {"how tall"}
    assert ledger.verify().problems == []


def test_twenty_eight_counts_with_noise_20_are_twenty_four_for_life(new_ledger):
    """Gaussian DP would pay for 28 at ε = 1; at the order for life it is 24, whoever asks."""
    ledger, everybody = new_ledger(), [f"C{k}" for k in range(50)]
    ledger.join(everybody, 1.0)
    asks = silenced(
        Analyst({"x": np.ones(50)}, pp.Budgets(np.ones(50), person=everybody), person=everybody, ledger=ledger)
    )
    members, rung = ledger.members(everybody), ledger.rungs[1]
    one = math.ceil(exact(rung, 1, 20))
    assert [float(asks.count(noise=20.0)) for _ in range(10)] == [50.0] * 10
    assert ledger.public_balances(members) == pytest.approx(rung.limit - 10 * one, rel=1e-5)
    assert [float(asks.count(noise=20.0)) for _ in range(18)] == [50.0] * 14 + [0.0] * 4
    assert rung.limit // one == 24
    with mp.workdps(30):  # the true δ at ε = 1 of that many answers
        mu = mp.sqrt(24) / 20
        assert mp.ncdf(mu / 2 - 1 / mu) - mp.e * mp.ncdf(-mu / 2 - 1 / mu) < 1e-5
    assert not ledger.public_balances(members).any()
    assert (ledger.balances(members) >= ledger.public_balances(members)).all()
    assert ledger.verify().problems == []


@pytest.mark.parametrize("noise", [0.5, 20.0, 1e3, 1e6])
def test_the_public_cap_is_the_questions_worst_case(new_ledger, noise):
    ledger = new_ledger()
    asks = opened(ledger, rows={"x": np.full(5, 9.0), "kind": ROWS["kind"]})
    members = ledger.members(IDS)
    before = ledger.public_room(members)
    assert np.array_equal(before, ledger.room(members))
    asks.sum("x", lower=0, upper=1, noise=noise)  # everybody is at the bound
    own = [0, 1, 1, 2]
    taken = (before - ledger.public_room(members))[np.arange(4), own]
    paid = (before - ledger.room(members))[np.arange(4), own]
    for place, k in enumerate(own):
        rung = ledger.rungs[k]
        worst = math.ceil(exact(rung, 1, noise))
        if worst > rung.limit:
            assert (taken[place], paid[place]) == (rung.limit, 0)
        else:
            # No ε caps below what (0, δ) pays for, where 2Φ(μ/2) - 1 = δ, so that μ²/2 = π·δ².
            least = math.ceil(rung.order * math.pi * 1e-10 * 2**40 * 1.001)
            assert worst <= paid[place] <= taken[place] <= max(worst * 1.00001 + 1, least + 1)


def test_it_lasts_for_the_person_whatever_becomes_of_the_rows(new_ledger):
    ledger = new_ledger()
    full = float(opened(ledger).count(noise=7.0))  # ada's 0.5 does not hold it: she is not counted
    assert full == 3
    edited = {"x": np.array([9.0, 9.0, 9.0, 9.0]), "kind": np.array(["c"] * 4)}
    again = new_ledger()
    values = [float(opened(again, edited, ["dov", "cyd", "bea", "ada"]).count(noise=7.0)) for _ in range(5)]
    rungs = [ledger.rungs[k] for k in (0, 1, 1, 2)]
    holds = [rung.limit // math.ceil(exact(rung, 1, 7)) for rung in rungs]
    assert holds[0] == 0
    assert values == [sum(times > number for times in holds) for number in range(1, 6)]
    assert again.verify().problems == []


def test_who_withdraws_is_out_and_who_raises_comes_back_in(new_ledger):
    ledger = new_ledger()
    asks = opened(ledger)
    assert float(asks.count(noise=7.0)) == 3
    ledger.change(["ada"], 4.0)
    assert float(asks.count(noise=7.0)) == 4
    ledger.withdraw(["dov"])
    assert float(asks.count(noise=7.0)) == 1  # ada: two of these are all that bea and cyd have
    with pytest.raises(pp.InvalidInput, match=r"'ada' ε = 0\.5, but the ledger holds 4"):
        opened(ledger)


def test_two_analysts_on_one_ledger_pay_from_one_purse(new_ledger):
    ledger = new_ledger()
    ledger.join(["eve"], 1.0)
    held = pp.Budgets([1.0], person=["eve"])
    counted = []

    def ask():
        asks = silenced(Analyst({"x": np.ones(1)}, held, person=held.person, ledger=new_ledger()))
        counted.extend(float(asks.count(noise=10.0)) for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rung = ledger.rungs[1]
    assert sorted(counted) == [0.0] * 4 + [1.0] * 6
    assert rung.limit // math.ceil(exact(rung, 1, 10)) == 6
    assert ledger.verify().problems == []


def test_counting_who_holds_something_is_a_count_like_any_other(new_ledger):
    ledger = new_ledger()
    asks = opened(ledger)
    before = spent(ledger)
    answer = asks.count_holding(0.8, cost=0.1)  # ada holds 0.5
    assert float(answer) == 3
    assert [after > row for after, row in zip(spent(ledger), before, strict=True)] == [False, True, True, True]
    assert float(asks.count_holding(3.0, cost=0.1)) == 1
    assert float(asks.count(cost=0.8)) == 3
    assert float(asks.count_holding(0.8, cost=0.1)) == 1
    assert ledger.verify().problems == []


def test_a_count_that_no_grant_pays_for_is_refused_and_says_how_much_noise_it_takes(new_ledger):
    """For life a purse holds less than one question of its ε by Gaussian DP: the answer would be noise alone."""
    ledger = new_ledger()
    asks = opened(ledger)
    before = spent(ledger)
    with pytest.raises(pp.InvalidInput, match="noise alone") as error:
        asks.count(cost=4.0)
    assert spent(ledger) == before
    enough = float(str(error.value).split("noise= of ")[1].split(" or")[0])
    noise = priced(asks.purses, 1.0, cost=4.0).noise
    assert noise < enough < 1.5 * noise
    with pytest.raises(pp.InvalidInput, match="noise alone"):
        asks.count(noise=0.985 * enough)  # three digits, rounded up
    with pytest.raises(pp.InvalidInput, match="noise alone"):
        asks.count(noise=1e-12)
    assert float(asks.count(noise=enough)) == 1  # dov, who granted 4
    assert sum(sum(row) > 0 for row in spent(ledger)) == 1
    # Not by who is in the data or by what is left: nobody else could pay from the start, and dov no longer can.
    assert float(asks.count(noise=enough)) == 0
    alone = silenced(Analyst({"x": np.ones(1)}, budgets(["ada"]), person=["ada"], ledger=ledger))
    assert float(alone.count(noise=enough)) == 0


@pytest.mark.parametrize(
    "question", [{"categories": ["a", "b"]}, {"lower": 0.0, "upper": 3.0}], ids=["histogram", "mean"]
)
def test_histograms_and_means_are_refused_as_counts_are(new_ledger, question):
    """Whoever has a row contributes a norm of 1 at least, and pays for it."""
    asks = opened(new_ledger())

    def asked(**pay):
        if "categories" in question:
            return asks.histogram("kind", **question, **pay)
        return asks.mean("x", **question, **pay)

    rung = asks.purses._ledger.rungs[-1]
    least = math.sqrt(rung.order / (2 * rung.limit * 2.0**-40))
    with pytest.raises(pp.InvalidInput, match="noise alone"):
        asked(noise=0.999 * least)
    assert "whoever allows ε = 0.5 or 1 cannot pay for this" in asked(noise=1.001 * least).note
    assert "cannot pay" not in asked(noise=50.0).note


def test_notes_about_grants_follow_from_the_ladder_alone(new_ledger):
    ledger = new_ledger()
    asks = opened(ledger)
    answer = asks.count(noise=3.0)
    note = answer.note
    assert note == "whoever allows ε = 0.5 or 1 cannot pay for this, even with a full purse"
    assert "(noise of standard deviation 3)" in str(answer)  # a note does not take its place
    alone = silenced(Analyst({"x": np.ones(1)}, budgets(["ada"]), person=["ada"], ledger=ledger))
    assert alone.count(noise=3.0).note == note  # whoever is in the data, whatever they have left
    assert not asks.count(noise=20.0).note
    most = math.sqrt(2 * ledger.rungs[-1].limit * 2.0**-40 / ledger.rungs[-1].order)
    assert (
        f"nobody can pay for more than {most * 20:.3g} with this noise"
        in asks.sum("x", lower=0, upper=1e5, noise=20.0).note
    )
    assert not asks.sum("x", lower=0, upper=2, noise=20.0).note


def test_a_sum_is_asked_even_where_the_largest_contribution_is_beyond_every_grant(new_ledger):
    """Whoever contributes little can pay for it."""
    asks = opened(new_ledger())
    assert float(asks.sum("x", lower=0, upper=1e6, noise=100.0)) == pytest.approx(6.25, abs=1e-6)


def test_answers_cost_the_same_whomever_the_ledger_promises_against(tmp_path: Path):
    """An answer saves nothing by who sees what, so either kind may be charged; the unit is the ledger's, a person."""
    charged = []
    for adversary in ("server", "public"):
        ledger = pp.Ledger.create(
            f"sqlite:///{tmp_path / adversary}", epsilons=[0.5, 1, 4], delta=1e-5, adversary=adversary, key=bytes(32)
        )
        opened(ledger).sum("x", lower=-2, upper=2.5, noise=90.0)
        assert (ledger.unit, ledger.verify().problems) == ("person", [])
        charged.append(spent(ledger))
    assert charged[0] == charged[1]
    assert any(map(any, charged[0]))


def test_a_ledger_that_is_gone_answers_nothing(new_ledger, tmp_path: Path):
    asks = opened(new_ledger())
    (tmp_path / "purses.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(pp.PrivyPurseError, match="is not there"):
        asks.count(noise=20.0)
    (tmp_path / "elsewhere.db").rename(tmp_path / "purses.db")
    assert not any(map(any, spent(new_ledger())))


def test_what_does_not_fit_together_is_refused(new_ledger):
    ledger = new_ledger()
    ledger.join(IDS, GRANTED)
    for wrong, said in (
        ({"budgets": pp.Budgets(np.ones(5))}, "knows people by id"),
        ({"budgets": pp.Budgets(np.ones(5), person=[*"abcde"])}, "never joined"),
        ({"budgets": pp.Budgets(np.full(5, 4.0), delta=1e-6, person=OWNER)}, "δ = 1e-06, but the ledger holds 1e-05"),
        ({"currency": "zcdp"}, "leave currency out"),
        ({"ledger": "sqlite:///purses.db"}, r"pp\.Ledger\.open"),
        ({"purpose": 3}, "purpose must be text"),
    ):
        held = wrong.get("budgets", budgets())
        with pytest.raises(pp.InvalidInput, match=said):
            Analyst(ROWS, **{"budgets": held, "person": held.person, "ledger": ledger, **wrong})
    with pytest.raises(pp.InvalidInput, match=r"ledger\.receipt"):
        Analyst(ROWS, budgets(), person=OWNER, ledger=ledger).spent("ada")
    assert not ledger.runs()

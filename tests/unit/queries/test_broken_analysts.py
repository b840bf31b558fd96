"""Broken twins of the analyst: each is caught by the check that an honest one passes."""

import numpy as np
import pytest
from queries_brute_force import Reference, silenced

import privypurse as pp
from privypurse.queries import Analyst, analyst, contributions, noisy_sums

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


def complaints():
    """What is wrong with the analyst: [] for an honest one."""
    wrong = []
    table = {"x": np.array([1.0, 1.0, 0.0, 5.0]), "kind": np.array(["a", "a", "b", "a"])}
    budgets = pp.Budgets([1.0, 1.0, 1.0, 0.1], person=["ann", "ann", "bo", "cy"])
    asks = silenced(Analyst(table, budgets, person=budgets.person))
    try:
        fresh = asks.count("kind == 'a'", noise=5.0)  # ann and cy, who cannot pay for it
        if float(fresh) != 1.0:
            wrong.append(f"counted {float(fresh)} instead of 1")
        cost = 1 / 25
        spent = asks.purses.spent
        if not np.allclose(spent, [cost, 0.0, 0.0], atol=1e-9):
            wrong.append(f"charged {spent}")
        total = asks.ask(lambda rows: rows["x"], size=1, clip=1.0, noise=20.0)
        want = Reference(budgets.owner, asks.purses.total).ask([[1.0], [1.0], [0.0], [5.0]], 1.0, 20.0)
        if not np.allclose(total.value, want, atol=1e-6):
            wrong.append(f"added up {total.value} instead of {want}")
        rich = silenced(
            Analyst(
                table,
                pp.Budgets(np.full(4, 50.0), person=["ann", "ann", "bo", "cy"]),
                person=["ann", "ann", "bo", "cy"],
            )
        )
        other = rich.count("kind == 'a'", noise=5.0)
        for name in set(vars(fresh)) | set(vars(other)):
            if name not in ("value", "released") and getattr(fresh, name, 0) != getattr(other, name, 0):
                wrong.append(f"tells by {name}")
    except Exception as error:
        wrong.append(f"tells by raising {error!r}")
    return wrong


def test_an_honest_analyst_has_no_complaints():
    assert complaints() == []


def charges_everybody_the_worst_case(parts, purses, *, clip, noise, source):
    cost = np.full(purses.total.shape, (clip / noise) ** 2)
    pays = purses.affords(cost)
    purses.charge(np.where(pays, cost, 0.0))
    return parts.clipped(clip).total(pays)


def forgets_to_charge(parts, purses, *, clip, noise, source):
    parts = parts.clipped(clip)
    return parts.total(purses.affords((parts.norms() / noise) ** 2))


def lets_everybody_in(parts, purses, *, clip, noise, source):
    parts = parts.clipped(clip)
    cost = (parts.norms() / noise) ** 2
    purses.charge(np.where(purses.affords(cost), cost, 0.0))
    return parts.total(np.ones(purses.total.shape, dtype=bool))


def refuses_aloud(parts, purses, *, clip, noise, source):
    if not purses.affords((parts.norms() / noise) ** 2).all():
        raise pp.PrivyPurseError("somebody cannot pay")
    return noisy_sums.noisy_sum(parts, purses, clip=clip, noise=noise, source=source)


@pytest.mark.parametrize(
    "twin", [charges_everybody_the_worst_case, forgets_to_charge, lets_everybody_in, refuses_aloud]
)
def test_broken_twins_are_caught(monkeypatch, twin):
    monkeypatch.setattr(analyst, "noisy_sum", twin)
    assert complaints()


def test_clipping_rows_instead_of_persons_is_caught(monkeypatch):
    """Ten rows of 1 of one person, clip 1: the person may add 1, and pays for 1."""

    def added():
        budgets = pp.Budgets(np.full(10, 3.0), person=["ann"] * 10)
        asks = silenced(Analyst({"x": np.ones(10)}, budgets, person=budgets.person))
        got = asks.ask(lambda rows: rows["x"], size=1, clip=1.0, noise=1e3)
        return float(got.value[0]), float(asks.purses.spent[0]) * 1e6

    assert added() == pytest.approx((1.0, 1.0))

    def rows_first(rows, owner, people):
        clipped = contributions.Dense(rows).clipped(1.0).values
        dense = contributions.by_person(clipped, owner, people)
        object.__setattr__(dense, "clipped", lambda limit: dense)
        return dense

    monkeypatch.setattr(analyst, "by_person", rows_first)
    assert added()[0] == pytest.approx(10.0)


def test_an_answer_with_who_paid_in_it_is_caught(monkeypatch):
    honest = analyst.Answer

    class Telling(honest):
        def __init__(self, value, noise, cost, released, **more):
            super().__init__(value, noise, cost, released, **more)
            object.__setattr__(self, "left_out", float(np.sum(value)))

    monkeypatch.setattr(analyst, "Answer", Telling)
    assert complaints() == ["tells by left_out"]

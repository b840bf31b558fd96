"""What each person really spent."""

import functools
import math

import numpy as np
import pytest
from scipy import optimize, special

import privypurse as pp
from privypurse.accounting import PLD, RDP, Composed, Odometer, SampledGaussian
from privypurse.accounting.odometer import Reading
from privypurse.plans import LevelTable
from privypurse.training.individual.spending import Spending

# Four people own seven records; the levels differ in rate, clip norm and δ.
OWNER = [2, 0, 0, 1, 2, 3, 2]
LEVELS = LevelTable(
    epsilon=[1.0, 2.0, 4.0],
    delta=[1e-6, 1e-5, 1e-4],
    rate=[0.02, 0.1, 0.0],
    clip_norm=[1.0, 0.5, 1.0],
    capped=[False] * 3,
)


def a_plan(owner=OWNER, levels=LEVELS, level_of=(0, 1, 1, 2)):
    return pp.Plan(
        method="mine",
        accountant="rdp",
        promise="data",
        shape=pp.TrainingShape(steps=100, batch_size=1, noise_multiplier=1.5, clip_norm=1.0),
        levels=levels,
        level_of=list(level_of),
        owner=owner,
    )


@functools.cache
def trained(exact=True, owned=True):
    plan = a_plan(owner=OWNER if owned else None)
    noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm
    meter = Odometer(plan.levels.rate, noise, plan.level_of, grid_size=10, exact=exact)
    meter.new_norms(np.array([0.25, 0.8, 0.0, 1.0]))
    meter.advance(60)
    meter.new_norms(np.array([1.0, 0.1, 0.0, 1.0]))
    meter.advance(40)
    return Spending(plan, meter, active=((0, 4),), told=((100, 3.5),))


def releases():
    """What the four people faced, written out by hand."""
    return [
        Composed((SampledGaussian(0.02, 1.5 / 0.3, 60), SampledGaussian(0.02, 1.5, 40))),
        Composed((SampledGaussian(0.1, 3.0 / 0.8, 60), SampledGaussian(0.1, 3.0 / 0.1, 40))),
        SampledGaussian(0.1, 3.0, 0),
        SampledGaussian(0.0, 1.5, 100),
    ]


@pytest.mark.parametrize(("accountant", "reference"), [("rdp", RDP()), ("pld", PLD())])
def test_spending_of_persons_with_several_records(accountant, reference):
    spending = trained()
    expected = reference.epsilons(releases(), np.array([1e-6, 1e-5, 1e-5, 1e-4]))
    by_person = spending.epsilon_by_person(accountant)
    np.testing.assert_allclose(by_person, expected, rtol=2e-3)
    assert by_person[2] == by_person[3] == 0 < by_person[:2].min()
    by_record = spending.epsilon(accountant)
    np.testing.assert_array_equal(by_record, by_person[OWNER])
    for record in range(7):
        assert spending.of(record, accountant) == pytest.approx(by_record[record], rel=1e-6)
        assert isinstance(spending.of(np.int64(record), accountant), float)
    with pytest.raises(ValueError, match="read-only"):
        by_record[0] = 0.0


def test_spending_where_each_record_is_its_own():
    spending = trained(owned=False)
    np.testing.assert_array_equal(spending.epsilon("rdp"), trained().epsilon_by_person("rdp"))
    assert [spending.of(record, "rdp") for record in range(4)] == spending.epsilon("rdp").tolist()


def test_no_trajectory_costs_more_than_the_plan():
    spending = trained()
    plan = spending.plan
    assert (spending.epsilon("rdp") <= plan.spent() * (1 + 1e-9)).all()
    assert (spending.epsilon("pld") <= plan.spent()).all()


def test_the_default_is_the_tighter_accountant():
    spending = trained()
    np.testing.assert_array_equal(spending.epsilon(), spending.epsilon("pld"))
    assert spending.of(3) == spending.of(3, "pld")
    assert (spending.epsilon() <= spending.epsilon("rdp")).all()


def test_a_reading_says_what_it_is():
    assert trained().reading is Reading.EXACT
    assert trained(exact=False).reading is Reading.ESTIMATE
    assert Spending(a_plan(), np.zeros(4)).reading is Reading.EXACT


@pytest.mark.parametrize("record", [-1, 7, 1.0, "0", None, True, math.nan])
def test_a_record_that_is_not_there(record):
    for spending in (trained(), Spending(a_plan(), np.zeros(4))):
        with pytest.raises(pp.InvalidInput, match=r"record is .*there are 7, counted from 0"):
            spending.of(record)


def test_an_unknown_accountant():
    for spending in (trained(), Spending(a_plan(), np.zeros(4))):
        for ask in (spending.epsilon, spending.epsilon_by_person, functools.partial(spending.of, 0)):
            with pytest.raises(pp.InvalidInput, match="accountant is 'gdp'"):
                ask("gdp")


def gaussian_epsilon(mu, delta):
    """Balle & Wang (2018), Theorem 8, solved by Brent's method."""

    def excess(epsilon):
        first = special.ndtr(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 0.0, 300.0, xtol=1e-13) if excess(0.0) > 0 else 0.0


def test_full_batch_spending_is_exact():
    squares = np.array([0.03, 0.04, 0.0, 0.25])
    spending = Spending(a_plan(), squares)
    expected = [
        gaussian_epsilon(math.sqrt(s), d) for s, d in zip(squares, [1e-6, 1e-5, 1e-5, 1e-4], strict=True) if s
    ]
    exact = spending.epsilon_by_person("pld")
    np.testing.assert_allclose(exact[[0, 1, 3]], expected, rtol=1e-7)
    assert (exact[[0, 1, 3]] >= np.array(expected) * (1 - 1e-10)).all()
    assert exact[2] == 0
    # By zero-concentrated DP: larger, and what the Rényi accountant says of such steps, about.
    concentrated = spending.epsilon_by_person("rdp")
    assert (concentrated[[0, 1, 3]] > exact[[0, 1, 3]]).all()
    assert concentrated[2] == 0
    by_orders = RDP().epsilons([SampledGaussian(1.0, 2.0, 1)], 1e-4)[0]
    assert concentrated[3] == pytest.approx(by_orders, rel=5e-3)
    np.testing.assert_array_equal(spending.epsilon(), exact[OWNER])
    assert [spending.of(record) for record in range(7)] == exact[OWNER].tolist()
    # What is proved for every trajectory is never exceeded, whatever a looser accountant says.
    promised = a_plan().levels.epsilon[a_plan().level_of]
    for accountant in ("pld", "rdp"):
        assert (Spending(a_plan(), np.full(4, 9.0)).epsilon_by_person(accountant) == promised).all()


@pytest.mark.slow
def test_full_batch_spending_of_many_people_in_pieces():
    people = 5000
    levels = LevelTable(epsilon=[1.0], delta=[1e-5], rate=[1.0], clip_norm=[1.0], capped=[False])
    squares = np.linspace(0, 2, people)
    spending = Spending(a_plan(None, levels, [0] * people), squares)
    for accountant in ("pld", "rdp"):
        everyone = spending.epsilon(accountant)
        assert (np.diff(everyone) >= 0).all()
        assert everyone[4321] == spending.of(4321, accountant)

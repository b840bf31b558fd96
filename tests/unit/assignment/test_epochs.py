"""epochs= beside steps=: how many steps they are, and that no secret head count is told by them."""

import numpy as np
import pytest

import privypurse as pp

QUICK = {"accountant": "rdp"}


def budgets(people, ids=None):
    return pp.Budgets(np.where(np.arange(people) % 2, 1.0, 3.0) if ids is None else 2.0 + 0 * ids, person=ids)


@pytest.mark.parametrize(
    ("epochs", "people", "batch_size", "steps"),
    [(1, 100, 10, 10), (3, 100, 7, 43), (0.05, 100, 10, 1), (1.1, 100, 10, 11), (2.3, 1000, 23, 100), (1, 7, 7, 1)],
)
def test_everybody_is_drawn_so_often_on_average(epochs, people, batch_size, steps):
    plan = pp.plan(budgets(people), epochs=epochs, batch_size=batch_size, **QUICK)
    assert plan.steps == steps
    drawn = plan.steps * plan.expected_batch_size / people
    assert epochs * 0.98 <= drawn <= epochs * 1.02 + batch_size / people  # σ is solved to two hundredths of the batch
    assert plan.digest() == pp.plan(budgets(people), steps=steps, batch_size=batch_size, **QUICK).digest()


def test_people_are_counted_and_not_their_records():
    plan = pp.plan(budgets(60, ids=np.repeat(np.arange(20), 3)), epochs=2, batch_size=5, **QUICK)
    assert plan.steps == 8


def test_a_secret_head_count_is_not_told_by_the_number_of_steps():
    """With a given σ nothing public may follow from who is there: one person more would be a step more."""
    shape = {"epochs": 1, "batch_size": 10, "noise_multiplier": 2.0, **QUICK}
    with pytest.raises(pp.InvalidInput, match="people=, a public number"):
        pp.plan(budgets(100), **shape)
    one, more = (pp.plan(budgets(people), people=95, **shape) for people in (100, 101))
    assert one.promise is more.promise is pp.Promise.PRESENCE
    assert one.steps == more.steps == 10
    assert np.array_equal(one.rates[:100], more.rates[:100])


def test_the_head_count_would_have_told():
    """The broken twin: steps by the real number of people move by one, and everybody's rate with them."""
    one, more = (
        pp.plan(budgets(people), steps=-(-people // 10), batch_size=10, noise_multiplier=2.0, **QUICK)
        for people in (100, 101)
    )
    assert one.steps != more.steps
    assert not np.array_equal(one.rates, more.rates[:100])


def test_where_noise_is_solved_the_list_of_budgets_is_given_anyway():
    plan = pp.plan(budgets(100), epochs=1, batch_size=10, **QUICK)
    assert plan.promise is pp.Promise.DATA
    assert pp.plan(budgets(100), epochs=1, people=200, batch_size=10, **QUICK).steps == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give the one or the other"),
        ({"steps": 5, "epochs": 1}, "give the one or the other"),
        ({"steps": 5, "people": 9}, "leave it out beside steps="),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": "2"}, "epochs must be"),
        ({"epochs": 1, "people": 0}, "people must be"),
        ({"epochs": 1, "batch_size": 0}, "batch_size must be"),
    ],
)
def test_what_is_no_length_is_refused(given, said):
    with pytest.raises(pp.InvalidInput, match=said):
        pp.plan(budgets(20), **{"batch_size": 4, **given})

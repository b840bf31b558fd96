"""suggest: what its rules say of plans and steps, compared with plans and steps; and what it may rest on."""

import json
import tomllib

import numpy as np
import pytest

import privypurse as pp
from privypurse.runs.config import NewPlan

GUESS = {"people": 3_000, "levels": {0.5: 0.6, 2.0: 0.3, 4.0: 0.1}, "parameters": 200, "accountant": "rdp"}


@pytest.fixture(scope="module")
def found():
    return pp.suggest(**GUESS)


def granted(people=3_000):
    return pp.Budgets(np.repeat([0.5, 2.0, 4.0], [people * 6 // 10, people * 3 // 10, people // 10]), delta=1e-5)


def moved_by_noise(suggestion, learning_rate):
    """How far SGD with momentum carries weights whose gradients are noise alone, step by step."""
    random = np.random.default_rng(0)
    scale = suggestion.noise_multiplier * suggestion.clip_norm / suggestion.batch_size
    weights, speed = np.zeros(4_000), np.zeros(4_000)
    for _ in range(suggestion.steps):
        speed = suggestion.momentum * speed + random.normal(0, scale, weights.size)
        weights -= learning_rate * speed
    return weights.std()


def test_noise_alone_moves_a_weight_by_the_walk(found):
    assert moved_by_noise(found, found.learning_rate) == pytest.approx(found.walk, rel=0.08)
    forgotten = found.learning_rate / (1 - found.momentum)  # a rule that forgets what momentum multiplies
    assert moved_by_noise(found, forgotten) > 5 * found.walk


def noise_of_all_steps(people, batch_size, steps):
    plan = pp.plan(pp.Budgets([1.0] * people), "uniform", steps=steps, batch_size=batch_size, accountant="rdp")
    return plan.noise_multiplier / batch_size


@pytest.mark.slow
def test_a_larger_batch_would_hardly_lower_the_noise_and_a_smaller_one_would_raise_it():
    found = pp.suggest(people=20_000, levels=1.0, parameters=200, method="uniform", accountant="rdp")
    everybody = noise_of_all_steps(20_000, 20_000, found.steps)
    assert 256 < found.batch_size < 5_000
    assert noise_of_all_steps(20_000, found.batch_size, found.steps) < 1.12 * everybody
    assert noise_of_all_steps(20_000, found.batch_size // 8, found.steps) > 1.5 * everybody


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sample", "uniform", "scale", "exclude"])
def test_the_signal_is_that_of_plans_whatever_their_steps(method, found):
    """Σ q·c / (σ·C) of a step, times √T: read off a plan itself."""
    suggestion = pp.suggest(**{**GUESS, "method": method})
    for steps in (150, 600):
        plan = pp.plan(granted(), method, steps=steps, batch_size=500, accountant="rdp")
        a_step = (plan.rates * plan.clip_norms).sum() / (plan.noise_multiplier * plan.clip_norm)
        assert suggestion.signal == pytest.approx(a_step * np.sqrt(steps), rel=0.2)
    if method == "uniform":
        assert suggestion.signal < 0.5 * found.signal  # what the strictest are worth, times all


@pytest.mark.slow
def test_what_is_given_is_kept_and_the_rest_follows(found):
    few = pp.suggest(**GUESS, steps=20)
    assert few.steps == 20
    assert few.batch_size >= found.batch_size
    step = few.learning_rate * few.clip_norm / (1 - few.momentum)  # if all gradients reach the clip norm and agree
    assert step == pytest.approx(8, rel=0.05)
    assert step * found.walk / few.walk > 9  # what noise alone would allow
    assert pp.suggest(**GUESS, batch_size=700).batch_size == 700
    with pytest.raises(pp.InvalidInput, match="only 3,000 people to draw from"):  # as pp.plan would say
        pp.suggest(**GUESS, batch_size=3_001)


@pytest.mark.slow
def test_more_weights_walk_less_and_together_no_further(found):
    wide = pp.suggest(**{**GUESS, "parameters": 10**6})
    assert wide.walk < found.walk
    assert wide.walk * 1000 == pytest.approx(24)


@pytest.mark.slow
def test_a_model_is_counted_by_what_it_trains(found):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(19, 10), torch.nn.Linear(10, 5))
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    assert pp.suggest(**{**GUESS, "parameters": model}).to_dict() == found.to_dict()


def test_a_plan_promises_presence_only_where_all_was_guessed_and_fixed(found):
    fixed = pp.suggest(**GUESS, fixed_noise=True)
    of_grants = pp.suggest(budgets=granted(), parameters=200, accountant="rdp")
    assert of_grants.plan.keys() == found.plan.keys()
    by = {"accountant": "rdp"}
    assert pp.plan(granted(), **found.plan, **by).promise is found.promise is pp.Promise.DATA
    assert pp.plan(granted(), **fixed.plan, **by).promise is fixed.promise is pp.Promise.PRESENCE
    noise = {"noise_multiplier": fixed.noise_multiplier}
    assert pp.plan(granted(), **found.plan, **noise, **by).promise is pp.Promise.PRESENCE  # it was a public guess
    assert pp.plan(granted(), **of_grants.plan, **noise, **by).promise is pp.Promise.DATA  # where grants decided
    assert "promises `data`" in str(of_grants)
    assert "costs nothing" in str(found)


@pytest.mark.slow
def test_a_right_guess_gives_what_the_grants_give(found):
    of_grants = pp.suggest(budgets=granted(), parameters=200, accountant="rdp")
    public, internal = found.to_dict(), of_grants.to_dict()
    assert public.pop("basis") != internal.pop("basis")
    assert (public.pop("from_grants"), internal.pop("from_grants")) == (False, True)
    assert public == internal


@pytest.mark.slow
def test_what_is_printed_is_what_is_planned(found):
    fixed = pp.suggest(**GUESS, fixed_noise=True)
    for each in (found, fixed):
        read = tomllib.loads(each.toml())
        assert read == {"plan": each.plan, "optimizer": {"name": "SGD", **each.optimizer}}
        assert NewPlan(**read["plan"]).steps == each.steps
        assert json.loads(json.dumps(each.to_dict()))["plan"] == each.plan
    assert f"{found.batch_size:,}" in str(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ledger": object()}, r"ledger is given.*levels="),
        ({"people": None}, "people or levels is missing"),
        ({"people": 0}, "people must be .* not 0; about how many"),
        ({"levels": {}}, "levels is"),
        ({"levels": "strict"}, "levels is 'strict'"),
        ({"levels": {"strict": 1.0}}, "levels is"),
        ({"levels": {1.0: 0.5, 2.0: 0.3}}, "add up to 0.8"),
        ({"levels": {1.0: 1.5, 2.0: -0.5}}, r"levels\[2.0\] must be .* not -0.5"),
        ({"levels": {-1.0: 1.0}}, "an ε of levels must be .* not -1"),
        ({"parameters": 0}, "parameters must be .* not 0"),
        ({"parameters": "many"}, "parameters is 'many'"),
        ({"method": "best"}, "method is 'best'"),
        ({"steps": 0}, "steps must be .* not 0"),
        ({"budgets": 1.0}, "budgets are given beside people"),
        ({"budgets": 1.0, "people": None, "levels": None}, "budgets must be a Budgets"),
        ({"fixed_noise": True, "method": "scale"}, "fixed_noise is for the methods sample and curve-fit, not scale"),
        ({"fixed_noise": True, "people": None, "levels": None, "budgets": granted(20)}, "nobody's presence"),
    ],
)
def test_errors_name_what_is_wrong(change, said):
    with pytest.raises(pp.InvalidInput, match=said):
        pp.suggest(**{**GUESS, **change})

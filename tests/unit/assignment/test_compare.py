"""compare: figures that plans themselves have, the threshold of brute force, and no plan that claims too much."""

import json

import numpy as np
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.accounting import accountant_named
from privypurse.assignment import Calibrator, Exclude, Sample
from privypurse.assignment.best_threshold import _TRIED, best_threshold
from privypurse.assignment.coarse_levels import coarse
from privypurse.budgets import preferences
from privypurse.budgets.levels import Levels
from privypurse.plans import TrainingShape

SIZES = {"steps": 30, "batch_size": 20, "accountant": "rdp"}


def granted(people=200, epsilon=(0.5, 1.0, 4.0), shares=(0.6, 0.3, 0.1)):
    return pp.Budgets(preferences.levels(people, epsilon, shares, np.random.default_rng(0)), delta=1e-5)


@pytest.fixture(scope="module")
def found():
    return pp.compare(granted(), **SIZES, clip_norm=0.5)


@pytest.mark.slow
def test_figures_are_those_of_the_plans_person_by_person(found):
    budgets = granted()
    assert {each.method for each in found.outlooks} == {"uniform", "sample", "scale", "exclude", "curve-fit"}
    for outlook in found.outlooks:
        method = outlook.method if outlook.threshold is None else Exclude(outlook.threshold)
        plan = pp.plan(budgets, method, **SIZES, clip_norm=0.5)
        weight = plan.rates * plan.clip_norms
        assert outlook.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-9)
        assert outlook.signal_to_noise == pytest.approx(weight.sum() / (plan.noise_multiplier * 0.5))
        assert outlook.used == pytest.approx(plan.spent().sum() / budgets.epsilon.sum())
        assert outlook.alike == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
        assert outlook.draws[-1] == pytest.approx(plan.rates[budgets.epsilon == 4.0][0] * 30)


def test_who_is_left_out_is_not_drawn(found):
    outlook = found.of("exclude")
    assert ((outlook.draws > 0) == (found.levels.epsilon >= outlook.threshold)).all()
    assert (outlook.certified[outlook.draws == 0] == 0).all()


def by_brute_force(budgets):
    noise = {}
    for threshold in np.unique(budgets.epsilon):
        if (budgets.epsilon >= threshold).sum() >= SIZES["batch_size"]:
            plan = pp.plan(budgets, Exclude(float(threshold)), **SIZES)
            noise[float(threshold)] = plan.noise_multiplier
    return noise


def threshold_of(budgets):
    calibrator = Calibrator(TrainingShape(steps=30, batch_size=20), accountant_named("rdp"))
    return best_threshold(budgets.levels()[0], calibrator)


@pytest.mark.parametrize(
    ("shares", "best"), [((0.5, 0.1, 0.4), 4.0), ((0.3, 0.65, 0.05), 1.0), ((0.9, 0.05, 0.05), 0.5)]
)
def test_the_threshold_has_the_least_noise_of_all(shares, best):
    budgets = granted(400, shares=shares)
    noise = by_brute_force(budgets)
    assert threshold_of(budgets) == best == min(noise, key=noise.__getitem__)
    assert sorted(noise.values())[1] > 1.05 * noise[best]  # another threshold would have been worse


@pytest.mark.slow
def test_of_many_levels_the_formula_finds_one_that_is_as_good():
    random = np.random.default_rng(1)
    lumps = np.concatenate([random.uniform(0.3, 0.6, 300), random.uniform(2.0, 3.0, 150), random.uniform(6, 7, 25)])
    budgets = pp.Budgets(lumps.round(1), delta=1e-5)
    noise = by_brute_force(budgets)
    assert len(noise) > _TRIED  # so that not all are solved for real
    chosen = noise[min(noise, key=lambda each: abs(each - threshold_of(budgets)))]
    assert chosen <= 1.005 * min(noise.values())
    assert np.median(list(noise.values())) > 1.1 * chosen  # which most thresholds miss


def test_a_plan_by_the_recommendation_promises_data_whatever_else_is_given(found):
    budgets = granted()
    sizes = {**SIZES, "noise_multiplier": 3.0}
    assert found.recommended.method == "sample"
    assert pp.plan(budgets, Sample(), **sizes).promise is pp.Promise.PRESENCE  # what would claim too much
    assert pp.plan(budgets, found.recommended.how, **sizes).promise is pp.Promise.DATA
    assert pp.plan(budgets, found.recommended.how, **SIZES).promise is pp.Promise.DATA
    assert found.promise is pp.Promise.DATA
    assert "promises `data`" in found.summary()


def test_the_sentence_names_the_largest_signal_to_noise(found):
    signal = {each.method: each.signal_to_noise for each in found.outlooks}
    title = f"exclude, ε ≥ {found.of('exclude').threshold:g}"
    assert signal["sample"] >= 0.98 * max(signal.values())
    assert f"{signal['sample'] / signal['uniform']:.1f} times that of uniform" in found.sentence
    assert f"{signal['sample'] / signal['exclude']:.1f} times that of {title}" in found.sentence
    assert signal["sample"] > 1.2 * signal["exclude"]


@pytest.mark.slow
def test_where_all_grant_the_same_nobody_needs_more_than_uniform():
    found = pp.compare(granted(100, (1.0,), (1.0,)), **SIZES)
    assert found.recommended.method == "uniform"
    assert "more than 2% above" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(("shares", "alike"), [((0.02, 0.98), False), ((0.98, 0.02), True)])
def test_where_exclude_leaves_nobody_out_it_is_said_to_be_uniform(shares, alike):
    """With few strict people it leaves them out; where few are open the rest would not do."""
    made = pp.compare(granted(epsilon=(0.9, 1.0), shares=shares), **SIZES)
    exclude, uniform = made.of("exclude"), made.of("uniform")
    assert (exclude.noise_multiplier == uniform.noise_multiplier) is alike
    assert ("exclude is the same as uniform" in " ".join(made.notes())) is alike


@pytest.mark.slow
def test_what_cannot_be_planned_is_said_and_the_others_are_compared():
    budgets = granted(200, (1e-4, 1.0, 4.0))
    found = pp.compare(budgets, **SIZES)
    assert {"uniform", "sample", "scale"} <= set(found.impossible)
    assert found.recommended.method == "exclude"
    assert "uniform: no plan, since ε = 0.0001" in found.summary()
    with pytest.raises(pp.InvalidInput, match=r"'uniform'.*ε = 0\.0001"):
        found.of("uniform")
    with pytest.raises(pp.InfeasibleBudget, match=r"0\.0001"):
        pp.compare(granted(100, (1e-4,), (1.0,)), **SIZES)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": 201}, "batch_size is 201.*200 people"),
        ({"steps": 0}, "steps must be"),
        ({"steps": None}, "steps is None and epochs is None"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"accountant": "trust"}, "accountant"),
    ],
)
def test_wrong_arguments_are_named(wrong, words):
    with pytest.raises(pp.InvalidInput, match=words):
        pp.compare(granted(), **{**SIZES, **wrong})


@pytest.mark.parametrize("deltas", [(1e-5,), (1e-6, 1e-5)])
def test_many_levels_as_few_lose_nobody_and_keep_those_alone(deltas):
    epsilon = np.repeat(np.arange(100, 1000) / 100, len(deltas))
    levels = Levels(epsilon, np.tile(deltas, 900), np.arange(1, epsilon.size + 1))
    few = coarse(levels, 20, {1.0, 5.05})
    assert few.epsilon.size <= 23 * len(deltas)
    assert few.total == levels.total
    assert few.people @ few.epsilon == pytest.approx(levels.people @ levels.epsilon)
    assert (np.diff(few.epsilon) >= 0).all()
    assert ((few.low <= few.epsilon) & (few.epsilon <= few.high)).all()
    for each in (1.0, 5.05):
        assert (few.epsilon == each).sum() == len(deltas)
    for delta in deltas:
        mine = few.delta == delta
        assert few.people[mine].sum() == levels.people[levels.delta == delta].sum()
        assert (few.low[mine][1:] > few.high[mine][:-1]).all()  # runs of neighbours


@pytest.mark.slow
def test_many_levels_as_few_say_what_the_plans_say():
    budgets = pp.Budgets(preferences.bounded_pareto(5_000, np.random.default_rng(0)), delta=1e-5)
    sizes = {**SIZES, "batch_size": 200}
    found = pp.compare(budgets, **sizes)
    assert found.levels.epsilon.size < 45 < budgets.levels()[0].epsilon.size
    for name in ("uniform", "sample", "scale"):
        plan = pp.plan(budgets, name, **sizes)
        assert found.of(name).noise_multiplier == pytest.approx(plan.noise_multiplier, rel=5e-3)
        assert found.of(name).used == pytest.approx(plan.spent().sum() / budgets.promised.sum(), rel=5e-3)


@pytest.fixture
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"secret{k},{epsilon:g}" for k, epsilon in enumerate(granted(60).epsilon)]
    (tmp_path / "people.csv").write_text("id,epsilon\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return ["compare", "people.csv", "--person", "id", "--steps", "10", "--batch-size", "6", "--accountant", "rdp"]


@pytest.mark.slow
def test_the_command_says_what_it_rests_on_and_writes_nothing(people, tmp_path, capsys):
    assert cli.main(people) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("Recommended: sample", "rests on the grants alone", "internal", "promises `data`", "ε 0.5"):
        assert words in out
    assert "secret" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


@pytest.mark.slow
def test_the_command_gives_the_same_as_json(people, capsys):
    assert cli.main([*people, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = pp.compare(granted(60), steps=10, batch_size=6, accountant="rdp")
    assert told == json.loads(json.dumps(found.to_dict()))
    assert (told["promise"], told["recommended"]["method"], told["people"]) == ("data", "sample", 60)


def test_the_command_takes_no_noise_multiplier(people, capsys):
    """With one a plan could claim to protect presence, and a choice by all grants cannot."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([*people, "--noise-multiplier", "2"])
    assert stopped.value.code == 2

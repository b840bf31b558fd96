"""The ε that may be told: a cap that was given, never the largest that somebody holds."""

import json

import numpy as np
import pytest

import privypurse as pp
from privypurse._storage import digest_of
from privypurse.assignment import METHODS

SHAPE = {"steps": 20, "batch_size": 4, "accountant": "rdp"}
GRANTED = np.array([0.5, 1.0, 2.0, 8.0] * 5)


@pytest.mark.each_value_once
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("extra_steps", [0, 5])
def test_nobody_exceeds_it(method, extra_steps):
    plan = pp.plan(pp.Budgets(GRANTED), method, at_most=1.5, extra_steps=extra_steps, **SHAPE)
    assert plan.public_epsilon == 1.5
    assert plan.epsilon.max() <= 1.5
    assert plan.spent(plan.all_steps).max() <= 1.5
    assert (plan.spent(plan.all_steps) <= GRANTED).all()
    capped = pp.plan(pp.Budgets(np.minimum(GRANTED, 1.5)), method, extra_steps=extra_steps, **SHAPE)
    assert np.array_equal(plan.rates, capped.rates)
    assert np.array_equal(plan.clip_norms, capped.clip_norms)


def test_without_a_cap_nothing_is_told():
    assert pp.plan(pp.Budgets(GRANTED), **SHAPE).public_epsilon is None


def test_it_is_the_same_whoever_is_there():
    """The broken twin, the largest ε of the plan, tells whether the one person with ε = 8 is listed."""
    shape = {**SHAPE, "noise_multiplier": 3.0, "at_most": 10.0}
    one, other = pp.plan(pp.Budgets(GRANTED[:4]), **shape), pp.plan(pp.Budgets(GRANTED[:3]), **shape)
    assert one.public_epsilon == other.public_epsilon == 10.0
    assert one.epsilon.max() != other.epsilon.max()


def test_it_is_kept_in_the_file(tmp_path):
    plan = pp.plan(pp.Budgets(GRANTED), at_most=1.5, **SHAPE)
    plan.save(tmp_path / "plan.json")
    again = pp.Plan.load(tmp_path / "plan.json")
    assert (again.public_epsilon, again.digest()) == (1.5, plan.digest())
    assert "nobody's ε is above 1.5" in plan.summary()
    content = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    del content["sha256"]
    content["shape"]["at_most"] = 0.9
    content["sha256"] = digest_of(content)
    (tmp_path / "plan.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(pp.InvalidInput, match="a level promises"):
        pp.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("at_most", [0, -1.0, "1", float("nan")])
def test_what_is_no_cap_is_refused(at_most):
    with pytest.raises(pp.InvalidInput, match="at_most must be"):
        pp.plan(pp.Budgets(GRANTED), at_most=at_most, **SHAPE)

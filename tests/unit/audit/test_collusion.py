"""Others' choices at the same (ε, δ): found by other crowds planned in full, and nothing where σ was given."""

import pytest
from scipy import stats

import privypurse as pp
from privypurse.accounting import gdp
from privypurse.accounting.advantage import total_variation
from privypurse.audit.collusion import collusion
from privypurse.errors import InvalidInput, Unsupported

SHAPE = {"steps": 100, "batch_size": 5}


def made(method: str = "sample", **more: float) -> pp.Plan:
    return pp.plan(pp.Budgets([1.0] * 50 + [3.0] * 50, delta=1e-5), method, **SHAPE, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def solved() -> pp.Plan:
    return made()


@pytest.mark.slow
def test_at_worst_a_person_is_in_every_step_with_gaussian_noise(solved: pp.Plan) -> None:
    for found in collusion(solved, points=2):
        mu = float(gdp.mu(found.epsilon, found.delta))
        assert found.rate == 1.0
        assert found.worst == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=2e-3)
        assert found.now < found.worst
        assert found.excess == found.worst - found.now


@pytest.mark.slow
def test_what_others_can_do_within_limits_is_what_a_plan_among_them_does(solved: pp.Plan) -> None:
    """The other end is planned anew, by all there is: 99 people of the smallest ε, and the person."""
    person = collusion(solved, others=(0.3, 3.0), points=2)[0]
    crowd = pp.plan(pp.Budgets([0.3] * 99 + [1.0], delta=1e-5), "sample", **SHAPE)  # type: ignore[arg-type]
    mine = crowd.releases()[1]
    assert person.worst == pytest.approx(total_variation(mine), rel=2e-3)
    assert person.now < person.worst < collusion(solved, points=2)[0].worst


def test_a_noise_multiplier_given_beforehand_leaves_nothing_to_others() -> None:
    plan = made(noise_multiplier=1.0)
    assert [each.excess for each in collusion(plan)] == [0.0, 0.0]


@pytest.mark.slow
def test_scale_has_one_rate_for_all_and_uniform_protects_more_while_others_are_strict() -> None:
    assert [each.excess for each in collusion(made("scale"))] == [0.0, 0.0]
    strict, relaxed = collusion(made("uniform"))
    assert strict.excess == 0.0
    assert relaxed.worst == pytest.approx(collusion(made("scale"))[1].worst, rel=1e-6)


@pytest.mark.slow
def test_those_left_out_may_be_in_every_step_if_few_others_remain() -> None:
    left_out, _ = collusion(made("exclude"), points=2)
    assert left_out.now == 0.0
    assert left_out.rate == 1.0


@pytest.mark.slow
def test_what_has_no_curve_or_promise_is_refused(solved: pp.Plan) -> None:
    with pytest.raises(Unsupported, match="extra steps"):
        collusion(made(extra_steps=5))
    with pytest.raises(InvalidInput, match=r"others\[1\]"):
        collusion(solved, others=(2.0, 1.0))

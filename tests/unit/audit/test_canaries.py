"""Canaries go through training as everybody does; sound runs are cleared and broken ones flagged."""

import numpy as np
import pytest
import torch
from torch import nn

import privypurse as pp
from made_once import made_once
from privypurse.audit.canaries import PUSH, Canaries, Scored, WithCanaries, with_canaries
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.claims import family_of
from privypurse.audit.families import PER_DOUBLING
from privypurse.audit.result import AuditResult
from privypurse.audit.subject import stand_in
from privypurse.errors import InvalidInput
from privypurse.randomness import SecureRandomness
from privypurse.training import mechanism, setup
from privypurse.training.gradients import per_record_norms
from privypurse.training.grid_noise import GridNoise


@made_once
def plan_for(epsilons=(4.0,) * 200, steps=8, batch_size=50, **options):
    options = {"method": "sample", "accountant": "rdp"} | options
    return pp.plan(pp.Budgets(list(epsilons), delta=1e-5), steps=steps, batch_size=batch_size, **options)


def audit(plan=None, **options):
    return CanaryAudit(stand_in(plan or plan_for(), others=20), **({"canaries": 1000} | options))


def found_of_a_sound_run(plan=None, **options):
    """At 95 % about one in 3,000 of these is refuted by chance, and then looked at once more."""
    found = audit(plan, **options).run()
    return audit(plan, **options).run() if found.flagged else found


def squares(output, label):
    return (output.squeeze(-1) - label).square()


def test_half_of_the_canaries_are_in_by_independent_coins():
    made = Canaries.flipped(np.array([0, 2]), 20_000, SecureRandomness())
    assert np.bincount(made.level).tolist() == [20_000, 0, 20_000]
    for level in (0, 2):
        assert abs(int(made.is_in[made.level == level].sum()) - 10_000) < 6 * np.sqrt(5000)


def test_a_canary_has_ten_clip_norms_in_a_coordinate_of_its_own_and_others_have_nothing_there():
    model = WithCanaries(nn.Linear(3, 1), 4)
    losses = with_canaries(squares, clip_norm=0.7)
    x, y = torch.randn(6, 3), torch.randn(6)
    numbers = torch.tensor([0, 3, 4, 4, 4, 4])  # two canaries, four others
    found = per_record_norms(model, losses, (x, numbers), y)
    assert found[:2] == pytest.approx([PUSH * 0.7] * 2, rel=1e-5)
    assert found[2:] == pytest.approx(per_record_norms(model.model, squares, x[2:], y[2:]), rel=1e-5)
    losses(model(x, numbers), y).sum().backward()
    assert model.coordinates.weight.grad.flatten().tolist() == pytest.approx([7.0, 0, 0, 7.0, 0])


def test_the_plan_stays_as_it_is():
    plan = plan_for((1.0,) * 30 + (4.0,) * 30, batch_size=20)
    canaries = Canaries(np.array([0, 0, 1, 1]), np.array([True, False, True, True]))
    joined = canaries.joined(plan, np.array([0, 1, 1]))
    assert joined.level_of.tolist() == [0, 1, 1, 0, 1, 1]
    assert joined.shape is plan.shape
    assert joined.levels is plan.levels


def test_scores_are_log_likelihood_ratios_of_what_was_released():
    plan = plan_for((1.0,) * 30 + (4.0,) * 30, batch_size=20, method="scale")
    canaries = Canaries(np.array([0, 1]), np.array([True, False]))
    model = WithCanaries(nn.Linear(1, 1), 2)
    scored = Scored(plan, canaries, model)
    expected = np.zeros(2)
    for released in ([0.3, -0.2], [1.0, 2.0]):
        model.coordinates.weight.grad = torch.tensor([[released[0]], [released[1]], [9.0]])
        scored.before_step()
        for k in range(2):
            rate, clip = plan.levels.rate[k], plan.levels.clip_norm[k]
            deviation, value = plan.noise_multiplier * plan.clip_norm, released[k] * plan.batch_size
            without = np.exp(-(value**2) / (2 * deviation**2))
            drawn = np.exp(-((value - clip) ** 2) / (2 * deviation**2))
            expected[k] += np.log(((1 - rate) * without + rate * drawn) / without)
    assert scored.scores == pytest.approx(expected, rel=1e-5)


def test_a_sound_run_is_cleared_and_says_what_it_is():
    found = found_of_a_sound_run(canaries=400)
    assert not found.flagged
    assert (found.attack, found.data, found.cost.trainings) == ("canaries", "made up", 1)
    (group,) = found.groups
    assert group.claimed_epsilon == plan_for().spent_by_level()[0]
    assert max(group.bounds["guesses"], group.bounds["f-dp"]) < group.claimed_epsilon
    assert group.auc_interval[0] < group.auc < group.auc_interval[1]
    assert AuditResult.from_json(found.to_json()) == found


def halved(monkeypatch):
    monkeypatch.setattr(setup, "GridNoise", lambda deviation, size: GridNoise(deviation / 2, size))


def unclipped(monkeypatch):
    monkeypatch.setattr(mechanism, "clip_factors", lambda norms, limits: torch.ones_like(norms))


def drawn_three_times_as_often(monkeypatch):
    rates = mechanism.PrivateRun.rates.fget
    monkeypatch.setattr(mechanism.PrivateRun, "rates", property(lambda run: np.minimum(1.0, 3 * rates(run))))


@pytest.mark.parametrize(
    ("fault", "batch_size"),
    [
        (halved, 200),
        pytest.param(unclipped, 200, marks=pytest.mark.slow),
        pytest.param(drawn_three_times_as_often, 60, marks=pytest.mark.slow),
    ],
)
def test_a_broken_run_is_flagged(monkeypatch, fault, batch_size):
    plan = plan_for(batch_size=batch_size, accountant="pld")
    fault(monkeypatch)
    found = audit(plan, canaries=4000).run()
    assert found.flagged
    assert "FLAGGED" in " ".join(found.words)


def test_a_group_without_any_noise_is_flagged_and_can_be_kept():
    """Everybody in every step and no noise: neither side scatters, and no estimate is finite."""
    made = audit(plan_for(), canaries=400)
    group = made.group(0, np.full(200, 3.0), np.zeros(200))
    assert set(group.bounds) == {"guesses", "f-dp"}
    assert group.flagged


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scale", "uniform"])
def test_other_methods_are_cleared_by_group(method):
    plan = plan_for((2.0,) * 100 + (4.0,) * 100, method=method)
    found = found_of_a_sound_run(plan, canaries=400)
    assert not found.flagged
    assert [group.name for group in found.groups] == ["ε = 2", "ε = 4"]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [50, 200])
def test_a_run_under_a_filter_is_read_by_its_purse(batch_size):
    options = {"noise_multiplier": 4.0} if batch_size == 200 else {}
    plan = plan_for(batch_size=batch_size, steps=4, extra_steps=4, **options)
    found = found_of_a_sound_run(plan, canaries=200)
    assert found.groups[0].claimed_epsilon >= 4.0
    assert not found.flagged


def test_the_family_of_a_level_has_the_claim_in_its_middle():
    plan = plan_for(accountant="pld")
    curve, epsilon = family_of(plan, 0).at(5 * PER_DOUBLING)
    assert epsilon == pytest.approx(plan.spent_by_level()[0], rel=1e-9)
    assert curve.most(0.01) < 0.5


def test_levels_are_the_lowest_the_highest_and_some_between():
    plan = plan_for(tuple(np.linspace(1, 3, 9)) * 10)
    found = audit(plan, groups=3).levels
    assert found[[0, -1]].tolist() == [0, len(plan.levels) - 1]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"canaries": 10}, "canaries"),
        ({"verdict": "gaussian scores"}, "verdict"),
        ({"confidence": 2.0}, "confidence"),
    ],
)
def test_what_is_given_wrongly_is_named(options, named):
    with pytest.raises(InvalidInput, match=named):
        audit(**options)


@pytest.mark.slow
def test_the_cost_is_said_before():
    assert "one training of 8 steps with 1,000 canaries in one budget group, half" in audit().cost

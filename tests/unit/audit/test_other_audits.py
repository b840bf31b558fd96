"""Small runs, LiRA and the loss threshold as audits of a plan: what they find, say and refuse."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.faults import halved_noise
from scipy import stats

import command_line
import privypurse as pp
from privypurse.accounting import gdp
from privypurse.audit.claims import audited_levels, claimed
from privypurse.audit.membership_audit import MembershipAudit, most_area
from privypurse.audit.result import AuditResult
from privypurse.audit.shadow_models import ShadowTraining
from privypurse.audit.small_runs_audit import SmallRunsAudit
from privypurse.audit.subject import stand_in
from privypurse.datasets.targets import Number
from privypurse.errors import InvalidInput


@pytest.fixture(scope="module")
def plan() -> pp.Plan:
    """Full batches of everybody: Gaussian DP, whose curve is known."""
    return pp.plan(pp.Budgets([2.0] * 30, delta=1e-5), "uniform", steps=4, batch_size=30)


@pytest.mark.slow
def test_small_runs_clear_a_sound_plan_and_flag_halved_noise(plan: pp.Plan) -> None:
    sound = SmallRunsAudit(plan, runs=3000, seed=0).run()
    (group,) = sound.groups
    mu = float(gdp.mu(*claimed(plan, 0)))
    assert not sound.flagged
    assert 0.5 * group.claimed_epsilon < group.bounds["f-dp"] <= group.claimed_epsilon
    assert group.auc_interval[0] - 0.01 < stats.norm.cdf(mu / np.sqrt(2)) < group.auc_interval[1] + 0.01
    assert sound.cost.trainings == 6000
    with halved_noise():
        broken = SmallRunsAudit(plan, runs=3000, seed=0).run()
    assert broken.flagged
    assert any("FLAGGED by likelihood ratio" in sentence for sentence in broken.words)


def test_the_area_that_a_claim_allows_is_that_of_its_curve(plan: pp.Plan) -> None:
    exact = stats.norm.cdf(float(gdp.mu(*claimed(plan, 0))) / np.sqrt(2))
    assert exact <= most_area(plan, 0) < exact + 2e-3


@pytest.mark.slow
def test_a_filter_or_a_fixed_sigma_is_told(plan: pp.Plan) -> None:
    budgets = pp.Budgets([2.0] * 30, delta=1e-5)
    given = pp.plan(budgets, "sample", steps=4, batch_size=30, noise_multiplier=4.0, accountant="rdp")
    words = SmallRunsAudit(given, runs=200, seed=1).run().words
    assert any("adds nothing" in sentence for sentence in words)
    cleared = [sentence for sentence in words if "cleared" in sentence]
    assert cleared
    assert all("which does not prove the claim" in sentence for sentence in cleared)
    assert all(". If the claim holds, whoever guesses" in sentence for sentence in cleared)
    assert any("scatters from audit to audit" in sentence for sentence in words)
    filtered = pp.plan(budgets, "sample", steps=4, extra_steps=2, batch_size=10, accountant="rdp")
    assert any(
        "not those under the filter" in sentence for sentence in SmallRunsAudit(filtered, runs=200).run().words
    )


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["lira", "loss"])
def test_membership_attacks_find_little_and_say_so(tmp_path, capsys, attack: str) -> None:
    budgets = pp.Budgets([1.0] * 120 + [2.0] * 120, delta=1e-5)
    pp.plan(budgets, steps=5, batch_size=20, accountant="rdp").save(tmp_path / "plan.json")
    said = command_line.done(
        capsys,
        f"audit {tmp_path / 'plan.json'} --attack {attack} --models 6 --confidence 0.9999999 -o {tmp_path / 'audit'}",
    )
    assert f"{attack}: 6 trainings of 5 steps" in said.splitlines()[0]
    assert "next to nothing is proved" in said.replace("\n", " ")
    found = AuditResult.load(tmp_path / "audit")
    assert found.attack == attack
    assert [group.name for group in found.groups] == ["ε = 1", "ε = 2"]
    targets = {"lira": 1, "loss": 3}[attack]  # of three pairs two are LiRA's shadow models alone
    assert all(group.targets == targets and not group.flagged for group in found.groups)
    assert all(group.bounds["f-dp"] <= group.claimed_epsilon for group in found.groups)
    assert all(group.roc is not None for group in found.groups)


@pytest.mark.slow
def test_models_that_know_records_by_heart_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if training were without privacy: labels are coins, and the models know some of them by heart.

    Of 48 guesses 45 to 47 were right in twelve trials; 32 refute the claim.
    """
    plan = pp.plan(pp.Budgets([0.2] * 40, delta=1e-5), "uniform", steps=80, batch_size=20, accountant="rdp")
    subject = stand_in(plan)
    subject.labels.random_(0, 2)
    audit = MembershipAudit(subject, "lira", models=16)
    right = ShadowTraining.trained
    monkeypatch.setattr(ShadowTraining, "trained", lambda self, member: right(self, member, private=False))
    assert audit.run().flagged


@pytest.mark.slow
def test_a_tiny_group_is_judged_by_its_bound_alone(plan: pp.Plan) -> None:
    mixed = pp.plan(pp.Budgets([1.0] * 3 + [2.0] * 60, delta=1e-5), steps=3, batch_size=20, accountant="rdp")
    found = MembershipAudit(stand_in(mixed), models=8).run()
    tiny, many = found.groups
    assert (tiny.auc, tiny.roc, tiny.flagged) == (None, None, False)
    assert many.auc is not None
    assert any("ε = 1: cleared, which says nothing: with so few records" in words for words in found.words)
    assert "ε = 1: too few records for an AUC." in found.words
    with pytest.raises(InvalidInput, match="fewer than 40 people in all"):
        MembershipAudit(stand_in(plan))


def test_what_an_attack_cannot_do_is_refused(plan: pp.Plan) -> None:
    with pytest.raises(InvalidInput, match="runs is 100,000,000"):
        SmallRunsAudit(plan, runs=100_000_000)
    with pytest.raises(InvalidInput, match="at least 100"):
        SmallRunsAudit(plan, runs=3)
    with pytest.raises(InvalidInput, match="there is room for 125"):
        SmallRunsAudit(replace(plan, shape=replace(plan.shape, steps=100_000)), runs=200)
    assert SmallRunsAudit(replace(plan, shape=replace(plan.shape, steps=20_000)))._runs == 625
    subject = stand_in(plan)  # of 30 people, which is said last
    with pytest.raises(InvalidInput, match="attack is 'guess'"):
        MembershipAudit(subject, "guess")  # type: ignore[arg-type]
    object.__setattr__(subject, "target", Number("age", range=None))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="predicts something else"):
        MembershipAudit(subject)


def test_at_most_so_many_levels_with_both_ends() -> None:
    plan = pp.plan(pp.Budgets(np.linspace(1, 5, 40), delta=1e-5), "uniform", steps=2, batch_size=10, accountant="rdp")
    found = audited_levels(plan, 3)
    assert found.size == 3
    assert (found[0], found[-1]) == (0, len(plan.levels) - 1)

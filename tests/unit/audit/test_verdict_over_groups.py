"""Several groups and one verdict: of sound runs no more are flagged than of one group alone."""

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from components import require
from privypurse.audit import readings
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.guessing import Guesses
from privypurse.audit.result import AuditResult, Cost, Group, confidence_of_each
from privypurse.audit.subject import stand_in


def flagged(groups: int, confidence: float, epsilon: float = 1.0, made: int = 500) -> float:
    """The probability that some group of randomised response, whose guesses are binomial, is refuted at its own ε."""
    right = 1 / (1 + np.exp(-epsilon))
    counts = [v for v in range(made + 1) if readings.chance(Guesses(made, made, v), epsilon, 0.0) < 1 - confidence]
    one = float(stats.binom.sf(min(counts) - 1, made, right))
    return float(1 - (1 - one) ** groups)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_sound_runs_are_flagged_as_rarely_as_is_said(groups: int) -> None:
    assert 0.02 < flagged(groups, confidence_of_each(0.95, groups)) <= 0.05


def test_the_twin_that_reads_every_group_at_the_whole_confidence_is_not() -> None:
    assert flagged(4, 0.95) > 0.1


@pytest.fixture(scope="module")
def three() -> CanaryAudit:
    budgets = pp.Budgets([1.0] * 20 + [2.0] * 20 + [3.0] * 20, delta=1e-5)
    plan = pp.plan(budgets, steps=2, batch_size=20, noise_multiplier=3.0, accountant="rdp")
    return CanaryAudit(stand_in(plan), verdict="guesses")


def found_at(shift: float) -> tuple[np.ndarray, np.ndarray]:
    grid = stats.norm.ppf((np.arange(500) + 0.5) / 500)
    return grid + shift, grid


@pytest.mark.slow
def test_a_group_is_flagged_at_the_stricter_confidence_and_shown_at_the_one_asked_for(three: CanaryAudit) -> None:
    level = int(three.levels[0])
    seen = set()
    for shift in np.linspace(0.0, 2.0, 41):
        scores = found_at(float(shift))
        group = three.group(level, *scores)
        shown, decides = (readings.guesses(*scores, group.delta, confidence) for confidence in (0.95, 1 - 0.05 / 3))
        assert group.bounds["guesses"] == shown
        assert group.flagged == (decides > group.claimed_epsilon)
        seen.add((group.above("guesses"), group.flagged))
    assert seen == {(False, False), (True, False), (True, True)}  # in between a bound is above, and cleared


def test_result_and_page_say_it() -> None:
    groups = tuple(
        Group(name=name, claimed_epsilon=1.0, delta=1e-5, flagged=False, bounds={"f-dp": bound})
        for name, bound in (("a", 0.5), ("b", 1.1))
    )
    fixed = {"confidence": 0.95, "delta": 1e-5, "verdict_reading": "f-dp", "cost": Cost(trainings=1, seconds=2.0)}
    result = AuditResult(attack="canaries", data="made up", groups=groups, **fixed)
    said = "95 % of each group by itself, and of the verdict over 2 groups, which asks 97.5 % of each"
    assert result.confidence_in_words == said
    assert AuditResult(attack="canaries", data="made up", groups=groups[:1], **fixed).confidence_in_words == "95 %"
    require("report")
    from privypurse.report.other_charts import bounds_chart
    from privypurse.report.sections import correctness

    chart = bounds_chart(result)
    assert chart is not None
    assert chart.sentence.startswith("For b a bound lies above the claim, as chance may show")
    assert "Each bound holds with confidence 95 %" in chart.sentence
    assert ("Confidence", said) in correctness(result).facts

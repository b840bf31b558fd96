"""The price of an order for life: docs/ledger-proofs.md says what `benchmarks.lifetime` computes, which is right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from benchmarks import lifetime
from scipy.optimize import brentq
from scipy.stats import norm

PAGE = Path(__file__).parents[3] / "docs" / "ledger-proofs.md"
EPSILON, DELTA, ORDER = 1.0, 1e-5, 16


def gaussian_delta(mu: float) -> float:
    """δ(1) of a Gaussian release of this ratio (Balle & Wang 2018, arXiv 1805.06530, Theorem 8)."""
    return norm.cdf(mu / 2 - EPSILON / mu) - math.exp(EPSILON) * norm.cdf(-mu / 2 - EPSILON / mu)


def test_full_batches_and_questions_are_what_two_formulas_say() -> None:
    """Unsampled Gaussian steps need no accountant: μ adds up in squares, and costs α·μ²/2 (Mironov 2017, Prop. 7)."""
    held = EPSILON - math.log1p(-1 / ORDER) + (math.log(DELTA) + math.log(ORDER)) / (ORDER - 1)
    mu = brentq(lambda ratio: gaussian_delta(ratio) - DELTA, 0.01, 2.0, xtol=1e-12)
    once, ever = math.sqrt(100) / mu, math.sqrt(ORDER * 100 / 2 / held)
    full_batch = lifetime.COURSES[0]
    assert lifetime.by_loss_distribution(full_batch, EPSILON, DELTA) == pytest.approx(once, rel=5e-4)
    assert lifetime.for_life(full_batch, EPSILON, DELTA) == pytest.approx(ever, rel=2e-4)
    said = lifetime.questions(EPSILON, DELTA)
    assert (
        f"Gaussian DP allows {math.floor(400 * mu**2)}, a purse for life {math.floor(400 * 2 * held / ORDER)};"
        in said
    )
    assert lifetime.missing_in(PAGE.read_text(encoding="utf-8"), [said]) == []


def test_the_tables_of_the_page_are_looked_for_line_by_line() -> None:
    """Cheap rows of both tables; the test below has all of them. A digit that is wrong is found."""
    page, cheap = PAGE.read_text(encoding="utf-8"), [lifetime.COURSES[0]]
    parts = [lifetime.training(EPSILON, DELTA, cheap), lifetime.orders(EPSILON, DELTA, cheap)]
    assert lifetime.missing_in(page, parts) == []
    for right, wrong in (("| 40.75 | 1.09 |", "| 40.74 | 1.09 |"), ("44.10", "44.09"), ("97 % (16)", "97 % (17)")):
        assert page.count(right) >= 1
        assert len(lifetime.missing_in(page.replace(right, wrong), parts)) == 1


@pytest.mark.slow
def test_the_whole_page_says_what_is_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifetime.main(["--check", str(PAGE)]) == 0
    assert "not in" not in capsys.readouterr().out

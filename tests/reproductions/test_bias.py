"""The bias of Sample: figures are those of the files, shares of the signal those of the plans; the page has both."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import privypurse as pp
from privypurse.errors import InvalidInput
from reproductions import bias, catalogue, report
from reproductions.weighted_sample import WeightedSample

PAGE = (Path(__file__).parents[2] / "docs" / "bias.md").read_text(encoding="utf-8")
GRADED = "0.5 to 6.1 by digit"


def raw(name: str, row: str, column: str) -> list[dict[str, object]]:
    """The lines of a file as they are, by seed."""
    lines = map(json.loads, (catalogue.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return sorted(
        (line for line in lines if (line["row"], line["column"]) == (row, column)), key=lambda line: line["seed"]
    )


def test_groups_and_intervals_are_those_of_the_files() -> None:
    for name in bias.TABLES.values():
        found = bias.scores(*bias.read(name))
        weighted, uniform = (raw(name, GRADED, column) for column in ("gamma 0.75", "uniform"))
        strict = [(line["classes"][0] + line["classes"][1]) / 2 for line in weighted]  # type: ignore[index]
        generous = [sum(line["classes"][2:]) / 8 for line in weighted]  # type: ignore[index]
        scores = found[GRADED, "gamma 0.75"]
        assert scores.strict.tolist() == pytest.approx(strict)
        assert scores.generous.tolist() == pytest.approx(generous)
        paired = stats.ttest_rel([line["accuracy"] for line in weighted], [line["accuracy"] for line in uniform])
        low, high = paired.confidence_interval(0.95)
        (told,) = (line for line in bias.accuracy_table(found) if line.startswith(f"| {GRADED} | γ = 0.75 |"))
        assert f"[{low:+.2f}, {high:+.2f}] |" in told


def test_a_missing_seed_is_an_error() -> None:
    grid, lines = bias.read("bias-of-sample")
    with pytest.raises(InvalidInput, match="4 of 5 seeds"):
        bias.scores(grid, lines[:-1])


def test_nobody_was_overdrawn() -> None:
    for name in bias.TABLES.values():
        for line in bias.read(name)[1]:
            assert all(group["spent"] <= group["epsilon"] for group in line["groups"])


def test_the_page_tells_the_figures_and_the_picture_draws_them() -> None:
    for name in bias.TABLES.values():
        for line in bias.accuracy_table(bias.scores(*bias.read(name))):
            assert line in PAGE
    assert bias.PICTURE.read_text(encoding="utf-8") == bias.drawn()


@pytest.mark.parametrize("name", bias.TABLES.values())
def test_the_report_with_every_class_is_that_of_the_lines(name: str) -> None:
    grid, lines = bias.read(name)
    kept = (catalogue.RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert kept == report.markdown(grid, grid.found(lines))


@pytest.mark.parametrize("column", ["uniform", "scale", pytest.param("gamma 0.75", marks=pytest.mark.slow)])
def test_the_page_tells_what_a_step_is_made_of(column: str) -> None:
    grid, lines = bias.read("bias-of-sample")
    for row in grid.rows:
        assert bias.signal_line(row, column, bias.signal(grid, lines, row, column)) in PAGE


def test_a_plan_with_other_noise_than_was_trained_with_is_seen() -> None:
    grid, lines = bias.read("bias-of-sample")
    wrong = [{**line, "noise_multiplier": 1.01 * line["noise_multiplier"]} for line in lines]
    with pytest.raises(InvalidInput, match="train bias-of-sample again"):
        bias.signal(grid, wrong, GRADED, "uniform")


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_share_of_the_strict_counts_rates_and_clip_norms(gamma: float) -> None:
    epsilon = np.repeat([0.5, 3.0], [3_000, 1_000])
    budgets = pp.Budgets(epsilon, delta=1e-3)
    how = {"noise_multiplier": 8.0, "clip_norm": 2.0, "accountant": "rdp"}
    plan = pp.plan(budgets, WeightedSample(gamma), steps=20, batch_size=400, **how)
    found = bias.Signal.of(plan)
    added = plan.rates * plan.clip_norms  # person by person
    assert found.strict == pytest.approx(added[epsilon < 1].sum() / added.sum())
    assert found.total == pytest.approx(added.sum() / 2.0 / 400)
    by_rate_alone = plan.rates[epsilon < 1].sum() / plan.rates.sum()
    if gamma:
        assert found.strict == pytest.approx(0.75)  # everybody counts the same
    else:
        assert found.strict == pytest.approx(by_rate_alone)
        assert found.strict < 0.75

"""What an experiment came to: results.json, a Markdown table with the paper's figures beside ours, and a plot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from reproductions.cells import QUANTILES, Outcome
from reproductions.grid import Experiment

_FEW = 6  # groups that are all shown
Results = Mapping[tuple[str, str], Sequence[Outcome]]
_NAMES = {
    "accuracy": "Test accuracy, %",
    "overall": "Test accuracy, %",
    "classes": "Test accuracy by class, %",
    "gap": "Largest less smallest of the classes' mean accuracies, points",
    "seconds": "Training, seconds",
    "planning_seconds": "Making the plan, seconds",
    "steps": "Steps",
    "parameters": "Parameters (with those of all models that are averaged)",
    "epsilon": "ε of the records: mean, then quantiles " + ", ".join(map(str, QUANTILES)),
    "released": "The same, privately released at (0.1, δ)",
    "loss_correlation": "Pearson's r of ε and log training loss",
    "active": "Records that still contribute: at the first step, after the fixed steps, at the end",
}


def mean_of(outcomes: Sequence[Outcome], measure: str) -> tuple[Any, Any] | None:
    """Mean and deviation over seeds, number by number; None where nothing was measured."""
    if measure == "gap":  # of the means, as a reader of a paper's table takes it; a seed's own gap is larger
        found = mean_of(outcomes, "classes")
        return None if found is None else (float(np.nanmax(found[0]) - np.nanmin(found[0])), 0.0)
    if measure == "active":
        rows = [_active(outcome["active"]) for outcome in outcomes if outcome.get("active")]
    else:
        rows = [outcome[measure] for outcome in outcomes if outcome.get(measure) is not None]
    if not rows:
        return None
    values = np.array(rows, dtype=np.float64)  # None, for a class that nobody belongs to, is not a number here
    spread = values.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(values.shape[1:])
    return values.mean(axis=0).tolist(), spread.tolist()


def _active(curve: Sequence[Sequence[int]]) -> list[float]:
    people = [float(count) for _, count in curve]
    return [people[0], people[len(people) // 2], people[-1]]


def markdown(experiment: Experiment, results: Results, versions: Sequence[Mapping[str, str]]) -> str:
    """The whole report as Markdown."""
    lines = [f"# {experiment.title}", "", f"{experiment.paper}, {experiment.table}. {experiment.about}", ""]
    lines += [f"Run with {_versions(each)}." for each in versions]
    seeds = sorted({", ".join(str(outcome["seed"]) for outcome in outcomes) for outcomes in results.values()})
    lines += [f"Seeds of each cell: {' or '.join(seeds)}; ± is the deviation over seeds.", ""]
    if experiment.quick:
        lines += [
            "**QUICK: a few steps on a few records. These figures say that everything runs, nothing else.**",
            "",
        ]
    if any(outcome["made_up"] for outcomes in results.values() for outcome in outcomes):
        lines += [
            "**MADE-UP DATA: the files were missing. These figures say that everything runs, nothing else.**",
            "",
        ]
    for measure in experiment.show:
        lines += [f"## {_NAMES[measure]}", "", *_table(experiment, results, measure), ""]
    lines += ["## ε promised and spent", "", *_promises(experiment, results)]
    reasons = {place: o["impossible"] for place, outcomes in results.items() for o in outcomes if "impossible" in o}
    if reasons:
        lines += ["", "## Impossible", "", *(f"- {row}, {column}: {why}" for (row, column), why in reasons.items())]
    return "\n".join(lines) + "\n"


def _versions(each: Mapping[str, str]) -> str:
    return f"{each['device']}, torch {each['torch']}, privypurse {each['privypurse']}, Python {each['python']}"


def _table(experiment: Experiment, results: Results, measure: str) -> list[str]:
    if measure in ("classes", "epsilon", "released", "active"):
        return _long(experiment, results, measure)
    lines = ["| | " + " | ".join(experiment.columns) + " |", "| --- |" + " --- |" * len(experiment.columns)]
    for row in experiment.rows:
        cells = [_cell(experiment, results, measure, row, column) for column in experiment.columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def _cell(experiment: Experiment, results: Results, measure: str, row: str, column: str) -> str:
    found = mean_of(results.get((row, column), ()), measure)
    figure = experiment.figure(measure, row, column)
    told = "" if figure is None else f"paper {_paper(figure)}"
    if found is None:
        impossible = any("impossible" in outcome for outcome in results.get((row, column), ()))
        return f"impossible ({told})" if impossible and told else "impossible" if impossible else told or "–"
    digits = {"steps": 0, "parameters": 0, "seconds": 1, "planning_seconds": 2}.get(measure, 2)
    ours = f"**{found[0]:,.{digits}f}**" + (f" ± {found[1]:.{digits}f}" if found[1] else "")
    if figure is None:
        return ours
    middle = figure[0] if isinstance(figure, list) else figure
    return f"{ours} ({told}, {found[0] - middle:+,.{digits}f})"


def _paper(figure: Any) -> str:
    return " ± ".join(f"{value:g}" for value in figure) if isinstance(figure, list) else f"{figure:,g}"


def _long(experiment: Experiment, results: Results, measure: str) -> list[str]:
    """A line for each cell, since each holds several numbers."""
    width = max((len(np.atleast_1d(f[0])) for o in results.values() if (f := mean_of(o, measure))), default=0)
    heads = {
        "classes": [str(k) for k in range(width)],
        "active": ["first", "middle", "last"],
    }.get(measure, ["mean", *map(str, QUANTILES)])
    digits = {"classes": 2, "active": 0}.get(measure, 3)
    lines = ["| | | " + " | ".join(heads) + " |", "| --- | --- |" + " --- |" * len(heads)]
    for row in experiment.rows:
        for column in experiment.columns:
            found = mean_of(results.get((row, column), ()), measure)
            if found is not None:
                lines.append(f"| {row} | {column} | " + " | ".join(_number(v, digits) for v in found[0]) + " |")
            figure = experiment.figure(measure, row, column)
            if figure is not None:
                lines.append("| | paper | " + " | ".join(f"{value:g}" for value in figure) + " |")
    return lines


def _number(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:,.{digits}f}"


def _promises(experiment: Experiment, results: Results) -> list[str]:
    """What each group was promised and has spent at most; of many, the strictest and the most generous."""
    lines = [
        "| | | δ | ε promised | ε spent at most | records above their promise | accountant |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in experiment.rows:
        for column in experiment.columns:
            outcomes = results.get((row, column), ())
            if not outcomes or "groups" not in outcomes[0]:
                continue
            groups = outcomes[0]["groups"]
            few = len(groups) <= _FEW
            which = range(len(groups)) if few else (0, len(groups) - 1)
            between = " / " if few else " … "
            promised = between.join(f"{groups[k]['epsilon']:g}" for k in which)
            spent = between.join(f"{max(o['groups'][k]['spent'] for o in outcomes):.3f}" for k in which)
            over = f"{max(outcome['overspent'] for outcome in outcomes):,}"
            how = outcomes[0]["accountant"]
            if outcomes[0]["promise"] == "none":  # what is known is a bound, which may lie above the truth
                over, how = f"at most {over}", "**no promise**, an upper bound"
            delta = experiment.cells[row, column].delta
            lines.append(f"| {row} | {column} | {delta:g} | {promised} | {spent} | {over} | {how} |")
    return lines


def save(experiment: Experiment, results: Results, versions: Sequence[Mapping[str, str]], folder: Path) -> list[Path]:
    """Write results.json, table.md, plot.svg and plot.png; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "name": experiment.name,
        "paper": experiment.paper,
        "table": experiment.table,
        "quick": experiment.quick,
        "versions": list(versions),
        "cells": [
            {
                "row": row,
                "column": column,
                "settings": asdict(experiment.cells[row, column]),
                "outcomes": list(outcomes),
            }
            for (row, column), outcomes in results.items()
        ],
    }
    data, table = folder / "results.json", folder / "table.md"
    data.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    table.write_text(markdown(experiment, results, versions), encoding="utf-8")
    return [data, table, *_plotted(experiment, results, folder)]


def _plotted(experiment: Experiment, results: Results, folder: Path) -> list[Path]:
    if not results or importlib.util.find_spec("matplotlib") is None:
        return []
    from reproductions import plots

    return plots.save(experiment, results, folder)

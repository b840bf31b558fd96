"""A table with rows and columns as Markdown: our figures beside the paper's, and what was promised and spent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproductions.grid import MEASURES, QUANTILES, Grid
from reproductions.headline import told
from reproductions.results import Line

_FEW = 6  # groups that are all shown
Results = Mapping[tuple[str, str], Sequence[Line]]


def mean_of(outcomes: Sequence[Line], measure: str) -> tuple[Any, Any] | None:
    """Mean and deviation over seeds, number by number; None where nothing was measured."""
    if measure == "gap":  # of the means, as a reader of a paper's table takes it; a seed's own gap is larger
        found = mean_of(outcomes, "classes")
        return None if found is None else (float(np.nanmax(found[0]) - np.nanmin(found[0])), 0.0)
    if measure == "active":
        rows = [_active(outcome["active"]) for outcome in outcomes if outcome.get("active")]
    elif measure == "class_epsilon":  # kept in the order of their means, with their numbers
        rows = [[mean for _, mean in sorted(outcome["by_class"])] for outcome in outcomes if "by_class" in outcome]
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


def markdown(grid: Grid, results: Results) -> str:
    """The whole report."""
    lines = [f"# {grid.title}", "", f"{grid.paper}, {grid.table}. {grid.about}", ""]
    every = [each for outcomes in results.values() for each in outcomes]
    lines += sorted({f"Run with {_versions(each['versions'])}." for each in every if "versions" in each})
    seeds = sorted({", ".join(str(outcome["seed"]) for outcome in outcomes) for outcomes in results.values()})
    lines += [f"Seeds of each cell: {' or '.join(seeds)}; ± is the deviation over seeds.", ""]
    warnings = {
        "QUICK: a few steps on a few records": grid.quick,
        "MADE-UP DATA: the files were missing": any(each["made_up"] for each in every),
    }
    for what, holds in warnings.items():
        lines += [f"**{what}. These figures say that everything runs, nothing else.**", ""] if holds else []
    for measure in grid.show:
        lines += [f"## {MEASURES[measure]}", "", *_table(grid, results, measure), ""]
    lines += _differences(grid, results)
    lines += ["## ε promised and spent", "", *_promises(grid, results)]
    reasons = {place: o["impossible"] for place, outcomes in results.items() for o in outcomes if "impossible" in o}
    if reasons:
        lines += ["", "## Impossible", "", *(f"- {row}, {column}: {why}" for (row, column), why in reasons.items())]
    return "\n".join(lines) + "\n"


def _versions(each: Mapping[str, str]) -> str:
    return f"{each['device']}, torch {each['torch']}, privypurse {each['privypurse']}, Python {each['python']}"


def _table(grid: Grid, results: Results, measure: str) -> list[str]:
    if measure in ("classes", "course", "course_classes", "epsilon", "released", "active", "class_epsilon"):
        return _long(grid, results, measure)
    lines = ["| | " + " | ".join(grid.columns) + " |", "| --- |" + " --- |" * len(grid.columns)]
    for row in grid.rows:
        cells = [_cell(grid, results, measure, row, column) for column in grid.columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def _differences(grid: Grid, results: Results) -> list[str]:
    """By the same seeds: columns less the first one, and what private records add to public ones."""
    if not {"accuracy", "overall"} & {*grid.show}:
        return []
    first, lines = grid.columns[0], list[str]()
    for title, less in (
        (first, {(row, column): (first, "accuracy") for row in grid.rows for column in grid.columns[1:]}),
        ("public records alone", {place: (place[1], "public_accuracy") for place in grid.cells}),
    ):
        table = []
        for (row, column), (other, measure) in less.items():
            ours, theirs = _by_seed(results, row, column, "accuracy"), _by_seed(results, row, other, measure)
            both = sorted(ours.keys() & theirs.keys())
            if len(both) > 1:
                table.append(f"| {row} | {column} | {told(np.array([ours[k] - theirs[k] for k in both]))} |")
        if table:
            head = f"## Test accuracy less that of {title}, points, with 95 % intervals by the same seeds"
            lines += [head, "", "| | | |", "| --- | --- | --- |", *table, ""]
    return lines


def _by_seed(results: Results, row: str, column: str, measure: str) -> dict[int, float]:
    return {each["seed"]: each[measure] for each in results.get((row, column), ()) if each.get(measure) is not None}


def _cell(grid: Grid, results: Results, measure: str, row: str, column: str) -> str:
    found = mean_of(results.get((row, column), ()), measure)
    figure = grid.figure(measure, row, column)
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


def _long(grid: Grid, results: Results, measure: str) -> list[str]:
    """A line for each cell, since each holds several numbers."""
    width = max((len(np.atleast_1d(f[0])) for o in results.values() if (f := mean_of(o, measure))), default=0)
    heads = {
        "classes": [str(k) for k in range(width)],
        "class_epsilon": [str(k) for k in range(width)],
        "course": [f"{k}/{width}" for k in range(1, width + 1)],
        "course_classes": [f"{k}/{width}" for k in range(1, width + 1)],
        "active": ["first", "middle", "last"],
    }.get(measure, ["mean", *map(str, QUANTILES)])
    digits = {"classes": 2, "course": 2, "course_classes": 2, "active": 0}.get(measure, 3)
    lines = ["| | | " + " | ".join(heads) + " |", "| --- | --- |" + " --- |" * len(heads)]
    for row in grid.rows:
        for column in grid.columns:
            found = mean_of(results.get((row, column), ()), measure)
            if found is not None:
                by_class = measure == "course_classes"
                told = np.transpose(found[0]).tolist() if by_class else [found[0]]
                for k, values in enumerate(told):
                    name = f"{column}, class {k}" if by_class else column
                    lines.append(f"| {row} | {name} | " + " | ".join(_number(v, digits) for v in values) + " |")
            figure = grid.figure(measure, row, column)
            if figure is not None:
                lines.append(f"| {row} | {column}, paper | " + " | ".join(f"{value:g}" for value in figure) + " |")
    return lines


def _number(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:,.{digits}f}"


def _grants(outcome: Line) -> list[float]:
    return [group["epsilon"] for group in outcome["groups"]]


def _promises(grid: Grid, results: Results) -> list[str]:
    """What each group was promised and has spent at most; of many, the strictest and the most generous."""
    lines = [
        "| | | δ | ε promised | ε spent at most | records above their promise | accountant |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in grid.rows:
        for column in grid.columns:
            outcomes = results.get((row, column), ())
            if not outcomes or "groups" not in outcomes[0]:
                continue
            groups = outcomes[0]["groups"]
            few = len(groups) <= _FEW
            which = range(len(groups)) if few else (0, len(groups) - 1)
            between = " / " if few else " … "
            promised = between.join(f"{groups[k]['epsilon']:g}" for k in which)
            alike = [o for o in outcomes if _grants(o) == _grants(outcomes[0])]  # budgets may be drawn by the seed
            spent = between.join(f"{max(o['groups'][k]['spent'] for o in alike):.3f}" for k in which)
            over = f"{max(outcome['overspent'] for outcome in outcomes):,}"
            how = outcomes[0]["accountant"]
            if outcomes[0]["promise"] == "none":  # what is known is a bound, which may lie above the truth
                over, how = f"at most {over}", "**no promise**, an upper bound"
            delta = grid.cells[row, column].delta
            lines.append(f"| {row} | {column} | {delta:g} | {promised} | {spent} | {over} | {how} |")
    return lines

"""A plot for each table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reproductions.grid import Grid
from reproductions.report import Results, mean_of

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "privypurse",
    "svg.fonttype": "none",
}


def save(grid: Grid, results: Results, folder: Path) -> list[Path]:
    """NAME.svg and NAME.png."""
    draw = {
        "points": _points,
        "lines": _lines,
        "classes": _classes,
        "individual": _individual,
        "active": _active,
    }.get(grid.plot)
    unkept = {place: outcomes for place, outcomes in results.items() if outcomes[0].get("promise") == "none"}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 7 if unkept else 4), layout="constrained")
        if draw is None:
            _rounds(figure, grid, results)
        else:
            draw(figure.add_subplot(2 if unkept else 1, 1, 1), grid, results)
        if unkept:
            _spent(figure.add_subplot(2, 1, 2), grid, unkept)
        figure.suptitle(f"{grid.title}\n{grid.paper}, {grid.table}", fontsize=9)
        if any(outcome["made_up"] for outcomes in results.values() for outcome in outcomes):
            figure.text(0.5, 0.4, "MADE-UP DATA", fontsize=40, alpha=0.2, ha="center", va="center", rotation=20)
        if grid.quick:
            figure.text(0.5, 0.6, "QUICK", fontsize=40, alpha=0.2, ha="center", va="center", rotation=20)
        paths = [folder / f"{grid.name}.svg", folder / f"{grid.name}.png"]
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _points(axes: Any, grid: Grid, results: Results) -> None:
    """Mean and one deviation to both sides, a short line where the paper is; the axis need not begin at 0."""
    measure = grid.show[0]
    width = 0.8 / len(grid.columns)
    place = np.arange(len(grid.rows))
    colours = mpl.colormaps["tab10" if len(grid.columns) <= 10 else "tab20"]
    for k, column in enumerate(grid.columns):
        found = [mean_of(results.get((row, column), ()), measure) for row in grid.rows]
        height = [np.nan if each is None else each[0] for each in found]
        error = [0.0 if each is None else each[1] for each in found]
        at = place + (k - (len(grid.columns) - 1) / 2) * width
        axes.errorbar(at, height, error, fmt="o", ms=4, lw=1, capsize=2, color=colours(k), label=column)
        figures = [grid.figure(measure, row, column) for row in grid.rows]
        paper = [np.nan if f is None else (f[0] if isinstance(f, list) else f) for f in figures]
        axes.hlines(
            paper, at - width / 2, at + width / 2, colors="k", label="paper" if k == 0 and grid.figures else None
        )
    slanted = {"rotation": 30, "ha": "right"} if len(grid.rows) >= 5 else {}
    axes.set_xticks(place, grid.rows, **slanted)
    axes.set_ylabel(measure)
    axes.figure.legend(loc="outside lower center", fontsize=7, ncols=4 if max(map(len, grid.columns)) < 24 else 2)


def _spent(axes: Any, grid: Grid, results: Results) -> None:
    """Where no promise is kept: what each group spent at most, in whatever row and seed, beside what it granted."""
    for column in grid.columns:
        worst: dict[float, float] = {}
        for (_, name), outcomes in results.items():
            for group in (each for outcome in outcomes for each in outcome["groups"] if name == column):
                worst[group["epsilon"]] = max(group["spent"], worst.get(group["epsilon"], 0.0))
        granted = sorted(worst)
        axes.plot(granted, [worst[epsilon] for epsilon in granted], marker=".", lw=1)
    ends = axes.get_xlim()
    axes.plot(ends, ends, "k--", lw=1)
    axes.set_xlabel("ε granted; dashed: no more than that")
    axes.set_ylabel("ε spent, upper bound")
    axes.set_title("No promise is kept: what each group really spends at most", fontsize=9)


def _lines(axes: Any, grid: Grid, results: Results) -> None:
    measure = grid.show[0]
    x = [grid.x.get(row, k) for k, row in enumerate(grid.rows)]
    for column in grid.columns:
        found = [mean_of(results.get((row, column), ()), measure) for row in grid.rows]
        height = [np.nan if each is None else each[0] for each in found]
        error = [0.0 if each is None else each[1] for each in found]
        axes.errorbar(x, height, error, marker="o", capsize=2, label=column)
    axes.set_ylabel(measure)
    axes.legend(fontsize=7)


def _classes(axes: Any, grid: Grid, results: Results) -> None:
    for (row, column), outcomes in results.items():
        found = mean_of(outcomes, "classes")
        if found is not None:
            label = column if len(grid.rows) == 1 else f"{row}, {column}"
            (line,) = axes.plot(range(len(found[0])), found[0], marker="o", lw=1, label=label)
            axes.set_xticks(range(len(found[0])))
            figures = grid.figure("classes", row, column)
            if figures is not None:
                axes.plot(range(len(figures)), figures, ls="none", marker="_", ms=9, color=line.get_color())
    axes.set_xlabel("class (– the paper)" if "classes" in grid.figures else "class")
    axes.set_ylabel("accuracy, %")
    if len(results) <= 12:
        axes.figure.legend(loc="outside lower center", fontsize=7, ncols=3)


def _individual(axes: Any, grid: Grid, results: Results) -> None:
    for (row, column), outcomes in results.items():
        if outcomes and "histogram" in outcomes[0]:
            counts = np.array(outcomes[0]["histogram"], dtype=float)
            edges = np.linspace(0.0, outcomes[0]["largest"], counts.size + 1)
            axes.stairs(100 * counts / counts.sum(), edges, label=f"{row}, {column}")
    axes.set_xlabel("ε of a record")
    axes.set_ylabel("records, %")
    axes.legend(fontsize=7)


def _active(axes: Any, grid: Grid, results: Results) -> None:
    for (row, column), outcomes in results.items():
        if outcomes and outcomes[0].get("active"):
            steps, people = zip(*outcomes[0]["active"], strict=True)
            axes.plot(steps, people, label=f"{row}, {column}")
    axes.set_xlabel("step")
    axes.set_ylabel("records that still contribute")
    axes.legend(fontsize=7)


def _rounds(figure: Figure, grid: Grid, results: Results) -> None:
    """Accuracy over rounds, or at parts of a training, a panel for each row (Liu et al. 2024, Figure 8)."""
    rows = [row for row in grid.rows if any((row, column) in results for column in grid.columns)]
    across = min(3, len(rows))
    down = math.ceil(len(rows) / across)
    figure.set_size_inches(max(6, 3.6 * across), max(3.5, 2.7 * down))
    panels = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for row, axes in zip(rows, panels, strict=False):
        _courses(axes, {c: [each["course"] for each in results.get((row, c), ())] for c in grid.columns})
        axes.set_title(row, fontsize=9)
    for unused in panels[len(rows) :]:
        unused.set_axis_off()
    federated = any(cell.federation is not None for cell in grid.cells.values())
    figure.supxlabel("round" if federated else "part of all steps", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    panels[0].legend(fontsize=7)


def _courses(axes: Any, courses: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """The mean over seeds, and one deviation to both sides; a column has one colour in all panels."""
    for k, (column, every) in enumerate(courses.items()):
        if not every:
            continue
        course = np.array(every, dtype=np.float64)
        number, mean = np.arange(1, course.shape[1] + 1), course.mean(axis=0)
        axes.plot(number, mean, color=f"C{k}", label=column)
        if len(course) > 1:
            spread = course.std(axis=0, ddof=1)
            axes.fill_between(number, mean - spread, mean + spread, color=f"C{k}", alpha=0.2, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

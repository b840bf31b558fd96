"""Accuracy over rounds, method beside method (Liu et al. 2024, Figure 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privypurse.federated.trials import METHODS

Courses = Mapping[str, Sequence[Sequence[float]]]
"""Of each method, the accuracy after each round of each run."""
_ACROSS = 3


def save(panels: Mapping[str, Courses], stem: Path) -> list[Path]:
    """Write one panel for each title, as SVG and PNG."""
    across = min(_ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(6, 3.5) if across == 1 else (3.6 * across, 2.7 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for (title, courses), each in zip(panels.items(), axes, strict=False):
        _draw(courses, each)
        each.set_title(title, fontsize=9)
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    axes[0].legend(fontsize=7)
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw(courses: Courses, axes: Axes) -> None:
    """The mean over runs, and one deviation to both sides."""
    for k, method in enumerate(METHODS):  # a method has one colour, whatever else is drawn
        if method not in courses:
            continue
        course = np.array(courses[method], dtype=np.float64)
        rounds, mean = np.arange(1, course.shape[1] + 1), course.mean(axis=0)
        axes.plot(rounds, mean, color=f"C{k}", label=method)
        if len(course) > 1:
            spread = course.std(axis=0, ddof=1)
            axes.fill_between(rounds, mean - spread, mean + spread, color=f"C{k}", alpha=0.2, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

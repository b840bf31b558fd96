"""Accuracy over rounds, method beside method (Liu et al. 2024, Figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from privypurse.federated.trials import Trial


def save(found: Mapping[str, Sequence[Trial]], title: str, stem: Path) -> list[Path]:
    """Write the plot as SVG and PNG."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for method, runs in found.items():
        course = np.array([trial.accuracy for trial in runs])
        rounds = np.arange(1, course.shape[1] + 1)
        axes.plot(rounds, course.mean(axis=0), label=method)
        if len(runs) > 1:
            spread = course.std(axis=0, ddof=1)
            axes.fill_between(rounds, course.mean(axis=0) - spread, course.mean(axis=0) + spread, alpha=0.2)
    axes.set(xlabel="round", ylabel="test accuracy, %", title=title)
    axes.legend(fontsize=8)
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths

"""What people in training really spent, beside how good the model is for them. Sensitive: for internal files alone.

By class and by group (Yu et al. 2023, arXiv 2206.02617, Figure 2), and against the loss (Figure 5). Sums over many
records, so that a page can show them whole; nothing here is private.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privypurse.arrays import FloatArray, IntArray
from privypurse.datasets.targets import Classes
from privypurse.runs.measures import Measured

_BINS = 24
_LEAST_LOSS = 1e-4
"""Losses below it are counted in the first bin: their logarithm says nothing more."""


def spent_by_group(members: Measured, spent: FloatArray) -> dict[str, Any]:
    """``spent``: the ε of each record's owner, in the order of ``members``."""
    right = None
    columns: dict[str, tuple[tuple[str, ...], IntArray]] = {}
    if isinstance(members.target, Classes):
        right = members.outputs.argmax(1) == members.targets
        columns[members.target.label] = members.target.classes, members.targets
    columns |= {name: (groups.names, groups.codes) for name, groups in members.groups.items()}
    return {
        "groups": {name: _means(*each, spent, right) for name, each in columns.items()},
        "against_loss": _against_loss(members.losses, spent),
    }


def _means(names: tuple[str, ...], codes: IntArray, spent: FloatArray, right: Any) -> dict[str, Any]:
    """Of each group that has records: how many, their mean ε and, with classes, how often the model is right."""
    counts = np.bincount(codes, minlength=len(names))
    sums = np.bincount(codes, weights=spent, minlength=len(names))
    hits = None if right is None else np.bincount(codes, weights=right, minlength=len(names))
    return {
        name: {
            "records": int(counts[code]),
            "mean_epsilon": float(sums[code] / counts[code]),
            **({} if hits is None else {"accuracy": float(hits[code] / counts[code])}),
        }
        for code, name in enumerate(names)
        if counts[code]
    }


def _against_loss(losses: FloatArray, spent: FloatArray) -> dict[str, Any]:
    """Counts in bins of the loss (equal on a logarithmic axis) and of ε, and Pearson's r of ε and log loss."""
    loss = np.maximum(losses[np.isfinite(losses)], _LEAST_LOSS)
    cost = spent[np.isfinite(losses)]
    if not loss.size:
        return {}
    ends = np.log10(loss.min()), max(np.log10(loss.max()), np.log10(loss.min()) + 1e-6)
    loss_edges = np.logspace(*ends, _BINS + 1)
    loss_edges[[0, -1]] = loss.min(), np.nextafter(max(loss_edges[-1], loss.max()), np.inf)
    epsilon_edges = np.linspace(0, max(float(cost.max()), 1e-12), _BINS + 1)
    counts, _, _ = np.histogram2d(loss, cost, bins=(loss_edges, epsilon_edges))
    varied = np.ptp(loss) > 0 and np.ptp(cost) > 0
    return {
        "loss_edges": loss_edges.tolist(),
        "epsilon_edges": epsilon_edges.tolist(),
        "counts": counts.astype(np.int64).tolist(),
        "correlation": float(np.corrcoef(np.log(loss), cost)[0, 1]) if varied else None,
    }

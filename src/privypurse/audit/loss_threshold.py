"""The loss threshold: a small loss tells a member (Yu et al. 2023, arXiv 2206.02617, Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from privypurse.arrays import AnyArray
from privypurse.audit import roc
from privypurse.errors import InvalidInput


@dataclass(frozen=True)
class ThresholdAttack:
    """How often it is right on records that did not choose its threshold; a coin is half of the time."""

    success: float
    interval: tuple[float, float]
    """Clopper and Pearson's, exact for independent records."""
    auc: float
    auc_interval: tuple[float, float]
    records: int
    """On which it was tried: as many members as others."""


def loss_threshold(
    members: AnyArray, others: AnyArray, rng: np.random.Generator, confidence: float = 0.95
) -> ThresholdAttack:
    """The best threshold on one half of as many members as others, tried on the other half (their Appendix D)."""
    size = min(np.size(members), np.size(others)) // 2
    if size < 1:
        raise InvalidInput("the attack needs at least two members and two others: one half chooses, one is tried")
    inside, outside = (rng.permutation(np.asarray(each, dtype=np.float64))[: 2 * size] for each in (members, others))
    threshold = _best_threshold(inside[:size], outside[:size])
    right = int((inside[size:] <= threshold).sum() + (outside[size:] > threshold).sum())
    ends = stats.binomtest(right, 2 * size).proportion_ci(confidence, method="exact")
    return ThresholdAttack(
        success=right / (2 * size),
        interval=(float(ends.low), float(ends.high)),
        auc=roc.area(-inside, -outside),
        auc_interval=roc.area_interval(-inside, -outside, confidence),
        records=2 * size,
    )


def _best_threshold(members: AnyArray, others: AnyArray) -> float:
    """The loss up to which calling records members is right most often."""
    candidates = np.sort(np.concatenate([members, others]))
    right = np.searchsorted(np.sort(members), candidates, side="right") - np.searchsorted(
        np.sort(others), candidates, side="right"
    )
    return float(candidates[int(np.argmax(right))])

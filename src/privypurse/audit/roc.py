"""ROC and AUC of scores that tell members from others, with intervals."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput


def curve(members: AnyArray, others: AnyArray, most: int = 200) -> tuple[FloatArray, FloatArray]:
    """False and true positive rates where scores at or above a threshold count as members, at ``most`` points.

    Half of the points are even in the logarithm of the false positive rate: an attack is judged by how it does where
    it hardly ever errs (Carlini et al. 2022, arXiv 2112.03570, §III).
    """
    members, others = _checked(members, others)
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    true = 1.0 - np.searchsorted(np.sort(members), thresholds, side="left") / members.size
    false = 1.0 - np.searchsorted(np.sort(others), thresholds, side="left") / others.size
    true, false = np.concatenate([[0.0], true]), np.concatenate([[0.0], false])
    if false.size > most:
        wanted = np.concatenate([np.geomspace(1 / others.size, 1.0, most // 2), np.linspace(0, 1, most // 2)])
        kept = np.unique(np.append(np.searchsorted(false, wanted, side="right") - 1, false.size - 1))
        true, false = true[kept], false[kept]
    return false, true


def area(members: AnyArray, others: AnyArray) -> float:
    """How likely a member scores above another, ties counting half: the area under the ROC curve."""
    members, others = _checked(members, others)
    ranks = stats.rankdata(np.concatenate([members, others]))
    above = float(ranks[: members.size].sum()) - members.size * (members.size + 1) / 2
    return above / (members.size * others.size)


def area_interval(members: AnyArray, others: AnyArray, confidence: float = 0.95) -> tuple[float, float]:
    """A normal interval by the variance of DeLong, DeLong & Clarke-Pearson (1988), Biometrics 44, p. 837–845.

    It takes scores for independent; those of one model on its records nearly are.
    """
    members, others = _checked(members, others)
    together = stats.rankdata(np.concatenate([members, others]))
    # Each member's share of others below it, and each other's share of members above it, by differences of ranks.
    placed = (together[: members.size] - stats.rankdata(members)) / others.size
    displaced = 1.0 - (together[members.size :] - stats.rankdata(others)) / members.size
    variance = _variance(placed) / members.size + _variance(displaced) / others.size
    middle, width = float(placed.mean()), float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(variance)
    return max(0.0, middle - width), min(1.0, middle + width)


def mean_interval(values: AnyArray, confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval for the mean of a few equal targets."""
    found = np.asarray(values, dtype=np.float64)
    if found.size < 2:
        raise InvalidInput(f"an interval needs at least two values, not {found.size}")
    width = float(stats.t.ppf((1 + confidence) / 2, found.size - 1)) * math.sqrt(_variance(found) / found.size)
    return float(found.mean()) - width, float(found.mean()) + width


def _variance(values: FloatArray) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else 0.0


def _checked(members: AnyArray, others: AnyArray) -> tuple[FloatArray, FloatArray]:
    found = np.asarray(members, dtype=np.float64).ravel(), np.asarray(others, dtype=np.float64).ravel()
    for name, values in zip(("members", "others"), found, strict=True):
        if values.size == 0 or np.isnan(values).any():
            raise InvalidInput(f"{name} holds no scores, or one that is not a number; give at least one score")
    return found

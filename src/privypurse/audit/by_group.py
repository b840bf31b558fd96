"""Membership scores by budget group: every target's AUC, its mean with an interval, whether groups differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from privypurse.arrays import AnyArray, FloatArray
from privypurse.audit import roc
from privypurse.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class GroupScores:
    """What an attack makes of one group, over all target models."""

    name: str
    areas: FloatArray
    """AUC of each target model."""
    interval: tuple[float, float]
    """Student's, for their mean over targets; of one target alone, DeLong's."""
    false_positive_rate: FloatArray
    true_positive_rate: FloatArray
    """Scores of all targets together."""

    @property
    def auc(self) -> float:
        return float(self.areas.mean())


def by_group(
    scores: AnyArray, member: AnyArray, group: AnyArray, names: list[str], confidence: float = 0.95
) -> tuple[GroupScores, ...]:
    """``scores`` and ``member`` are models × records, ``group`` the number of each record's group among ``names``.

    Targets share shadow models and records, so an interval over targets is for repeating with other halves of the
    same records.
    """
    if scores.shape != member.shape or scores.shape[1:] != group.shape:
        raise InvalidInput(
            f"scores {scores.shape}, member {member.shape} and group {group.shape} do not fit together"
        )
    found = []
    for number, name in enumerate(names):
        some = group == number
        if not some.any():
            raise InvalidInput(f"group {name!r} has no record; leave it out")
        own, inside = scores[:, some], member[:, some]
        pairs = [(row[mark], row[~mark]) for row, mark in zip(own, inside, strict=True)]
        areas = np.array([roc.area(*pair) for pair in pairs])
        low, high = (
            roc.mean_interval(areas, confidence) if areas.size > 1 else roc.area_interval(*pairs[0], confidence)
        )
        curve = roc.curve(own[inside], own[~inside])
        found.append(GroupScores(name, areas, (max(low, 0.0), min(high, 1.0)), *curve))
    return tuple(found)


def paired_difference(first: GroupScores, second: GroupScores) -> tuple[float, float]:
    """How much larger the second group's AUC is on average, and the p-value of a paired t-test over targets."""
    if first.areas.size < 2:
        raise InvalidInput("a paired test needs at least two target models")
    test = stats.ttest_rel(second.areas, first.areas)
    return float((second.areas - first.areas).mean()), float(test.pvalue)


def score_difference(scores: AnyArray, member: AnyArray, first: AnyArray, second: AnyArray) -> tuple[float, float]:
    """Student's t statistic and p-value between members' scores of two groups, as Boenisch et al. (2023), Table 10.

    ``scores`` and ``member`` of one target model; ``first`` and ``second`` mark the records of either group.
    """
    test = stats.ttest_ind(scores[second & member], scores[first & member])
    return float(test.statistic), float(test.pvalue)

"""What two worlds give away, with one person and without: scores of small runs, and the ε that they refute.

On one half of the runs a score and a threshold are chosen, whichever shows most. The other half is counted at that
threshold: runs are independent, so Clopper and Pearson's exact intervals hold for both rates, and what was chosen
before is no part of them. Two bounds follow. The first needs nothing but (ε, δ). The second asks which curves of the
plan's family, with its noise scaled, the rates refute: it is much tighter where the family holds them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from privypurse._validate import real
from privypurse.arrays import FloatArray, IntArray
from privypurse.audit.families import PLACES, Family
from privypurse.audit.small_runs import OTHERS, OWN, SmallWorld
from privypurse.errors import InvalidInput

Score = Callable[[FloatArray], FloatArray]
_MOST_THRESHOLDS = 60


def scores_for(world: SmallWorld) -> dict[str, Score]:
    """Scores of traces, larger where the person is: the best for a sound pipeline, and some for unsound ones."""
    plan, level = world.plan, world.level
    rate, clip_norm = float(plan.levels.rate[level]), float(plan.levels.clip_norm[level])
    variance = (plan.noise_multiplier * plan.clip_norm) ** 2

    def likelihood_ratio(trace: FloatArray) -> FloatArray:
        exponent = (2 * trace[:, :, OWN] * clip_norm - clip_norm**2) / (2 * variance)
        missed = np.log1p(-rate) if rate < 1 else -np.inf
        return np.asarray(np.logaddexp(missed, np.log(rate) + exponent).sum(axis=1))

    found: dict[str, Score] = {"likelihood ratio": likelihood_ratio}
    if plan.steps > 1:
        found["step differences"] = lambda trace: np.abs(np.diff(trace[:, :, OWN], axis=1)).max(axis=1)
    if world.empty:
        found["less noise"] = lambda trace: -(trace[:, :, OTHERS + 1 :] ** 2).mean(axis=2).min(axis=1)
        found["more noise"] = lambda trace: (trace[:, :, OTHERS + 1 :] ** 2).mean(axis=2).max(axis=1)
    found["others pushed back"] = lambda trace: -trace[:, :, OTHERS].min(axis=1)
    found["others pushed on"] = lambda trace: trace[:, :, OTHERS].max(axis=1)
    return found


@dataclass(frozen=True)
class Bound:
    """The ε that is refuted: with so much confidence the pipeline costs at least that."""

    epsilon: float
    score: str
    true_positives: float
    false_positives: float
    """Shares at the chosen threshold, of the runs that did not choose it."""
    runs: int
    """Of either world, those that chose included."""


Refuted = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
"""Least true and most false positive rate, least true and most false negative rate → ε, one for each threshold."""


def bound(
    scores: dict[str, Score], present: FloatArray, absent: FloatArray, refuted: Refuted, confidence: float = 0.95
) -> Bound:
    """The bound from traces of runs with the person and without.

    Score and threshold are chosen as Jagielski et al. (2020, arXiv 2006.07709, §4) choose theirs: on other runs.
    """
    half = min(len(present), len(absent)) // 2
    if half < 2:
        raise InvalidInput(f"there are {len(present)} and {len(absent)} runs; give at least four of each")
    real(confidence, "confidence", above=0.5, below=1)

    def shown(ins: FloatArray, outs: FloatArray, thresholds: FloatArray) -> FloatArray:
        return refuted(*_rates(_above(ins, thresholds), ins.size, _above(outs, thresholds), outs.size, confidence))

    name, most, threshold = "", -1.0, 0.0
    for each, score in scores.items():
        ins, outs = score(present[:half]), score(absent[:half])
        thresholds = _thresholds(ins, outs)
        found = shown(ins, outs, thresholds)
        if found.max() > most:
            name, most, threshold = each, float(found.max()), float(thresholds[int(np.argmax(found))])
    ins, outs = scores[name](present[half:]), scores[name](absent[half:])
    return Bound(
        epsilon=float(shown(ins, outs, np.array([threshold]))[0]),
        score=name,
        true_positives=float((ins >= threshold).mean()),
        false_positives=float((outs >= threshold).mean()),
        runs=2 * half,
    )


def by_counts(delta: float) -> Refuted:
    """By (ε, δ) alone: the largest ε where e^ε·(false positives) + δ is below the true ones, or so of negatives."""

    def refuted(true: FloatArray, false: FloatArray, true_out: FloatArray, false_out: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            forward = np.log(np.maximum(true - delta, 0.0)) - np.log(false)
            backward = np.log(np.maximum(true_out - delta, 0.0)) - np.log(false_out)
        return np.asarray(np.maximum(np.maximum(forward, backward), 0.0))

    return refuted


def by_curves(family: Family) -> Refuted:
    """By f-DP: the ε of the least private curve of the family that allows no test as good as that; 0 for none.

    Two rates of one test are two events: curves that hold for guesses alone would be refuted by sound runs.
    """
    if not family.events:
        raise InvalidInput("these curves hold for guesses alone; make the family with events=True")

    def one(true: float, false: float, true_out: float, false_out: float) -> float:
        def stands(place: int) -> bool:
            found = family.at(place)
            return found is None or (true <= found[0].most(false) and true_out <= found[0].most(false_out))

        first = bisect_left(range(PLACES), True, key=stands)  # curves rise: what is refuted comes before all others
        last = family.at(first - 1) if first else None
        return 0.0 if last is None else last[1]

    def refuted(*rates: FloatArray) -> FloatArray:
        return np.array([one(*row) for row in zip(*map(np.ndarray.tolist, rates), strict=True)])

    return refuted


def _above(values: FloatArray, thresholds: FloatArray) -> IntArray:
    return np.asarray(values.size - np.searchsorted(np.sort(values), thresholds, side="left"), dtype=np.int64)


def _thresholds(ins: FloatArray, outs: FloatArray) -> FloatArray:
    """Some of the scores, ends included; and the middle between the worlds, where these hardly overlap."""
    values = np.unique(np.concatenate([ins, outs]))
    some = np.unique(np.linspace(0, values.size - 1, _MOST_THRESHOLDS).astype(np.int64))
    between = (outs.max() + ins.min()) / 2 if outs.max() < ins.min() else float(np.median(values))
    return np.append(values[some], between)


def _rates(
    caught: IntArray, members: int, alarms: IntArray, others: int, confidence: float
) -> tuple[FloatArray, ...]:
    """Least true and most false positive rates, then those of negatives: both rates hold with this confidence.

    Each has half of what may go wrong, by Clopper and Pearson's one-sided bounds.
    """
    wrong = (1 - confidence) / 2
    true = np.where(caught == 0, 0.0, stats.beta.ppf(wrong, np.maximum(caught, 1), members - caught + 1))
    false = np.where(alarms == others, 1.0, stats.beta.ppf(1 - wrong, alarms + 1, np.maximum(others - alarms, 1)))
    return true, false, 1 - false, 1 - true

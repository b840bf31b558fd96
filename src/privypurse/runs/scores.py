"""Figures of predictions beside the truth: rankings, confusions, calibration, errors; plain functions of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from privypurse.arrays import AnyArray, FloatArray, IntArray

BINS = 10
Truths = npt.NDArray[np.bool_]


def auc(scores: FloatArray, truths: Truths) -> float | None:
    """The chance that a true record has the higher score than a false one, ties counted half; None without both.

    By ranks: the statistic of Mann & Whitney (1947) divided by the number of pairs (Hanley & McNeil 1982).
    """
    true = int(truths.sum())
    false = truths.size - true
    if not true or not false:
        return None
    ranks = float(stats.rankdata(scores)[truths].sum())
    return (ranks - true * (true + 1) / 2) / (true * false)


def roc(scores: FloatArray, truths: Truths) -> tuple[FloatArray, FloatArray]:
    """Shares of false and of true records at or above each threshold, from none to all."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), truths.size - 1)  # of each run of equal scores
    hits, misses = np.cumsum(truths[order])[last], np.cumsum(~truths[order])[last]
    return np.append(0.0, misses / max(misses[-1], 1)), np.append(0.0, hits / max(hits[-1], 1))


def confusion(predicted: IntArray, actual: IntArray, classes: int) -> list[list[int]]:
    """How many records of each class (rows) were taken for each class (columns)."""
    counts = np.bincount(actual * classes + predicted, minlength=classes * classes)
    return [[int(count) for count in row] for row in counts.reshape(classes, classes)]


def calibration(predicted: FloatArray, actual: FloatArray, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    """In ten equal bins of what was predicted: its mean, and the mean of what was so; bins without a record left out.

    ``error`` is the mean distance of the two over all records (Naeini et al. 2015, expected calibration error).
    """
    place = np.clip(((predicted - low) / (high - low) * BINS).astype(np.int64), 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    some = np.flatnonzero(counts)
    sums = [np.bincount(place, weights=values, minlength=BINS)[some] for values in (predicted, actual)]
    said, was = (each / counts[some] for each in sums)
    width = (high - low) / BINS
    rows = zip(some.tolist(), counts[some].tolist(), said.tolist(), was.tolist(), strict=True)
    return {
        "error": float(np.abs(sums[0] - sums[1]).sum() / predicted.size),
        "bins": [
            {"from": low + place * width, "to": low + (place + 1) * width, "records": n, "predicted": p, "actual": a}
            for place, n, p, a in rows
        ],
    }


def entropy(counts: IntArray) -> float:
    """In nats: the mean cross-entropy of whoever always answers these shares."""
    return float(stats.entropy(counts))


def of_classes(logits: FloatArray, actual: IntArray, classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy, confusions, AUC (of several classes each against the rest) and calibration of the class predicted.

    Without a model whoever always says the commonest class is right so often: what the accuracy is to be held to.
    """
    chances = special.softmax(logits, axis=1)
    predicted = logits.argmax(1)
    right = predicted == actual
    if len(classes) == 2:
        ranked: Any = auc(logits[:, 1] - logits[:, 0], actual == 1)
        calibrated = calibration(chances[:, 1], (actual == 1).astype(np.float64))
    else:
        ranked = {name: auc(chances[:, place], actual == place) for place, name in enumerate(classes)}
        calibrated = calibration(chances.max(1), right.astype(np.float64))
    return {
        "accuracy": float(right.mean()),
        "accuracy_without_a_model": float(np.bincount(actual).max() / actual.size),
        "auc": ranked,
        "classes": list(classes),
        "confusion": confusion(predicted, actual, len(classes)),
        "calibration": calibrated,
    }


def of_numbers(predicted: FloatArray, actual: FloatArray, low: float, high: float) -> dict[str, Any]:
    """Errors in the units of the target, and which share of its variance is told."""
    errors = predicted - actual
    spread = float(np.square(actual - actual.mean()).sum())
    return {
        "mean_absolute_error": float(np.abs(errors).mean()),
        "root_mean_squared_error": float(np.sqrt(np.square(errors).mean())),
        "median_absolute_error": float(np.median(np.abs(errors))),
        "bias": float(errors.mean()),
        "r_squared": 1 - float(np.square(errors).sum()) / spread if spread > 0 else None,
        "calibration": calibration(predicted, actual, low, high),
    }


def of_flag(logits: FloatArray, truths: AnyArray) -> dict[str, Any]:
    """The same as of two classes, for one flag; over the records that have it."""
    both = np.stack([np.zeros_like(logits), logits], axis=1)
    found = of_classes(both, truths.astype(np.int64), ("false", "true"))
    return {"records": int(truths.size), **{key: each for key, each in found.items() if key != "classes"}}

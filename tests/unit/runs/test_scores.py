"""Figures of predictions, against counting pair by pair and record by record."""

import math

import numpy as np
import pytest
from scipy.special import expit, softmax

from privypurse.runs import scores

RANDOM = np.random.default_rng(0)
SCORES = RANDOM.integers(0, 9, 40).astype(float)  # with ties
TRUTHS = RANDOM.random(40) < expit(SCORES - 4)


def by_pairs(values, truths):
    pairs = [(a, b) for a in values[truths] for b in values[~truths]]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)


def test_the_area_is_the_share_of_pairs_in_order():
    assert scores.auc(SCORES, TRUTHS) == pytest.approx(by_pairs(SCORES, TRUTHS), rel=1e-12)
    assert scores.auc(-SCORES, TRUTHS) == pytest.approx(1 - by_pairs(SCORES, TRUTHS))
    assert scores.auc(SCORES, np.ones(40, bool)) is None
    unfair = [a > b for a in SCORES[TRUTHS] for b in SCORES[~TRUTHS]]  # the twin: ties count nothing
    assert np.mean(unfair) < scores.auc(SCORES, TRUTHS)


def test_the_curve_encloses_the_area():
    across, up = scores.roc(SCORES, TRUTHS)
    assert (across[0], up[0], across[-1], up[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(up, across) == pytest.approx(scores.auc(SCORES, TRUTHS))
    for place, threshold in enumerate(sorted(set(SCORES), reverse=True), start=1):
        assert across[place] == pytest.approx((SCORES[~TRUTHS] >= threshold).mean())
        assert up[place] == pytest.approx((SCORES[TRUTHS] >= threshold).mean())


def test_confusions_have_what_is_so_in_rows():
    assert scores.confusion(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), 3) == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_calibration_by_bins():
    found = scores.calibration(np.array([0.0, 0.05, 0.31, 0.39, 1.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert [(one["records"], one["from"], one["to"]) for one in found["bins"]] == [
        (2, 0, 0.1),
        (2, pytest.approx(0.3), pytest.approx(0.4)),
        (1, 0.9, 1),
    ]
    assert [one["predicted"] for one in found["bins"]] == pytest.approx([0.025, 0.35, 1])
    assert [one["actual"] for one in found["bins"]] == [0.5, 0.5, 1]
    assert found["error"] == pytest.approx((2 * 0.475 + 2 * 0.15 + 0) / 5)


def test_two_classes_and_several():
    logits, actual = RANDOM.normal(size=(50, 3)), RANDOM.integers(0, 3, 50)
    several = scores.of_classes(logits, actual, ("a", "b", "c"))
    assert several["accuracy"] == np.mean([row.argmax() == truth for row, truth in zip(logits, actual, strict=True)])
    assert np.trace(several["confusion"]) == several["accuracy"] * 50
    assert several["accuracy_without_a_model"] == max(list(actual).count(each) for each in range(3)) / 50
    assert several["auc"]["b"] == pytest.approx(by_pairs(softmax(logits, axis=1)[:, 1], actual == 1))
    two = scores.of_classes(logits[:, :2], np.minimum(actual, 1), ("no", "yes"))
    assert two["auc"] == pytest.approx(by_pairs(softmax(logits[:, :2], axis=1)[:, 1], actual > 0))
    flag = scores.of_flag(logits[:, 1] - logits[:, 0], (actual > 0).astype(float))
    assert flag["auc"] == two["auc"]
    assert flag["confusion"] == two["confusion"]
    assert flag["calibration"]["error"] == pytest.approx(two["calibration"]["error"])


def test_errors_of_numbers():
    found = scores.of_numbers(np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 3.0]), 0, 10)
    assert found["mean_absolute_error"] == pytest.approx(4 / 3)
    assert found["root_mean_squared_error"] == pytest.approx(math.sqrt(10 / 3))
    assert found["median_absolute_error"] == 1
    assert found["bias"] == pytest.approx(2 / 3)
    assert found["r_squared"] == pytest.approx(1 - 10 / (2 / 3))
    assert [one["from"] for one in found["calibration"]["bins"]] == [1, 2, 6]
    assert scores.of_numbers(np.ones(2), np.ones(2), 0, 10)["r_squared"] is None

"""The loss threshold: as good as it can be on records that did not choose it, and no better."""

import numpy as np
import pytest
from scipy import stats

from privypurse.audit.loss_threshold import loss_threshold
from privypurse.errors import InvalidInput


def test_it_is_right_as_often_as_the_best_threshold_is() -> None:
    rng = np.random.default_rng(0)
    found = loss_threshold(rng.normal(0, 1, 40_000), rng.normal(1, 1, 30_000), rng)
    best = stats.norm.cdf(0.5)
    assert found.records == 30_000
    assert found.success == pytest.approx(best, abs=0.01)
    assert found.interval[0] < best < found.interval[1] + 0.005
    assert found.auc == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=0.01)


def test_a_threshold_tried_where_it_was_chosen_flatters_itself() -> None:
    rng = np.random.default_rng(1)
    honest, flattered = [], []
    for _ in range(60):
        members, others = rng.normal(size=20), rng.normal(size=20)
        honest.append(loss_threshold(members, others, rng).success)
        tried = np.concatenate([members, others])
        flattered.append(max(((members <= t).sum() + (others > t).sum()) / 40 for t in tried))
    assert np.mean(honest) == pytest.approx(0.5, abs=0.03)
    assert np.mean(flattered) > 0.55


def test_too_few_records_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two members and two others"):
        loss_threshold([1.0], [1.0, 2.0], np.random.default_rng(0))

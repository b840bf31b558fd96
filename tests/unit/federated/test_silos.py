"""Silos, simulated budgets, and the trials over them: who is where, and what each method makes of the budgets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privypurse.errors import InvalidInput
from privypurse.federated import silos, trials
from privypurse.federated.silos import Federation, Silo
from privypurse.federated.trials import Setting


@pytest.mark.parametrize("kind", ["pareto", "mixture"])
@pytest.mark.parametrize("levels", [(0.1, 1.0, 5.0), (1.0, 3.0, 10.0)])
def test_laws_begin_at_the_lowest_level(kind: str, levels: tuple[float, ...]) -> None:
    granted = silos.budgets_of(kind, 5_000, np.random.default_rng(0), levels)
    assert levels[0] <= granted.min() < 1.02 * levels[0]
    assert granted.max() <= 10
    if kind == "pareto":  # P(ε > x) = (low / x − low / 10) / (1 − low / 10)
        low = levels[0]
        expected = (low / (2 * low) - low / 10) / (1 - low / 10)
        assert abs((granted > 2 * low).mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / 5_000)
    else:
        assert abs((granted > (levels[1] + levels[2]) / 2).mean() - 0.1) < 0.001


@pytest.mark.parametrize("wrong", ["", "Adult", "cifar-10"])
def test_unknown_names_are_errors(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="choose one of adult"):
        silos.federation(wrong)
    with pytest.raises(InvalidInput, match="choose one of three-levels"):
        silos.budgets_of(wrong, 10, np.random.default_rng(0))


# --- trials -------------------------------------------------------------------------------------------

SETTING = Setting(3, 4, 1.0, 1e-4, 20, 0.5, 1.0, 1.0)


def small() -> Federation:
    """Two silos of easy records."""
    rng = np.random.default_rng(1)

    def some(number: int) -> TensorDataset:
        y = rng.integers(0, 2, number)
        x = rng.normal(size=(number, 4)).astype(np.float32) + 2 * y[:, None].astype(np.float32)
        return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))

    return Federation("small", (Silo("a", some(200)), Silo("b", some(100))), some(300), partial(nn.Linear, 4, 2))


def test_the_noise_gives_the_reference_the_rate_of_ordinary_training() -> None:
    terms = trials.terms_of(SETTING, small())
    ordinary = 20 / 150  # the divisor over the mean number of records
    spent = float(terms.certified(np.array([ordinary]))[0])
    assert 0.999 < spent <= 1.0
    less = replace(terms, noise_multiplier=terms.noise_multiplier / 1.01)
    assert float(less.certified(np.array([ordinary]))[0]) > 1.0


@pytest.mark.parametrize("method", ["personalised", "minimum", "dropout"])
@pytest.mark.parametrize("adversary", ["server", "public"])
def test_nobody_is_overdrawn_by_any_method(method: str, adversary: str) -> None:
    done = trials.run(small(), SETTING, "three-levels", method, adversary=adversary, seed=2)
    assert [row.overdrawn for row in done.clients] == [0, 0]
    assert [row.granted for row in done.clients] == [(0.1, 5.0)] * 2
    assert (len(done.accuracy), done.terms.adversary) == (3, adversary)
    least, most = zip(*(row.spent for row in done.clients), strict=True)
    mean = 0.7 * 0.1 + 0.2 + 0.5
    if method == "minimum":  # everybody spends what the strictest grants
        assert min(least) == max(most)
        assert 0.09 < max(most) <= 0.1
    elif method == "dropout":  # who grants less than the mean is left out, the others spend the mean
        assert min(least) == 0
        assert 0.9 * mean < max(most) <= mean
    else:
        assert 0.09 < min(least) <= 0.1
        assert 3 < max(most) <= 5


def test_without_privacy_everybody_counts_as_overdrawn() -> None:
    done = trials.run(small(), SETTING, "pareto", "privacy-free")
    assert [row.overdrawn for row in done.clients] == [200, 100]
    assert done.accuracy[-1] > 85


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="choose one of personalised"):
        trials.run(small(), SETTING, "pareto", "maximum")


def test_a_reference_that_no_noise_reaches_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="no noise multiplier"):
        trials.terms_of(replace(SETTING, reference=1e9), small())

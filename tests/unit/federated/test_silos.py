"""Silos, simulated budgets, and training over them in one process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privypurse.errors import InvalidInput
from privypurse.federated import federation_run, silos
from privypurse.federated.federation_run import Setting
from privypurse.federated.silos import Federation, Silo

SETTING = Setting(3, 4, 1.0, 1e-4, 20, 0.5, 1.0, 150, 1.0)


def small() -> Federation:
    """Two silos of easy records."""
    rng = np.random.default_rng(1)

    def some(number: int) -> TensorDataset:
        y = rng.integers(0, 2, number)
        x = rng.normal(size=(number, 4)).astype(np.float32) + 2 * y[:, None].astype(np.float32)
        return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))

    return Federation("small", (Silo("a", some(200)), Silo("b", some(100))), some(300), partial(nn.Linear, 4, 2))


@pytest.mark.parametrize("kind", ["pareto", "mixture"])
def test_laws_begin_at_the_lowest_level(kind: str) -> None:
    granted = silos.PREFERENCES[kind](5_000, np.random.default_rng(0))
    assert 0.1 <= granted.min() < 1.02 * 0.1
    assert granted.max() <= 10


@pytest.mark.parametrize("wrong", ["", "Adult", "cifar-10", "mnist"])
def test_unknown_names_are_errors(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="choose one of 'adult'"):
        silos.federation(wrong)
    with pytest.raises(InvalidInput, match="choose one of 'three-levels'"):
        silos.granted_in(small(), wrong, 0)


def test_the_noise_gives_the_reference_the_rate_of_ordinary_training() -> None:
    terms = federation_run.terms_of(SETTING, 2)
    ordinary = 20 / 150  # the divisor over the records that a client is said to have
    spent = float(terms.certified(np.array([ordinary]))[0])
    assert 0.999 < spent <= 1.0
    less = replace(terms, noise_multiplier=terms.noise_multiplier / 1.01)
    assert float(less.certified(np.array([ordinary]))[0]) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["server", "public"])
def test_nobody_is_overdrawn(adversary: str) -> None:
    federation = small()
    granted = silos.granted_in(federation, "three-levels", 2)
    terms = federation_run.terms_of(SETTING, 2, adversary=adversary)
    done = federation_run.run(federation, terms, granted, seed=2)
    assert [row.overdrawn for row in done.clients] == [0, 0]
    assert [(row.granted.min(), row.granted.max()) for row in done.clients] == [(0.1, 5.0)] * 2
    assert (len(done.accuracy), done.terms.adversary) == (3, adversary)
    assert 0.09 < min(row.spent.min() for row in done.clients) <= 0.1
    assert 3 < max(row.spent.max() for row in done.clients) <= 5
    broken = replace(done.clients[0], granted=done.clients[0].spent * 0.99)
    assert broken.overdrawn == 200  # the twin that grants less than it spent is seen


def test_a_reference_that_no_noise_reaches_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="no noise multiplier"):
        federation_run.terms_of(replace(SETTING, reference=1e9), 2)

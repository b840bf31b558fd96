"""What is not given: as pp.suggest says it, and where presence is protected from nothing about anybody."""

import numpy as np
import pytest
import torch

import privypurse as pp
from privypurse.sklearn import PrivateClassifier, fits_before, private_estimator


@pytest.fixture
def handed(monkeypatch):
    """What `fit` hands to `train`, instead of training."""
    seen = []
    monkeypatch.setattr(private_estimator, "train", lambda *given, **options: seen.append((given[1], given[3])))
    return seen


def fitted(people, epsilon, **given):
    fits_before.forget()
    X = np.random.default_rng(0).uniform(-1, 1, size=(people, 3))
    made = PrivateClassifier(epsilon, classes=[0, 1], hidden=(4,), accountant="rdp", **given)
    return made.fit(X, (X[:, 0] > 0).astype(int))


def chosen(handed):
    """Public constants, the optimizer and its settings, of the last fit."""
    optimizer, plan = handed[-1]
    (group,) = optimizer.param_groups
    return plan.steps, plan.batch_size, type(optimizer), group["lr"], group.get("momentum")


@pytest.mark.slow
def test_defaults_are_those_of_suggest(handed):
    fitted(4_000, 8.0, method="uniform")
    said = pp.suggest(people=4_000, levels=8.0, parameters=3 * 4 + 4 + 4 + 1, method="uniform", accountant="rdp")
    steps, batch_size, kind, rate, momentum = chosen(handed)
    assert (steps, batch_size, kind, momentum) == (said.steps, said.batch_size, torch.optim.SGD, said.momentum)
    assert rate == pytest.approx(said.learning_rate, rel=0.05)  # its σ has four digits
    assert handed[-1][1].promise is pp.Promise.DATA
    assert steps > 200  # what it is where nothing may follow from grants


@pytest.mark.slow
def test_a_cap_is_what_grants_are_worth(handed):
    fitted(2_000, 8.0, method="uniform", at_most=0.5)
    capped = chosen(handed)
    fitted(2_000, 0.5, method="uniform")
    assert capped == chosen(handed)


def test_with_presence_protected_nothing_follows_from_who_is_there(handed):
    given = {"noise_multiplier": 2.0, "batch_size": 100}
    fitted(2_000, 8.0, **given)
    many = chosen(handed)
    fitted(300, 0.5, **given)
    assert many == chosen(handed)
    assert handed[-1][1].promise is pp.Promise.PRESENCE
    fitted(300, 0.5)  # noise is solved: the promise is `data`, and the rest may follow too
    assert many != chosen(handed)
    assert handed[-1][1].promise is pp.Promise.DATA


@pytest.mark.slow
def test_what_is_given_is_taken(handed):
    fitted(300, 1.0, method="uniform", steps=7, batch_size=90, learning_rate=0.2)
    assert chosen(handed)[:4] == (7, 90, torch.optim.Adam, 0.2)
    fitted(300, 1.0, method="uniform", epochs=2, batch_size=100)
    assert chosen(handed)[:2] == (6, 100)

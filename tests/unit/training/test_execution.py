"""pp.Execution: options that cannot change the guarantee, checked when they are written down."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_physical_batch", 0),
        ("max_physical_batch", True),
        ("max_physical_batch", 2.5),
        ("checkpoint_every", 0),
        ("num_workers", -1),
        ("num_workers", None),
        ("capture", "yes"),
        ("progress", "bar"),
    ],
)
def test_wrong_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=rf"{name} .*{value!r}"):
        pp.Execution(**{name: value})


def test_it_cannot_be_changed_and_counts_are_plain_numbers() -> None:
    execution = pp.Execution(max_physical_batch=np.int64(3))
    assert type(execution.max_physical_batch) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        execution.num_workers = 2  # type: ignore[misc]


def test_a_function_is_told_how_far_it_is() -> None:
    """As everywhere else that ``progress`` is taken."""
    plan = pp.plan(pp.Budgets(np.full(20, 2.0), delta=1e-3), "uniform", steps=3, batch_size=5, accountant="rdp")
    model, told = nn.Linear(2, 2), []
    data = TensorDataset(torch.zeros(20, 2), torch.zeros(20, dtype=torch.int64))
    execution = pp.Execution(progress=lambda done, total: told.append((done, total)))
    losses = nn.CrossEntropyLoss(reduction="none")
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, losses, execution=execution)
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)

"""The silos that `privypurse federate` trains over: real records as they lie, and simulated budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privypurse import datasets
from privypurse._validate import one_of
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import preferences
from privypurse.training.evaluation import score

PREFERENCES: dict[str, Callable[[int, np.random.Generator], FloatArray]] = {
    "three-levels": preferences.three_levels,
    "pareto": preferences.bounded_pareto,
    "mixture": preferences.bounded_gaussian_mixture,
}
"""How people choose their ε (Liu et al. 2024, §7): one of three levels, or a law that begins at the lowest."""
_EMPLOYERS = {
    "private": ("Private",),
    "self-employed": ("Self-emp-not-inc", "Self-emp-inc"),
    "government": ("Federal-gov", "Local-gov", "State-gov"),
    "other": ("?", "Without-pay", "Never-worked"),
}


@dataclass(frozen=True, eq=False)
class Silo:
    """One client's records."""

    name: str
    train: TensorDataset

    def __len__(self) -> int:
        return len(self.train)


@dataclass(frozen=True, eq=False)
class Federation:
    """Silos, records of nobody in them to test on, and a network for both."""

    name: str
    silos: tuple[Silo, ...]
    test: TensorDataset
    new_model: Callable[[], nn.Module]

    @property
    def records(self) -> int:
        return sum(len(silo) for silo in self.silos)


def federation(name: str, seed: int = 0, device: str = "cpu") -> Federation:
    """adult (by employer) or heart (four hospitals)."""
    made = {"adult": _adult, "heart": _heart}
    one_of(name, "data", made)
    return made[name](np.random.default_rng([seed, 11]), device)


def granted_in(federation: Federation, kind: str, seed: int) -> list[FloatArray]:
    """Everybody's simulated ε, silo by silo."""
    one_of(kind, "preferences", PREFERENCES)
    rng = np.random.default_rng([seed, 5])
    return [PREFERENCES[kind](len(silo), rng) for silo in federation.silos]


def _tensors(x: AnyArray, y: AnyArray, device: str) -> TensorDataset:
    inputs = torch.as_tensor(np.array(x, dtype=np.float32), device=device)
    return TensorDataset(inputs, torch.as_tensor(np.asarray(y).astype(np.int64), device=device))


def _adult(rng: np.random.Generator, device: str) -> Federation:
    people = datasets.adult()
    x, y = people.features(), np.asarray(people.labels())
    employer = np.asarray(people.columns["workclass"])[people.train]
    silos = []
    for name, classes in _EMPLOYERS.items():
        some = np.flatnonzero(np.isin(employer, classes))
        silos.append(Silo(name, _tensors(x[people.train][some], y[people.train][some], device)))
    test = _tensors(x[people.test], y[people.test], device)
    return Federation("adult", tuple(silos), test, lambda: nn.Linear(x.shape[1], 2).to(device))


def _heart(rng: np.random.Generator, device: str) -> Federation:
    """A third of each hospital's complete records is held out for the test, drawn by the seed."""
    silos, test_x, test_y = [], [], []
    for name, hospital in datasets.heart_disease().items():
        x, y = hospital.features(), hospital.labels[hospital.complete()]
        order = rng.permutation(y.size)
        held, rest = order[: y.size // 3], order[y.size // 3 :]
        silos.append(Silo(name, _tensors(x[rest], y[rest], device)))
        test_x.append(x[held])
        test_y.append(y[held])
    test = _tensors(np.concatenate(test_x), np.concatenate(test_y), device)
    return Federation("heart", tuple(silos), test, lambda: nn.Linear(test_x[0].shape[1], 2).to(device))


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """In percent."""
    x, y = data.tensors
    return 100 * score(model, x, y).accuracy

"""Data as it lies: in silos, each with records of its own kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from privypurse import datasets, preferences
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

losses = partial(F.cross_entropy, reduction="none")
PREFERENCES = ("three-levels", "pareto", "mixture")
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
    """adult (by employer), heart (four hospitals), mnist and mnist-noniid (10 clients)."""
    made = {"adult": _adult, "heart": _heart, "mnist": _mnist, "mnist-noniid": _mnist_noniid}
    if name not in made:
        raise InvalidInput(f"data is {name!r}; choose one of {', '.join(made)}")
    return made[name](np.random.default_rng([seed, 11]), device)


def budgets_of(kind: str, records: int, rng: np.random.Generator) -> FloatArray:
    """Everybody's simulated ε (Liu et al. 2024, §7)."""
    made: dict[str, Callable[[], FloatArray]] = {
        "three-levels": lambda: preferences.three_levels(records, rng),
        "pareto": lambda: preferences.bounded_pareto(records, rng),
        "mixture": lambda: preferences.bounded_gaussian_mixture(records, rng),
    }
    if kind not in made:
        raise InvalidInput(f"preferences is {kind!r}; choose one of {', '.join(made)}")
    return made[kind]()


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


def _mnist(rng: np.random.Generator, device: str) -> Federation:
    return _digits("mnist", lambda labels: np.array_split(rng.permutation(labels.size), 10), device)


def _mnist_noniid(rng: np.random.Generator, device: str) -> Federation:
    """Sorted by label, cut into 20 shards, two for each client (McMahan et al. 2017)."""

    def split(labels: AnyArray) -> list[AnyArray]:
        shards = np.array_split(np.argsort(labels, kind="stable"), 20)
        order = rng.permutation(20)
        return [np.concatenate([shards[order[2 * k]], shards[order[2 * k + 1]]]) for k in range(10)]

    return _digits("mnist-noniid", split, device)


def _digits(name: str, split: Callable[[AnyArray], list[AnyArray]], device: str) -> Federation:
    images = datasets.mnist()
    labels = np.asarray(images.train_labels)

    def tensors(pixels: AnyArray, y: AnyArray) -> TensorDataset:
        return _tensors(np.asarray(pixels)[:, None] / np.float32(255), y, device)

    silos = tuple(
        Silo(f"client {k + 1}", tensors(images.train_images[some], labels[some]))
        for k, some in enumerate(split(labels))
    )
    return Federation(name, silos, tensors(images.test_images, images.test_labels), lambda: _network().to(device))


def _network() -> nn.Module:
    """The network of Tramèr & Boneh (2021), 26,010 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """In percent."""
    x, y = data.tensors
    model.eval()
    with torch.no_grad():
        right: Any = torch.cat([model(part).argmax(1) for part in torch.split(x, 4096)]) == y
    model.train()
    return 100 * float(right.float().mean())

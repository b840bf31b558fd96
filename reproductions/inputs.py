"""Data and budgets of an experiment's cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from privypurse import datasets
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import preferences
from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions.grid import Settings

_SHAPES = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "svhn": (3, 32, 32),
    "heart": (10,),
    "adult": (91,),
}
DATA = tuple(_SHAPES)


def classes_of(data: str) -> int:
    """How many kinds of records there are."""
    return 2 if data in ("heart", "adult") else 10


@dataclass(frozen=True, eq=False)
class Inputs:
    """Records as tensors on a device."""

    train: TensorDataset
    test: TensorDataset
    classes: int
    made_up: bool = False
    """Whether the files were missing and a quick run made something up."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.tensors[0].shape[1:])

    @property
    def labels(self) -> AnyArray:
        return np.asarray(self.train.tensors[1].cpu().numpy())


def inputs_of(settings: Settings, seed: int, device: torch.device) -> Inputs:
    """The data of a cell; ``records`` of them, drawn by the seed."""
    if settings.data not in _SHAPES:
        raise InvalidInput(f"data is {settings.data!r}; choose one of {', '.join(_SHAPES)}")
    made_up = False
    try:
        parts = _parts(settings.data, seed, settings.quick)
    except PrivyPurseError:
        if not settings.quick:
            raise
        parts, made_up = _made_up(_SHAPES[settings.data], classes_of(settings.data)), True
    x, y, test_x, test_y = parts
    rng = np.random.default_rng([seed, 1])
    if settings.records is not None and settings.records < len(y):
        some = rng.choice(len(y), settings.records, replace=False)
        x, y = x[some], y[some]
    if settings.quick:
        test_x, test_y = test_x[:50], test_y[:50]

    def tensors(values: AnyArray, labels: AnyArray) -> TensorDataset:
        inputs = torch.as_tensor(np.array(values, order="C"), device=device)
        if inputs.dtype == torch.uint8:
            shift, scale = settings.pixels
            inputs = inputs.float().div_(255).sub_(shift).div_(scale)
        return TensorDataset(inputs, torch.as_tensor(labels.astype(np.int64), device=device))

    classes = int(max(y.max(), test_y.max())) + 1
    return Inputs(tensors(x, y), tensors(test_x, test_y), max(classes, 2), made_up)


def is_there(settings: Settings, seed: int) -> bool:
    """Whether the files can be read, so that nothing has to be made up."""
    try:
        _parts(settings.data, seed, settings.quick)
    except PrivyPurseError:
        return False
    return True


def _parts(name: str, seed: int, quick: bool) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    if name == "adult":
        people = datasets.adult()
        features = people.features().astype(np.float32)
        labels = np.asarray(people.labels())
        return features[people.train], labels[people.train], features[people.test], labels[people.test]
    if name == "heart":
        return _heart(seed)
    return _images(name, quick, datasets.folder().resolve())


@lru_cache(maxsize=2)
def _images(name: str, quick: bool, folder: Path) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """Read and checked once for all cells of a process: that takes longer than many a quick cell."""
    load: dict[str, Callable[[], datasets.Images]] = {
        "mnist": lambda: datasets.mnist("MNIST"),
        "fashion-mnist": lambda: datasets.mnist("FashionMNIST"),
        "cifar10": lambda: datasets.cifar10(1 if quick else 5),
        "svhn": datasets.svhn,
    }
    images = load[name]()

    def shaped(pixels: AnyArray) -> AnyArray:
        return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)

    return shaped(images.train_images), images.train_labels, shaped(images.test_images), images.test_labels


def _heart(seed: int) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """All four hospitals as one pool, complete records, a third of them held out by the seed."""
    x, y = [], []
    for hospital in datasets.heart_disease().values():
        x.append(hospital.features().astype(np.float32))
        y.append(hospital.labels[hospital.complete()])
    inputs, labels = np.concatenate(x), np.concatenate(y)
    order = np.random.default_rng([seed, 2]).permutation(labels.size)
    train, test = order[labels.size // 3 :], order[: labels.size // 3]
    return inputs[train], labels[train], inputs[test], labels[test]


def _made_up(shape: tuple[int, ...], classes: int) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """Noise around one pattern for each class."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(classes, *shape))
    labels = rng.integers(0, classes, 900)
    values = (patterns[labels] + rng.normal(size=(900, *shape))).astype(np.float32)
    return values[:600], labels[:600], values[600:], labels[600:]


def epsilon_of(budgets: Mapping[str, Any], labels: AnyArray, seed: int) -> FloatArray:
    """Everybody's simulated ε."""
    given = dict(budgets)
    kind, n, rng = given.pop("kind"), int(labels.size), np.random.default_rng([seed, 3])
    try:
        match kind:
            case "levels":
                return preferences.levels(n, given["epsilon"], given["shares"], rng)
            case "skewed":
                return preferences.skewed_groups(n, given["skew"], rng)
            case "spaced":
                groups = given.get("groups", preferences.SKEWED_GROUPS)
                epsilon = np.linspace(given["low"], given["high"], groups)
                return preferences.levels(n, epsilon.tolist(), [1 / groups] * groups, rng)
            case "classes":
                return preferences.by_label(labels, dict(enumerate(map(float, given["epsilon"]))))
            case "same":
                return np.full(n, float(given["epsilon"]))
            case "pareto":
                return preferences.bounded_pareto(n, rng, **given)
            case "mixture":
                return preferences.bounded_gaussian_mixture(n, rng, **given)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"budgets of kind {kind!r} cannot be made: {error}") from None
    raise InvalidInput(f"budgets have kind {kind!r}; choose levels, skewed, spaced, classes, same, pareto or mixture")

"""The data that a configuration names, as arrays: what goes into the model and what it should say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from privypurse import datasets
from privypurse.arrays import AnyArray, IntArray
from privypurse.budgets import tables as tabular
from privypurse.budgets.person_ids import named, texts_of
from privypurse.datasets.encoding import Categories, Features
from privypurse.datasets.targets import Classes, Target
from privypurse.errors import InvalidInput
from privypurse.runs.config import BuiltIn, Table

_IMAGES: dict[str, Callable[[], datasets.Images]] = {
    "mnist": datasets.mnist,
    "fashion-mnist": partial(datasets.mnist, "FashionMNIST"),
    "cifar10": datasets.cifar10,
    "svhn": datasets.svhn,
}


@dataclass(frozen=True, eq=False)
class Groups:
    """Which of several public groups each record is of; the last two are other and missing."""

    names: tuple[str, ...]
    codes: IntArray

    @classmethod
    def of(cls, how: Categories, cells: Any, missing: Collection[str]) -> Groups:
        codes = how.codes(cells, missing)
        return cls((*how.values, "(other)", "(missing)"), np.where(codes < 0, len(how.values) - 1 - codes, codes))


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs float32[n, …], and what is to be learned, as a target encodes it: int64[n] or float32[n, outputs]."""

    inputs: Features
    labels: AnyArray
    person: AnyArray | None = None
    """The id of each record's owner, where the table has a column of them."""
    groups: Mapping[str, Groups] = field(default_factory=dict)
    """By column, for errors by group; no model sees them."""

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def some(self, which: AnyArray) -> Records:
        """These of the records."""
        return Records(
            self.inputs[which],
            self.labels[which],
            None if self.person is None else self.person[which],
            {column: Groups(each.names, each.codes[which]) for column, each in self.groups.items()},
        )

    def tensors(self, device: torch.device) -> TensorDataset:
        """What a model is trained on, on the device."""
        return TensorDataset(torch.as_tensor(self.inputs, device=device), torch.as_tensor(self.labels, device=device))


@dataclass(frozen=True, eq=False)
class TrainTest:
    """Records to train on and, where there are any, records that take no part in training."""

    train: Records
    test: Records | None
    target: Target
    measured: str = "people"
    """Whose records the test's are, in the words of `Validation`."""

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record."""
        return self.target.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's input."""
        return self.train.inputs.shape[1:]


def records_of(data: BuiltIn | Table) -> TrainTest:
    """Read the data. Scaling is by public constants, so each record's input depends on that record alone."""
    if isinstance(data, Table):
        return _train_test(data)
    if data.name == "adult":
        adult = datasets.adult()
        inputs, labels = adult.features(), adult.labels()
        first, second = (Records(inputs[some], labels[some]) for some in (adult.train, adult.test))
        return TrainTest(first, second, Classes("income", ("<=50K", ">50K")), "public")
    images = _IMAGES[data.name]()
    train, test = pixels(images.train_images, images.train_labels), pixels(images.test_images, images.test_labels)
    return TrainTest(train, test, Classes("label", tuple("0123456789")), "public")


def pixels(images: AnyArray, labels: AnyArray) -> Records:
    """Bytes to [0, 1], and channels to where torch wants them: [n, channels, height, width]."""
    scaled = datasets.channels_first(images).astype(np.float32) / np.float32(255)
    return Records(scaled, labels.astype(np.int64))


def _train_test(data: Table) -> TrainTest:
    """A table and its test: another file, people who are held out, or none."""
    train, test = _table(data.table, data, data.person), None
    if data.test is not None:
        test = _table(data.test, data)
        _refuse_members(train.person, data.test, data.person)
    elif data.held_out is not None:
        assert train.person is not None
        out = data.held_out.of(train.person)
        train, test = train.some(~out), train.some(out) if out.any() else None
    return TrainTest(train, test, data.target, data.measured)


def _refuse_members(ids: AnyArray | None, test: Path, person: str | None) -> None:
    """Raise where the test's file says by ids that it holds people in training: figures on them are sensitive.

    Guarantee: of a test with a column of ids nobody is in training. Without that column nothing can be told.
    """
    if ids is None or person is None or not (columns := tabular.FileColumns(test)).has(person):
        return
    members, texts = set(texts_of(ids)), texts_of(columns.ids(person))
    inside = np.fromiter((text in members for text in texts), dtype=bool, count=len(texts))
    if inside.any():
        raise InvalidInput(
            f"{test} holds people who are in the table to train on: {named(texts, inside)}; how good the model is on "
            "them is sensitive. Take them out of the one or the other, or use held_out"
        )


def _table(path: Path, data: Table, person: str | None = None) -> Records:
    columns, encoder = tabular.FileColumns(path), data.encoder
    cells = columns.cells([*encoder.columns, *data.target.columns, *data.groups])
    ids = None if person is None else columns.ids(person)
    groups = {column: Groups.of(how, cells[column], data.missing) for column, how in data.groups.items()}
    return Records(encoder.encode(cells), encoder.targets(cells), ids, groups)

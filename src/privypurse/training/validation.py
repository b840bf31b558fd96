"""Validation while a model trains: on other people's records or public ones, without a trace in the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn, view_as_real
from torch.utils.data import Dataset, Subset, TensorDataset

from privypurse._validate import integer, one_of
from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.training.callbacks import OTHERS
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.memory import Memory, fingerprint
from privypurse.training.model_inputs import arguments
from privypurse.training.physical_batches import Batch, loaded, moved
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.step_randomness import GENERATORS, borrowed, keyed_apart

MEASURED = ("public", "released", "charged", OTHERS)
Measure = Callable[[nn.Module], Any]


class ModelChanged(InvalidInput):
    """A validation wrote into the model: what it left is not what was trained."""


@dataclass(frozen=True)
class Validation:
    """How good the model is now and then, on records that take no part in training.

    ``on`` is a data set like the one that is trained on, of which the mean loss is told (and the accuracy, where the
    model gives a row of class scores for each record), or a function of the model that gives a number or several by
    name. It gets the model in evaluation mode, without gradients; it must not change it.

    Guarantee: training goes on as if nobody had asked, to the last bit. Members pay nothing: what is validated are
    released weights. For those whose records are looked at nothing is private, unless ``measured`` is "charged".
    """

    on: Dataset[Any] | Measure
    every: int | None = None
    """Steps between two validations; there is one before the first step and one after the last too. Default: a tenth
    of the plan's steps."""
    measured: str = OTHERS
    """Whose records they are. "public": anybody may see them. "released": made from what was paid for before, such as
    synthetic ones. "charged": ``on`` asks questions (`Analyst`) that whoever is looked at pays for; it is then not
    tried before the first step. "people", if nothing is said: other people, who are not charged. The figures are then
    internal: callbacks do not get them."""

    def __post_init__(self) -> None:
        require_measured(self.measured, self._records_given)
        if self.every is not None:
            object.__setattr__(self, "every", integer(self.every, "every"))
        if not self._records_given and not callable(self.on):
            raise InvalidInput(
                f"validate is {self.on!r}; give a data set with __len__ and __getitem__, or a function of the model"
            )

    @property
    def _records_given(self) -> bool:
        return hasattr(self.on, "__getitem__") and hasattr(self.on, "__len__")

    @classmethod
    def of(cls, validate: Any, records: PlannedRecords) -> Validation | None:
        """As `train` was given it, if it may be asked."""
        if validate is None:
            return None
        found = validate if isinstance(validate, Validation) else cls(validate)
        if looks_at_members(found.on, records.dataset):
            raise InvalidInput(
                "validate looks at records that are trained on, and how good a model is on those is sensitive "
                "(docs/soundness.md#sensitive-outputs); give records of other people, or public ones"
            )
        return found

    def found(
        self, model: nn.Module, device: torch.device, records: PlannedRecords, loss_fn: Loss
    ) -> dict[str, float]:
        """What it finds of the model as it is."""
        if self._records_given:
            return _on_records(model, device, cast(Dataset[Any], self.on), records, loss_fn)
        told = cast(Measure, self.on)(model)
        named = told if isinstance(told, Mapping) else {"score": told}
        return {str(name): _number(value, str(name)) for name, value in named.items()}


def require_measured(measured: str, of_records: bool) -> None:
    """Raise unless it says whose records a model is measured on: a data set, or what a function asks of people."""
    one_of(measured, "measured", MEASURED)
    if measured == "charged" and of_records:
        raise InvalidInput(
            'measured="charged" is for a function that asks questions and charges people for the answers (validate= '
            'of pp.train); a data set is public, released, or of "people" who are not charged'
        )


def _number(value: Any, name: str) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # several numbers, or none
        pass
    raise InvalidInput(f"validate gave {value!r} as {name}; give a number, or a dictionary of numbers by name")


def looks_at_members(on: Any, trained: Any) -> bool:
    """Whether these are, as far as one sees, records that are trained on."""
    if on is trained or getattr(on, "dataset", None) is trained:
        return True
    if isinstance(on, list) and isinstance(trained, list):  # a slice has the very records
        own = {id(record) for record in trained if isinstance(record, dict | tuple | list)}
        return any(id(record) in own for record in on)
    (whole, rows), (other, members) = _rows(on), _rows(trained)
    if whole is other:
        return rows is None or members is None or bool(np.isin(rows, members).any())
    return bool(np.isin(_addresses(whole, rows), _addresses(other, members)).any())


def _rows(part: Any) -> tuple[Any, IntArray | None]:
    """Of which data set this is a part, and which rows of it they are; None: all."""
    rows = None
    while isinstance(part, Subset):
        indices = np.asarray(part.indices, dtype=np.int64)
        rows, part = indices if rows is None else indices[rows], part.dataset
    return part, rows


def _addresses(whole: Any, rows: IntArray | None) -> IntArray:
    """Where these rows lie in memory, of tensors: a data set made anew of the same ones, or of a slice, has some in
    common."""
    first = whole.tensors[0] if type(whole) is TensorDataset else None
    if first is None or not first.numel() or not first.stride(0):
        return np.empty(0, dtype=np.int64)
    numbers = np.arange(len(first)) if rows is None else rows
    return first.data_ptr() + numbers * (first.stride(0) * first.element_size())


def _on_records(
    model: nn.Module, device: torch.device, dataset: Dataset[Any], records: PlannedRecords, loss_fn: Loss
) -> dict[str, float]:
    if not len(dataset):  # type: ignore[arg-type]
        raise InvalidInput("validate is a data set without records; give one that has some, or leave it out")
    size = records.execution.max_physical_batch or records.plan.batch_size  # public numbers
    count, loss, right = 0, 0.0, 0
    rows = np.arange(len(dataset))  # type: ignore[arg-type]
    batches = (Batch(part, part, part) for part in np.split(rows, range(size, rows.size, size)))
    for _, data in loaded(dataset, batches, 0, records.collate_fn):
        inputs, label = moved(data, device)
        places, names = arguments(inputs)
        output = model(*places, **names)
        losses = loss_fn(output, label)
        count, loss, right = count + losses.shape[0], loss + float(losses.sum()), right + _right(output, label)
    return {"loss": loss / count} | ({"accuracy": right / count} if right >= 0 else {})


def _right(output: Any, label: Any) -> int:
    """How many records are told right, where there is a row of class scores for each; else a negative number."""
    scores = getattr(output, "logits", output)
    classes = isinstance(scores, Tensor) and isinstance(label, Tensor) and scores.dim() == 2 and label.dim() == 1
    if not classes or label.is_floating_point() or scores.shape[1] < 2 or scores.shape[0] != label.shape[0]:
        return -(2**62)  # stays negative, whatever is added
    return int((scores.argmax(1) == label).sum())


@contextmanager
def undisturbed(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Iterator[None]:
    """Inside, the model is in evaluation mode and asks for no gradient; afterwards all is as it was, to the bit.

    Modes, buffers, whatever else layers hold, generators and gradients are put back. Parameters are looked at, since
    putting them back would take a second model: if they were changed, that is an error.
    """
    own = [each for module in model.modules() for each in vars(module).values() if isinstance(each, GENERATORS)]
    with unwritten(model):
        memory = Memory(model)
        try:
            with borrowed(device), keyed_apart(own, bytes(32)), torch.no_grad():
                model.eval()
                yield
        finally:
            memory.restore()
            optimizer.zero_grad()


@contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """Raises if parameters or buffers are afterwards not what they were."""
    before = _fingerprints(model)
    yield
    changed = [name for name, found in _fingerprints(model).items() if before.get(name) != found]
    if changed:
        raise ModelChanged(
            f"validation wrote into {', '.join(changed[:3])}: the model is then not the one that was trained and "
            "paid for. Change a copy of it (copy.deepcopy)"
        )


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """Of every parameter and buffer; as words, since a NaN is then equal to a NaN."""
    buffers = ((name, view_as_real(b) if b.is_complex() else b.double()) for name, b in model.named_buffers())
    held = [*model.named_parameters(), *buffers]
    return {name: str(two) for (name, _), two in zip(held, fingerprint(held).tolist(), strict=True)} if held else {}

"""The data of a cell as tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import TensorDataset

from privypurse._validate import integer
from reproductions import data
from reproductions.cell import Cell


@dataclass(frozen=True, eq=False)
class Inputs:
    """Records as tensors on a device."""

    train: TensorDataset
    test: TensorDataset
    classes: int
    made_up: bool
    """Whether the files were missing and a quick run made something up."""
    public: TensorDataset | None = None
    """Records of the test file that are trained on without privacy first, and not tested on."""

    @property
    def labels(self) -> np.ndarray:
        return np.asarray(self.train.tensors[1].cpu().numpy())


def inputs_of(cell: Cell, seed: int, device: torch.device) -> Inputs:
    """The data of a cell; ``records`` of them, drawn by the seed."""
    parts, made_up = data.parts_or_made_up(cell.data, seed, cell.quick)
    x, y = parts["train"].inputs, parts["train"].labels
    if cell.records is not None and cell.records < len(y):
        some = np.random.default_rng([seed, 1]).choice(len(y), cell.records, replace=False)
        x, y = x[some], y[some]
    most = 50 if cell.quick else None
    test_x, test_y = parts["test"].inputs[:most], parts["test"].labels[:most]
    order, public = np.arange(len(test_y)), 0
    if cell.training.public is not None:
        public = integer(cell.training.public["records"], "[training] public records", most=len(test_y) - 1)
        order = np.random.default_rng([seed, 5]).permutation(order)

    def tensors(values: np.ndarray, labels: np.ndarray) -> TensorDataset:
        inputs = torch.as_tensor(np.array(values, order="C"), device=device)
        if inputs.dtype == torch.uint8:
            shift, scale = cell.pixels
            inputs = inputs.float().div_(255).sub_(shift).div_(scale)
        return TensorDataset(inputs, torch.as_tensor(labels.astype(np.int64), device=device))

    classes = int(max(y.max(), test_y.max(), 1)) + 1
    first, tested = order[:public], order[public:]
    shown = tensors(test_x[first], test_y[first]) if public else None
    return Inputs(tensors(x, y), tensors(test_x[tested], test_y[tested]), classes, made_up, shown)

"""Records as their columns, by public ranges and categories: nothing is learnt to make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from reproductions import data as data_sets
from reproductions.choice import Rivals, Settings


def prepare(table: Rivals, folder: Path, device: torch.device) -> None:
    """Keep the records as arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, _ = data_sets.parts_or_made_up(table.data, 0, quick=table.quick)
    for part, whole in parts.items():
        np.save(_file(folder, table.data, part), whole.inputs[: table.records])
        np.save(_file(folder, table.data, f"{part}-labels"), whole.labels[: table.records].astype(np.int64))


def _file(folder: Path, data: str, what: str) -> Path:
    return folder / f"{data}-{what}.npy"


def load(data: str, part: str, settings: Settings, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, labels = (np.load(_file(folder, data, what)) for what in (part, f"{part}-labels"))
    return torch.as_tensor(inputs, device=device), torch.as_tensor(labels, device=device)


def split(data: str, records: int, held: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return data_sets.split(records, held)


def network(settings: Settings, records: Tensor, classes: int, folder: Path) -> nn.Module:
    """``linear``, which is logistic regression, or ``mlp`` with ``width`` units in one layer."""
    inputs = records.shape[1]
    match settings.network:
        case "linear":
            return nn.Linear(inputs, classes)
        case "mlp":
            return nn.Sequential(nn.Linear(inputs, settings.width), nn.Tanh(), nn.Linear(settings.width, classes))
    raise InvalidInput(f"network is {settings.network!r}; for columns choose linear or mlp")

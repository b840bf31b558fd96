"""Scattering features of images, and small networks on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reproductions import data as data_sets
from reproductions import feature_models, features
from reproductions.choice import Rivals, Settings


def prepare(table: Rivals, folder: Path, device: torch.device) -> None:
    """Make the features of all views that settings may come to."""
    values = {table.settings.views, *(each for stage in table.stages for each in stage.grid.get("views", ()))}
    views = {view for each in values for view in features.VIEWS[each]}
    features.prepare(table.data, views, folder, device, table.records)


def load(data: str, part: str, settings: Settings, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    return features.load(data, part, settings.views, settings.scaling, folder, device)


def split(data: str, records: int, held: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return data_sets.split(records, held)


def network(settings: Settings, records: Tensor, classes: int, folder: Path) -> nn.Module:
    return feature_models.network(settings.network, tuple(records.shape[1:]), settings.width)

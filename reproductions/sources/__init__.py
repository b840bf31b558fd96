"""What stands between a data set and a training: the features that a table names, and the networks on them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from reproductions.choice import Rivals, Settings
from reproductions.sources import columns, efficientnet, minilm, scattering


class Source(Protocol):
    """Records as a table's trainings see them. Each is a module of this package."""

    def prepare(self, table: Rivals, folder: Path, device: torch.device) -> None:
        """Make what is not in the folder yet, once for all processes."""

    def load(
        self, data: str, part: str, settings: Settings, folder: Path, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Records and labels of the part "train" or "test"; of the settings, network, views and scaling count."""
        ...

    def split(self, data: str, records: int, held: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        """Which training records choosing trains on, and which it scores on."""
        ...

    def network(self, settings: Settings, records: Tensor, classes: int, folder: Path) -> nn.Module:
        """A new network for records like these."""
        ...


_SOURCES: dict[str, Source] = {
    "scattering": scattering,
    "columns": columns,
    "minilm-l6": minilm,
    "efficientnet-lite0": efficientnet,
}
ENCODERS = ("minilm-l6", "efficientnet-lite0")
"""Those that are large networks themselves."""


def source_of(features: str) -> Source:
    """By the name that a table gives."""
    if features not in _SOURCES:
        raise InvalidInput(f"features is {features!r}; choose one of {', '.join(_SOURCES)}")
    return _SOURCES[features]

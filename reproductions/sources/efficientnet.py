"""Images through EfficientNet-Lite0, which was trained on ImageNet, public data: a probe, or its last block too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from reproductions import data as data_sets
from reproductions.choice import Rivals, Settings
from reproductions.pretrained import fetch
from reproductions.pretrained.efficientnet import FEATURES, EfficientNetLite0, seen
from reproductions.pretrained.probe import probe, scaled

WEIGHTS = "efficientnet-lite0"
_SIDE = 224  # of images as the network was trained on them
_SMALL = 64  # the same, in quick runs
_CHUNK = 500
_CHUNK_CPU = 20  # so that what a layer leaves stays in the cache
_WHAT = ("maps", "features", "labels")


def prepare(table: Rivals, folder: Path, device: torch.device) -> None:
    """What goes into the last block, and the features that come of it as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if table.quick and not (folder / f"{WEIGHTS}.npz").is_file():  # nobody trained these: they show that all runs
        torch.manual_seed(0)
        made_up = EfficientNetLite0().half().state_dict().items()
        np.savez(folder / f"{WEIGHTS}.npz", **{name: values.numpy() for name, values in made_up})
    network = _network(folder).to(device)
    if all(_file(folder, table.data, part, what).is_file() for part in ("train", "test") for what in _WHAT):
        return
    parts, _ = data_sets.parts_or_made_up(table.data, 0, quick=table.quick)
    for part, whole in parts.items():
        made = _through(network, whole.inputs[: table.records], _SMALL if table.quick else _SIDE, device)
        for what, values in zip(_WHAT, (*made, whole.labels[: table.records]), strict=True):
            replace_file(_file(folder, table.data, part, what), partial(np.save, arr=values))


def _file(folder: Path, data: str, part: str, what: str) -> Path:
    return folder / f"{data}-{part}-{WEIGHTS}-{what}.npy"


def _network(folder: Path) -> EfficientNetLite0:
    return EfficientNetLite0().load(fetch.load(WEIGHTS, folder)).eval()


@torch.no_grad()
def _through(
    network: EfficientNetLite0, images: np.ndarray, side: int, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    maps, features = [], []
    chunk = _CHUNK_CPU if device.type == "cpu" else _CHUNK
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for first in range(0, len(images), chunk):
        shown = seen(torch.as_tensor(images[first : first + chunk], device=device), side)
        some = network.body(shown.contiguous(memory_format=torch.channels_last))
        maps.append(some.half().cpu().numpy())
        features.append(network.top(some).mean((2, 3)).half().cpu().numpy())
    return np.concatenate(maps), np.concatenate(features)


def load(data: str, part: str, settings: Settings, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features [n, 1280] for a probe; else what goes into the last block, [n, 192, height, width], as float16."""
    what = "features" if settings.network == "probe" else "maps"
    x, y = (torch.as_tensor(np.load(_file(folder, data, part, each)), device=device) for each in (what, "labels"))
    return (scaled(x.float(), settings.scaling) if settings.network == "probe" else x), y


def split(data: str, records: int, held: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return data_sets.split(records, held)


class LastBlock(nn.Module):
    """The last block with what follows it, and a new classifier, all trained."""

    def __init__(self, top: nn.Module, classes: int, scaling: str) -> None:
        super().__init__()
        self.top, self.classifier, self.scaling = top, probe(FEATURES, classes), scaling

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.classifier(
            scaled(self.top(maps.to(self.classifier.weight.dtype)).mean((2, 3)), self.scaling)
        )
        return out


def network(settings: Settings, records: Tensor, classes: int, folder: Path) -> nn.Module:
    """``probe`` or ``last-block``."""
    match settings.network:
        case "probe":
            return probe(records.shape[1], classes)
        case "last-block":
            return LastBlock(_network(folder).top, classes, settings.scaling)
    raise InvalidInput(f"network is {settings.network!r}; choose probe or last-block")

"""Scattering features (Bruna & Mallat 2013): fixed wavelets, so that nothing about anybody is learnt to make them.

As Tramèr & Boneh (2021) use them: two orders, scale 4, eight angles, 81 channels for each colour. They are computed
once and kept in a folder, one file for each view of the images.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from reproductions import data

VIEWS = {
    "plain": ("plain",),
    "flip": ("plain", "flip"),
    "shift": ("plain", "up-left", "down-right"),
}
"""One record is all views of an image together: its loss is the mean over them, before the gradient is clipped."""

_SHIFT = 2  # pixels: half the scale of the wavelets, which see in between so
_GROUPS = 27  # of channels, as in Tramèr & Boneh (2021)
_CHUNK = 2_000


def seen(images: Tensor, view: str) -> Tensor:
    """A view of images: as they are, mirrored, or moved with their edge repeated."""
    if view == "plain":
        return images
    if view == "flip":
        return images.flip(-1)
    height, width = images.shape[-2:]
    padded = F.pad(images, [_SHIFT] * 4, mode="replicate")
    begin = {"up-left": 2 * _SHIFT, "down-right": 0}[view]
    return padded[..., begin : begin + height, begin : begin + width]


def scattered(images: np.ndarray, view: str, device: torch.device) -> np.ndarray:
    """Features [n, channels · 81, height / 4, width / 4] of bytes [n, channels, height, width]."""
    try:
        # kymatio.torch imports more than this, and parts of that fail beside a current SciPy.
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ModuleNotFoundError:
        raise InvalidInput("scattering needs kymatio: pip install 'privypurse[reproductions]'") from None
    transform: Any = ScatteringTorch2D(J=2, shape=images.shape[-2:]).to(device)
    out = []
    with torch.no_grad():
        for first in range(0, len(images), _CHUNK):
            some = torch.as_tensor(images[first : first + _CHUNK], device=device).float() / 255
            out.append(transform(seen(some, view).contiguous()).flatten(1, 2).cpu().numpy())
    return np.concatenate(out)


def prepare(name: str, views: set[str], folder: Path, device: torch.device, records: int | None = None) -> None:
    """Compute what is not in the folder yet. ``records`` takes the first ones only, for quick runs."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {part: [v for v in sorted(views) if not _file(folder, name, part, v).exists()] for part in _PARTS}
    if not any(wanted.values()) and (folder / f"{name}.json").exists():
        return
    parts, _ = data.parts_or_made_up(name, 0, quick=records is not None)
    for part, whole in parts.items():
        images, labels = whole.inputs[:records], whole.labels[:records]
        np.save(folder / f"{name}-{part}-labels.npy", labels)
        for view in wanted[part]:
            values = scattered(images, view, device)
            replace_file(_file(folder, name, part, view), partial(np.save, arr=values))
    shape = tuple(images.shape[1:])
    made = scattered(data.pink_noise(shape), "plain", device)
    scale = {"mean": made.mean((0, 2, 3)).tolist(), "deviation": made.std((0, 2, 3)).tolist()}
    (folder / f"{name}.json").write_text(json.dumps({"images": list(shape), "noise": scale}))


_PARTS = ("train", "test")


def _file(folder: Path, name: str, part: str, view: str) -> Path:
    return folder / f"{name}-{part}-{view}.npy"


def load(name: str, part: str, views: str, scaling: str, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features [n, channels, height, width], or [n, channels, views, height, width] of several views, and labels."""
    if views not in VIEWS:
        raise InvalidInput(f"views is {views!r}; choose one of {', '.join(VIEWS)}")
    noise = json.loads((folder / f"{name}.json").read_text())["noise"]

    def one(view: str) -> Tensor:
        raw = np.load(_file(folder, name, part, view), mmap_mode="r")
        chunks = (np.array(raw[first : first + _CHUNK]) for first in range(0, len(raw), _CHUNK))
        return torch.cat([scaled(torch.as_tensor(chunk, device=device), scaling, noise) for chunk in chunks])

    each = [one(view) for view in VIEWS[views]]
    labels = torch.as_tensor(np.load(folder / f"{name}-{part}-labels.npy"), device=device)
    return (each[0] if len(each) == 1 else torch.stack(each, dim=2)), labels


def scaled(features: Tensor, how: str, noise: dict[str, list[float]]) -> Tensor:
    """Features on one scale, each record by itself or by public constants: nobody's depend on others (isolation).

    "groups": each of 27 groups of channels to mean 0 and deviation 1 within the record. "noise": each channel by its
    mean and deviation on pink noise. "both": the latter, then the whole record to mean 0 and deviation 1.
    """
    if how == "groups":
        return F.group_norm(features, _GROUPS)
    if how not in ("noise", "both"):
        raise InvalidInput(f"scaling is {how!r}; choose groups, noise or both")
    mean, deviation = (features.new_tensor(noise[each])[:, None, None] for each in ("mean", "deviation"))
    out = (features - mean) / deviation
    return F.group_norm(out, 1) if how == "both" else out

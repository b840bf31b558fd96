"""EfficientNet-Lite0 (Tan & Le 2019, arXiv 1905.11946, without squeeze-and-excitation), trained on ImageNet.

Its batch normalisations are folded into the convolutions before them: with the frozen statistics of the public
training they are affine maps with constants, so that no record looks at another.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STAGES = (
    # kernel, stride, expansion, channels, repeats
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
FEATURES = 1280
_STEM = 32
_EPSILON = 1e-3  # of the batch normalisations, in the original
_MEAN, _DEVIATION = 127.0, 128.0  # of bytes, likewise


def _same(channels: int, after: int, kernel: int, stride: int, groups: int = 1) -> list[nn.Module]:
    """A convolution that pads as TensorFlow does: with stride 2 on even sides, more at the end than at the start."""
    if stride == 1:
        return [nn.Conv2d(channels, after, kernel, padding=kernel // 2, groups=groups)]
    first = (kernel - 2) // 2
    last = kernel - 2 - first
    return [nn.ZeroPad2d((first, last, first, last)), nn.Conv2d(channels, after, kernel, stride, groups=groups)]


class Block(nn.Module):
    """An inverted residual block: wider, a convolution within each channel, narrower."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = before * expansion
        wider = [nn.Conv2d(before, inside, 1), nn.ReLU6()] if expansion > 1 else []
        within = [*_same(inside, inside, kernel, stride, groups=inside), nn.ReLU6()]
        self.layers = nn.Sequential(*wider, *within, nn.Conv2d(inside, after, 1))
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class EfficientNetLite0(nn.Module):
    """Up to the features that its classifier had; `body` is all but the last block, `top` that block and the rest."""

    def __init__(self) -> None:
        super().__init__()
        blocks, before = list[nn.Module](), _STEM
        for kernel, stride, expansion, after, repeats in _STAGES:
            for repeat in range(repeats):
                blocks.append(Block(before, after, kernel, 1 if repeat else stride, expansion))
                before = after
        self.body = nn.Sequential(*_same(3, _STEM, 3, 2), nn.ReLU6(), *blocks[:-1])
        self.top = nn.Sequential(blocks[-1], nn.Conv2d(before, FEATURES, 1), nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        """Features [n, 1280] of images as `seen` gives them."""
        out: Tensor = self.top(self.body(x))
        return out.mean((2, 3))

    def load(self, weights: Mapping[str, np.ndarray]) -> EfficientNetLite0:
        """Weights of the file that `reproductions.pretrained.fetch` leaves."""
        self.load_state_dict({name: torch.tensor(values).float() for name, values in weights.items()})
        return self


def seen(images: Tensor, side: int) -> Tensor:
    """Bytes [n, 3, height, width] as the network wants them: larger, and on its scale."""
    larger = F.interpolate(images.float(), size=(side, side), mode="bilinear", align_corners=False)
    return (larger - _MEAN) / _DEVIATION


def folded(published: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The published weights by the names that they have here, with each normalisation in its convolution."""
    convolutions = [name for name, module in EfficientNetLite0().named_modules() if isinstance(module, nn.Conv2d)]
    names = [name.removesuffix(".weight") for name, values in published.items() if values.ndim == 4]
    norms = [name.removesuffix(".running_var") for name in published if name.endswith(".running_var")]
    out = {}
    for ours, theirs, norm in zip(convolutions, names, norms, strict=True):
        scale = published[f"{norm}.weight"] / (published[f"{norm}.running_var"] + _EPSILON).sqrt()
        out[f"{ours}.weight"] = (published[f"{theirs}.weight"] * scale[:, None, None, None]).numpy()
        out[f"{ours}.bias"] = (published[f"{norm}.bias"] - published[f"{norm}.running_mean"] * scale).numpy()
    return out

"""What stands on the features: a linear layer, or the small networks of Tramèr & Boneh (2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput

_CLASSES = 10


class Head(nn.Module):
    """Convolutions on features [n, channels, height, width], then linear layers: one output for each class.

    Several views of a record, [n, channels, views, height, width], go through the same weights side by side, as a
    dimension along which the kernels have size 1, and give outputs [n, views, classes].
    """

    def __init__(self, convolutions: nn.Module, linear: nn.Module, views: bool) -> None:
        super().__init__()
        self.convolutions, self.linear, self.views = convolutions, linear, views

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x)
        x = x.transpose(1, 2).flatten(2) if self.views else x.flatten(1)
        out: Tensor = self.linear(x)
        return out


def network(name: str, shape: Sequence[int], width: int) -> Head:
    """``linear``; ``cnn`` for 8 × 8 places, pooled to 4 × 4; ``cnn-strided`` for 7 × 7, strided to 4 × 4."""
    channels, views = shape[0], len(shape) == 4

    def convolution(before: int, after: int, stride: int = 1) -> nn.Module:
        if views:
            return nn.Conv3d(before, after, (1, 3, 3), (1, stride, stride), (0, 1, 1))
        return nn.Conv2d(before, after, 3, stride, 1)

    pool = nn.MaxPool3d((1, 2, 2)) if views else nn.MaxPool2d(2)
    match name:
        case "linear":
            places = math.prod(shape[-2:])
            return Head(nn.Identity(), nn.Linear(channels * places, _CLASSES), views)
        case "cnn":
            body = [convolution(channels, width), nn.Tanh(), pool, convolution(width, width), nn.Tanh()]
            places = math.prod(side // 2 for side in shape[-2:])
            return Head(nn.Sequential(*body), nn.Linear(width * places, _CLASSES), views)
        case "cnn-strided":
            body = [convolution(channels, width // 2, 2), nn.Tanh(), convolution(width // 2, width), nn.Tanh()]
            places = math.prod((side + 1) // 2 for side in shape[-2:])
            last = nn.Sequential(nn.Linear(width * places, 32), nn.Tanh(), nn.Linear(32, _CLASSES))
            return Head(nn.Sequential(*body), last, views)
    raise InvalidInput(f"network is {name!r}; choose linear, cnn or cnn-strided")


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each record's cross entropy, the mean over its own views."""
    scores = torch.log_softmax(outputs, dim=-1)
    if scores.ndim == 2:
        return -scores.gather(1, labels[:, None])[:, 0]
    where = labels[:, None, None].expand(-1, scores.shape[1], 1)
    return -scores.gather(2, where)[:, :, 0].mean(dim=1)

"""The networks that the papers train, by name: linear layers, convolutions, group norms, pooling and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privypurse.errors import InvalidInput
from privypurse.runs.models import TramerBoneh


class TramerBonehCifar10(nn.Module):
    """The convolutional network of Tramèr & Boneh (2021) for CIFAR-10, 550,570 parameters, tanh throughout.

    As in the authors' code: pairs of 3 × 3 convolutions with 32, 64 and 128 filters, each pair followed by max
    pooling, then 128 hidden units. Boenisch et al. (2023) train it on SVHN too.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((3, 32, 64, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2, 2)]
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(128 * 4 * 4, 128)
        self.last = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.hidden(self.features(x).flatten(1))))
        return out


class OpacusExample(nn.Module):
    """The network of Opacus's MNIST example, which Feldman & Zrnic (2021) train: 26,010 parameters."""

    def __init__(self, activation: str = "relu", classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.second = nn.Conv2d(16, 32, 4, stride=2)
        self.third = nn.Linear(32 * 4 * 4, 32)
        self.last = nn.Linear(32, classes)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[activation]

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.activation(self.first(x)), 2, 1)
        x = F.max_pool2d(self.activation(self.second(x)), 2, 1)
        out: Tensor = self.last(self.activation(self.third(x.flatten(1))))
        return out


class HeoMnist(OpacusExample):
    """Heo et al. (2023), Table 5, for MNIST and Fashion-MNIST: 26,010 parameters, ReLU.

    The table prints "Max Pooling, size (2,2)" without a stride. It is 1, as in Opacus's example with the same
    layers: Table 2 prints 38,009 parameters, the mean over three data sets, and (2 · 26,010 + 62,006) / 3 = 38,008.7.
    With stride 2 this network would have 10,650 and the mean would be 27,769.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__("relu", classes)


class HeoSvhn(nn.Module):
    """Heo et al. (2023), Table 4, for SVHN: 62,006 parameters, ReLU. The pooling has stride 2; see `HeoMnist`."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 5)
        self.second = nn.Conv2d(6, 16, 5)
        self.third = nn.Linear(16 * 5 * 5, 120)
        self.fourth = nn.Linear(120, 84)
        self.last = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = F.max_pool2d(torch.relu(self.second(x)), 2)
        x = torch.relu(self.third(x.flatten(1)))
        out: Tensor = self.last(torch.relu(self.fourth(x)))
        return out


class Logistic(nn.Module):
    """Logistic regression, as Liu et al. (2024) train it on Heart-Disease: (features + 1) · classes parameters."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x.flatten(1))
        return out


class _Block(nn.Module):
    """Two convolutions and a shortcut, which skips pixels and pads channels where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(outside // 4, outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.other_norm = nn.GroupNorm(outside // 4, outside)
        self.stride, self.more = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other_norm(self.second(torch.relu(self.norm(self.first(x)))))
        if self.more:
            before = self.more // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))
        return torch.relu(out + x)


class ResNet20(nn.Module):
    """He et al. (2016)'s network for CIFAR-10 with GroupNorm for BatchNorm, as Yu et al. (2023) train it.

    269,722 parameters on three channels, 269,434 on one.
    """

    def __init__(self, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(4, 16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(
            *(_Block(before, after, 1 if before == after else 2) for before, after in pairwise(widths))
        )
        self.last = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.first(x))))
        out: Tensor = self.last(x.mean(dim=(2, 3)))
        return out


_GROUPS = 16


class _WideBlock(nn.Module):
    """ReLU, GroupNorm, convolution, twice; where the shape changes, the shortcut is ReLU, GroupNorm, convolution."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, inside)
        self.first = nn.Conv2d(inside, outside, 3, stride, 1)
        self.other_norm = nn.GroupNorm(_GROUPS, outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1)
        self.shortcut = nn.Sequential()
        if inside != outside:
            self.shortcut = nn.Sequential(
                nn.ReLU(), nn.GroupNorm(_GROUPS, inside), nn.Conv2d(inside, outside, 1, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(self.norm(torch.relu(x)))
        out = self.second(self.other_norm(torch.relu(out)))
        total: Tensor = out + self.shortcut(x)
        return total


class WideResNet16x4(nn.Module):
    """WRN-16-4 with GroupNorm of 16 groups, as De et al. (2022) train it privately and Yu et al. (2023) after them.

    2,751,562 parameters on three channels. The order is that of De et al.'s code: activation, norm, convolution.
    Their convolutions also standardise their weights, with a gain for each filter; these do not.
    """

    def __init__(self, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 16, 3, 1, 1)
        widths = [16, 64, 64, 128, 128, 256, 256]
        strides = [1, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(
            *(_WideBlock(*pair, stride) for pair, stride in zip(pairwise(widths), strides, strict=True))
        )
        self.norm = nn.GroupNorm(_GROUPS, 256)
        self.last = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.blocks(self.first(x))))
        out: Tensor = self.last(x.mean(dim=(2, 3)))
        return out


@dataclass(frozen=True)
class _Known:
    """How to build a network for records of one shape, where None stands for any size."""

    shape: tuple[int | None, ...] | None
    build: Callable[[tuple[int, ...], int], nn.Module]

    def takes(self, shape: tuple[int, ...]) -> bool:
        if not shape or any(side < 1 for side in shape):
            return False
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            want in (None, side) for want, side in zip(self.shape, shape, strict=True)
        )

    def wanted(self) -> str:
        if self.shape is None:
            return "at least one number, and none below 1"
        if self.shape == _GREY or self.shape == _COLOUR:
            return str(self.shape)
        return "(channels, height, width)"


_GREY = (1, 28, 28)
_COLOUR = (3, 32, 32)
_IMAGE = (None, None, None)

_NETWORKS: dict[str, _Known] = {
    "heo-mnist": _Known(_GREY, lambda shape, classes: HeoMnist(classes)),
    "heo-svhn": _Known(_COLOUR, lambda shape, classes: HeoSvhn(classes)),
    "logistic": _Known(None, lambda shape, classes: Logistic(math.prod(shape), classes)),
    "opacus-example": _Known(_GREY, lambda shape, classes: OpacusExample("relu", classes)),
    "opacus-example-tanh": _Known(_GREY, lambda shape, classes: OpacusExample("tanh", classes)),
    "resnet-20": _Known(_IMAGE, lambda shape, classes: ResNet20(shape[0], classes)),
    "tramer-boneh-cifar10": _Known(_COLOUR, lambda shape, classes: TramerBonehCifar10(classes)),
    "tramer-boneh-mnist": _Known(_GREY, lambda shape, classes: TramerBoneh(classes)),
    "wrn-16-4": _Known(_IMAGE, lambda shape, classes: WideResNet16x4(shape[0], classes)),
}

NAMES = tuple(_NETWORKS)
"""Every name that `network` knows."""


def network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A new network for records of this shape, such as (1, 28, 28), with one output for each class."""
    if name not in _NETWORKS:
        raise InvalidInput(f"there is no network {name!r}; take one of {', '.join(NAMES)}")
    known = _NETWORKS[name]
    if not known.takes(tuple(shape)):
        raise InvalidInput(f"network {name!r} takes records of shape {known.wanted()}, not {tuple(shape)}")
    if classes < 2:
        raise InvalidInput(f"classes is {classes}; a network needs at least two")
    return known.build(tuple(shape), classes)

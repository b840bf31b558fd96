"""The networks of the papers that benchmarks train."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TramerBoneh(nn.Module):
    """The convolutional network of Tramèr & Boneh (2021) for MNIST, 26,010 parameters, tanh throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 8, stride=2, padding=2)
        self.second = nn.Conv2d(16, 32, 4, stride=2)
        self.third = nn.Linear(32 * 4 * 4, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.first(x)), 2, 1)
        x = F.max_pool2d(torch.tanh(self.second(x)), 2, 1)
        out: Tensor = self.last(torch.tanh(self.third(x.flatten(1))))
        return out


class OpacusExample(nn.Module):
    """The network of Opacus's MNIST example, which Feldman & Zrnic (2021) train: 26,010 parameters."""

    def __init__(self, activation: str = "relu") -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.second = nn.Conv2d(16, 32, 4, stride=2)
        self.third = nn.Linear(32 * 4 * 4, 32)
        self.last = nn.Linear(32, 10)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[activation]

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.activation(self.first(x)), 2, 1)
        x = F.max_pool2d(self.activation(self.second(x)), 2, 1)
        out: Tensor = self.last(self.activation(self.third(x.flatten(1))))
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
    """He et al. (2016)'s network for CIFAR-10 with GroupNorm for BatchNorm, as Yu et al. (2023) train it: 0.27 M."""

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

"""The networks that the papers train, by name: linear layers, convolutions, group norms, pooling and activations."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privypurse._validate import one_of
from privypurse.errors import InvalidInput
from privypurse.runs.models import TramerBoneh
from reproductions.group_norm import GroupNorm, GroupNormOfRelu
from reproductions.standardised import StandardisedConv2d


class TramerBonehCifar10(nn.Sequential):
    """The convolutional network of Tramèr & Boneh (2021) for CIFAR-10, 550,570 parameters, tanh throughout.

    As in the authors' code: pairs of 3 × 3 convolutions with 32, 64 and 128 filters, each pair followed by max
    pooling, then 128 hidden units. Boenisch et al. (2023) train it on SVHN too.
    """

    def __init__(self, classes: int = 10) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise((3, 32, 64, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2, 2)]
        head = [nn.Flatten(), nn.Linear(128 * 4 * 4, 128), nn.Tanh(), nn.Linear(128, classes)]
        super().__init__(*layers, *head)


class OpacusExample(nn.Sequential):
    """The network of Opacus's MNIST example, which Feldman & Zrnic (2021) train: 26,010 parameters.

    Heo et al. (2023), Table 5, for MNIST and Fashion-MNIST, is the same with ReLU. The table prints "Max Pooling,
    size (2,2)" without a stride. It is 1: Table 2 prints 38,009 parameters, the mean over three data sets, and
    (2 · 26,010 + 62,006) / 3 = 38,008.7. With stride 2 this would have 10,650 and the mean would be 27,769.
    """

    def __init__(self, activation: type[nn.Module] = nn.ReLU, classes: int = 10) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 8, stride=2, padding=3), activation(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, stride=2), activation(), nn.MaxPool2d(2, 1), nn.Flatten()),
            *(nn.Linear(32 * 4 * 4, 32), activation(), nn.Linear(32, classes)),
        )


class HeoSvhn(nn.Sequential):
    """Heo et al. (2023), Table 4, for SVHN: 62,006 parameters, ReLU. Pooling has stride 2; see `OpacusExample`."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
        )


class Logistic(nn.Sequential):
    """Logistic regression, as Liu et al. (2024) train it on Heart-Disease: (features + 1) · classes parameters."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(features, classes))


class _Block(nn.Module):
    """Two convolutions and a shortcut, which skips pixels and pads channels where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm = GroupNorm(outside // 4, outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.other_norm = GroupNorm(outside // 4, outside)
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
        self.norm = GroupNorm(4, 16)
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
        self.norm = GroupNormOfRelu(_GROUPS, inside)
        self.first = StandardisedConv2d(inside, outside, 3, stride)
        self.other_norm = GroupNormOfRelu(_GROUPS, outside)
        self.second = StandardisedConv2d(outside, outside, 3)
        self.shortcut = nn.Sequential()
        if inside != outside:
            self.shortcut = nn.Sequential(
                GroupNormOfRelu(_GROUPS, inside), StandardisedConv2d(inside, outside, 1, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(self.other_norm(self.first(self.norm(x))))
        total: Tensor = out + self.shortcut(x)
        return total


class WideResNet16(nn.Module):
    """WRN-16-4 with GroupNorm of 16 groups, as De et al. (2022) train it privately and Yu et al. (2023) after them.

    2,753,818 parameters on three channels. As in De et al.'s code the order is activation, norm, convolution, and
    convolutions standardise their weights. ``width`` 1 makes it WRN-16-1.
    """

    def __init__(self, channels: int = 3, classes: int = 10, width: int = 4) -> None:
        super().__init__()
        self.first = StandardisedConv2d(channels, 16, 3)
        widths = [16, *(width * filters for filters in (16, 16, 32, 32, 64, 64))]
        strides = [1, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(
            *(_WideBlock(*pair, stride) for pair, stride in zip(pairwise(widths), strides, strict=True))
        )
        self.norm = GroupNormOfRelu(_GROUPS, widths[-1])
        self.last = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.first(x)))
        out: Tensor = self.last(x.mean(dim=(2, 3)))
        return out


class ShiftedAndMirrored(nn.Module):
    """While training: images moved by up to four pixels each way, what is missing mirrored, and half of them flipped.

    De et al. (2022)'s augmentation. Every row draws numbers of its own from torch's global generator, so that records
    stay apart, and views of one record differ.
    """

    most = 4

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        count, height, width = len(x), *x.shape[2:]
        padded = F.pad(x, [self.most] * 4, mode="reflect")
        across, down, mirrored = (
            torch.randint(0, most, (count, 1), device=x.device) for most in (2 * self.most + 1, 2 * self.most + 1, 2)
        )
        rows = down + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device)
        columns = across + torch.where(mirrored == 1, width - 1 - columns, columns)
        every = torch.arange(count, device=x.device)[:, None, None]
        return padded[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class ChannelsLast(nn.Module):
    """Images as they are, in memory with the channels of a pixel side by side. Convolutions behind it keep that."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class InBfloat16(nn.Module):
    """A network computed in bfloat16 by autocast on a GPU; elsewhere the network itself."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            out: Tensor = self.network(x)
        return out.to(x.dtype)


_GREY, _COLOUR, _IMAGE = (1, 28, 28), (3, 32, 32), "(channels, height, width)"
_NETWORKS: dict[str, tuple[tuple[int, ...] | str | None, Callable[[tuple[int, ...], int], nn.Module]]] = {
    "heo-mnist": (_GREY, lambda shape, classes: OpacusExample(nn.ReLU, classes)),
    "heo-svhn": (_COLOUR, lambda shape, classes: HeoSvhn(classes)),
    "logistic": (None, lambda shape, classes: Logistic(math.prod(shape), classes)),
    "opacus-example": (_GREY, lambda shape, classes: OpacusExample(nn.ReLU, classes)),
    "opacus-example-tanh": (_GREY, lambda shape, classes: OpacusExample(nn.Tanh, classes)),
    "resnet-20": (_IMAGE, lambda shape, classes: ResNet20(shape[0], classes)),
    "tramer-boneh-cifar10": (_COLOUR, lambda shape, classes: TramerBonehCifar10(classes)),
    "tramer-boneh-mnist": (_GREY, lambda shape, classes: TramerBoneh(classes)),
    "wrn-16-1": (_IMAGE, lambda shape, classes: WideResNet16(shape[0], classes, 1)),
    "wrn-16-4": (_IMAGE, lambda shape, classes: WideResNet16(shape[0], classes)),
    "wrn-16-4-bfloat16": (_IMAGE, lambda shape, classes: InBfloat16(WideResNet16(shape[0], classes))),
}
"""By name: the shape of records that a network takes (None: any), and how to build it."""
NAMES = tuple(_NETWORKS)
"""Every name that `network` knows."""
NARROWER = {"wrn-16-4": "wrn-16-1", "wrn-16-4-bfloat16": "wrn-16-1"}
"""What is enough to try whether everything runs: the same layers with fewer filters."""


def network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A new network for records of this shape, such as (1, 28, 28), with one output for each class."""
    one_of(name, "network", NAMES)
    wanted, build = _NETWORKS[name]
    fits = len(shape) == 3 if wanted == _IMAGE else wanted in (None, tuple(shape))
    if not shape or min(shape) < 1 or not fits:
        said = "at least one number, and none below 1" if wanted is None else wanted
        raise InvalidInput(f"network {name!r} takes records of shape {said}, not {tuple(shape)}")
    if classes < 2:
        raise InvalidInput(f"classes is {classes}; a network needs at least two")
    return build(tuple(shape), classes)


def is_large(model: nn.Module) -> bool:
    """Whether a physical batch is better smaller, and images on a GPU better lie with their channels last."""
    return sum(value.numel() for value in model.parameters()) > 100_000


def placed(name: str, shape: tuple[int, ...], classes: int, device: torch.device) -> nn.Module:
    """A new network on that device, arranged as is fastest there.

    With the channels of a pixel side by side a large one takes half the time on a GPU, one that pools at every place
    two thirds on a CPU.
    """
    model = network(name, shape, classes)
    if device.type == "cuda" and len(shape) == 3 and is_large(model):
        model = nn.Sequential(ChannelsLast(), model)
    if device.type == "cpu":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(device)

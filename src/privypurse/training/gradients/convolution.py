"""Convolutions in one, two and three dimensions, with groups, stride, padding and dilation.

A convolution is a linear layer over places: its input there is the window that the kernel sees. All windows together
are as many times larger than the input as the kernel has elements, so they are never made for the whole batch, and
mostly not in full: the input is unfolded along every dimension but the first (into lines), and a step of the kernel
along the first dimension is a slice of the lines, which matrix products take as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from privypurse.training.gradients.grams import from_grams
from privypurse.training.gradients.numerics import (
    PASS,
    as_short_as_convolutions,
    as_wide,
    at_least_float32,
    from_made,
    has_kernels,
    products,
    spread,
    square_sum,
    total_of,
)
from privypurse.training.gradients.rule import Call, handles
from privypurse.training.gradients.views import by_record
from privypurse.training.gradients.weight_and_bias import ProductRule

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d

_NARROW = 32  # a product with fewer columns leaves most of a core idle; then the whole window is unfolded


@dataclass(frozen=True)
class Way:
    """How a layer's weight norms are found."""

    how: Literal["keep", "forget", "ghost"]
    """Make each record's gradient and keep it for the sum; or only for its norm; or take Gram matrices of places."""
    whole: bool
    """Whether the first dimension is unfolded as well."""
    last: bool = False
    """Whether an unfolded window has its channels last, as the image has them in memory."""


@dataclass(frozen=True)
class Sizes:
    """What one group of one record counts."""

    places: int
    """Places of the output, in all views."""
    inputs: int
    """Channels of the input, in one group."""
    outputs: int
    first: int
    """Elements of the kernel along the first dimension, and along the others together."""
    rest: int
    fold: int
    """Lines that a step of the kernel along the first dimension meets at once."""
    line: int
    """Places of the lines: as many rows as the padded input has, as wide as the output."""

    @classmethod
    def of(cls, call: Call) -> Sizes:
        layer: Conv = call.module  # type: ignore[assignment]
        places = _places(layer, call.output_gradient)
        ahead = layer._reversed_padding_repeated_twice[-2:]
        rows = _up(_places(layer, call.inputs[0])[0] + sum(ahead), layer.stride[0])
        return cls(
            places=call.views * places.numel(),
            inputs=layer.in_channels // layer.groups,
            outputs=layer.out_channels // layer.groups,
            first=layer.kernel_size[0],
            rest=prod(layer.kernel_size[1:]),
            fold=_fold(layer),
            line=call.views * rows * prod(places[1:]),
        )

    @property
    def weight(self) -> int:
        return self.outputs * self.inputs * self.first * self.rest

    @property
    def whole(self) -> bool:
        """Whether a gradient is better made from whole windows than step by step."""
        return self.steps(False) == 1 or self.seen(False)[0] < _NARROW

    def seen(self, whole: bool) -> tuple[int, int]:
        """Rows and columns of the unfolded input."""
        if whole:
            return self.inputs * self.first * self.rest, self.places
        return self.inputs * self.rest * self.fold, self.line // self.fold

    def steps(self, whole: bool) -> int:
        """Products along the first dimension."""
        return 1 if whole else self.first // self.fold

    def ghost(self, whole: bool) -> int:
        """Multiply-adds of the norm by Gram matrices."""
        depth, width = self.seen(whole)
        passes = 2 + self.steps(whole)
        return width * width * depth + self.places * self.places * (self.outputs + PASS * passes)

    def made(self) -> int:
        """Multiply-adds of making a record's gradient, and its norm."""
        return (self.places + 2 * PASS) * self.weight

    def temporaries(self, way: Way) -> int:
        depth, width = self.seen(way.whole)
        lines = 2 * depth * width  # the padded input is there at the same time
        return lines + (width * width + 2 * self.places**2 if way.how == "ghost" else 2 * self.weight)


def way_of(call: Call) -> Way:
    """The cheapest way, in time, that needs little memory beside what the tape holds.

    Keeping is cheapest, since the sum then costs nothing more. Otherwise the sum is one more convolution, and the
    norm costs either a gradient made and forgotten or, where places are few and channels many, Gram matrices (Bu et
    al. 2022, arXiv 2205.10683, compare the two for convolutions unfolded in full).
    """
    layer: Conv = call.module  # type: ignore[assignment]
    sizes = Sizes.of(call)
    whole, weight = sizes.whole, layer.groups * sizes.weight
    if call.worth_keeping(weight) or call.cache.take(weight * call.output_gradient.shape[0]):
        return Way("keep", whole, _last(call, whole))
    ghosts = [(sizes.ghost(whole), whole) for whole in (False, True)]
    if min(ghosts)[0] < sizes.made():
        return Way("ghost", min(ghosts)[1], _last(call, min(ghosts)[1]))
    return Way("forget", whole, _last(call, whole))


def _last(call: Call, whole: bool) -> bool:
    """Whether windows are unfolded with their channels last: where images lie so, whole runs are copied then."""
    layer: Conv = call.module  # type: ignore[assignment]
    images = call.inputs[0]
    if layer.groups > 1 or len(layer.kernel_size) != 2 or images.dim() != 4 or not (whole or _fold(layer) == 1):
        return False
    return not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)


def _places(layer: Conv, values: Tensor) -> torch.Size:
    """The shape of an image, of what has images last."""
    return values.shape[-len(layer.kernel_size) :]


def _views(layer: Conv, values: Tensor) -> int:
    """How many images a record has: (records, channels, place, ...), or (records, views, channels, place, ...)."""
    return values.shape[1] if values.dim() > len(layer.kernel_size) + 2 else 1


def _images(layer: Conv, values: Tensor) -> Tensor:
    """As (image, channels, place, ...), whatever the number of views."""
    return values.flatten(0, 1) if _views(layer, values) > 1 else values


def _side_by_side(layer: Conv, values: Tensor) -> Tensor:
    """As (records, channels, place, ...), the first place being followed by the view, if there are several."""
    return values.movedim(1, 3) if _views(layer, values) > 1 else values


def _up(size: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-size // step) * step


def _fold(layer: Conv) -> int:
    """With stride s, and a kernel of a multiple of s, s lines may be taken for one with s times the channels: the
    convolution over these has stride 1, and its kernel an s-th of the steps."""
    stride = layer.stride[0]
    return stride if layer.dilation[0] == 1 and layer.kernel_size[0] % stride == 0 else 1


def _padded(layer: Conv, a: Tensor) -> Tensor:
    """The input as the kernel sees it, image by image."""
    edges, a = layer._reversed_padding_repeated_twice, _images(layer, a)
    if not any(edges):
        return a
    return functional.pad(a, edges, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _unfolded(layer: Conv, a: Tensor, places: torch.Size, way: Way) -> tuple[Tensor, list[int]]:
    """The input as (record · group, channel · kernel, place), and where a step of the kernel begins among the places.

    With channels last it is kernel · channel, and places come first in memory.

    With stride s along the first dimension, the lines lie in s runs, of every s-th line each: so the lines that one
    element of the kernel meets follow one another here too. Where the runs can be folded into the channels, they are.
    Views lie side by side in each line.
    """
    if way.last and layer.padding_mode == "zeros" and has_kernels(a, torch.bfloat16):
        return _unfolded_by_kernel(layer, a, places, way)
    views, a = _views(layer, a), _padded(layer, a)
    stride, kernel, dilation, whole = layer.stride, layer.kernel_size, layer.dilation, way.whole
    if not whole and a.shape[2] % stride[0]:
        a = functional.pad(a, [0, 0] * (len(places) - 1) + [0, _up(a.shape[2], stride[0]) - a.shape[2]])
    a = a.contiguous(memory_format=torch.channels_last if way.last else torch.contiguous_format)
    batch, channels, rows = a.shape[0] // views, *a.shape[1:3]
    to_next = a.stride()
    ahead, view = (views * to_next[0], to_next[1]), to_next[0]
    moves = [step * by for step, by in zip(to_next[2:], stride, strict=True)]
    within = [step * by for step, by in zip(to_next[2:], dilation, strict=True)]
    if whole:
        window, steps = [*zip(kernel, within, strict=True)], [(places[0], moves[0])]
        starts = [0]
    else:
        run = rows // stride[0]
        window, steps = [*zip(kernel[1:], within[1:], strict=True)], [(stride[0], to_next[2]), (run, moves[0])]
        starts = _starts(layer, run, views * prod(places[1:]))
    depth = channels // layer.groups * prod(kernel) // len(starts)
    steps += [(views, view), *zip(places[1:], moves[1:], strict=True)]
    channel = channels, ahead[1]
    inside = (*steps, *window, channel) if way.last else (channel, *window, *steps)
    size, move = zip((batch, ahead[0]), *inside, strict=True)
    seen = a.as_strided(size, move)
    if way.last:
        return seen.reshape(batch, -1, depth).transpose(1, 2), starts
    return seen.reshape(batch * layer.groups, depth, -1), starts


def _starts(layer: Conv, run: int, line: int) -> list[int]:
    """Where each step of the kernel begins, of runs of so many lines of so many places."""
    offsets = [k * layer.dilation[0] for k in range(0, layer.kernel_size[0], _fold(layer))]
    return [((o % layer.stride[0]) * run + o // layer.stride[0]) * line for o in offsets]


def _unfolded_by_kernel(layer: Conv, a: Tensor, places: torch.Size, way: Way) -> tuple[Tensor, list[int]]:
    """The same of images with their channels last, read once: neither they nor their lines are padded before."""
    left, _, top, below = layer._reversed_padding_repeated_twice
    run = lines = places[0]
    if not way.whole:
        run = _up(a.shape[2] + top + below, layer.stride[0]) // layer.stride[0]
        lines = run * layer.stride[0]
    from privypurse.training.gradients import kernels

    window = layer.kernel_size[0] if way.whole else 1, layer.kernel_size[1]
    a = a.contiguous(memory_format=torch.channels_last)
    seen = kernels.unfolded(a, lines, run, places[1], window, layer.stride, layer.dilation, (top, left))
    return seen.transpose(1, 2), [0] if way.whole else _starts(layer, run, places[1])


def _grouped(layer: Conv, g: Tensor) -> Tensor:
    """The output gradient as (record · group, channel, place)."""
    g = _side_by_side(layer, g)
    return g.reshape(g.shape[0] * layer.groups, g.shape[1] // layer.groups, -1)


def _gradients(layer: Conv, a: Tensor, g: Tensor, way: Way, out: Tensor | None = None) -> Iterator[Tensor]:
    """Each record's gradient, one step of the kernel after the other: (record · group, channel, channel · kernel)."""
    seen, starts = _unfolded(layer, a, _places(layer, g), way)
    back = _grouped(layer, g)
    for k, start in enumerate(starts):
        met = seen[:, :, start : start + back.shape[2]].transpose(1, 2)
        yield products(back, met, None if out is None else out[:, k])


def _ghost(layer: Conv, a: Tensor, g: Tensor, way: Way) -> Tensor:
    """‖Σ_t g_t w_tᵀ‖² = Σ_tt' ⟨g_t, g_t'⟩ ⟨w_t, w_t'⟩, for every record and group, w_t being what is seen at place t
    (Goodfellow 2015, arXiv 1510.01799, for one place; Li et al. 2022, arXiv 2110.05679, for many).

    Two windows' product is the sum of their lines' products, so the Gram matrix of the lines, which overlapping
    windows share, is enough: the windows' is a sum of its blocks.
    """
    seen, starts = _unfolded(layer, a, _places(layer, g), way)
    back = _grouped(layer, g)
    places = back.shape[2]
    if places == 1 and way.whole:
        return square_sum(seen) * square_sum(back)
    lines = products(seen.transpose(1, 2), seen)
    blocks = [lines[:, start : start + places, start : start + places] for start in starts]
    gram = products(back.transpose(1, 2), back)
    terms = seen.shape[1] * len(starts) + back.shape[1] + places
    return from_grams(total_of(blocks), gram, terms)


def as_weight(layer: Conv, made: Tensor, way: Way) -> Tensor:
    """Gradients (…, group, step of the kernel, channel, channel · kernel) in the order of the layer's weight; with
    channels last they are (…, step of the kernel, channel, kernel · channel)."""
    kernel, fold = layer.kernel_size, 1 if way.whole else _fold(layer)
    steps, rest = (1, prod(kernel)) if way.whole else (kernel[0] // fold, prod(kernel[1:]))
    out, inner = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    if way.last:
        return made.reshape(-1, steps, out, rest, inner).permute(0, 2, 4, 1, 3).reshape(-1, *layer.weight.shape)
    made = made.reshape(-1, layer.groups, steps, out, inner, rest, fold)
    return made.permute(0, 1, 3, 4, 2, 6, 5).reshape(-1, *layer.weight.shape)


@handles(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(ProductRule):
    features = 1
    takes_views = True

    def weight_squares(self, call: Call) -> Tensor:
        layer: Conv = call.module  # type: ignore[assignment]
        call.way = way = way_of(call)
        sizes, groups, records = Sizes.of(call), layer.groups, call.output_gradient.shape[0]
        kept: Tensor | None = None
        if way.how == "keep":
            shape = (records, groups, sizes.steps(way.whole), sizes.outputs, sizes.seen(way.whole)[0])
            call.kept["weight"] = kept = call.input_and_gradient(slice(0))[1].new_empty(shape)
        squares = []
        for some in call.chunks(groups * sizes.temporaries(way)):
            a, g = call.operands(some)
            if way.how == "ghost":
                by_group = _ghost(layer, a, g, way)
            else:
                into = None if kept is None else kept[some].flatten(0, 1)
                with as_short_as_convolutions() if call.kept_is_measured and kept is not None else nullcontext():
                    parts = [square_sum(part) for part in _gradients(layer, a, g, way, into)]
                by_group = torch.stack(parts).sum(dim=0)
                if kept is None:
                    padded = by_record(_padded(layer, a), call.views).transpose(1, 2)
                    split = padded.reshape(padded.shape[0] * groups, -1)
                    each = square_sum(split), square_sum(_grouped(layer, g))
                    by_group = from_made(by_group, *each, sizes.places, sizes.first * sizes.rest)
            squares.append(by_group.reshape(g.shape[0], groups).sum(dim=1))
        return torch.cat(squares)

    def weight_sum(self, call: Call, weights: Tensor) -> Tensor:
        """The ordinary weight gradient of the batch, each record weighted."""
        layer: Conv = call.module  # type: ignore[assignment]
        none = [0] * len(layer.kernel_size)
        inside = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)  # the product pads by itself
        padding = layer.padding if inside else none
        kernel = as_wide(layer.weight.detach(), weights)

        def part(some: slice) -> Tensor:
            a, g = (as_wide(values, weights) for values in call.input_and_gradient(some))
            back = _images(layer, g * spread(weights[some], g))
            seen = _images(layer, a) if inside else _padded(layer, a)
            options = layer.stride, padding, layer.dilation, False, none, layer.groups, [False, True, False]
            made: Tensor = torch.ops.aten.convolution_backward(back, seen, kernel, None, *options)[1]
            return made

        # The product makes its own copies of both, too.
        each = 2 * (prod(call.output_gradient.shape[1:]) + prod(call.inputs[0].shape[1:]))
        return total_of(map(part, call.chunks(each)))

    def in_order(self, call: Call, kept: Tensor) -> Tensor:
        return as_weight(call.module, kept, call.way)[0]  # type: ignore[arg-type]

    def weight(self, call: Call) -> Tensor:
        return as_weight(call.module, *self.by_steps(call))  # type: ignore[arg-type]

    def by_steps(self, call: Call) -> tuple[Tensor, Way]:
        """Each record's weight gradient in the order in which products leave it: `as_weight` has another."""
        layer: Conv = call.module  # type: ignore[assignment]
        sizes, (a, g) = Sizes.of(call), call.operands()
        whole = sizes.whole or prod(sizes.seen(True)) <= 2 * sizes.weight  # which come out in the weight's order
        way = Way("keep", whole, _last(call, whole))
        shape = len(g) * layer.groups, sizes.steps(whole), sizes.outputs, sizes.seen(whole)[0]
        made = at_least_float32(g[:0]).new_empty(shape)
        for _ in _gradients(layer, a, g, way, made):
            pass
        return made, way

    def over_tokens(self, g: Tensor) -> Tensor:
        return g.flatten(2).sum(dim=2)

    def bias(self, call: Call) -> Tensor:
        layer: Conv = call.module  # type: ignore[assignment]
        return self.over_tokens(_side_by_side(layer, at_least_float32(call.output_gradient)))

    def seen(self, call: Call, a: Tensor) -> tuple[Tensor, int]:
        layer: Conv = call.module  # type: ignore[assignment]
        return by_record(_padded(layer, a), call.views), prod(layer.kernel_size)

"""What the networks with group norm and standardised convolutions need on a GPU, as one kernel each.

Group norm of images whose channels lie side by side, or of their positive parts: torch's own kernels take them the
other way round only, so it copies them before and leaves them turned round behind. And what is taken off each
filter's gradient of each record. A record's share of a group, or its filter, is read once and stays in registers.
Images may be of bfloat16, and what comes out is then; in between all is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _WARPS = 8192, 8


@triton.jit
def _everywhere(each, size, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """At every channel the mean over its group, from sums over places."""
    sums = tl.sum(tl.reshape(each, [GROUPS, WIDTH]), axis=1) / size
    return tl.reshape(tl.broadcast_to(sums[:, None], [GROUPS, WIDTH]), [GROUPS * WIDTH])


@triton.jit
def _where(channels, places, PLACES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """Of this program: its record, its channels, where their values lie, and which of these are there."""
    parts = channels // (GROUPS * WIDTH)
    record, place = (tl.program_id(0) // parts).to(tl.int64), tl.arange(0, PLACES)
    channel = tl.program_id(0) % parts * (GROUPS * WIDTH) + tl.arange(0, GROUPS * WIDTH)
    at = (record * places + place)[:, None] * channels + channel[None, :]
    return record, channel, at, (place < places)[:, None] & (channel >= 0)[None, :]


@triton.jit
def _normalised(values, inside, size, least, RELU: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """Less the mean of the group, over its deviation, which comes along."""
    if RELU:
        values = tl.where(values < 0.0, 0.0, values)  # NaN is not below 0, and stays
    mean = _everywhere(tl.sum(values, axis=0), size, GROUPS, WIDTH)
    centred = tl.where(inside, values - mean[None, :], 0.0)
    short = tl.rsqrt(_everywhere(tl.sum(centred * centred, axis=0), size, GROUPS, WIDTH) + least)
    return centred * short[None, :], short


@triton.jit
def _forward(
    inputs, scale, shift, outputs, channels, places, least,
    RELU: tl.constexpr, PLACES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    _, channel, at, inside = _where(channels, places, PLACES, GROUPS, WIDTH)
    values = tl.load(inputs + at, inside, 0.0).to(tl.float32)
    unit, _ = _normalised(values, inside, places * WIDTH, least, RELU, GROUPS, WIDTH)
    made = unit * tl.load(scale + channel)[None, :] + tl.load(shift + channel)[None, :]
    tl.store(outputs + at, made, inside)


@triton.jit
def _backward(
    inputs, scale, back, found, by_scale, by_shift, channels, places, least,
    RELU: tl.constexpr, PLACES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    record, channel, at, inside = _where(channels, places, PLACES, GROUPS, WIDTH)
    values = tl.load(inputs + at, inside, 0.0).to(tl.float32)
    gradient = tl.load(back + at, inside, 0.0).to(tl.float32)
    unit, short = _normalised(values, inside, places * WIDTH, least, RELU, GROUPS, WIDTH)
    of_shift, of_scale = tl.sum(gradient, axis=0), tl.sum(gradient * unit, axis=0)
    tl.store(by_shift + record * channels + channel, of_shift)
    tl.store(by_scale + record * channels + channel, of_scale)
    if WHOLE:
        factor = tl.load(scale + channel)
        level = _everywhere(factor * of_shift, places * WIDTH, GROUPS, WIDTH)
        along = _everywhere(factor * of_scale, places * WIDTH, GROUPS, WIDTH)
        made = (gradient * factor[None, :] - level[None, :] - unit * along[None, :]) * short[None, :]
        if RELU:
            made = tl.where(values <= 0.0, 0.0, made)
        tl.store(found + at, made, inside)


def _sizes(x: Tensor, groups: int) -> tuple[tuple[int], dict[str, int]]:
    records, channels = x.shape[:2]
    width, places = channels // groups, triton.next_power_of_2(x[0, 0].numel())
    together = max(1, min(groups, _TILE // (places * width)))
    sizes = {"PLACES": places, "GROUPS": together, "WIDTH": width, "num_warps": _WARPS}
    return (records * (groups // together),), sizes


def takes(x: Tensor, groups: int) -> bool:
    """Whether the kernels take such images: what one program goes through has to fit into its registers."""
    if x.dim() != 4 or not x.numel():
        return False
    width, places = x.shape[1] // groups, triton.next_power_of_2(x[0, 0].numel())
    even = all(size & (size - 1) == 0 for size in (width, groups))
    return even and places * width <= 2 * _TILE and x.is_contiguous(memory_format=torch.channels_last)


def group_norm(x: Tensor, groups: int, scale: Tensor, shift: Tensor, least: float, relu: bool = False) -> Tensor:
    """Of images with their channels last, or of their positive parts; so is the result."""
    found, (grid, sizes) = torch.empty_like(x), _sizes(x, groups)
    with torch.cuda.device(x.device):
        _forward[grid](x, scale, shift, found, x.shape[1], x[0, 0].numel(), least, RELU=relu, **sizes)
    return found


def group_norm_back(
    x: Tensor, groups: int, scale: Tensor, back: Tensor, least: float, relu: bool = False, whole: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input (nothing in it unless ``whole``), and of each record's scale and shift."""
    back = back.contiguous(memory_format=torch.channels_last)
    found = torch.empty_like(x) if whole else x
    by_scale, by_shift = (torch.empty(x.shape[:2], dtype=torch.float32, device=x.device) for _ in range(2))
    grid, sizes = _sizes(x, groups)
    with torch.cuda.device(x.device):
        given = x, scale, back, found, by_scale, by_shift, x.shape[1], x[0, 0].numel(), least
        _backward[grid](*given, RELU=relu, WHOLE=whole, **sizes)
    return found, by_scale, by_shift


@triton.jit
def _project(
    gradients, directions, inside, along, squares, steps, filters, size, entries, least,
    STEPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    record, mine = (tl.program_id(0) // filters).to(tl.int64), tl.program_id(0) % filters
    step, place = tl.arange(0, STEPS)[:, None], tl.arange(0, SIZE)[None, :]
    there, at = (step < steps) & (place < size), (step * filters + mine) * size + place
    gradients += record * steps * filters * size
    value, direction = tl.load(gradients + at, there, 0.0), tl.load(directions + at, there, 0.0)
    found = tl.sum(tl.sum(value * direction, axis=1), axis=0)
    mean = tl.sum(tl.sum(value, axis=1), axis=0) / entries
    taken = tl.where(tl.load(inside + mine), found, 0.0)
    left = tl.where(there, value - mean - taken * direction, 0.0)
    tl.store(gradients + at, left, there)
    tl.store(along + tl.program_id(0), found)
    tl.store(squares + tl.program_id(0), tl.sum(tl.sum(left * left, axis=1), axis=0) + least)


def holds_filter(gradients: Tensor) -> bool:
    """Whether a filter's gradient, of (records, steps, filters, entries), fits into the registers of one program."""
    return _held(gradients) <= 2 * _TILE and gradients.is_contiguous()


def _held(gradients: Tensor) -> int:
    steps, size = gradients.shape[1], gradients.shape[3]
    return int(triton.next_power_of_2(steps) * triton.next_power_of_2(size))


def projected(gradients: Tensor, directions: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """What `standardised._projected` does."""
    records, steps, filters, size = gradients.shape
    along, squares = (gradients.new_empty((records, filters)) for _ in range(2))
    if along.numel():
        entries = steps * size
        least = entries * torch.finfo(gradients.dtype).tiny  # squares below it are lost
        given = gradients, directions.contiguous(), inside, along, squares, steps, filters, size, entries, least
        shape = {"STEPS": triton.next_power_of_2(steps), "SIZE": triton.next_power_of_2(size)}
        warps = min(_WARPS, max(1, _held(gradients) // 1024))
        with torch.cuda.device(gradients.device):
            _project[(records * filters,)](*given, **shape, num_warps=warps)
    return along, squares

"""Sums over each record, and windows of images, as one kernel of a GPU each, where torch's are many that do little.

They give what the functions that use them give on a CPU: NaN and infinity included, which tell that a record's
gradient is no number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TOKENS = 512
"""Beyond, one record's matrices are more than one of a GPU's processors should go through alone."""
_BLOCK, _SPAN, _PROGRAMS = 2048, 16384, 512


@triton.jit
def _grams(inputs, outputs, found, tokens, share, lost, tiny, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    record = tl.program_id(0).to(tl.int64)
    inputs += record * tokens * tokens
    outputs += record * tokens * tokens
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    products = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for top in range(0, tokens, ROWS):
        for left in range(0, tokens, COLUMNS):
            there = (top + row)[:, None] * tokens + (left + column)[None, :]
            inside = ((top + row)[:, None] < tokens) & ((left + column)[None, :] < tokens)
            products += tl.load(inputs + there, inside, 0.0) * tl.load(outputs + there, inside, 0.0)
    terms = tl.zeros([COLUMNS], dtype=tl.float32)
    of_inputs = tl.zeros([COLUMNS], dtype=tl.float32)
    of_outputs = tl.zeros([COLUMNS], dtype=tl.float32)
    for first in range(0, tokens, COLUMNS):
        inside = first + column < tokens
        there = (first + column) * (tokens + 1)
        a, g = tl.load(inputs + there, inside, 0.0), tl.load(outputs + there, inside, 0.0)
        a = tl.where(inside, tl.sqrt(tl.where(a < 0.0, 0.0, a) + lost), 0.0)  # NaN is not below 0, and stays
        g = tl.where(inside, tl.sqrt(tl.where(g < 0.0, 0.0, g) + lost), 0.0)
        terms += a * g
        of_inputs += a
        of_outputs += g
    whole, root = tl.sum(terms, axis=0), tl.sqrt(lost)
    a, g = tl.sum(of_inputs, axis=0) * root, tl.sum(of_outputs, axis=0) * root
    total = tl.sum(tl.sum(products, axis=1), axis=0)
    more = share * (whole * whole) + a * a + g * g + tiny * (tokens * tokens)
    tl.store(found + record, tl.where(total < 0.0, 0.0, total) + more)


def from_grams(inputs: Tensor, outputs: Tensor, share: float, lost: float, tiny: float) -> Tensor:
    """What `grams.from_grams` does, of each record's two matrices."""
    records, tokens = inputs.shape[:2]
    found = torch.empty(records, dtype=torch.float32, device=inputs.device)
    with torch.cuda.device(inputs.device):
        given = inputs.contiguous(), outputs.contiguous(), found, tokens, share, lost, tiny
        _grams[(records,)](*given, ROWS=32, COLUMNS=64)
    return found


@triton.jit
def _squares(values, found, size, span, least, BLOCK: tl.constexpr):
    record, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = part.to(tl.int64) * span
    end = tl.minimum(begin + span, size)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(begin, end, BLOCK):
        place = first + tl.arange(0, BLOCK)
        value = tl.load(values + record * size + place, place < end, 0.0)
        total += value * value
    tl.store(found + record * tl.num_programs(1) + part, tl.sum(total, axis=0) + least)


def square_sums(values: Tensor, least: float) -> Tensor:
    """Of each row the sum of squares, and ``least`` more; ``values`` is (records, entries)."""
    records, size = values.shape
    parts = max(1, min(-(-size // _SPAN), -(-_PROGRAMS // max(1, records))))
    span = -(-size // (parts * _BLOCK)) * _BLOCK
    found = torch.empty((records, parts), dtype=torch.float32, device=values.device)
    with torch.cuda.device(values.device):
        _squares[(records, parts)](values, found, size, span, least / parts, BLOCK=_BLOCK)
    return found[:, 0] if parts == 1 else found.sum(dim=1)


@triton.jit
def _unfold(
    images, found, lines, run, height, width, size, step, over, top, left, by, across,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    record, line = (tl.program_id(0) // lines).to(tl.int64), tl.program_id(0) % lines
    first = line // run + line % run * step - top
    images += record * height * width * CHANNELS
    found += (record * lines + line) * size
    for begin in range(0, size, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        window, place = entry // CHANNELS % (ROWS * COLUMNS), entry // (ROWS * COLUMNS * CHANNELS)
        y, x = first + window // COLUMNS * by, place * over - left + window % COLUMNS * across
        inside = (entry < size) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        value = tl.load(images + (y * width + x) * CHANNELS + entry % CHANNELS, inside, 0.0)
        tl.store(found + entry, value, entry < size)


def unfolded(
    images: Tensor,
    lines: int,
    run: int,
    places: int,
    window: tuple[int, int],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    edges: tuple[int, int],
) -> Tensor:
    """What windows see of images with their channels last, and zeros around: (records, lines · places, depth).

    ``window`` counts rows and columns, ``edges`` the zeros above and on the left. Line l begins at row l // run +
    l % run · stride of the image with its edges.
    """
    (records, channels, height, width), depth = images.shape, images.shape[1] * window[0] * window[1]
    found = torch.empty((records, lines * places, depth), dtype=images.dtype, device=images.device)
    if found.numel():
        size, (step, over), (by, across), (top, left) = places * depth, stride, dilation, edges
        given = images, found, lines, run, height, width, size, step, over, top, left, by, across
        with torch.cuda.device(images.device):
            _unfold[(records * lines,)](*given, ROWS=window[0], COLUMNS=window[1], CHANNELS=channels, BLOCK=1024)
    return found


@triton.jit
def _zero_rows(values, which, size, BLOCK: tl.constexpr):
    record = tl.program_id(0).to(tl.int64)
    if tl.load(which + record):
        for first in range(0, size, BLOCK):
            place = first + tl.arange(0, BLOCK)
            tl.store(values + record * size + place, tl.zeros([BLOCK], dtype=values.dtype.element_ty), place < size)


def zero_rows(values: Tensor, which: Tensor) -> None:
    """Zeros into these rows; ``values`` is contiguous. The others are not touched."""
    if values.numel():
        with torch.cuda.device(values.device):
            _zero_rows[(values.shape[0],)](values, which, values[0].numel(), BLOCK=_BLOCK)

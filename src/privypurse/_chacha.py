"""ChaCha20 on the GPU: normal noise from a cryptographic stream, without leaving the device.

The block function is that of RFC 8439, with a 64-bit counter (as in Bernstein's original) so that no run reaches its
end. Key and nonce are 40 bytes from the operating system. The counter lives on the device and is moved on by every
call, so a captured graph that is replayed draws fresh noise too.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_LANES = 128


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _block(key, counter):
    """The sixteen words of the blocks with these counters, for the key and nonce at ``key``."""
    zero = (counter * 0).to(tl.uint32)
    k0 = zero + tl.load(key + 0).to(tl.uint32, bitcast=True)
    k1 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    n0 = zero + tl.load(key + 8).to(tl.uint32, bitcast=True)
    n1 = zero + tl.load(key + 9).to(tl.uint32, bitcast=True)
    c0 = (counter & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s0, s1, s2, s3 = x0, x1, x2, x3
    x4, x5, x6, x7 = k0, k1, k2, k3
    x8, x9, x10, x11 = k4, k5, k6, k7
    x12, x13, x14, x15 = c0, c1, n0, n1
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    low = (x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + k0, x5 + k1, x6 + k2, x7 + k3)
    high = (x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + c0, x13 + c1, x14 + n0, x15 + n1)
    return low, high


@triton.jit
def _long(high, low):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _pair(w0, w1, w2, w3):
    """Box and Muller in float64: 64 bits for the radius, 64 for the angle in half turns."""
    u = tl.maximum(_long(w0, w1).to(tl.float64), 0.5) * 5.421010862427522e-20  # 2^-64
    radius = libdevice.sqrt(tl.maximum(-2.0 * libdevice.log(u), 0.0))
    angle = _long(w2, w3).to(tl.int64, bitcast=True).to(tl.float64) * 1.0842021724855044e-19  # 2^-63
    return radius * libdevice.cospi(angle), radius * libdevice.sinpi(angle)


@triton.jit
def _store(out, place, count, normal, per_step, scale, GRID: tl.constexpr):
    """A normal; or, with GRID, what is there in whole steps plus the normal in whole steps, added in float64."""
    inside = place < count
    if GRID:
        there = tl.load(out + place, mask=inside, other=0.0).to(tl.float64)
        normal = libdevice.rint(there * per_step) + libdevice.rint(normal * scale)
    tl.store(out + place, normal, mask=inside)


@triton.jit
def _normals(key, counter, out, count, lanes, per_step, scale, LANES: tl.constexpr, GRID: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    low, high = _block(key, tl.load(counter) + lane)
    place = tl.where(lane < lanes, lane, count)
    for half in tl.static_range(2):
        words = low if half == 0 else high
        for k in tl.static_range(2):
            one, other = _pair(words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3])
            at = place + (4 * half + 2 * k) * lanes
            _store(out, at, count, one, per_step, scale, GRID)
            _store(out, at + lanes, count, other, per_step, scale, GRID)


@triton.jit
def _words(key, counter, out, LANES: tl.constexpr):
    lane = tl.arange(0, LANES).to(tl.int64)
    low, high = _block(key, tl.load(counter) + lane)
    for k in tl.static_range(8):
        tl.store(out + lane * 16 + k, low[k].to(tl.int32, bitcast=True))
        tl.store(out + lane * 16 + 8 + k, high[k].to(tl.int32, bitcast=True))


class ChaCha:
    """Independent standard normals on one device, from a ChaCha20 stream that no call uses twice."""

    def __init__(self, device: torch.device, key: bytes | None = None) -> None:
        """``key`` is for tests: 32 bytes of key and 8 of nonce. Without it the operating system gives them."""
        raw = torch.frombuffer(bytearray(os.urandom(40) if key is None else key), dtype=torch.int32)
        self._key = raw.to(device)
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)

    def at(self, block: int) -> ChaCha:
        """The same stream from that block on, for tests: numbers that are asked for twice come twice."""
        found = object.__new__(ChaCha)
        found._key = self._key
        found._counter = torch.full_like(self._counter, block)  # filled there: the device is not waited for
        return found

    def normal(self, count: int) -> Tensor:
        out = torch.empty(count, dtype=torch.float64, device=self._key.device)
        self._draw(out, 1.0, 1.0, grid=False)
        return out

    def to_noisy_grid(self, values: Tensor, per_step: float, scale: float) -> None:
        """In place: ⌊values · per_step⌉ + ⌊normal · scale⌉, added in float64. ``values`` is flat.

        Triton takes numbers as float32: ``per_step`` is a power of two, and ``scale`` is rounded up.
        """
        near = np.float32(scale)
        scale = float(near if near >= scale else np.nextafter(near, np.float32(np.inf)))
        self._draw(values, per_step, scale, grid=True)

    def _draw(self, out: Tensor, per_step: float, scale: float, grid: bool) -> None:
        count = out.numel()
        lanes = -(-count // 8)
        with torch.cuda.device(out.device):
            _normals[(-(-lanes // _LANES),)](
                self._key, self._counter, out, count, lanes, per_step, scale, LANES=_LANES, GRID=grid
            )
        self._counter += lanes

    def words(self, blocks: int) -> Tensor:
        """The raw key stream, sixteen words a block; ``blocks`` is a power of two. To compare with other ChaChas."""
        out = torch.empty(blocks * 16, dtype=torch.int32, device=self._key.device)
        with torch.cuda.device(out.device):
            _words[(1,)](self._key, self._counter, out, LANES=blocks)
        self._counter += blocks
        return out

"""ChaCha20 on the GPU: normal noise from a cryptographic stream, without leaving the device.

The block function is that of RFC 8439, with a 64-bit counter (as in Bernstein's original) so that no run reaches its
end. Key and nonce are 40 bytes from the operating system. The counter lives on the device and is moved on by every
call, so a captured graph that is replayed draws fresh noise too.
"""

from __future__ import annotations

import math
import os

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
def _store_pair(out, place, lanes, count, w0, w1, w2, w3, turn, kind: tl.constexpr):
    """Box and Muller: 64 bits for the radius, 64 for the angle."""
    u = tl.maximum(_long(w0, w1).to(kind), 0.5) * 5.421010862427522e-20  # 2^-64
    radius = libdevice.sqrt(tl.maximum(-2.0 * libdevice.log(u), 0.0))
    angle = _long(w2, w3).to(tl.int64, bitcast=True).to(kind) * turn
    tl.store(out + place, radius * libdevice.cos(angle), mask=place < count)
    tl.store(out + place + lanes, radius * libdevice.sin(angle), mask=place + lanes < count)


@triton.jit
def _normals(key, counter, out, count, lanes, turn, LANES: tl.constexpr, DOUBLE: tl.constexpr):
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    low, high = _block(key, tl.load(counter) + lane)
    place = tl.where(lane < lanes, lane, count)
    _store_pair(out, place, lanes, count, low[0], low[1], low[2], low[3], turn, kind)
    _store_pair(out, place + 2 * lanes, lanes, count, low[4], low[5], low[6], low[7], turn, kind)
    _store_pair(out, place + 4 * lanes, lanes, count, high[0], high[1], high[2], high[3], turn, kind)
    _store_pair(out, place + 6 * lanes, lanes, count, high[4], high[5], high[6], high[7], turn, kind)


@triton.jit
def _words(key, counter, out, LANES: tl.constexpr):
    lane = tl.arange(0, LANES).to(tl.int64)
    low, high = _block(key, tl.load(counter) + lane)
    for k in tl.static_range(8):
        tl.store(out + lane * 16 + k, low[k].to(tl.int32, bitcast=True))
        tl.store(out + lane * 16 + 8 + k, high[k].to(tl.int32, bitcast=True))


class ChaChaNormals:
    """Independent standard normals on one device, from a ChaCha20 stream that no call uses twice."""

    def __init__(self, device: torch.device, key: bytes | None = None) -> None:
        """``key`` is for tests: 32 bytes of key and 8 of nonce. Without it the operating system gives them."""
        raw = torch.frombuffer(bytearray(os.urandom(40) if key is None else key), dtype=torch.int32)
        self._key = raw.to(device)
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        out = torch.empty(count, dtype=dtype, device=self._key.device)
        lanes = -(-count // 8)
        turn = math.pi / 2.0**63
        with torch.cuda.device(out.device):
            _normals[(-(-lanes // _LANES),)](
                self._key, self._counter, out, count, lanes, turn, LANES=_LANES, DOUBLE=dtype == torch.float64
            )
        self._counter += lanes
        return out

    def words(self, blocks: int) -> Tensor:
        """The raw key stream, sixteen words a block; ``blocks`` is a power of two. To compare with other ChaChas."""
        out = torch.empty(blocks * 16, dtype=torch.int32, device=self._key.device)
        with torch.cuda.device(out.device):
            _words[(1,)](self._key, self._counter, out, LANES=blocks)
        self._counter += blocks
        return out

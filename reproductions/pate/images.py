"""Oriented gradients of grey images (after Dalal & Triggs 2005): a fixed function of each image by itself.

Nothing is learnt to make them, so they cost nobody anything, and 240 digits are enough for a teacher.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.arrays import AnyArray

_DIRECTIONS, _CELL, _STRIDE, _CHUNK = 8, 7, 3, 1_000


def oriented_gradients(images: AnyArray) -> Tensor:
    """Bytes [n, 1, height, width] → [n, features] of length 1: ink that begins in each direction, by cells."""
    return torch.cat([_of(torch.tensor(images[k : k + _CHUNK])) for k in range(0, len(images), _CHUNK)])


def _of(images: Tensor) -> Tensor:
    ink = images.float() / 255
    across = F.pad(ink[..., 1:-1, 2:] - ink[..., 1:-1, :-2], [1] * 4)
    down = F.pad(ink[..., 2:, 1:-1] - ink[..., :-2, 1:-1], [1] * 4)
    angles = (torch.arange(_DIRECTIONS) * 2 * math.pi / _DIRECTIONS)[:, None, None]
    along = (across * angles.cos() + down * angles.sin()).clamp(min=0)
    sharp = along**3 / (across**2 + down**2 + 1e-12)  # the cube of the cosine: little for other directions
    cells = F.avg_pool2d(sharp, _CELL, _STRIDE, padding=_CELL // 2).sqrt().flatten(1)
    return F.normalize(cells, dim=1)

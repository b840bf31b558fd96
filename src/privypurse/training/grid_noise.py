"""Gaussian noise on a public grid, so that the digits of what is released tell nothing about the sum below (rule 10).

A float sum plus float noise of the same precision cannot reach every float, and which ones it can reach depends on
the sum: whoever knows the others' sum reads off the bits whether somebody is in (Mironov 2012). Here sum and noise
are whole numbers of one public step γ, in float64: the sum S is rounded to the nearest multiple, S' = γ·⌊S/γ⌉, and so
is the noise. For exact normals that is the Gaussian mechanism on S', rounded afterwards (S' + γ⌊N/γ⌉ = γ⌊(S'+N)/γ⌉),
and rounding what was released costs nothing. Every multiple of γ can be reached whoever is in.

What the rounding of S adds to the sensitivity, at most γ in each coordinate and so γ·√d in all, is taken off
everyone's clip norm. What is left, normals of 53-bit numbers instead of real ones, docs/soundness.md bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from privypurse.randomness import Randomness

FINENESS = 28
"""Steps of the grid in a standard deviation of the noise, as a power of two, rounded up.

More would leave fewer of a normal's 53 bits to a step, fewer would cost more of the clip norm: √d/2^28 deviations.
"""


class GridNoise:
    """Noise of one standard deviation on ``size`` coordinates, all multiples of a public step."""

    def __init__(self, deviation: float, size: int) -> None:
        self.deviation = deviation
        self.step = 2.0 ** (math.floor(math.log2(deviation)) - FINENESS)
        """The grid: a power of two, so that scaling by it is exact."""
        self.slack = self.step * math.sqrt(size)
        """How much rounding to the grid can add to the norm of what a person changes."""

    def to_grid(self, values: Tensor, source: Randomness | None) -> None:
        """Turn a flat sum into whole numbers of steps, in place, with noise where there is a ``source`` of it.

        They are added exactly (below 2^53 steps; beyond, what is rounded is their exact sum), and rounded to what
        ``values`` holds only then.
        """
        stream = None if source is None else source.stream(values.device)
        if stream is not None:
            stream.to_noisy_grid(values, 1.0 / self.step, self.deviation / self.step)
            return
        # The step is a power of two, so that nothing but the rounding changes a digit, in any precision.
        values.mul_(1.0 / self.step).round_()
        if source is not None:
            noise = source.normal(values.numel(), values.device, self.deviation / self.step)
            values.copy_(noise.round_().add_(values.to(noise.dtype)))


def pieces(
    values: dict[str, Tensor], device: torch.device, copies: bool = False
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The same values, and flat pieces that they are views of: one for many small ones, several for a large one.

    With ``copies`` nothing of the values given is in them.
    """
    most = 2**17 if device.type == "cpu" else 2**25  # what a CPU's caches hold
    found: list[Tensor] = []
    out = dict(values)
    for names in _groups(((name, value.numel()) for name, value in values.items()), most):
        if len(names) == 1:
            out[names[0]] = values[names[0]].clone() if copies else values[names[0]]
            found += torch.split(out[names[0]].view(-1), most)
            continue
        together = torch.cat([values[name].view(-1) for name in names])
        found.append(together)
        for name, part in zip(names, torch.split(together, [values[name].numel() for name in names]), strict=True):
            out[name] = part.view(values[name].shape)
    return out, found


def _groups(sizes: Iterable[tuple[str, int]], most: int) -> Iterator[list[str]]:
    """Names in runs whose sizes add up to no more than ``most``, or of one alone."""
    names: list[str] = []
    filled = 0
    for name, size in sizes:
        if names and filled + size > most:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += size
    if names:
        yield names

"""Two passes compared, layer by layer: does a record come out of both the same?"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from privypurse.training.gradients.numerics import at_least_float32

# Two results are the same if they differ by no more than these shares: of what records differ by, and of the largest
# entry. First in full floats, then where shorter ones may enter.
_SAME = {True: (1e-3, 1e-4), False: (0.05, 1e-2)}

# Passes of one shape add up in one order, so that even short floats come out the same for a record that stands beside
# others. On average over all entries they may differ by these shares: of what records differ by, and of their size.
_SAME_ON_AVERAGE = (1e-3, 1e-4)

# Where a unit stands at its kink (ReLU, the largest of a pool) rounding decides what comes back through it: all, or
# nothing. What comes back to a record at another place may differ by this share of all that does; in full floats not
# on average over all records.
_AT_KINKS = 0.02

# What equal passes differ by counts that often: the largest entry, which jumps, and the average, which does not.
_CHANCE = (3.0, 1.25)
_BY_CHANCE = 0.1  # of the size of what comes back: no more than this is put down to the order of a GPU's threads
_AGAIN = 8  # times at most that two passes are repeated: what differs by chance does not differ each time

MODEL = "what the model gives"

_SUMS = 1024  # of what a layer gets and gives are kept for each record
_GOLDEN = (5**0.5 - 1) / 2

Seen = list[tuple[str, Tensor]]
"""What every watched layer got and gave, and the model at the end."""


def first_changed(
    whole: Seen,
    other: Seen,
    rows: Tensor,
    again: Callable[[], tuple[Seen, Seen]] | None = None,
    moved: bool = False,
) -> str | None:
    """The first layer for which these rows, the first ones if ``other`` has no more, are not the same in both.

    Rows that were ``moved`` to other places may be added up in another order, as may those of another number of
    records. ``again`` makes both passes once more; it is for backward passes, and asked for on a GPU and where rows
    were moved: a GPU adds up some sums (of attention) in whatever order threads come, and what equal passes differ by
    tells nothing of other records; and a record that had a unit at its kink then stands at another place. What
    depends on others does so each time.
    """
    name = _first_changed(whole, other, rows, None, moved, again is not None)
    if name is None or again is None or not (moved or whole[0][1].is_cuda):
        return name
    by_itself: list[Tensor] | None = None
    for _ in range(_AGAIN):
        repeated, other = again()
        if len(repeated) != len(whole):
            break
        if not moved:
            apart = [_by_itself(one, now) for (_, one), (_, now) in zip(whole, repeated, strict=True)]
            by_itself = apart if by_itself is None else list(map(torch.maximum, by_itself, apart))
        name = _first_changed(repeated, other, rows, by_itself, moved, True)
        if name is None:
            break
    return name


def _first_changed(
    whole: Seen, other: Seen, rows: Tensor, by_itself: list[Tensor] | None, moved: bool, came_back: bool
) -> str | None:
    names: list[str] = []
    changed: list[Tensor] = []
    most = int(rows[-1]) + 1
    index = {one.device: rows.to(one.device) for _, one in whole}
    for place, ((name, one), (_, two)) in enumerate(zip(whole, other, strict=False)):
        alike = one.shape == two.shape and not moved
        if one.shape[:1] < (most,) or (name == MODEL and not (one.is_floating_point() or alike)):
            continue  # the largest of nearly equal numbers goes by rounding where sums are in another order
        mine, now = one[index[one.device]], two[index[one.device]]
        if mine.shape == now.shape and not _equal(mine, now):
            alone = one.new_zeros((2,), dtype=torch.float64) if by_itself is None else by_itself[place]
            kinks = moved and came_back
            verdict = _changed(mine, now, one, alone, one_shape=alike, kinks=kinks)
            changed.append(verdict.to(whole[0][1].device))
            names.append(name)
    verdicts = torch.stack(changed).tolist() if changed else []  # a GPU is asked once
    return next((name for name, verdict in zip(names, verdicts, strict=True) if verdict), None)


def _equal(mine: Tensor, now: Tensor) -> bool:
    """Whether all entries are equal, as they mostly are on a CPU; a GPU would have to be waited for."""
    return mine.device.type == "cpu" and torch.equal(mine, now)


def _apart(mine: Tensor, now: Tensor) -> Tensor:
    """By how much entries differ; of those that are not finite only infinities of either sign do."""
    both, neither = torch.isfinite(mine) & torch.isfinite(now), ~(torch.isfinite(mine) | torch.isfinite(now))
    neither &= mine != -now  # never so of what is no number
    return torch.where(both | neither, torch.where(both, mine - now, 0.0), torch.inf).double().abs()


def _by_itself(one: Tensor, again: Tensor) -> Tensor:
    """By how much two equal passes differ: the largest entry, and on average."""
    apart = _apart(one, again)
    return torch.stack([apart.max(), apart.mean()]) if apart.numel() else apart.new_zeros(2)


def _changed(mine: Tensor, now: Tensor, whole: Tensor, by_itself: Tensor, *, one_shape: bool, kinks: bool) -> Tensor:
    """Whether rows of ``whole`` came out differently, by more than the order of a sum explains.

    What they differ by ``by_itself`` counts up to a share of their size.
    """
    if not whole.is_floating_point():
        return (mine != now).any()
    finite = torch.where(torch.isfinite(whole), whole, 0.0).double()
    apart = (finite - finite[:1]).abs()
    by, size = _apart(mine, now), finite.abs()
    device = whole.device.type
    full = device == "cpu" and whole.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(device)
    if by.numel() == 0:
        return torch.zeros((), dtype=torch.bool, device=whole.device)
    of_spread, of_largest = _SAME[full]
    by_chance, on_average = (times * most for times, most in zip(_CHANCE, by_itself, strict=True))
    chance = torch.minimum(by_chance, _BY_CHANCE * size.max())
    changed = by.max() > torch.maximum(of_spread * apart.max(), of_largest * size.max()) + chance
    average = _SAME_ON_AVERAGE[0] * apart.mean() + _SAME_ON_AVERAGE[1] * size.mean()
    if kinks:
        own = torch.where(torch.isfinite(mine), mine, 0.0).double().abs()
        by_record, of_record = (each.reshape(len(each), -1).sum(dim=1) for each in (by, own))
        differ = (by_record > _AT_KINKS * of_record).any()
        return changed & (differ | (by.mean() > average) if full else differ)
    if not one_shape:
        return changed
    return changed | (by.mean() > average + torch.minimum(on_average, _BY_CHANCE * size.mean()))


def digest(value: Tensor) -> Tensor:
    """The rows, or sums over parts of each, with weights that are like none of a model's: copies are too much.

    What a layer gives does not tell what it is given while its weights are zero, as they often are at first.
    """
    if not value.is_floating_point() or value.dim() < 2 or value.shape[1:].numel() <= _SUMS:
        return value.detach().clone()
    rows = at_least_float32(value).flatten(1)
    rows = rows * _weights(rows.shape[1], rows.device, rows.dtype)
    parts = functional.pad(rows, (0, -rows.shape[1] % _SUMS)).reshape(rows.shape[0], _SUMS, -1).sum(dim=2)
    return parts if rows.dtype == value.dtype else parts.to(torch.bfloat16)  # which are then compared as short floats


@lru_cache(maxsize=8)
def _weights(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    places = torch.arange(1, size + 1, dtype=torch.float64, device=device)
    return ((places * _GOLDEN).frac() - 0.5).to(dtype)

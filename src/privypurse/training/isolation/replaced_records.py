"""The same batch with other records in the places of some: what is asked to see whether records mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.training.forms import mapped

NO_BOUND = "so clipping would bound nothing (records must not mix; see docs/soundness.md#isolation)"
"""What follows where records mix, for errors to say."""


def halves(records: int) -> tuple[Tensor, Tensor]:
    """Two halves of the records, chosen at random, each ascending."""
    order = torch.from_numpy(np.random.default_rng().permutation(records))
    return order[: records // 2].sort().values, order[records // 2 :].sort().values


def other_places(records: int) -> Tensor:
    """An order of the records, chosen at random, in which each stands at another place: one cycle of them all."""
    chosen = torch.from_numpy(np.random.default_rng().permutation(records))
    order = torch.empty_like(chosen)
    order[chosen] = chosen.roll(1)
    return order


def reordered(values: Any, order: Tensor, records: int, constants: frozenset[int] = frozenset()) -> Any:
    """All that has a row for each record, with these in another order."""
    return _taken(values, order, records, constants)


def with_others(values: Any, kept: Tensor, records: int, constants: frozenset[int] = frozenset()) -> Any:
    """All that has a row for each record, with the rows that are not kept replaced by copies of kept ones.

    ``constants`` are the ids of tensors that have none, whatever their shape.
    """
    source = kept[torch.arange(records) % len(kept)]
    source[kept] = kept
    return _taken(values, source, records, constants)


def first_rows(values: Any, few: int, records: int, constants: frozenset[int] = frozenset()) -> Any:
    """The first few rows of all that has a row for each record; the same again where there are not so many."""
    return _taken(values, torch.arange(few) % records, records, constants)


def _taken(values: Any, rows: Tensor, records: int, constants: frozenset[int]) -> Any:
    def taken(value: Tensor) -> Tensor:
        own = counts_records(value, records) and id(value) not in constants
        return value.detach()[rows.to(value.device)] if own else value

    return mapped(taken, values)


def turned_round(values: Any) -> Any:
    """A record that is like nobody's, for one that stands alone: its entries turned round, numbers negative."""

    def turned(value: Tensor) -> Tensor:
        if value.dim() == 0:
            return value
        back = value.detach().flip(-1) if value.dim() > 1 else value.detach()
        return -back if value.is_floating_point() else back

    return mapped(turned, values)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def counts_records(value: Any, records: int) -> bool:
    """Whether this has a row for each record."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == records

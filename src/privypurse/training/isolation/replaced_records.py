"""The same batch with other records in the places of some: what is asked to see whether records mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

NO_BOUND = "so clipping would bound nothing (records must not mix; see docs/soundness.md#isolation)"
"""What follows where records mix, for errors to say."""


def halves(records: int) -> tuple[Tensor, Tensor]:
    """Two halves of the records, chosen at random, each ascending."""
    order = torch.from_numpy(np.random.default_rng().permutation(records))
    return order[: records // 2].sort().values, order[records // 2 :].sort().values


def with_others(values: Any, kept: Tensor, records: int) -> Any:
    """All that has a row for each record, with the rows that are not kept replaced by copies of kept ones."""
    source = kept[torch.arange(records) % len(kept)]
    source[kept] = kept

    def replaced(value: Any) -> Any:
        return value.detach()[source.to(value.device)] if counts_records(value, records) else value

    return tree_map(replaced, values)


def first_rows(values: Any, few: int, records: int) -> Any:
    """The first few rows of all that has a row for each record."""
    return tree_map(lambda value: value.detach()[:few] if counts_records(value, records) else value, values)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def counts_records(value: Any, records: int) -> bool:
    """Whether this has a row for each record."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == records

"""What parts of models, known by name, do for the whole batch at once: done for every record while training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from torch import nn

from privypurse.training.gradients.flattened_rows import in_lists, take_lists_apart
from privypurse.training.gradients.relative_positions import look_up_for_each, with_tables


def for_each_record(model: nn.Module) -> Callable[[ExitStack, int], None]:
    """Has the model run so for that many records, and leaves the undoing with the stack."""
    tables, lists = with_tables(model), in_lists(model)

    def prepare(undo: ExitStack, records: int) -> None:
        look_up_for_each(tables, undo, records)
        take_lists_apart(lists, undo, records)

    return prepare

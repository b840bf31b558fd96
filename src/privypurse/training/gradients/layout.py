"""Where a layer has its records: in the first dimension, in another one, or nowhere, in one row for all of them.

A layer that gives one row however many records there are (positions, learned queries) gives it once for each record
while training: (1, ...) becomes (records, ...), so that what comes back to a row is that record's gradient. That the
row is the same whoever was drawn, and that no record uses another's, is asked in `isolation/model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from privypurse.errors import InvalidInput

COUNT_RECORDS = (
    "the first dimension of what every trainable layer gets and gives must count records. Keep (records, tokens, "
    "features) instead of (records · tokens, features), make recurrent layers that are given records first with "
    "batch_first=True, and look up positions for every record: table(positions.expand(records, -1)). What has no row "
    "for each record, as a table of relative positions, cannot be taken apart by person: freeze it by "
    "layer.requires_grad_(False) before the optimizer is made"
)


@dataclass(frozen=True)
class Constant:
    """A tensor that a layer is given, the same for all records."""

    value: Tensor


def form(given: Any) -> str:
    """In which form something is given: by which names, and how many dimensions each tensor has."""
    leaves, structure = tree_flatten(given)
    return f"{structure} {[leaf.dim() if isinstance(leaf, Tensor) else None for leaf in leaves]}"


@dataclass(frozen=True)
class Layout:
    """Of a layer, in all of its calls."""

    dim: int = 0
    """The dimension of its inputs and its output that counts records."""
    one_row: bool = False
    """Whether it gives one row for all records in some calls; then ``dim`` is 0."""
    constants: frozenset[tuple[str, frozenset[int]]] = frozenset()
    """For rules that take all apart that a layer is given: which tensors are the same for all records, by `form`."""
    complaint: str | None = None
    """Why the layer cannot be trained, if so: records are not to be found in what it is given, or gives."""

    def to_front(self, values: Any) -> Any:
        """All tensors with records in their first dimension."""
        if self.dim == 0:
            return values
        return tree_map_only(Tensor, lambda value: value.movedim(self.dim, 0), values)

    def for_each(self, value: Any, records: int) -> Any:
        """A row for each record, where there is one for all."""
        one = self.one_row and isinstance(value, Tensor) and value.shape[:1] == (1,)
        return value.expand(records, *value.shape[1:]) if one else value

    def marked(self, given: Any) -> Any:
        """What the layer is given, with `Constant` around what is the same for all records."""
        if not self.constants:
            return given
        same = dict(self.constants).get(form(given))
        if same is None:
            raise InvalidInput(
                "a layer that no rule knows is given other tensors, or of other dimensions, than in the first pass "
                "of this run, so that nobody knows which of them count records; call it alike in all passes"
            )
        leaves, structure = tree_flatten(given)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for number in same:
            leaves[places[number]] = Constant(leaves[places[number]])
        return tree_unflatten(leaves, structure)


RECORDS_FIRST = Layout()

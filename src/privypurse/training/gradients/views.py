"""Several views of a record: its gradient is the mean over them, taken before it is clipped.

Augmentation multiplicity (De et al. 2022, arXiv 2204.13650, section 3.4): each record goes through the model several
times, each time with other random numbers (an augmentation, dropout), and its loss is the mean over these. To the
model a view is a row like any other, so that views are kept apart as records are. To a rule the views of a record are
like more tokens or places of it: (records · views, ...) becomes (records, views, ...), and a gradient is summed over
all of them before its norm is taken. One record stays one unit, whatever the number of views.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from privypurse.training.gradients.rule import Call, Rule


class _KeptRule(Rule):
    """Of a call whose gradients are all kept."""

    def per_record(self, call: Call) -> dict[str, Tensor]:
        return call.kept


_KEPT = _KeptRule()


def repeated(given: Any, records: int, views: int) -> Any:
    """Every row of each tensor that counts records so many times, one behind the other."""

    def rows(value: Any) -> Any:
        counts = isinstance(value, Tensor) and value.shape[:1] == (records,)
        return value.repeat_interleave(views, dim=0) if counts else value

    return given if views == 1 else tree_map(rows, given)


def by_record(values: Tensor, views: int) -> Tensor:
    """(records · views, ...) as (records, views, ...)."""
    return values.reshape(values.shape[0] // views, views, *values.shape[1:])


def settle(call: Call) -> None:
    """Called once the gradient of every view's output is there: from now on the call is one of records.

    Rules that do not know of views make every view's gradient. Those of a record are added up then and there, so that
    what is measured is what is added up later.
    """
    call.round_as_autocast()
    if call.views == 1:
        call.rule.settle(call)
    elif call.rule.takes_views:
        first, *others = call.inputs
        call.inputs = by_record(first, call.views), *others
        call.gradient = by_record(call.output_gradient, call.views)
        call.rule.settle(call)
    else:
        made = call.rule.required(call)
        call.keep({name: by_record(value, call.views).sum(dim=1) for name, value in made.items()})
        call.gradient, call.rule = by_record(call.output_gradient, call.views), _KEPT

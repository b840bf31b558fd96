"""Whose row is whose, from the loader's batch to the loss: see `tensor`."""

from privypurse.training.isolation.tracking.operation import require_constant
from privypurse.training.isolation.tracking.record_sum import FOREIGN, over_records
from privypurse.training.isolation.tracking.states import Drawn, Mixed, Places, Rows, Total, plain, state_of
from privypurse.training.isolation.tracking.structures import handed, mixed, place_of, untracked
from privypurse.training.isolation.tracking.tensor import Tracked, leave_to_python, tracked

__all__ = [
    "FOREIGN",
    "Drawn",
    "Mixed",
    "Places",
    "Rows",
    "Total",
    "Tracked",
    "handed",
    "leave_to_python",
    "mixed",
    "over_records",
    "place_of",
    "plain",
    "require_constant",
    "state_of",
    "tracked",
    "untracked",
]

"""Whose row is whose, from the loader's batch to the loss: see `grammar`."""

from privypurse.training.isolation.tracking.crossing import FOREIGN, over_records
from privypurse.training.isolation.tracking.handing import handed, mixed, place_of, untracked
from privypurse.training.isolation.tracking.places import Drawn, Places
from privypurse.training.isolation.tracking.tracked import (
    Mixed,
    Rows,
    Total,
    Tracked,
    leave_to_python,
    plain,
    state_of,
    tracked,
)

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
    "state_of",
    "tracked",
    "untracked",
]

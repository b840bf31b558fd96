"""Said once in a process: without a ledger nobody adds up what several uses take from the same people."""

from __future__ import annotations

import warnings

from privypurse.errors import PrivyPurseWarning

NOT_KEPT = (
    "No ledger: nobody is charged, and every ε counts as if nothing had been spent before; what other trainings and "
    "questions take from the same people is not added up."
)
_HOW = "With ledger=pp.Ledger.open(url) each person has one purse for life."
_said = False


def said() -> None:
    """For who says it otherwise: commands, beside the plan that they print."""
    global _said
    _said = True


def say_not_kept(seed: int | None, *, stacklevel: int = 3) -> None:
    """A warning, the first time; a seeded run is for tests and takes nothing from anybody."""
    if seed is None and not _said:
        said()
        warnings.warn(f"{NOT_KEPT} {_HOW}", PrivyPurseWarning, stacklevel=stacklevel)

"""What a plan or a schedule remembers of the ledger that it was made with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from privypurse._validate import real
from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput


class Own(StrEnum):
    """What of a person follows from what they have left; all else is one for everybody, and public (rule 15)."""

    RATE = "rate"
    CLIP_NORM = "clip norm"
    PRESENCE = "presence"
    """Whether they take part: at the one rate and clip norm, or not at all."""


@dataclass(frozen=True)
class UnderLedger:
    """The ledger that it was made with, the run's public cap there, and its people."""

    id: str
    at_most: float | None
    """An ε at each person's δ that public balances lose; None: all that they have."""
    numbers: IntArray = field(repr=False, compare=False)
    """Of each person planned, in the ledger: all of them lose the public cap, whoever has records then."""


@dataclass(frozen=True)
class PlannedUnderLedger(UnderLedger):
    """The same of a plan, with what people have of their own."""

    own: Own
    rate: float | None
    """The sampling rate of all who take part, whether or not anybody does; None where each has their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", Own(self.own))
        if (self.rate is None) != (self.own is Own.RATE):
            raise InvalidInput(f"ledger.rate is {self.rate!r}, where people have their own {self.own}")
        if self.rate is not None:
            object.__setattr__(self, "rate", real(self.rate, "ledger.rate", above=0, most=1))

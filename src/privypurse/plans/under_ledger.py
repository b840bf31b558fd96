"""What a plan remembers of the ledger that it was made with."""

from dataclasses import dataclass
from enum import StrEnum

from privypurse._validate import real
from privypurse.errors import InvalidInput


class Own(StrEnum):
    """What of a person follows from what they have left; all else is one for everybody, and public (rule 15)."""

    RATE = "rate"
    CLIP_NORM = "clip norm"
    PRESENCE = "presence"
    """Whether they take part: at the one rate and clip norm, or not at all."""


@dataclass(frozen=True)
class UnderLedger:
    """The ledger that a plan was made with, the run's public cap there, and what people have of their own."""

    id: str
    at_most: float | None
    """An ε at each person's δ that public balances lose; None: all that they have."""
    own: Own
    rate: float | None
    """The sampling rate of all who take part, whether or not anybody does; None where each has their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", Own(self.own))
        if (self.rate is None) != (self.own is Own.RATE):
            raise InvalidInput(f"ledger.rate is {self.rate!r}, where people have their own {self.own}")
        if self.rate is not None:
            object.__setattr__(self, "rate", real(self.rate, "ledger.rate", above=0, most=1))

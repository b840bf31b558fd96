"""What a plan remembers of the ledger that it was made with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UnderLedger:
    """The ledger that a plan was made with, and the run's public cap there."""

    id: str
    at_most: float | None
    """An ε at each person's δ that public balances lose; None: all that they have."""

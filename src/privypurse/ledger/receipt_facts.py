"""What a receipt holds: what one person allowed and what was done with it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fractions import Fraction

from privypurse.ledger.lifetime import Rung


class State(StrEnum):
    """How somebody stands in a ledger: only who is ACTIVE is charged any more."""

    ACTIVE = "active"
    FROZEN = "frozen"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class ConsentEvent:
    """What the person said once: so much from then on (``rung``), or no more."""

    time: datetime
    state: State
    rung: Rung | None
    purpose: str = ""
    valid_until: datetime | None = None
    recorded_by: str = ""


@dataclass(frozen=True)
class Use:
    """One run that listed the person; units are of the receipt's measure."""

    run: str
    """Its name; none for what was used before the person was forgotten, which is only a sum."""
    what: str
    purpose: str
    time: datetime
    charged: int
    """What it cost this person: as reserved while it runs, as settled afterwards. Describes, and limits nothing."""
    at_most: int
    """Its public cap, fixed beforehand: what it could cost at most."""
    settled: bool
    allowed_purpose: str = ""
    """What the person had allowed when it began; recorded and shown beside ``purpose``, compared by nobody here."""


@dataclass(frozen=True)
class ReceiptFacts:
    """Of one person: what they allowed, how much of it each use took, and what is left.

    It holds nothing of anybody else, not even a fingerprint of the ledger, which follows from everybody's entries.
    Units add up, ε does not. A purse has a limit at several measures (the Rényi orders of the present rung and of
    those above it, and the part set apart): a receipt is at the one that is nearest to its limit.
    """

    receipt_id: str
    made: datetime
    ledger_id: str
    person: str
    unit: str
    adversary: str
    state: State
    rung: Rung
    highest: Rung
    """The highest rung ever held: its (ε, δ) covers everything that was released so far."""
    measure: str
    limit: int
    """What the present rung allows at that measure, in units."""
    consents: tuple[ConsentEvent, ...]
    uses: tuple[Use, ...]
    contact: str = ""
    uses_lost: bool = False
    """Whether the ledger was recovered from an old copy since: later uses of anybody in it, and what they said then,
    are lost, and up to all of the purse may have been used. Then ``used`` is what is on record, and nothing tells
    what is left."""

    @property
    def used(self) -> int:
        """All uses on record together, in units."""
        return sum(use.charged for use in self.uses)

    @property
    def left(self) -> int:
        """What is left, in units: nothing for whoever lowered their limit below what was used, or had uses lost."""
        return 0 if self.uses_lost else max(0, self.limit - self.used)

    def share(self, units: int) -> Fraction:
        """The part of the purse that these units are, exactly."""
        return Fraction(units, self.limit)

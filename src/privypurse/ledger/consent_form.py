"""A consent form: one page with a ledger's rungs in plain words, which gives a record that `ledger import` reads.

The page is for people who do not know what ε is. Risks are frequencies, every rung is told in the same words, from
the strictest on, and none is chosen beforehand: nobody is to be nudged (Boenisch et al. 2023, arXiv 2303.17046,
Appendix A). It loads and sends nothing; the browser lets the person save their record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from privypurse._pages import page
from privypurse.errors import InvalidInput
from privypurse.ledger import consents, entries
from privypurse.ledger.bets import COIN, GUESSES, right_guesses
from privypurse.ledger.consents import Consent
from privypurse.ledger.lifetime import Rung

COLUMNS = ("person", "epsilon", "purpose", "valid_until", "recorded_by")
"""Of the record that the page gives, as `Ledger.import_table` reads them."""
RECORDED_BY = "consent form"


@dataclass(frozen=True)
class Choice:
    """One rung as the page tells it."""

    name: str
    epsilon: str
    right: int


def consent_form(
    rungs: Sequence[Rung],
    *,
    purpose: str,
    adversary: str = "server",
    names: Sequence[str] | None = None,
    contact: str = "",
    valid_until: str = "",
) -> str:
    """The page, as HTML.

    ``purpose`` says what the data are for, ``names`` what the rungs are called, from the strictest on (numbers, if
    none are given), ``contact`` whom to give the record to, and ``valid_until`` (a date) the last day of the
    consent; a person may choose an earlier one.
    """
    if not purpose.strip():
        raise InvalidInput('purpose is empty; say what the data are for, such as purpose="to plan bus lines"')
    if names is not None and len(names) != len(rungs):
        raise InvalidInput(f"names has {len(names)} entries for {len(rungs)} rungs; give one for each")
    if valid_until:
        _require_day_to_come(valid_until)
    called = names or [f"Level {place}" for place in range(1, len(rungs) + 1)]
    choices = [
        Choice(name, repr(float(rung.epsilon)), right_guesses(rung.epsilon, rung.delta))
        for name, rung in zip(called, rungs, strict=True)
    ]
    return page(
        "consent_form.html",
        script="consent_form.js",
        choices=choices,
        purpose=" ".join(purpose.split()),
        sees=_SEES[adversary],
        contact=contact,
        valid_until=valid_until,
        columns=",".join(COLUMNS),
        recorded_by=RECORDED_BY,
        coin=COIN,
        guesses=GUESSES,
        delta=max(rung.delta for rung in rungs),
    )


def _require_day_to_come(valid_until: str) -> None:
    try:
        date.fromisoformat(valid_until)
    except ValueError:
        said = "write a date as 2030-12-31, or leave it out for none"
        raise InvalidInput(f"valid_until is {valid_until!r}; {said}") from None
    consents.refuse_past(Consent.of(None, valid_until, ""), entries.now())


_SEES = {
    "server": "sees every step of every computation",
    "public": "sees everything that is ever published",
}

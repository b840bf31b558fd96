"""Receipts: of one person, in plain words, as a page and as JSON-LD."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from privypurse._pages import page
from privypurse.ledger import receipt_json, receipt_words
from privypurse.ledger.entries import moment
from privypurse.ledger.history import Event, was_frozen
from privypurse.ledger.lifetime import CEILING, Lifetime
from privypurse.ledger.receipt_facts import ConsentEvent, ReceiptFacts, State, Use


@dataclass(frozen=True)
class Receipt(ReceiptFacts):
    """What one person allowed, how much of it each use took, what is left, and what that means."""

    def text(self) -> str:
        """In plain words."""
        return receipt_words.text(self)

    def html(self) -> str:
        """One page in plain words, which loads nothing from anywhere."""
        title, sections = receipt_words.TITLE, receipt_words.sections(self)
        used = min(self.used, self.limit)
        return page("receipt.html", title=title, sections=sections, whole=self.limit, used=used)

    def json_ld(self) -> dict[str, Any]:
        """JSON-LD in the names of ISO/IEC TS 27560:2023 as W3C's Data Privacy Vocabulary profiles it."""
        return receipt_json.json_ld(self)


@dataclass(frozen=True)
class _Run:
    """A use at all columns of charges; a receipt shows it at the one where least is left."""

    begun: Event
    charged: Sequence[int]
    caps: Sequence[int]
    settled: bool
    allowed_purpose: str


def receipt_of(
    events: Sequence[Event],
    lifetime: Lifetime,
    *,
    person: str,
    made: datetime,
    ledger_id: str,
    unit: str,
    adversary: str,
    contact: str = "",
) -> Receipt:
    """The receipt of the person whose events these are, oldest first."""
    rungs = [event.rung for event in events if event.rung is not None]
    consents = tuple(_consent(event, lifetime) for event in events if event.kind not in _USES)
    runs = _runs(events)
    totals = [sum(run.charged[column] for run in runs) for column in range(lifetime.columns)]
    column = _fullest(lifetime, rungs[-1], totals)
    return Receipt(
        receipt_id=str(uuid.uuid4()),
        made=made,
        ledger_id=ledger_id,
        person=person,
        unit=unit,
        adversary=adversary,
        state=_state(consents, made, frozen=_is_over(lifetime, rungs[-1], totals) or was_frozen(events)),
        rung=lifetime.rungs[rungs[-1]],
        highest=lifetime.rungs[max(*rungs, *(event.meta.get("highest", 0) for event in events))],
        measure=_measure(lifetime, column),
        limit=max(1, int(lifetime.limits[rungs[-1], column])),
        consents=consents,
        uses=tuple(_use(run, column) for run in runs),
        contact=contact,
        uses_lost=was_frozen(events),
    )


def _runs(events: Sequence[Event]) -> list[_Run]:
    """The runs that listed the person, each with what it costs them by its latest entry."""
    runs: dict[str, _Run] = {}
    rung, allowed = 0, ""
    for event in events:
        if event.kind == "forget" and event.charged is not None:
            allowed = _NONE
            if any(event.charged):
                runs[""] = _Run(event, event.charged, event.charged, event.meta["settled"], "")
        elif event.rung is not None:
            rung, allowed = event.rung, event.meta.get("purpose", "")
        elif event.kind == "withdraw":
            allowed = _NONE
        elif event.run is not None and event.charged is not None:
            before = runs.get(event.run)
            if before is None:
                caps, settled = event.meta["caps"][rung], event.kind == "charge"
                past = event.meta.get("past", False)
                most = [*map(max, caps, event.charged)] if past else caps  # no cap held before the ledger
                purpose = _NOT_RECORDED if past else allowed
                runs[event.run] = _Run(event, event.charged, most, settled, purpose)
            else:
                runs[event.run] = replace(before, charged=event.charged, settled=True)
    return list(runs.values())


def _consent(event: Event, lifetime: Lifetime) -> ConsentEvent:
    until = event.meta.get("valid_until")
    return ConsentEvent(
        time=event.time,
        state=_ENDS.get(event.kind, State.ACTIVE),
        rung=None if event.rung is None or event.kind == "forget" else lifetime.rungs[event.rung],
        purpose=event.meta.get("purpose", ""),
        valid_until=None if until is None else moment(until),
        recorded_by=event.meta.get("recorded_by", ""),
    )


def _use(run: _Run, column: int) -> Use:
    forgotten = run.begun.kind == "forget"
    return Use(
        run="" if forgotten else str(run.begun.run),
        what=_BEFORE if forgotten else run.begun.meta["what"],
        purpose="" if forgotten else run.begun.meta["purpose"],
        time=run.begun.time,
        charged=run.charged[column],
        at_most=run.caps[column],
        settled=run.settled,
        allowed_purpose=run.allowed_purpose,
    )


def _fullest(lifetime: Lifetime, rung: int, totals: Sequence[int]) -> int:
    """The column where least of the limit is left; the rung's own, where several are alike."""
    limits = [int(limit) for limit in lifetime.limits[rung]]

    def fullness(column: int) -> tuple[Fraction, bool]:
        return Fraction(totals[column], max(1, limits[column])), column == rung

    return max((column for column, limit in enumerate(limits) if limit < CEILING), key=fullness)


def _measure(lifetime: Lifetime, column: int) -> str:
    if column < len(lifetime.rungs):
        return f"Rényi divergence of order {lifetime.rungs[column].order:g}"
    return f"{'εδ'[column - len(lifetime.rungs)]} of releases known only as (ε, δ)"


def _is_over(lifetime: Lifetime, rung: int, totals: Sequence[int]) -> bool:
    return any(total > limit for total, limit in zip(totals, lifetime.limits[rung].tolist(), strict=True))


def _state(consents: Sequence[ConsentEvent], now: datetime, *, frozen: bool) -> State:
    last = max((place for place, consent in enumerate(consents) if consent.rung is not None), default=0)
    since = {consent.state for consent in consents[last:]}
    for ended in (State.FORGOTTEN, State.WITHDRAWN):
        if ended in since:
            return ended
    if frozen:
        return State.FROZEN
    until = consents[last].valid_until
    return State.EXPIRED if until is not None and until <= now else State.ACTIVE


_NONE = "none: you had withdrawn"
_BEFORE = "all before you were forgotten"
_USES = ("reserve", "settle", "charge")
_NOT_RECORDED = "not recorded: used before this ledger"
_ENDS = {"withdraw": State.WITHDRAWN, "forget": State.FORGOTTEN, "freeze": State.FROZEN}

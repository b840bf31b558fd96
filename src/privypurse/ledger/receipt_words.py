"""A receipt in plain words: sections that the page and the plain text are both made of."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import zip_longest

from privypurse.ledger import row_purses
from privypurse.ledger.bets import COIN, GUESSES, right_guesses
from privypurse.ledger.lifetime import Rung
from privypurse.ledger.receipt_facts import ConsentEvent, ReceiptFacts, State, Use

TITLE = "Receipt: what was done with your data"
_WIDTH = 100
_NARROWEST = 10  # of a column of words


@dataclass(frozen=True)
class Section:
    """A heading and what is under it, in this order."""

    title: str
    words: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    """The names of the columns, then the rows."""
    numbers: frozenset[int] = frozenset()
    """Which columns hold numbers."""
    notes: tuple[str, ...] = ()
    metered: bool = False


@dataclass(frozen=True)
class _Unit:
    """What a purse protects, in the words of the sentences that speak of it."""

    protects: str
    data: str
    which: str
    others: str
    nothing: str
    listed: str
    more: tuple[str, ...] = ()


def sections(receipt: ReceiptFacts) -> list[Section]:
    """The whole receipt."""
    plain = [_short(receipt), _allowed(receipt), _used(receipt), _bet(receipt), _promise(receipt), _rights(receipt)]
    return [*plain, _for_experts(receipt)]


def _short(receipt: ReceiptFacts) -> Section:
    lost = (_LOST,) if receipt.uses_lost else ()
    return Section(
        "In short",
        (f"You allowed {_amount(receipt.rung)}. {_spent(receipt)}", _STATES[receipt.state], *lost),
        (
            ("this receipt is for", receipt.person),
            ("made", _time(receipt.made)),
            ("receipt", receipt.receipt_id),
            ("ledger", receipt.ledger_id),
        ),
        metered=not receipt.uses_lost,
    )


def _spent(receipt: ReceiptFacts) -> str:
    used = percent(receipt.share(receipt.used), up=True)
    if receipt.uses_lost:
        return (
            "Later uses are lost, so nobody can say how much of it has been used: it may be all of it. On record are "
            f"uses of {used}."
        )
    return f"{used} of it has been used, {percent(receipt.share(receipt.left), up=False)} is left."


def _allowed(receipt: ReceiptFacts) -> Section:
    rows = tuple(_consent(consent, again) for consent, again in _each_once(receipt.consents))
    return Section(
        "What you allowed",
        (
            "ε (epsilon) says how much everything that is made with your data may ever tell about you: the smaller, "
            "the less. It is one purse for all uses together, and for good; nothing fills it again.",
        ),
        table=(("since", "what", "purpose", "valid until", "recorded by"), *rows),
    )


def _each_once(consents: tuple[ConsentEvent, ...]) -> list[tuple[ConsentEvent, datetime | None]]:
    """What was said, and when it was said again last, word for word, with nothing else between."""
    found: list[tuple[ConsentEvent, datetime | None]] = []
    for consent in consents:
        if found and replace(consent, time=found[-1][0].time) == found[-1][0]:
            found[-1] = found[-1][0], consent.time
        else:
            found.append((consent, None))
    return found


def _consent(consent: ConsentEvent, again: datetime | None) -> tuple[str, ...]:
    what = _EVENTS[consent.state] if consent.rung is None else _amount(consent.rung)
    what += "" if again is None else f", said again {_time(again)}"
    until = "until you withdraw" if consent.valid_until is None else _time(consent.valid_until)
    ends = "" if consent.rung is None else until
    if consent.state is State.FORGOTTEN:
        return _time(consent.time), what, "", "", ""
    return _time(consent.time), what, consent.purpose or "not stated", ends, consent.recorded_by or "not stated"


def _used(receipt: ReceiptFacts) -> Section:
    if not receipt.uses:
        nothing = "Nothing has been made with your data under this ledger so far."
        return Section("What was used", (_NOT_ALL if receipt.uses_lost else nothing,))
    rows = tuple(_use(receipt, use) for use in receipt.uses)
    rounded = "Each share is rounded up" + ("" if receipt.uses_lost else ", what is left is rounded down")
    notes = [
        f"Shares of your purse add up; ε does not, so none is given for a single use. {rounded}. They are shares of "
        "what you allow now: another limit gives other shares.",
        '"At most" was fixed before the use began, and limits it. "Used" is what it came to for you: it describes '
        "and limits nothing. A use that still runs counts with all that was set aside for it.",
        '"Stated purpose" is what whoever used your data wrote down, "allowed purpose" what your consent said then. '
        "The ledger records and shows both. It does not compare them and stops nothing for its purpose: if the two "
        "do not fit, ask whoever gave you this receipt.",
    ]
    if receipt.used > receipt.limit:
        notes.append(
            "More was used than your present limit allows, under a higher limit that you had before, or before this "
            "ledger was kept: that cannot be undone, and nothing more is made with your data."
        )
    return Section(
        "What was used",
        (_NOT_ALL,) if receipt.uses_lost else (),
        table=(("when", "what", "stated purpose", "allowed purpose", "at most", "used"), *rows, *_sums(receipt)),
        numbers=frozenset((4, 5)),
        notes=tuple(notes),
    )


def _sums(receipt: ReceiptFacts) -> tuple[tuple[str, ...], ...]:
    """What uses come to, and what is left; where later uses are lost nothing tells that."""
    used, left = percent(receipt.share(receipt.used), up=True), percent(receipt.share(receipt.left), up=False)
    if receipt.uses_lost:
        return (("", "all on record", "", "", "", used),)
    return ("", "all together", "", "", "", used), ("", "left", "", "", "", left)


def _use(receipt: ReceiptFacts, use: Use) -> tuple[str, ...]:
    if not use.run:
        used = percent(receipt.share(use.charged), up=True)
        return f"until {_time(use.time)}", use.what, "not shown", "not shown", "", used
    what = f"{use.what} ({use.run})" if use.settled else f"{use.what} ({use.run}), still running"
    shares = (percent(receipt.share(units), up=True) for units in (use.at_most, use.charged))
    return _time(use.time), what, use.purpose or "not stated", use.allowed_purpose or "not stated", *shares


def _bet(receipt: ReceiptFacts) -> Section:
    rung = receipt.highest
    right, unit = right_guesses(rung.epsilon, rung.delta), _unit_of(receipt)
    words = [
        f"Imagine somebody who knows everything about {unit.others}, sees all that is ever released under this "
        f"ledger, and bets on whether {unit.which} used or left out. With a coin they would be right "
        f"{COIN} of {GUESSES:,} times. With everything released they are right at most {right} of {GUESSES:,} times.",
        f"This is what {_amount(rung)} means, whatever is asked or trained and in whatever order, "
        f"for as long as you are never above ε = {rung.epsilon:g}. If you raise your limit later, the figure for the "
        "higher limit takes its place.",
    ]
    if rung.epsilon > receipt.rung.epsilon:
        words.append(
            f"You lowered your limit to ε = {receipt.rung.epsilon:g}. What was released while it was higher stays "
            "released, so the figure is that of the highest limit you ever had."
        )
    if receipt.uses_lost:
        words.append(
            "What you said in the time that is lost is not known here: if you had a higher limit then, the figure is "
            "that of the higher limit."
        )
    return Section("What that means, as a bet", tuple(words))


def _promise(receipt: ReceiptFacts) -> Section:
    unit = _unit_of(receipt)
    return Section(
        "Which promise this is",
        facts=(
            ("protects", unit.protects),
            ("compared are", f"all that was released with {unit.data}, and the same with {unit.nothing}"),
            ("does not hide", f"that {unit.listed}, and what you allowed"),
            ("holds against", _ADVERSARIES.get(receipt.adversary, receipt.adversary)),
        ),
        notes=(
            "It covers this ledger alone. If others hold your data too, or keep another ledger, all their ε and δ "
            "add up. It does not cover what can be learnt about people like you without your data.",
            *unit.more,
        ),
    )


def _unit_of(receipt: ReceiptFacts) -> _Unit:
    return _UNITS[receipt.unit]


def _rights(receipt: ReceiptFacts) -> Section:
    where = f" Say so to: {receipt.contact}." if receipt.contact else " Say so to whoever gave you this receipt."
    return Section(
        "What you can do",
        (
            "Withdraw at any time: from the next step on nothing more is made with your data. You can also lower "
            "your limit, or raise it to another level of this ledger." + where,
            "What was used stays used. A model or an answer that was released cannot be called back.",
            "You can ask to be forgotten. Your receipt then says no more than that, and how much was used in all. A "
            "keyed code instead of your id stays, and with it how much you allowed and how much each use took, and "
            "when, so that nobody can come back under your name with a full purse: pseudonymous, not erased.",
        ),
    )


def _for_experts(receipt: ReceiptFacts) -> Section:
    highest, unit = receipt.highest, _unit_of(receipt)
    least, so_far = ("most", "on record as used") if receipt.uses_lost else ("least", "left")
    return Section(
        "For experts",
        facts=(
            (
                "in symbols",
                f"for every set O of outcomes: P(O, never above ε = {highest.epsilon:g}) ≤ e^{highest.epsilon:g} "
                f"· Q(O, never above ε = {highest.epsilon:g}) + {highest.delta:g}, and the same with P and Q "
                f"exchanged. P is the law of all that was released with {unit.data}, Q that with {unit.nothing}",
            ),
            ("kept by", "a Rényi filter at orders that were fixed for life when the ledger was made"),
            ("shares are of", f"{receipt.measure}, the measure at which {least} of your limit is {so_far}"),
        ),
    )


def text(receipt: ReceiptFacts) -> str:
    """The whole receipt as plain text."""
    lines = [TITLE, "=" * len(TITLE)]
    for section in sections(receipt):
        lines += ["", section.title, "-" * len(section.title)]
        for paragraph in section.words:
            lines += textwrap.wrap(_one_line(paragraph), _WIDTH)
        lines += _fact_lines(section.facts)
        lines += _table_lines(section.table, section.numbers)
        for note in section.notes:
            lines += textwrap.wrap(_one_line(note), _WIDTH)
    return "\n".join(lines) + "\n"


def _fact_lines(facts: tuple[tuple[str, str], ...]) -> list[str]:
    wide = max((len(name) for name, _ in facts), default=0) + 2
    return [
        line
        for name, value in facts
        for line in textwrap.wrap(
            _one_line(value), _WIDTH, initial_indent=name.ljust(wide), subsequent_indent=" " * wide
        )
    ]


def _table_lines(table: tuple[tuple[str, ...], ...], numbers: frozenset[int]) -> list[str]:
    rows = [[_one_line(cell) for cell in row] for row in table]
    widths = _narrowed([max(map(len, column)) for column in zip(*rows, strict=True)], numbers)
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            padded = (
                part.rjust(width) if place in numbers else part.ljust(width)
                for place, (part, width) in enumerate(zip(line, widths, strict=True))
            )
            lines.append("  ".join(padded).rstrip())
    return lines


def _narrowed(widths: list[int], numbers: frozenset[int]) -> list[int]:
    """Widths by which rows fit into a line, if that goes: the widest give way, but not times and numbers."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > _WIDTH:
        widest = max((width, place) for place, width in enumerate(widths) if place and place not in numbers)
        if widest[0] <= _NARROWEST:
            break
        widths[widest[1]] -= 1
    return widths


def _one_line(words: str) -> str:
    """Without line breaks and control characters: what somebody wrote must not pass for a line of ours."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())


def percent(share: Fraction, *, up: bool) -> str:
    """A share in percent with two digits, rounded up or down: 1/3 is 33.34 % or 33.33 %."""
    hundredths = math.ceil(share * 10_000) if up else math.floor(share * 10_000)
    return f"{hundredths // 100:,}.{hundredths % 100:02d} %"


def _amount(rung: Rung) -> str:
    return f"ε = {rung.epsilon:g} (δ = {rung.delta:g})"


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


_STATES = {
    State.ACTIVE: "You take part: what is left may be used. The ledger keeps every use to that amount; what it is "
    "used for is recorded and shown to you, but not checked by the ledger.",
    State.FROZEN: "Your purse is frozen: nothing more is used.",
    State.EXPIRED: "Your consent has run out: nothing more is used.",
    State.WITHDRAWN: "You have withdrawn: nothing more is used.",
    State.FORGOTTEN: "You asked to be forgotten: nothing more is used, and no single use is shown any more. What was "
    "allowed and used stays in the ledger under a keyed code instead of your id: pseudonymous, not erased.",
}
_LOST = (
    "This ledger was recovered from an old copy, and later entries are lost: any uses of your data, and what you "
    "may have said then. Up to all of your purse may have been used, so it was frozen for good: nothing more is "
    "taken out of it, ever."
)
_NOT_ALL = "Not all uses are on record: later ones are lost, and up to all of your purse may have been used."
_EVENTS = {
    State.ACTIVE: "takes part",
    State.FROZEN: "frozen",
    State.EXPIRED: "ran out",
    State.WITHDRAWN: "withdrawn",
    State.FORGOTTEN: "forgotten",
}
_UNITS = {
    "person": _Unit(
        protects="your data: all your records together",
        data="your data",
        which="your data were",
        others="everybody else",
        nothing="nothing in their place",
        listed="you are on the list of people",
    ),
    row_purses.UNIT: _Unit(
        protects="this one row; other rows of yours have purses of their own",
        data="this row",
        which="this row was",
        others="every other row",
        nothing="nothing in its place",
        listed="this row is on the list of rows",
        more=(
            "If other rows are yours too, nothing is promised about all of them together but what follows from this: "
            "their ε add up, and their δ come to more than their sum.",
        ),
    ),
}
_ADVERSARIES = {
    "server": "whoever runs the computations, too: they may see every step, and who took part in which round",
    "public": "whoever sees what is published: models and answers, but not the steps in between",
}

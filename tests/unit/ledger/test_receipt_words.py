"""Receipts as text, page and JSON-LD, from facts: what they say is so, whatever somebody wrote into a purpose."""

import json
import re
from dataclasses import replace
from datetime import datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_checks import Page, complaints
from privypurse.ledger import receipt_words
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.receipt_facts import ConsentEvent, State, Use
from privypurse.ledger.receipts import Receipt

LOW, HIGH = Lifetime.of([(0.5, 1e-5), (1.0, 1e-5)]).rungs
DAY = datetime(2026, 3, 1, 12, 30)
HOSTILE = '"><script>alert(1)</script><img src=//example.org/x onerror=y>\n\nIn short\n--------\nε = 0 \x1b[31m'


def use(charged: int, at_most: int | None = None, settled: bool = True, purpose: str = "bus lines") -> Use:
    return Use("run-1", "training", purpose, DAY, charged, charged if at_most is None else at_most, settled, "trams")


RECEIPT = Receipt(
    receipt_id="0b9c3a50-3c8e-4f5e-8f6f-0d7b7a1f2b11",
    made=DAY,
    ledger_id="ledger-1",
    person="C0431",
    unit="person",
    adversary="server",
    state=State.ACTIVE,
    rung=LOW,
    highest=LOW,
    measure="Rényi divergence of order 40",
    limit=1_000_000,
    consents=(ConsentEvent(DAY, State.ACTIVE, LOW, "bus lines", datetime(2027, 1, 1), "desk 4"),),
    uses=(use(100_001, 250_000), use(1, 250_000, settled=False)),
    contact="privacy@example.org",
)


def test_the_text_says_what_was_allowed_used_and_left() -> None:
    text = RECEIPT.text()
    assert "You allowed ε = 0.5 (δ = 1e-05). 10.01 % of it has been used, 89.99 % is left." in text
    assert re.search(r"2026-03-01 12:30 UTC +training \(run-1\) +bus lines +trams +25.00 % +10.01 %", text)
    assert re.search(r"training \(run-1\), still +bus lines +trams +25.00 % +0.01 %\n +running\n", text)
    assert "right at most 623 of 1,000" in " ".join(text.split())  # e^0.5/(1 + e^0.5) = 0.62246
    for words in ("valid until", "2027-01-01", "desk 4", "add up", "never above ε = 0.5", "limits nothing"):
        assert words in " ".join(text.split())
    assert "privacy@example.org" in text


@pytest.mark.parametrize("state", State)
def test_every_standing_has_its_words(state: State) -> None:
    there = ConsentEvent(DAY, state, LOW if state is State.ACTIVE else None)
    receipt = replace(RECEIPT, state=state, consents=(*RECEIPT.consents, there))
    assert complaints(receipt.html()) == []
    assert ("You take part" in receipt.text()) == (state is State.ACTIVE)


def test_of_one_row_a_receipt_promises_nothing_about_all_records() -> None:
    receipt = replace(RECEIPT, unit="record")
    text, page = (" ".join(words.split()) for words in (receipt.text(), Page.of(receipt.html()).texts["main"][0]))
    for words in (
        "this one row; other rows of yours have purses of their own",
        "knows everything about every other row",
        "bets on whether this row was used or left out",
        "all that was released with this row, and the same with nothing in its place",
        "the law of all that was released with this row, Q that with nothing in its place",
        "If other rows are yours too, nothing is promised about all of them together",
    ):
        assert words in text
        assert words in page
        assert words not in " ".join(RECEIPT.text().split())
    for words in ("all your records", "everybody else", "your data were", "released with your data"):
        assert words not in text
        assert words in " ".join(RECEIPT.text().split())
    [promise] = receipt.json_ld()["pii_processing"]
    assert (promise["unit"], promise["neighbours"].startswith("this one row contributes nothing")) == ("record", True)


def test_a_receipt_claims_no_check_of_purposes() -> None:
    text = " ".join(RECEIPT.text().split())
    assert "may be used within the purpose" not in text  # no code refuses a use for its purpose
    assert "not checked by the ledger" in text
    assert "stops nothing for its purpose" in text
    [first, _] = RECEIPT.json_ld()["pii_processing"][0]["uses"]
    assert (first["purpose"], first["allowed_purpose"]) == ("bus lines", "trams")


def test_page_and_text_say_the_same() -> None:
    page = " ".join(Page.of(RECEIPT.html()).texts["main"][0].split())
    for section in receipt_words.sections(RECEIPT):
        for words in (section.title, *section.words, *section.notes):
            assert words in page
            assert words in " ".join(RECEIPT.text().split())


EXPERTS = ("Rényi", "least of your limit is left", "P(O", "filter")


def test_what_experts_want_stands_apart_at_the_end() -> None:
    *plain, experts = receipt_words.sections(RECEIPT)
    assert experts.title == "For experts"
    assert all(word in str(experts) for word in (*EXPERTS, RECEIPT.measure))
    assert not any(word in str(section) for section in plain for word in EXPERTS)


def test_rows_fit_into_a_line_and_lose_nothing() -> None:
    """A training's name is a word and a UUID."""
    name = "train-534ad0c1-6f0e-4b55-9d3c-00000000a1b2"
    purpose = "to plan bus lines in the whole county, also those that run at night"
    wide = replace(RECEIPT, uses=(replace(use(5, purpose=purpose), run=name, allowed_purpose=purpose),))
    text = wide.text()
    assert max(map(len, text.splitlines())) <= 100
    used = text.split("What was used")[1].split("all together")[0]
    table = [line for line in used.splitlines() if line.startswith((" " * 20, "2026"))]
    starts = [table[0].index(word) for word in ("training", "to plan")]
    assert name in "".join(line[starts[0] : starts[1]].strip() for line in table)
    assert complaints(wide.html()) == []


def test_what_was_said_twice_is_one_line() -> None:
    first = RECEIPT.consents[0]
    again, other = replace(first, time=datetime(2026, 4, 2, 8, 0)), replace(first, purpose="trams")
    allowed = receipt_words.sections(replace(RECEIPT, consents=(first, again, other, first)))[1].table
    assert [row[1:3] for row in allowed[1:]] == [
        ("ε = 0.5 (δ = 1e-05), said again 2026-04-02 08:00 UTC", "bus lines"),
        ("ε = 0.5 (δ = 1e-05)", "trams"),
        ("ε = 0.5 (δ = 1e-05)", "bus lines"),
    ]
    assert len(replace(RECEIPT, consents=(first, again)).json_ld()["consent_events"]) == 2


def test_a_purse_without_uses_is_full() -> None:
    full = replace(RECEIPT, uses=())
    assert "0.00 % of it has been used, 100.00 % is left" in full.text()
    assert complaints(full.html()) == []


def test_who_lowered_below_what_was_used_has_nothing_left_and_the_bet_is_that_of_the_highest() -> None:
    frozen = replace(RECEIPT, state=State.FROZEN, highest=HIGH, uses=(use(1_500_000),))
    text = " ".join(frozen.text().split())
    assert "150.00 % of it has been used, 0.00 % is left" in text
    assert "cannot be undone" in text
    assert "right at most 732 of 1,000" in text  # e/(1 + e) = 0.73106
    assert "highest limit you ever had" in text
    assert complaints(frozen.html()) == []


LOST = replace(RECEIPT, state=State.FROZEN, uses_lost=True)


@pytest.mark.parametrize("state", [State.FROZEN, State.WITHDRAWN, State.FORGOTTEN])
@pytest.mark.parametrize("uses", [RECEIPT.uses, (), (use(1_500_000),)])
def test_where_later_uses_are_lost_no_share_is_told_to_be_left_or_all_that_was_used(
    state: State, uses: tuple[Use, ...]
) -> None:
    lost = replace(LOST, state=state, uses=uses)
    page = " ".join(Page.of(lost.html()).texts["main"][0].split())
    for text in (page, " ".join(lost.text().split())):
        assert "Later uses are lost, so nobody can say how much of it has been used: it may be all of it." in text
        assert "up to all of your purse may have been used" in text
        assert "nothing more is taken out of it, ever" in text
        assert "if you had a higher limit then" in text
        for words in ("is left", "% of it has been used", "so far", "all together", "left is rounded"):
            assert words not in text
    assert complaints(lost.html()) == []
    assert "<meter" not in lost.html()
    assert lost.left == 0
    assert "<meter" in RECEIPT.html()


def test_json_ld_tells_what_is_on_record_where_later_uses_are_lost() -> None:
    document = LOST.json_ld()
    [process], [whole] = document["pii_processing"], RECEIPT.json_ld()["pii_processing"]
    assert set(process) ^ set(whole) == {"units_used", "units_left", "units_used_at_least"}
    assert (process["uses_lost"], whole["uses_lost"]) == (True, False)
    assert process["units_used_at_least"] == whole["units_used"]
    assert all(name in document["@context"] for name in process if not name.startswith("@"))


@pytest.mark.parametrize(
    "field", ["person", "contact", "purpose", "recorded_by", "run", "what", "use purpose", "allowed"]
)
def test_hostile_words_stay_words(field: str) -> None:
    consent, first = RECEIPT.consents[0], RECEIPT.uses[0]
    match field:
        case "purpose" | "recorded_by":
            receipt = replace(RECEIPT, consents=(replace(consent, **{field: HOSTILE}),))
        case "run" | "what":
            receipt = replace(RECEIPT, uses=(replace(first, **{field: HOSTILE}),))
        case "use purpose":
            receipt = replace(RECEIPT, uses=(replace(first, purpose=HOSTILE),))
        case "allowed":
            receipt = replace(RECEIPT, uses=(replace(first, allowed_purpose=HOSTILE),))
        case _:
            receipt = replace(RECEIPT, **{field: HOSTILE})
    assert complaints(receipt.html()) == []
    assert "alert(1)" in Page.of(receipt.html()).texts["main"][0]
    assert "script" not in Page.of(receipt.html()).texts
    assert receipt.text().count("\nIn short\n") == 1  # no line of theirs passes for one of ours
    assert "\x1b" not in receipt.text()
    assert json.loads(json.dumps(receipt.json_ld())) == receipt.json_ld()


@given(st.lists(st.integers(0, 10**12), max_size=6), st.integers(1, 10**12))
def test_shares_add_up_and_are_rounded_toward_the_person(charges: list[int], limit: int) -> None:
    receipt = replace(RECEIPT, limit=limit, uses=tuple(use(charged) for charged in charges))
    assert sum((receipt.share(one.charged) for one in receipt.uses), Fraction(0)) == receipt.share(receipt.used)
    if receipt.used <= limit:
        assert receipt.share(receipt.used) + receipt.share(receipt.left) == 1
    else:
        assert receipt.left == 0
    for units in (*charges, receipt.used, receipt.left):
        up, down = (read(receipt_words.percent(receipt.share(units), up=up)) for up in (True, False))
        assert down <= receipt.share(units) <= up
        assert up - down <= Fraction(1, 10_000)


def read(percent: str) -> Fraction:
    return Fraction(percent.removesuffix(" %").replace(",", "")) / 100


def test_floats_would_not_add_up() -> None:
    receipt = replace(RECEIPT, limit=10, uses=(use(1), use(1), use(1)))
    assert sum(float(receipt.share(one.charged)) for one in receipt.uses) != 0.3
    assert sum((receipt.share(one.charged) for one in receipt.uses), Fraction(0)) == Fraction(3, 10)


NAMES = {  # of ISO/IEC TS 27560:2023, and what the guide of W3C's community group maps them to
    "schema_version": "http://purl.org/dc/terms/conformsTo",
    "receipt_id": "http://purl.org/dc/terms/identifier",
    "pii_principal_id": "https://w3id.org/dpv#hasDataSubject",
    "language": "http://purl.org/dc/terms/language",
    "purpose": "https://w3id.org/dpv#hasPurpose",
    "lawful_basis": "https://w3id.org/dpv#hasLegalBasis",
    "withdrawal_method": "https://w3id.org/dpv#hasConsentControl",
    "event_time": "https://w3id.org/dpv#isIndicatedAtTime",
    "event_state": "https://w3id.org/dpv#hasConsentStatus",
    "event_type": "https://w3id.org/dpv#hasLegalBasis",
    "entity_id": "https://w3id.org/dpv#isIndicatedBy",
}


def expanded(name: str, context: dict[str, object]) -> str:
    """As a JSON-LD processor expands a name: by the context, through its prefixes."""
    term = context.get(name, name)
    whole = term["@id"] if isinstance(term, dict) else str(term)
    prefix, _, rest = whole.partition(":")
    return f"{context[prefix]}{rest}" if prefix in context else whole


def keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for name, one in value.items() if name != "@context" for key in keys(one)}
    return {key for one in value for key in keys(one)} if isinstance(value, list) else set()


def test_json_ld_has_the_names_of_the_standard_and_maps_all_of_its_keys() -> None:
    document = RECEIPT.json_ld()
    context = document["@context"]
    assert set(NAMES) <= keys(document)
    for name, iri in NAMES.items():
        assert expanded(name, context) == iri
    ours = keys(document) - {"@context", "@id", "@type"}
    assert all(re.match(r"(https?|urn):", expanded(name, context)) for name in ours)
    assert not any(isinstance(value, str) for value in [context])  # no context to be fetched from anywhere
    assert document["@type"] == "dpv:ConsentReceipt"
    [process] = document["pii_processing"]
    assert (process["epsilon"], process["delta"], process["adversary"]) == (0.5, 1e-5, "server")
    assert process["units_used"] == sum(one["units_charged"] for one in process["uses"]) == 100_002
    assert process["units_left"] == process["units_limit"] - process["units_used"]
    [event] = document["consent_events"]
    assert (event["event_state"], event["event_time"]) == ("dpv:ConsentGiven", "2026-03-01T12:30:00Z")


def test_a_purpose_may_be_a_term_of_the_vocabulary() -> None:
    def purpose(said: str) -> object:
        consent = replace(RECEIPT.consents[0], purpose=said)
        return replace(RECEIPT, consents=(consent,)).json_ld()["pii_processing"][0]["purpose"]

    assert purpose("dpv:ResearchAndDevelopment") == {"@id": "dpv:ResearchAndDevelopment"}
    assert purpose("dpv: of a kind") == "dpv: of a kind"

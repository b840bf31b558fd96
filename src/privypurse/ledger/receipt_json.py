"""A receipt for machines: JSON-LD in the names of ISO/IEC TS 27560:2023.

The names are the standard's fields; the context in the document maps them to the Data Privacy Vocabulary (DPV) as its
guide does (W3C DPVCG, *Consent Records and Receipts as per ISO/IEC TS 27560:2023 using DPV*, 2024). DPV has no terms
for ε, δ, neighbouring data sets or an adversary: those are in a namespace of ours. A ledger does not know who the
controller is, where data are stored, for how long, and who receives them: the context maps these fields of the
standard too, and whoever issues a complete receipt adds them.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from privypurse.ledger import row_purses
from privypurse.ledger.bets import GUESSES, right_guesses
from privypurse.ledger.receipt_facts import ConsentEvent, ReceiptFacts, State, Use

PROFILE = "https://w3id.org/dpv/schema/dpv-27560#receipt"
_OURS = "urn:privypurse:terms:"


def _time_of(name: str) -> dict[str, str]:
    return {"@id": name, "@type": "xsd:dateTime"}


def _term_of(name: str) -> dict[str, str]:
    """A property whose values are terms of a vocabulary."""
    return {"@id": name, "@type": "@vocab"}


CONTEXT: dict[str, Any] = {
    "dpv": "https://w3id.org/dpv#",
    "dct": "http://purl.org/dc/terms/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "pp": _OURS,
    "schema_version": _term_of("dct:conformsTo"),
    "receipt_id": "dct:identifier",
    "issued": _time_of("dct:issued"),
    "pii_principal_id": "dpv:hasDataSubject",
    "language": "dct:language",
    "privacy_notice": _term_of("dpv:hasNotice"),
    "pii_processing": "dpv:hasProcess",
    "purpose": "dpv:hasPurpose",
    "lawful_basis": _term_of("dpv:hasLegalBasis"),
    "pii_information": "dpv:hasPersonalData",
    "pii_controllers": "dpv:hasDataController",
    "storage_locations": "dpv:hasStorageCondition",
    "retention_period": "dpv:hasStorageCondition",
    "jurisdiction": "dpv:hasJurisdiction",
    "recipient_third_parties": "dpv:hasRecipient",
    "withdrawal_method": "dpv:hasConsentControl",
    "consent_events": "pp:consentEvents",
    "event_time": _time_of("dpv:isIndicatedAtTime"),
    "validity_duration": _time_of("dct:valid"),
    "event_type": _term_of("dpv:hasLegalBasis"),
    "event_state": _term_of("dpv:hasConsentStatus"),
    "entity_id": "dpv:isIndicatedBy",
    "recorded_by": "dct:creator",
    **{
        name: f"pp:{name}"
        for name in (
            "epsilon",
            "delta",
            "promise",
            "unit",
            "neighbours",
            "adversary",
            "guarantee",
            "highest_epsilon",
            "highest_delta",
            "right_guesses_at_most",
            "of_guesses",
            "ledger_id",
            "state",
            "uses",
            "run",
            "what",
            "allowed_purpose",
            "settled",
            "units_charged",
            "units_at_most",
            "uses_lost",
            "units_used",
            "units_used_at_least",
            "units_left",
            "units_limit",
            "measure",
        )
    },
}


def json_ld(receipt: ReceiptFacts) -> dict[str, Any]:
    """The receipt as a JSON-LD document; units are whole numbers, to be added and compared."""
    purposes = [consent.purpose for consent in receipt.consents if consent.rung is not None]
    return {
        "@context": CONTEXT,
        "@id": f"urn:uuid:{receipt.receipt_id}",
        "@type": "dpv:ConsentReceipt",
        "schema_version": PROFILE,
        "receipt_id": receipt.receipt_id,
        "issued": _utc(receipt.made),
        "pii_principal_id": receipt.person,
        "language": "en",
        "ledger_id": receipt.ledger_id,
        "consent_events": [_event(consent, receipt) for consent in receipt.consents],
        "pii_processing": [
            {
                "@type": "dpv:Process",
                **_purpose(purposes[-1] if purposes else ""),
                "lawful_basis": "dpv:Consent",
                **({"withdrawal_method": receipt.contact} if receipt.contact else {}),
                **_promise(receipt),
                "uses": [_use(use) for use in receipt.uses],
                "measure": receipt.measure,
                "units_limit": receipt.limit,
                **_sums(receipt),
            }
        ],
    }


def _sums(receipt: ReceiptFacts) -> dict[str, Any]:
    """What was used and what is left; where later uses are lost, only what is on record, under another name."""
    if receipt.uses_lost:
        return {"uses_lost": True, "units_used_at_least": receipt.used}
    return {"uses_lost": False, "units_used": receipt.used, "units_left": receipt.left}


def _promise(receipt: ReceiptFacts) -> dict[str, Any]:
    highest = receipt.highest
    return {
        "state": receipt.state.value,
        "epsilon": receipt.rung.epsilon,
        "delta": receipt.rung.delta,
        "highest_epsilon": highest.epsilon,
        "highest_delta": highest.delta,
        "guarantee": "P(O, never above highest_epsilon) <= exp(highest_epsilon) Q(O, never above highest_epsilon) "
        "+ highest_delta",
        "promise": "data",
        "unit": receipt.unit,
        "neighbours": _NEIGHBOURS[receipt.unit],
        "adversary": receipt.adversary,
        "right_guesses_at_most": right_guesses(highest.epsilon, highest.delta),
        "of_guesses": GUESSES,
    }


def _event(consent: ConsentEvent, receipt: ReceiptFacts) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event_time": _utc(consent.time),
        "event_type": "dpv:ExpressedConsent",
        "event_state": _STATES[consent.state],
        "entity_id": receipt.person,
        **_purpose(consent.purpose),
    }
    if consent.recorded_by:
        event["recorded_by"] = consent.recorded_by
    if consent.rung is not None:
        event |= {"epsilon": consent.rung.epsilon, "delta": consent.rung.delta}
    if consent.valid_until is not None:
        event["validity_duration"] = _utc(consent.valid_until)
    return event


def _use(use: Use) -> dict[str, Any]:
    return {
        **({"run": use.run} if use.run else {}),
        "what": use.what,
        **_purpose(use.purpose),
        **_purpose(use.allowed_purpose, "allowed_purpose"),
        "event_time": _utc(use.time),
        "settled": use.settled,
        "units_charged": use.charged,
        "units_at_most": use.at_most,
    }


def _purpose(said: str, name: str = "purpose") -> dict[str, Any]:
    """Free text as it is; a term of DPV, such as dpv:ResearchAndDevelopment, as that term; nothing where none is."""
    if not said:
        return {}
    return {name: {"@id": said} if re.fullmatch(r"dpv:\w+", said) else said}


def _utc(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}Z"


_NEIGHBOURS = {
    "person": "the person's data contribute nothing; their entry in the ledger stays",
    row_purses.UNIT: "this one row contributes nothing, other rows of the person do; its entry in the ledger stays",
}
_STATES = {
    State.ACTIVE: "dpv:ConsentGiven",
    State.FROZEN: "dpv:ConsentGiven",
    State.EXPIRED: "dpv:ConsentExpired",
    State.WITHDRAWN: "dpv:ConsentWithdrawn",
    State.FORGOTTEN: "dpv:ConsentWithdrawn",
}

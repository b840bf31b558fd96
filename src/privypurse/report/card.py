"""A model card for Hugging Face: what the model is, what it is for, and a section on privacy."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from privypurse.accounting.attacker_words import attacker_words
from privypurse.audit.result import AuditResult
from privypurse.errors import InvalidInput
from privypurse.report.facts import PublicFacts
from privypurse.report.fitting_audits import require_public
from privypurse.report.registry import deployment
from privypurse.report.usefulness import figure_rows
from privypurse.runs.about import NOT_STATED

_HEAD = """\
---
library_name: pytorch
tags:
- differential-privacy
- personalised-differential-privacy
- privypurse
---
"""
_SEEDED = "**This run was seeded, so its noise can be repeated and taken off: a test, NOT private.**"


def model_card(facts: PublicFacts, audit: AuditResult | None = None) -> str:
    """The card as Markdown, of public facts and a public audit alone."""
    if audit is not None:
        require_public(audit, facts)
    if facts.answer is not None:
        raise InvalidInput("an answer has no model, so there is no card of it; write its registry file instead")
    about = facts.about
    sections = [
        _HEAD,
        f"# {_plain(about.get('name', NOT_STATED) if _stated(about.get('name')) else f'Model of {facts.data}')}\n",
        *([f"{_plain(about['description'])}\n"] if _stated(about.get("description")) else []),
        "## Intended use\n",
        f"{_plain(about.get('purpose', NOT_STATED))}\n",
        "## Privacy\n",
        *_privacy(facts, audit),
        "## Evaluation\n",
        _evaluation(facts),
        "## Who answers for it\n",
        _table((name.capitalize(), about.get(name, NOT_STATED)) for name in ("controller", "contact", "legal basis")),
    ]
    return "\n".join(sections).rstrip() + "\n"


def _privacy(facts: PublicFacts, audit: AuditResult | None) -> list[str]:
    if facts.seeded:
        return [f"{_SEEDED}\n"]
    entry = deployment(facts)["deployment"]
    loss, told = entry["privacy_loss"], entry["privacy_loss"].get("privacy_parameters", {})
    rows = (
        ("Nobody's ε is above", _number(told.get("epsilon"))),
        ("δ", _number(told.get("delta"))),
        ("Privacy unit", loss["privacy_unit"]),
        ("Neighbouring data sets", loss["privacy_unit_details"]),
        ("Not protected", entry["dp_variant"]["unprotected_quantities"]),
        ("Mechanism", entry["implementation"]["mechanisms"]),
        ("Accounting", entry["accounting"]["composition"]),
        ("Trust", entry["deployment_model"]["actors"]),
        ("Over several uses", entry["deployment_model"]["release_type_details"]),
        ("Before training", entry["implementation"]["preprocessing_and_hyperparameter_tuning"]),
        ("Audit", _audited(audit)),
    )
    words = [f"{_plain(loss['privacy_parameters_details'])}\n"]
    if {"epsilon", "delta"} <= set(told):
        said = attacker_words(told["epsilon"], told["delta"])
        words.append(f"In plain words, at the largest ε: {said}.\n")
    return [*words, _table(rows)]


def _audited(audit: AuditResult | None) -> str:
    """What attacks on made-up records found."""
    if audit is None:
        return NOT_STATED
    verdict = "the claim is refuted" if audit.flagged else "nothing was found against the claim"
    return f"{audit.attack}, on made-up records: {verdict} (confidence {audit.confidence_in_words})"


def _evaluation(facts: PublicFacts) -> str:
    """Figures of public or released records; others are nobody else's business."""
    rows = figure_rows(facts.test or {})
    if not rows:
        return f"{NOT_STATED}: there are no figures of public records.\n".capitalize()
    return _table(rows)


def _number(value: float | None) -> str:
    return NOT_STATED if value is None else f"{value:g}"


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = [f"| {_plain(name)} | {_plain(str(said))} |" for name, said in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines]) + "\n"


def _stated(text: str | None) -> bool:
    return text is not None and text != NOT_STATED


def _plain(text: str) -> str:
    """In one line, as it is: no mark-up of HTML, Markdown or a table."""
    flat = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{one}" if one in "\\`*_[]|#" else one for one in flat)

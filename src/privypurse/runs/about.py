"""What a run says of itself to a regulator or a reader: who answers for it, what it is for, whose data it took."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

NOT_STATED = "not stated"


@dataclass(frozen=True)
class About:
    """Section [about] of a configuration. It goes into public files as it stands: write nothing about people here.

    It asks what a record of processing has to name (GDPR, Article 30), and what a registry of deployments asks.
    """

    name: str | None = None
    """Of what is published, such as "Churn model 2026"."""
    description: str | None = None
    controller: str | None = None
    """Who decides why and how data are used."""
    contact: str | None = None
    """Whom to ask, such as the data protection officer."""
    purpose: str | None = None
    """What it is for. If it is left out, that of [training]."""
    legal_basis: str | None = None
    data_subjects: str | None = None
    """Whose data they are, as in "customers of the branch in Oslo"; no number of them."""
    categories: str | None = None
    """Categories of data, as in "age, town, payments"."""
    recipients: str | None = None
    retention: str | None = None
    """How long what is kept."""
    region: str | None = None
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = None
    tuning: str | None = None
    """How settings were chosen, and whether that was charged to anybody."""

    def said(self, purpose: str = "") -> dict[str, str]:
        """Every field in words; what nobody said is "not stated". ``purpose`` stands in where there is none."""
        given = {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}
        given["purpose"] = self.purpose or purpose or None
        return {name: NOT_STATED if text is None else text for name, text in given.items()}

"""What the tests of clients under a ledger are made of: nine people in it, and what rounds cost them by a formula."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from federation import made, terms_with

import privypurse as pp
from privypurse.accounting import CertifiedTable
from privypurse.federated.client import Client
from privypurse.federated.terms import Offer

IDS = np.array([f"P{number}" for number in range(9)])
TERMS = terms_with(noise_multiplier=20.0)  # two steps a round, three rounds joined at most: ε = 0.3
OFFER = Offer(TERMS, CertifiedTable(np.array([0.25, 1.0]), np.array([0.2, 0.5])))
PUBLIC = Offer(terms_with(noise_multiplier=20.0, adversary="public"), OFFER.table)
KEY = bytes(range(32))


def client(folder: Path, epsilon: Any = 1.0, offer: Offer = OFFER, **other: Any) -> Client:
    budgets = pp.Budgets(np.broadcast_to(epsilon, 9), delta=1e-3, person=IDS)
    adversary = offer.terms.adversary
    return made(folder, offer=offer, **{"budgets": budgets, "person": IDS, "adversary": adversary, **other})


def taken(ledger: pp.Ledger, who: str) -> int:
    """At the order of ε = 1, by the person's own events: a settled run is what it was settled at."""
    runs = {event.run: event.charged[1] for event in ledger.history(who) if event.charged is not None}
    return sum(runs.values())


def rounds(ledger: pp.Ledger, number: int) -> int:
    """So many rounds of two Gaussian steps with noise 20, in units (Mironov 2017, Proposition 7)."""
    return math.ceil(ledger.rungs[1].order * 2 * number / (2 * 20.0**2) * 2**40)


def drained(ledger: pp.Ledger, who: list[str], left: int) -> None:
    """Leave these people so many units at the order of ε = 1."""
    limit = ledger.rungs[1].limit - left
    ledger.charge("before", ledger.members(who), np.array([[limit, limit]]), np.zeros(len(who), dtype=int))

"""The claims of federated training: what every record's rate costs by the terms, beside what it granted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from privypurse.accounting import accountant_named
from privypurse.arrays import FloatArray
from privypurse.federated.terms import Terms
from privypurse.runs.folder import RunFolder
from privypurse.runs.verification.findings import Finding, compared, left_open, wrong

if TYPE_CHECKING:
    from privypurse.runs.verification.training import Beside

_ROUNDING = 1e-6


def of_rounds(folder: RunFolder, beside: Beside) -> Iterator[Finding]:
    """Each silo's rates are certified anew, and compared with what its people granted and were charged."""
    if "terms.json" not in folder.files:
        yield wrong("terms", "run.json lists no terms.json, which every federation writes")
        return
    terms = Terms.from_json(json.loads((folder.path / "terms.json").read_text("utf-8")))
    if "accounts.json" not in folder.files:
        yield left_open("certified ε", "the silos' accounts are internal and were not passed on")
        return
    accounts = json.loads((folder.path / "accounts.json").read_text("utf-8"))
    if any("rates" not in account for account in accounts.values()):
        yield compared("grants", list(_overdrawn(accounts)), "no record spent more than it granted, as accounts say")
        yield left_open("certified ε", "an earlier release wrote these accounts, without the rates of records")
        return
    yield compared("grants", list(_overdrawn(accounts)), "no record spent more than it granted")
    said = f"computed anew by {terms.accountant}, all rounds that may be joined cost no record more than it granted"
    yield compared("certified ε", list(_uncovered(terms, accounts)), said)
    yield compared("spending", list(_miscounted(terms, accounts)), "it is what the rounds joined cost at these rates")
    yield left_open("promise", "`privypurse federate` seeds its runs, for measuring: nothing is promised to anybody")
    if terms.adversary == "server":
        yield left_open("rounds joined", "as the silos' books counted them, of which the accounts are a copy")


def _column(account: dict[str, Any], name: str) -> FloatArray:
    return np.asarray(account[name], dtype=np.float64)


def _overdrawn(accounts: dict[str, Any]) -> Iterator[str]:
    for name, account in accounts.items():
        over = ~(_column(account, "spent") <= _column(account, "granted"))
        if over.any():
            yield f"{int(over.sum()):,} records of {name} spent more than they granted"


def _uncovered(terms: Terms, accounts: dict[str, Any]) -> Iterator[str]:
    for name, account in accounts.items():
        rates, place = np.unique(_column(account, "rates"), return_inverse=True)
        over = ~(terms.certified(rates)[place] <= _column(account, "granted"))
        if over.any():
            yield f"the rates of {int(over.sum()):,} records of {name} cost more than they granted"


def _miscounted(terms: Terms, accounts: dict[str, Any]) -> Iterator[str]:
    """Against the server rounds that were joined cost in full; against the public all of them, joined or not."""
    accountant = accountant_named(terms.accountant)
    for name, account in accounts.items():
        rates, place = np.unique(_column(account, "rates"), return_inverse=True)
        joined = int(account["joined"])
        if joined > terms.cap:
            yield f"{name} joined {joined} rounds, where the terms allow {terms.cap}"
        rounds = joined if terms.adversary == "server" else terms.cap
        cost = np.zeros(rates.size)
        if rounds:
            cost = accountant.epsilons([terms.joined(rate, rounds) for rate in rates.tolist()], terms.delta)
        if terms.adversary == "public":
            everybody = [terms.seen(rate, terms.rounds) for rate in rates.tolist()]
            cost = np.minimum(cost, accountant.epsilons(everybody, terms.delta))
        wrong_ones = ~(np.abs(_column(account, "spent") - cost[place]) <= _ROUNDING * cost[place])
        if wrong_ones.any():
            yield f"{int(wrong_ones.sum()):,} records of {name} are said to have spent something else"

"""Liu et al. (2024), §6: python -m benchmarks.federated

How many records the published curve overspends, and how much budget it and the certified table leave, on the same
terms and budgets; how long a million records take to get their rates; and how much smaller rates are where purses are
for life. Figure 8 of the paper, personalised training beside its baselines, is `python -m reproductions run
liu-figure-8`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privypurse.accounting import CertifiedTable, accountant_named
from privypurse.assignment import curve_fit
from privypurse.federated import silos
from privypurse.federated.terms import Offer, Terms
from privypurse.ledger.lifetime import Lifetime, lifetime_order

RECORDS = 10_000
# The settings of the paper: Figure 5, and Table 1 with the noise of rule 4.
TERMS = {
    "Figure 5": Terms(
        rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1.0, delta=1e-3, adversary="public",
        batch_size=1, learning_rate=1.0, clients=10,
    ),
    "MNIST, T 15, τ 50": Terms(
        rounds=15, local_steps=50, client_rate=0.5, noise_multiplier=4.0, delta=1e-4, adversary="public",
        batch_size=1, learning_rate=1.0, clients=10,
    ),
    "Heart Disease, T 15, τ 10": Terms(
        rounds=15, local_steps=10, client_rate=1.0, noise_multiplier=4.0, delta=1e-3, adversary="server",
        batch_size=1, learning_rate=1.0, clients=4,
    ),
}  # fmt: skip

# Those of `privypurse federate`, whose noise is solved for a reference ε of 0.5.
PLANNED = {
    "adult, 15 rounds": Terms(
        rounds=15, local_steps=20, noise_multiplier=3.99, delta=1e-5, batch_size=256, learning_rate=1.0, clients=4,
    ),
    "heart, 15 rounds": Terms(
        rounds=15, local_steps=10, noise_multiplier=9.24, delta=1e-3, batch_size=20, learning_rate=0.3, clients=4,
    ),
    "adult, 2 rounds": Terms(
        rounds=2, local_steps=20, noise_multiplier=1.8, delta=1e-5, batch_size=256, learning_rate=1.0, clients=4,
    ),
}  # fmt: skip
GRANTS = (0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class Compared:
    """Rates by the certified table and by the trusted curve, for the same budgets and terms."""

    records: int
    overspent_certified: int
    overspent_published: int
    left_certified: float
    """Mean share of ε that is left."""
    left_published: float
    worst_published: float
    """The largest ε spent over the ε granted."""


def compare_rates(terms: Terms, epsilon: np.ndarray, table: CertifiedTable | None = None) -> Compared:
    """What federated records spend by either, against the adversary of the terms."""
    certified = (terms.table() if table is None else table).within(epsilon)
    fitted = curve_fit.fit(terms.faced, terms.delta).rate(epsilon)
    accountant = accountant_named(terms.accountant)

    def spent(rates: np.ndarray) -> np.ndarray:
        values, place = np.unique(rates, return_inverse=True)
        return np.asarray(accountant.epsilons([terms.faced(r) for r in values.tolist()], terms.delta)[place])

    ours, theirs = spent(certified), spent(_three_digits(fitted))
    return Compared(
        int(epsilon.size),
        int((ours > epsilon).sum()),
        int((theirs > epsilon).sum()),
        float((1 - ours / epsilon).mean()),
        float(np.maximum(1 - theirs / epsilon, 0).mean()),
        float((theirs / epsilon).max()),
    )


def _three_digits(rates: np.ndarray) -> np.ndarray:
    """So that a million rates are a few thousand different ones."""
    size = np.power(10.0, np.floor(np.log10(np.maximum(rates, 1e-12))) - 2)
    return np.asarray(np.minimum(np.round(rates / size) * size, 1.0))


def rate_for_life(terms: Terms, table: CertifiedTable, epsilon: float) -> float:
    """The largest rate of the table that a purse of this ε pays for at its order for life; 0 if none is."""
    ledger = Lifetime.of([(epsilon, terms.delta)])
    rates = np.unique(np.minimum(table.parameter, 1.0))
    cost = ledger.charges_of([terms.joined(rate, terms.cap) for rate in rates.tolist()])[:, 0]
    fits = rates[cost <= ledger.rungs[0].limit]
    return float(fits.max(initial=0.0))


def price_for_life() -> Iterator[str]:
    """Rates where the whole purse is for these terms: by their own accountant, and in a ledger."""
    yield "| terms | ε | order | rate by PLD | for life | share |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, terms in PLANNED.items():
        table = terms.table()
        for epsilon in GRANTS:
            once, ever = float(table.within(np.array([epsilon]))[0]), rate_for_life(terms, table, epsilon)
            order = lifetime_order(epsilon, terms.delta)
            cells = f"{name}, σ = {terms.noise_multiplier:g} | {epsilon:g} | {order:g} | {once:.4f} | {ever:.4f}"
            yield f"| {cells} | {100 * ever / once:.0f} % |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| terms | preferences | overspent: curve | worst | left: curve | overspent: table | left: table |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, terms in TERMS.items():
        table = terms.table()
        for kind, granted in silos.PREFERENCES.items():
            epsilon = granted(RECORDS, np.random.default_rng(0))
            found = compare_rates(terms, epsilon, table)
            curve = f"{100 * found.overspent_published / RECORDS:.1f} % | {found.worst_published:.1f} ×"
            left = f"{100 * found.left_published:.1f} %", f"{100 * found.left_certified:.1f} %"
            line = f"| {name} | {kind} | {curve} | {left[0]} | {found.overspent_certified} | {left[1]} |"
            print(line, flush=True)
    begun = time.perf_counter()
    offer = Offer.of(TERMS["MNIST, T 15, τ 50"])
    made = time.perf_counter() - begun
    epsilon = np.random.default_rng(0).uniform(0.1, 10, 1_000_000)
    begun = time.perf_counter()
    given = offer.table.within(epsilon)
    print(
        f"a table of {offer.table.epsilon.size} rates: {made:.2f} s, once, by the server; a million ε looked "
        f"up: {time.perf_counter() - begun:.3f} s ({(given > 0).mean():.0%} take part)"
    )
    for line in price_for_life():
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Liu et al. (2024), §6: python -m benchmarks.federated

How many records the published curve overspends, and how much budget it and the certified table leave, on the same
terms and budgets; and how long a million records take to get their rates. Figure 8 of the paper, personalised
training beside its baselines, is `python -m reproductions run liu-figure-8`.
"""

from __future__ import annotations

import time

import numpy as np

from privypurse.federated import silos
from privypurse.federated.terms import Offer, Terms
from reproductions.unsound.trusted_curve import compare_rates

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


def main() -> None:
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


if __name__ == "__main__":
    main()

"""Liu et al. (2024), §6 and Figure 8: python -m benchmarks.federated rates | methods [--device cuda]

rates: how many records the published curve overspends, and how much budget it and the certified table leave, on the
same terms and budgets; and how long a million records take to get their rates.

methods: personalised beside minimum, dropout and no privacy, on every data set and preference distribution. Budgets,
initial weights and noise follow from the seed: for measuring, not for publishing. Heart Disease and MNIST need
$PRIVYPURSE_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privypurse.federated import silos, trials
from privypurse.federated.terms import Offer, Terms

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


def rates() -> None:
    print("| terms | preferences | overspent: curve | worst | left: curve | overspent: table | left: table |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, terms in TERMS.items():
        table = terms.table()
        for kind in silos.PREFERENCES:
            epsilon = silos.budgets_of(kind, RECORDS, np.random.default_rng(0))
            found = trials.compare_rates(terms, epsilon, table)
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


def methods(data: list[str], kinds: list[str], seeds: int, device: str, out: Path | None) -> None:
    results: list[dict[str, Any]] = []
    for name in data:
        for kind in kinds:
            line = []
            for method in trials.METHODS:
                accuracy, overdrawn = [], 0
                begun = time.perf_counter()
                for seed in range(seeds):
                    federation = silos.federation(name, seed, device)
                    trial = trials.run(federation, trials.SETTINGS[name], kind, method, seed=seed)
                    accuracy.append(trial.accuracy[-1])
                    overdrawn += sum(row.overdrawn for row in trial.clients) if method != "privacy-free" else 0
                    row = {"data": name, "preferences": kind, "method": method, "seed": seed}
                    results.append({**row, "accuracy": trial.accuracy, "noise": trial.terms.noise_multiplier})
                spread = np.std(accuracy, ddof=1) if seeds > 1 else 0.0
                line.append(f"{np.mean(accuracy):.2f} ± {spread:.2f}")
                assert overdrawn == 0
                seconds = (time.perf_counter() - begun) / seeds
                print(f"{name}, {kind}, {method}: {line[-1]} ({seconds:.1f} s a run)", flush=True)
            print(f"| {name} | {kind} | " + " | ".join(line) + " |", flush=True)
    if out:
        out.write_text(json.dumps({"torch": torch.__version__, "device": device, "results": results}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "methods"))
    parser.add_argument("--data", nargs="+", default=list(trials.SETTINGS), choices=list(trials.SETTINGS))
    parser.add_argument("--preferences", nargs="+", default=list(silos.PREFERENCES), choices=list(silos.PREFERENCES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "rates":
        rates()
    else:
        methods(options.data, options.preferences, options.seeds, options.device, options.out)


if __name__ == "__main__":
    main()

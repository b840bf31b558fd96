"""Liu et al. (2024), §6 and Figure 8: python -m benchmarks.federated rates | methods | plot [--device cuda]

rates: how many records the published curve overspends, and how much budget it and the certified table leave, on the
same terms and budgets; and how long a million records take to get their rates.

methods: personalised beside minimum, dropout and no privacy, on every data set and preference distribution. Budgets,
initial weights and noise follow from the seed: for measuring, not for publishing. Heart Disease, MNIST and CIFAR-10
need $PRIVYPURSE_DATA. --out keeps every course as JSON.

plot: draws such files as one figure, a panel for each data set and preference distribution.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
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


@dataclass(frozen=True)
class Run:
    """One training, as it is kept."""

    data: str
    preferences: str
    method: str
    seed: int
    accuracy: tuple[float, ...]
    noise: float
    seconds: float


def train_once(name: str, kind: str, method: str, seed: int, device: str, threads: int) -> Run:
    if threads:
        torch.set_num_threads(threads)
    begun = time.perf_counter()
    federation = silos.federation(name, seed, device)
    trial = trials.run(federation, trials.SETTINGS[name], kind, method, seed=seed)
    assert method == "privacy-free" or sum(row.overdrawn for row in trial.clients) == 0
    noise = trial.terms.noise_multiplier
    return Run(name, kind, method, seed, trial.accuracy, noise, time.perf_counter() - begun)


def methods(data: list[str], kinds: list[str], seeds: int, device: str, jobs: int, out: Path | None) -> None:
    asked = [(n, k, m, s) for n in data for k in kinds for m in trials.METHODS for s in range(seeds)]
    runs: list[Run] = []
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(train_once, *each, device, threads) for each in asked]):
            runs.append(run := future.result())
            print(
                f"{run.data}, {run.preferences}, {run.method}, seed {run.seed}: {run.accuracy[-1]:.2f} % in "
                f"{run.seconds:.1f} s",
                flush=True,
            )
            if out:  # after each, so that what is broken off is not lost
                kept = {"torch": torch.__version__, "device": device, "runs": [asdict(each) for each in runs]}
                out.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    print("\n| data | preferences | " + " | ".join(trials.METHODS) + " |\n" + "| --- " * 6 + "|")
    for name in data:
        for kind in kinds:
            line = []
            for method in trials.METHODS:
                last = [r.accuracy[-1] for r in runs if (r.data, r.preferences, r.method) == (name, kind, method)]
                spread = f" ± {np.std(last, ddof=1):.2f}" if seeds > 1 else ""
                line.append(f"{np.mean(last):.2f}{spread}")
            print(f"| {name} | {kind} | " + " | ".join(line) + " |")


def plot(files: list[Path], out: Path) -> None:
    """Every panel of Figure 8 that these files have runs for."""
    from privypurse.federated import plots

    runs = [each for file in files for each in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    panels: dict[str, dict[str, list[Any]]] = {}
    for each in runs:
        panel = panels.setdefault(f"{each['data']}, {each['preferences']}", {})
        panel.setdefault(each["method"], []).append(each["accuracy"])
    print("written: " + ", ".join(map(str, plots.save(panels, out))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "methods", "plot"))
    parser.add_argument("files", nargs="*", type=Path, help="of plot: what methods wrote")
    parser.add_argument("--data", nargs="+", default=list(trials.SETTINGS), choices=list(trials.SETTINGS))
    parser.add_argument("--preferences", nargs="+", default=list(silos.PREFERENCES), choices=list(silos.PREFERENCES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side, on one GPU too")
    parser.add_argument("--out", type=Path, help="file of methods, or of plot without its ending")
    options = parser.parse_args()
    if options.what == "rates":
        rates()
    elif options.what == "plot":
        plot(options.files, options.out or Path("federated"))
    else:
        options_of_methods = (options.data, options.preferences, options.seeds, options.device, options.jobs)
        methods(*options_of_methods, options.out)


if __name__ == "__main__":
    main()

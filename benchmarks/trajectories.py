"""What every record's trajectory cost: python -m benchmarks.trajectories

A run like those of Yu et al. (2023): 60,000 records, 5,860 steps, norms rounded up to 100 levels and looked at once
an epoch. Simulated norms fall as records are learnt, each at a pace of its own. Timed: ε of all records by RDP (one
matrix product and a conversion) and by loss distributions, and beside them loops over the records, which are timed
on a few and extrapolated:

- "Opacus, table": RDP of each level once, by Opacus; for each record a sum over its levels and Opacus's conversion.
  That is Yu et al. with rounding. The table is counted once, the loop is extrapolated.
- "Opacus, no table": RDP of the levels that a record met computed for that record, as without rounding.
- "PLD": the same loss distributions, composed for one record after another by our own `PLD`.

Then how many equal pure steps each filter for (ε, δ) lets through.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import platform
import resource
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pure_filters import equal_steps
from privypurse.accounting import PLD, RDP, Composed, SampledGaussian, sampled_gaussian, trajectories
from privypurse.accounting.rdp import epsilon_from_rdp
from privypurse.arrays import FloatArray, IntArray

LEVELS, BATCH, EPOCHS, STEPS, DELTA, EPSILON = 100, 1024, 100, 5860, 1e-5, 2.4
PURSES = [(0.1, 1e-5), (1.0, 1e-5), (1.0, 1e-9), (5.0, 1e-5)]


def simulated(records: int) -> IntArray:
    """Steps that each record took at each level: norms that fall from the clip norm to a floor, with noise."""
    rng = np.random.default_rng(0)
    start, pace, floor = rng.uniform(0.5, 1.5, records), rng.lognormal(1, 1, records), rng.lognormal(-4, 1.2, records)
    counts = np.zeros((records, LEVELS), dtype=np.int64)
    for epoch, length in enumerate(np.diff(np.round(np.linspace(0, STEPS, EPOCHS + 1))).astype(np.int64).tolist()):
        norm = start * np.exp(-3 * pace * epoch / EPOCHS) + floor * rng.lognormal(0, 0.3, records)
        level = np.ceil(np.clip(norm, 1e-3, 1.0) * LEVELS).astype(np.int64) - 1
        counts[np.arange(records), level] += length
    return counts


def noise_for(rate: float) -> float:
    """The least σ whose worst case, every step at the clip norm, is (2.4, 1e-5)."""
    low, high = 0.3, 30.0
    for _ in range(20):
        middle = (low + high) / 2
        fits = float(PLD().epsilons([SampledGaussian(rate, middle, STEPS)], DELTA)[0]) <= EPSILON
        low, high = (low, middle) if fits else (middle, high)
    return high


def by_rdp(counts: IntArray, rate: float, sigmas: FloatArray) -> FloatArray:
    accountant = RDP()
    table = sampled_gaussian.rdp(np.full(LEVELS, rate), sigmas, accountant.orders)
    return epsilon_from_rdp(counts.astype(np.float64) @ table, accountant.orders, DELTA)


def opacus_table(rate: float, sigmas: FloatArray) -> FloatArray:
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    return np.array([rdp.compute_rdp(q=rate, noise_multiplier=s, steps=1, orders=orders) for s in sigmas.tolist()])


def opacus_with_table(counts: IntArray, rate: float, sigmas: FloatArray, table: FloatArray) -> FloatArray:
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    out = []
    for row in counts.tolist():
        spent = np.zeros(len(orders))
        for level, count in enumerate(row):
            if count:
                spent += count * table[level]
        out.append(rdp.get_privacy_spent(orders=orders, rdp=spent, delta=DELTA)[0])
    return np.array(out)


def opacus_without_table(counts: IntArray, rate: float, sigmas: FloatArray) -> FloatArray:
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    out = []
    for row in counts.tolist():
        spent = np.zeros(len(orders))
        for sigma, count in zip(sigmas.tolist(), row, strict=True):
            if count:
                spent += rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=count, orders=orders)
        out.append(rdp.get_privacy_spent(orders=orders, rdp=spent, delta=DELTA)[0])
    return np.array(out)


def one_by_one(counts: IntArray, rate: float, sigmas: FloatArray) -> FloatArray:
    releases = [
        Composed(tuple(SampledGaussian(rate, s, c) for s, c in zip(sigmas.tolist(), row, strict=True) if c))
        for row in counts.tolist()
    ]
    return PLD().epsilons(releases, DELTA)


def together(counts: IntArray, rate: float, sigmas: FloatArray) -> FloatArray:
    return trajectories.epsilons(counts, rate, sigmas, DELTA)


def timed(work: Callable[..., FloatArray], *arguments: object) -> tuple[FloatArray, float]:
    begun = time.perf_counter()
    return work(*arguments), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--sample", type=int, default=20, help="records that the slow loops are timed on")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus")  # it warns that small ε are out of its orders' reach
    console = Console(width=120)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "opacus"))
    records: int = options.records
    rate = BATCH / 60_000
    sigma = noise_for(rate)
    counts = simulated(records)
    sigmas = sigma * LEVELS / np.arange(1, LEVELS + 1)
    console.print(
        f"Python {platform.python_version()}, {versions}; {multiprocessing.cpu_count()} cores\n"
        f"{records:,} records, {LEVELS} levels, {STEPS:,} steps at rate {rate:.4f}, σ {sigma:.3f} "
        f"(worst case ε {EPSILON}), δ {DELTA:g}\n",
        highlight=False,
    )
    spent, seconds = {}, {}
    for name, work in (("RDP", by_rdp), ("PLD", together)):
        spent[name], seconds[name] = timed(work, counts, rate, sigmas)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    table = Table("ε of all records", "seconds", "times as long as ours")
    table.add_row("RDP, one matrix product", f"{seconds['RDP']:.2f}", "")
    table.add_row(f"PLD, all at once (peak {peak:.1f} GB)", f"{seconds['PLD']:.1f}", "")
    chosen = np.random.default_rng(1).choice(records, min(options.sample, records), replace=False)
    many = np.random.default_rng(1).choice(records, min(50 * options.sample, records), replace=False)
    opacus, once = timed(opacus_table, rate, sigmas)
    loops: list[tuple[str, str, Callable[..., FloatArray], IntArray, float]] = [
        ("Opacus, table, a loop over records", "RDP", partial(opacus_with_table, table=opacus), many, once),
        ("Opacus, no table, a loop over records", "RDP", opacus_without_table, chosen, 0.0),
        ("PLD, one record after another", "PLD", one_by_one, chosen[: max(options.sample // 4, 1)], 0.0),
    ]
    for name, ours, work, rows, before in loops:
        alone, taken = timed(work, counts[rows], rate, sigmas)
        whole = before + taken / rows.size * records
        table.add_row(
            f"{name} (extrapolated from {rows.size:,})", f"{whole:,.0f}", f"{whole / seconds[ours]:,.0f} ({ours})"
        )
        if name.startswith("PLD"):
            ratio = spent["PLD"][rows] / alone
            console.print(f"ours over PLD one by one: {ratio.min():.4f} to {ratio.max():.4f}", highlight=False)
    console.print(table)
    shares = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
    quantiles = Table("ε", *(f"{share:.0%}" for share in shares), title="quantiles", title_justify="left")
    for name, values in spent.items():
        quantiles.add_row(name, *(f"{value:.3f}" for value in np.quantile(values, shares)))
    console.print(quantiles)
    filters = Table("purse", "step ε", "ours", "Feldman & Zrnic, example", "Rogers et al.", title="steps let through")
    for epsilon, delta in PURSES:
        for step in (0.001, 0.01):
            allowed = equal_steps(step, epsilon, delta)
            filters.add_row(f"({epsilon:g}, {delta:g})", f"{step:g}", *(f"{count:,}" for count in allowed.values()))
    console.print(filters)


if __name__ == "__main__":
    main()

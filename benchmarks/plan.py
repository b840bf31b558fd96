"""Planning speed: python -m benchmarks.plan

Everyone has a different ε (mixture of Gaussians, Liu et al. 2024), the method is "sample". Beside it, on the same
budgets: a binary search for each record on Opacus's accountant (Boenisch et al. 2023, Algorithm 4), timed on a few
records and extrapolated, and the published curve fit. Each row runs in a process of its own, for its peak memory.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import platform
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.accounting import PLD, RDP, SampledGaussian
from privypurse.budgets import preferences
from reproductions.unsound.trusted_curve import TrustedCurve

STEPS, SHARE, DELTA = 2000, 0.01, 1e-6
PRECISION = 0.01  # of Algorithm 4


def budgets_of(people: int) -> pp.Budgets:
    return pp.Budgets(preferences.bounded_gaussian_mixture(people, np.random.default_rng(0)), delta=DELTA)


def ours(people: int, accountant: str) -> dict[str, Any]:
    budgets = budgets_of(people)
    begun = time.perf_counter()
    plan = pp.plan(budgets, "sample", steps=STEPS, batch_size=int(SHARE * people), accountant=accountant)
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    spent = plan.spent()
    return {
        "seconds": seconds,
        "recheck": time.perf_counter() - begun,
        "overspent": int((spent > budgets.epsilon).sum()),
        "used": float((spent / budgets.epsilon)[~plan.capped].min()),
        "noise": plan.noise_multiplier,
    }


def by_id(people: int) -> dict[str, Any]:
    """A plan that knows its people: the file, and what it takes to bring it into another order of records."""
    ids = np.array([f"C{number:07d}" for number in range(people)])
    epsilon = preferences.bounded_gaussian_mixture(people, np.random.default_rng(0))
    out: dict[str, Any] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = work()
        out[name] = time.perf_counter() - begun
        return result

    delta = min(DELTA, 0.1 / people)
    budgets = timed("budgets", lambda: pp.Budgets(epsilon, delta=delta, person=ids))
    plan = timed("plan", lambda: pp.plan(budgets, steps=STEPS, batch_size=int(SHARE * people), accountant="rdp"))
    order = np.random.default_rng(1).permutation(people)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        timed("save", lambda: plan.save(path))
        out["megabytes"] = path.stat().st_size / 1e6
        loaded = timed("load", lambda: pp.Plan.load(path))
    applied = timed("apply", lambda: loaded.applied_to(ids[order]))
    timed("recompute", applied.require_kept)
    out["right"] = bool(np.array_equal(applied.rates, plan.rates[order]))
    return out


def curve_fit(people: int, noise_multiplier: float) -> dict[str, Any]:
    budgets = budgets_of(people)
    begun = time.perf_counter()
    plan = pp.plan(
        budgets,
        TrustedCurve(),
        steps=STEPS,
        batch_size=int(SHARE * people),
        noise_multiplier=noise_multiplier,
        accountant="rdp",
    )
    seconds = time.perf_counter() - begun
    spent = plan.spent()
    return {
        "seconds": seconds,
        "overspent": int((spent > budgets.epsilon).sum()),
        "used": float((spent / budgets.epsilon).min()),
    }


def opacus_search(people: int, noise_multiplier: float, sample: int) -> dict[str, Any]:
    """Binary search for ``sample`` records' rates, extrapolated to all of them: it keeps nothing between records."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    def spent(rate: float) -> float:
        curve = rdp.compute_rdp(
            q=rate, noise_multiplier=noise_multiplier, steps=STEPS, orders=RDPAccountant.DEFAULT_ALPHAS
        )
        return float(rdp.get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=curve, delta=DELTA)[0])

    budgets = budgets_of(people)
    chosen = np.random.default_rng(1).choice(people, sample, replace=False)
    found, begun = [], time.perf_counter()
    for epsilon in budgets.epsilon[chosen].tolist():
        low, high, at_low = 0.0, 1.0, 0.0
        while epsilon - at_low > min(PRECISION, 0.02 * epsilon) and high - low > 1e-9:
            middle = (low + high) / 2
            if (cost := spent(middle)) <= epsilon:
                low, at_low = middle, cost
            else:
                high = middle
        found.append(low)
    seconds = (time.perf_counter() - begun) / sample * people
    certified = PLD().epsilons([SampledGaussian(rate, noise_multiplier, STEPS) for rate in found], DELTA)
    return {
        "seconds": seconds,
        "overspent": int((certified > budgets.epsilon[chosen]).sum()),
        "used": float((certified / budgets.epsilon[chosen]).min()),
    }


def one_evaluation() -> list[tuple[str, str, float]]:
    """Seconds for the ε of one (rate, noise, steps), each engine on the same 50 rates."""
    import dp_accounting
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp as opacus_rdp

    rates = np.geomspace(1e-3, 0.1, 50).tolist()
    releases = [SampledGaussian(rate, 3.0, STEPS) for rate in rates]

    def dp_accounting_pld() -> None:
        for rate in rates:
            accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(3.0)), STEPS)
            accountant.get_epsilon(DELTA)

    def opacus() -> None:
        for rate in rates:
            curve = opacus_rdp.compute_rdp(
                q=rate, noise_multiplier=3.0, steps=STEPS, orders=RDPAccountant.DEFAULT_ALPHAS
            )
            opacus_rdp.get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=curve, delta=DELTA)

    engines: list[tuple[str, str, Callable[[], Any]]] = [
        ("RDP", "Privy Purse", lambda: RDP().epsilons(releases, DELTA)),
        ("RDP", "Opacus", opacus),
        ("PLD", "Privy Purse", lambda: PLD().epsilons(releases, DELTA)),
        ("PLD", "dp-accounting", dp_accounting_pld),
    ]
    out = []
    for kind, name, run in engines:
        begun = time.perf_counter()
        run()
        out.append((kind, name, (time.perf_counter() - begun) / len(rates)))
    return out


def _child(pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    warnings.filterwarnings("ignore", module="opacus")  # it warns that ε below 0.2 is out of its orders' reach
    result = work(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # GB
    pipe.send((result, peak))


def alone(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result of ``work`` in a fresh process, and that process's peak memory in GB."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, work, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--opacus-records", type=int, default=20)
    options = parser.parse_args()
    console = Console(width=120)
    names = ("numpy", "scipy", "opacus", "dp-accounting", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    console.print(
        f"Python {platform.python_version()}, {versions}; {multiprocessing.cpu_count()} cores", highlight=False
    )
    console.print(
        f"{STEPS:,} steps, batch {SHARE:.0%} of the people, δ {DELTA:g}, every ε different\n", highlight=False
    )
    table = Table("people", "how", "seconds", "peak GB", "overspend", "least use of an ε", "σ")
    for column in table.columns:
        column.justify = "right"
    for people in options.people:
        noise = 0.0
        for accountant in ("rdp", "pld"):
            got, peak = alone(ours, people, accountant)
            noise = noise or got["noise"]
            row = (
                f"{got['seconds']:.2f}",
                f"{peak:.2f}",
                str(got["overspent"]),
                f"{got['used']:.1%}",
                f"{got['noise']:.3f}",
            )
            table.add_row(f"{people:,}", f"Privy Purse, {accountant}", *row)
        got, peak = alone(curve_fit, people, noise)
        row = (f"{got['seconds']:.2f}", f"{peak:.2f}", f"{got['overspent']:,}", f"{got['used']:.1%}", f"{noise:.3f}")
        table.add_row(f"{people:,}", "curve fit as published", *row)
        got, peak = alone(opacus_search, people, noise, options.opacus_records)
        seen = f"{got['overspent']} of {options.opacus_records}"
        row = (f"{got['seconds']:,.0f} (extrapolated)", f"{peak:.2f}", seen, f"{got['used']:.1%}", f"{noise:.3f}")
        table.add_row(f"{people:,}", "Opacus, binary search", *row)
        table.add_section()
    console.print(table)
    known = Table(
        *("people", "budgets", "plan", "save", "load", "apply by id", "recompute spent", "MB on disk"),
        title="a plan that knows its people by id (rdp), seconds",
        title_justify="left",
    )
    for people in options.people:
        got = alone(by_id, people)[0]
        assert got["right"]
        steps = ("budgets", "plan", "save", "load", "apply", "recompute")
        known.add_row(f"{people:,}", *(f"{got[name]:.2f}" for name in steps), f"{got['megabytes']:.2f}")
    console.print(known)
    engines = Table("accountant", "engine", "ms an evaluation", title="one ε of one rate", title_justify="left")
    for kind, name, seconds in alone(one_evaluation)[0]:
        engines.add_row(kind, name, f"{1000 * seconds:.2f}")
    console.print(engines)


if __name__ == "__main__":
    main()

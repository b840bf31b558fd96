"""Questions and statistics: python -m benchmarks.queries [sparse] [speed] [statistics]

sparse: how many adaptively chosen counts about Adult are answered before the first person, and before half of them,
can pay for no further one, beside worst-case accounting, which charges everybody for every question.
speed: one count among a million records.
statistics: private mean and five quantiles at (0.1, 1e-5) in all, over seeds: values like those of Yu et al. (2023),
Table 2, and made-up ones, with the right cap and with one 20 times too large. The constants of the method were chosen
on the first set of values; the second was made up afterwards.

Seeded, so that it can be repeated.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse import datasets
from privypurse.accounting.filters import Filter
from privypurse.arrays import FloatArray
from privypurse.datasets.census import ADULT_ENCODING
from privypurse.datasets.encoding import Categories
from privypurse.errors import PrivyPurseWarning
from privypurse.queries import Analyst, Answer, statistics
from privypurse.queries.table_ledger import table_ledger

EPSILON, DELTA, NOISE = 1.0, 1e-5, 20.0
LARGE = 5 * NOISE
AGES = [17, 25, 35, 45, 55, 65, 91]
PROBABILITIES = np.array(statistics.PROBABILITIES)


def drill_down(asks: Analyst) -> Iterator[float]:
    """Counts by occupation; of those that look large, by education; of those, by age; and again."""
    jobs = ADULT_ENCODING["occupation"]
    assert isinstance(jobs, Categories)
    while True:
        for job in jobs.values:
            first = f"occupation == '{job}'"
            yield (count := float(asks.count(first, noise=NOISE)))
            if count < LARGE:
                continue
            for level in range(1, 17):
                second = f"{first} and education_num == {level}"
                yield (count := float(asks.count(second, noise=NOISE)))
                if count < LARGE:
                    continue
                for low, high in pairwise(AGES):
                    yield float(asks.count(f"{second} and {low} <= age < {high}", noise=NOISE))


def sparse(console: Console) -> None:
    data = datasets.adult().columns
    people = len(data["age"])
    asks = Analyst(data, pp.Budgets(np.full(people, EPSILON), delta=DELTA), seed=0)
    assert isinstance(asks.purses, Filter)
    cost = 1 / NOISE**2
    worst = int(asks.purses.total[0] // cost)
    asked, first, begun = 0, 0, time.perf_counter()
    for _ in drill_down(asks):
        asked += 1
        out = float((asks.purses.left < cost).mean())
        if out > 0 and not first:
            first = asked
        if out >= 0.5:
            break
    seconds = time.perf_counter() - begun
    console.print(
        f"Adult, {people:,} people with ε = {EPSILON:g}, δ = {DELTA:g}; counts with noise {NOISE:g}, by occupation, "
        f"education and age as the answers lead ({1000 * seconds / asked:.1f} ms a question)",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("questions answered until", "everybody pays the worst case", "each pays for what touches them")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("the first person is out", f"{worst:,}", f"{first:,}")
    table.add_row("half of the people are out", f"{worst:,}", f"{asked:,}")
    console.print(table)


def speed(console: Console, people: int) -> None:
    rng = np.random.default_rng(0)
    data = {
        "age": rng.integers(0, 100, people),
        "city": np.array(["Oslo", "Bergen", "Voss"])[rng.integers(0, 3, people)],
        "pay": rng.normal(300, 50, people),
    }
    budgets = pp.Budgets(rng.uniform(0.1, 3, people))
    owned = pp.Budgets(np.full(people, 2.0), person=rng.integers(0, people // 3, people))
    where = "age >= 65 and city == 'Oslo'"
    table = Table("question", "ms, median of 9", title=f"{people:,} records", title_justify="left")
    table.columns[1].justify = "right"
    with tempfile.TemporaryDirectory() as folder:
        one, held = Analyst(data, budgets), table_ledger(Path(folder) / "people.ledger", budgets, {})
        kept = Analyst(data, held.budgets, person=held.budgets.person, ledger=held.ledger)
        several = Analyst(data, owned, person=owned.person)
        cases: dict[str, Callable[[], Answer]] = {
            f"count where {where}": lambda: one.count(where, noise=1e3),
            "the same, charged in a ledger": lambda: kept.count(where, noise=1e3),
            f"the same, {owned.people:,} people own the records": lambda: several.count(where, noise=1e3),
            "sum": lambda: one.sum("pay", lower=0, upper=1000, noise=1e6),
            "mean": lambda: one.mean("pay", lower=0, upper=1000, noise=1e3),
            "histogram of 50 bins": lambda: one.histogram("age", edges=range(0, 101, 2), noise=1e3),
        }
        for name, question in cases.items():
            question()
            seconds = []
            for _ in range(9):
                begun = time.perf_counter()
                question()
                seconds.append(time.perf_counter() - begun)
            table.add_row(name, f"{1000 * float(np.median(seconds)):.1f}")
    console.print(table)


def made_up(rng: np.random.Generator) -> dict[str, tuple[FloatArray, float]]:
    """Values and their cap."""

    def like(quantiles: list[float], low: float, high: float, people: int) -> FloatArray:
        known = np.log([low, *quantiles, high])
        return np.exp(np.interp(rng.random(people), [0, *PROBABILITIES, 1], known))

    n = 60_000
    few = rng.random(n) < 0.4
    return {
        "like MNIST": (like([0.236, 0.318, 0.431, 0.697, 1.682], 0.15, 2.4, n), 2.4),
        "like CIFAR-10": (np.minimum(like([2.713, 4.892, 6.730, 7.692, 7.815], 1.0, 7.9, 50_000), 7.8), 7.8),
        "log-normal": (np.exp(rng.normal(0, 1, n)), 10.0),
        "two humps": (np.where(few, rng.normal(1, 0.05, n), rng.normal(8, 0.2, n)), 10.0),
        "uniform": (rng.random(n) * 8, 8.0),
        "a third at the cap": (np.exp(rng.normal(1.1, 1, n)), 5.0),
        "1, 2 or 3": (rng.choice([1.0, 2.0, 3.0], n, p=[0.34, 0.43, 0.23]), 3.0),
    }


def made_up_afterwards(rng: np.random.Generator) -> dict[str, tuple[FloatArray, float]]:
    """Values that no constant was chosen on. The 0.1-quantile of the second is 1/760 of its cap."""
    n = 60_000
    humps = rng.choice([0.3, 2.0, 6.0], n, p=[0.25, 0.5, 0.25])
    return {
        "exponential": (rng.exponential(1, n), 8.0),
        "gamma of shape 0.5": (rng.gamma(0.5, 1, n), 6.0),
        "beta (5, 2)": (3 * rng.beta(5, 2, n), 3.0),
        "Weibull of shape 3": (2 * rng.weibull(3, n), 5.0),
        "Pareto of index 2": (1 + rng.pareto(2, n), 20.0),
        "narrow": (rng.normal(2, 0.01, n), 2.1),
        "three humps": (humps * rng.lognormal(0, 0.1, n), 8.0),
        "log-normal, 10,000": (rng.lognormal(0, 0.5, 10_000), 4.0),
    }


def release_errors(console: Console, seeds: int) -> None:
    sets = {"values the constants were chosen on": made_up, "values made up afterwards": made_up_afterwards}
    for title, make in sets.items():
        _error_table(console, title, make(np.random.default_rng(0)), seeds)
    console.print("median, 90 %, largest: of the average over the six figures; then the median of each figure")


def _error_table(console: Console, title: str, sets: dict[str, tuple[FloatArray, float]], seeds: int) -> None:
    table = Table("values", "cap", "median", "90 %", "largest", "mean", *(f"{p:g}" for p in PROBABILITIES))
    table.title = f"{title}: relative error in % of mean and five quantiles at (0.1, {DELTA:g}), {seeds} seeds"
    table.title_justify = "left"
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (values, right) in sets.items():
        for times in (1, 20):
            cap = right * times
            clipped = np.clip(values, 0, cap)
            truth = np.array([clipped.mean(), *np.quantile(clipped, PROBABILITIES)])
            each = []
            for seed in range(seeds):
                purses = Filter(np.ones(values.size), np.full(values.size, DELTA))
                got = statistics.release(values, purses, cap=cap, epsilon=0.1, delta=DELTA, seed=seed)
                each.append(100 * np.abs(np.array([got.mean, *got.quantiles]) / truth - 1))
            errors = np.array(each)
            over = errors.mean(axis=1)
            shown = [np.median(over), np.quantile(over, 0.9), over.max(), *np.median(errors, axis=0)]
            table.add_row(name, "right" if times == 1 else f"× {times}", *(f"{value:.2f}" for value in shown))
        table.add_section()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="sparse, speed, statistics (default: all)")
    parser.add_argument("--people", type=int, default=10**6, help="records for speed")
    parser.add_argument("--seeds", type=int, default=50, help="for statistics")
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivyPurseWarning)
    console = Console(width=120)
    console.print(f"Python {platform.python_version()}, numpy {np.__version__}\n", highlight=False)
    parts = options.parts or ["sparse", "speed", "statistics"]
    if "sparse" in parts:
        sparse(console)
    if "speed" in parts:
        speed(console, options.people)
    if "statistics" in parts:
        release_errors(console, options.seeds)


if __name__ == "__main__":
    main()

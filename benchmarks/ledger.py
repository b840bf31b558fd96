"""The ledger's speed and size: python -m benchmarks.ledger [--people 1000 1000000] [--runs 50] [--rungs 1] [--bars]

Everybody takes part in every run: reserved by 300 classes, settled at a charge of everybody's own, as after
individual accounting, so that settling rounds up to the public grid. Printed: seconds to join and to look everybody
up; the median and the largest of reserve + settle; bytes a person and run; milliseconds for one person's balance (by
number) and seconds for everybody's, after all runs; the largest share of a purse that rounding took in all runs;
seconds to verify all of it (with --verify).

--bars exits with 1 if a million people take more than 1.5 s to reserve and settle (the median), 6 bytes a person and
run (2 more for each further rung), 5 ms for one balance or 2 s for everybody's, or if rounding took more than 0.1 %
of anybody's purse. --url measures a database of its own (PostgreSQL: an empty one) with the last --people and first
--rungs; --no-sqlite nothing else. --processor-time measures this process's work (without what a server does), beside
other work.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.arrays import IntArray
from privypurse.ledger.people import Members

CLASSES = 300
RESERVE_AND_SETTLE, BYTES, BYTES_FURTHER, ONE, EVERYBODY, ROUNDING = 1.5, 6.0, 2.0, 5e-3, 2.0, 1e-3
PROCESSOR_TIME = False
GRANTS = [(0.1, 1e-5), (0.2, 1e-5), (0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-5), (4.0, 1e-5), (8.0, 1e-5), (16.0, 1e-5)]


@dataclass(frozen=True)
class Measured:
    database: str
    people: int
    runs: int
    rungs: int
    join: float
    members: float
    run: float
    slowest_run: float
    bytes: float
    one: float
    everybody: float
    rounding: float
    verify: float | None

    def above_bars(self) -> list[str]:
        bars = {
            "reserve + settle": (self.run, RESERVE_AND_SETTLE),
            "bytes a person and run": (self.bytes, BYTES + BYTES_FURTHER * (self.rungs - 1)),
            "one balance": (self.one, ONE),
            "everybody's balance": (self.everybody, EVERYBODY),
            "share of a purse lost to rounding": (self.rounding, ROUNDING),
        }
        return [f"{name}: {value:.3g} is above {bar:g}" for name, (value, bar) in bars.items() if value > bar]


def clock() -> float:
    """Seconds: of the clock, or of this process's work, which other processes do not add to."""
    return time.process_time() if PROCESSOR_TIME else time.perf_counter()


def timed(work: Callable[[], object]) -> float:
    begun = clock()
    work()
    return clock() - begun


def size_of(ledger: pp.Ledger) -> int:
    path = ledger._database.path
    if path is not None:
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    with ledger._database.reader() as connection:
        return int(connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one())


def one_run(
    ledger: pp.Ledger, name: str, people: Members, runs: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Seconds of reserve and settle, and the share of a purse that rounding took."""
    most = np.array([rung.limit // (runs + 1) for rung in ledger.rungs])
    charges = (np.linspace(0.5, 1, CLASSES)[:, None] * most).astype(np.int64)
    class_of = rng.integers(0, CLASSES, len(people))
    own: IntArray = (charges[class_of] * rng.random((len(people), 1))).astype(np.int64)
    each = np.arange(len(people))
    begun = clock()
    run = ledger.reserve(name, people, charges, class_of)
    settled = run.settle(own, each)
    seconds = clock() - begun
    if not run.admitted.all():
        raise SystemExit("somebody could not pay: the figures would be of another case")
    return seconds, settled.rounding


def measured(url: str, people: int, runs: int, rungs: int, verify: bool) -> Measured:
    ledger = pp.Ledger.create(url, GRANTS[-rungs:], key=bytes(32))
    rng, ids = np.random.default_rng(0), np.arange(people)
    epsilon = np.array([rung.epsilon for rung in ledger.rungs])[rng.integers(0, rungs, people)]
    join = timed(lambda: ledger.join(ids, epsilon))
    before = size_of(ledger)
    begun = clock()
    everybody = ledger.members(ids)
    members = clock() - begun
    rows = [one_run(ledger, f"run {number}", everybody, runs, rng) for number in range(runs)]
    seconds, rounding = np.array(rows).T
    grown = size_of(ledger) - before
    few = [Members(ledger.id, np.array([number]), np.zeros(1, np.int8)) for number in rng.integers(0, people, 25)]
    single = [timed(lambda one=one: ledger.balances(one)) for one in few]  # type: ignore[misc]
    return Measured(
        database=ledger._database.engine.dialect.name,
        people=people,
        runs=runs,
        rungs=rungs,
        join=join,
        members=members,
        run=float(np.median(seconds)),
        slowest_run=float(seconds.max()),
        bytes=grown / people / runs,
        one=float(np.median(single)),
        everybody=timed(lambda: ledger.balances(everybody)),
        rounding=float(rounding.sum()),
        verify=timed(lambda: _require_sound(ledger)) if verify else None,
    )


def _require_sound(ledger: pp.Ledger) -> None:
    found = ledger.verify()
    if not found.sound:
        raise SystemExit(f"the ledger is not sound: {found.problems}")


def table_of(rows: list[Measured]) -> Table:
    columns = ("database", "people", "runs", "rungs", "join s", "members s", "reserve + settle s", "slowest s")
    table = Table(*columns, "bytes a person and run", "one ms", "everybody s", "rounding %", "verify s")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.database,
            f"{row.people:,}",
            str(row.runs),
            str(row.rungs),
            f"{row.join:.2f}",
            f"{row.members:.2f}",
            f"{row.run:.3f}",
            f"{row.slowest_run:.3f}",
            f"{row.bytes:.2f}",
            f"{1000 * row.one:.1f}",
            f"{row.everybody:.2f}",
            f"{100 * row.rounding:.3f}",
            "" if row.verify is None else f"{row.verify:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rungs", type=int, nargs="+", default=[1])
    parser.add_argument("--url", help="a database beside SQLite, such as postgresql://USER@HOST/EMPTY")
    parser.add_argument("--no-sqlite", action="store_true", help="only what --url names")
    parser.add_argument("--verify", action="store_true", help="recompute all of it too")
    parser.add_argument("--bars", action="store_true", help="exit with 1 above a bar")
    parser.add_argument("--processor-time", action="store_true", help="of this process, beside other work")
    options = parser.parse_args()
    global PROCESSOR_TIME
    PROCESSOR_TIME = options.processor_time
    console, rows = Console(width=150), []
    console.print(f"Python {platform.python_version()}, numpy {np.__version__}\n", highlight=False)
    for rungs in [] if options.no_sqlite else options.rungs:
        for people in options.people:
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder) / 'purses.db'}"
                rows.append(measured(url, people, options.runs, rungs, options.verify))
    if options.url:
        rows.append(measured(options.url, options.people[-1], options.runs, options.rungs[0], options.verify))
    console.print(table_of(rows))
    above = [f"{row.people:,} people: {what}" for row in rows for what in row.above_bars() if row.people == 10**6]
    for line in above if options.bars else []:
        console.print(line)
    sys.exit(1 if options.bars and above else 0)


if __name__ == "__main__":
    main()

"""Plans once balances have drifted apart: python -m benchmarks.ledger_plans [--people 1000000] [--runs 50]

Everybody was charged something of their own in each of so many runs, as after individual accounting, so hardly two
people have the same left. The balances are made directly, as sums of such charges; public ones are the grant less all
caps. Printed are seconds of processor time: those to hash ids and find them, which every plan under a ledger takes,
and for each method those of the whole plan; how many different balances there are and how many levels come of them;
and how much of what people have left a plan leaves unused because rates and clip norms come from a list of round
numbers 1 % apart. That stays in the purse. Where sampling is sparse, 1 % more of a clip norm may cost three times as
much.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import privypurse as pp
from benchmarks.ledger import GRANTS
from privypurse.arrays import IntArray
from privypurse.plans.price_list import PriceList

RUNGS = 3
SHAPE: dict[str, Any] = {"steps": 2000, "batch_size": 512, "noise_multiplier": 2.0, "accountant": "rdp"}


def drifted(ledger: pp.Ledger, rung: IntArray, runs: int) -> tuple[IntArray, IntArray]:
    """What everybody has left after so many runs that could have taken 90 % of their purse, really and by caps."""
    rng, limits = np.random.default_rng(0), ledger.lifetime.limits[rung]
    cap = limits * 9 // (10 * runs)
    charged = sum((cap * rng.random((rung.size, 1))).astype(np.int64) for _ in range(runs))
    free = limits == limits.max()  # columns below one's own rung do not limit
    return np.where(free, limits, limits - charged), np.where(free, limits, limits - runs * cap)


def unused(ledger: pp.Ledger, plan: pp.Plan, room: IntArray) -> np.ndarray:
    """The share of what is left that a plan does not use, of those whose balance decides, and not their ε."""
    prices = PriceList.of_plan(ledger, plan)
    place = prices.rows_of(plan)[plan.level_of]
    decides = (prices.affordable(room) == place) & (place >= 0) & (place < prices.value.size - 1)
    cost = np.vstack([prices.charges, np.zeros_like(prices.charges[:1])])[place]
    return np.asarray(((room - cost) / np.maximum(room, 1)).min(axis=1)[decides])


def measured(ledger: pp.Ledger, budgets: pp.Budgets, method: str, room: IntArray, public: IntArray) -> str:
    with mock.patch.multiple(pp.Ledger, room=lambda *_: room, public_room=lambda *_: public):
        begun = time.process_time()
        plan = pp.plan(budgets, method, ledger=ledger, **SHAPE)
        seconds = time.process_time() - begun
        left = unused(ledger, plan, room)
    said = f"{method:10s} {seconds:6.2f} s, {len(plan.levels):,} levels"
    if not left.size:
        return f"{said}; one rate for all"
    return f"{said}; unused of what is left {100 * left.mean():.2f} % on average, {100 * left.max():.2f} % at most"


def lines(ledger: pp.Ledger, people: int, runs: int, methods: list[str]) -> Iterator[str]:
    ids = np.arange(people)
    granted = np.array([rung.epsilon for rung in ledger.rungs])[ids % len(ledger.rungs)]
    ledger.join(ids, granted)
    budgets = pp.Budgets(granted, delta=1e-7, person=ids)
    begun = time.process_time()
    members = ledger.members(ids)
    budgets.keyed_ids()
    seconds = time.process_time() - begun
    room, public = drifted(ledger, members.rung.astype(np.int64), runs)
    balances = np.unique(room, axis=0).shape[0]
    yield f"{people:,} people, {runs} runs, {balances:,} different balances; their ids {seconds:.2f} s"
    for method in methods:
        yield measured(ledger, budgets, method, room, public)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--methods", nargs="+", default=["sample", "scale", "uniform", "exclude", "curve-fit"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ledger = pp.Ledger.create(f"sqlite:///{Path(folder) / 'purses.db'}", GRANTS[2 : 2 + RUNGS], key=bytes(32))
        for line in lines(ledger, options.people, options.runs, options.methods):
            print(line, flush=True)


if __name__ == "__main__":
    main()

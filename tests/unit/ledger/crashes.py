"""A run that is killed at a random point, and what it had released by then."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import numpy as np

import privypurse as pp

KEY = bytes(range(32))
IDS = [f"p{number}" for number in range(20)]
STEP = 1000  # units at each order


def live(url: str, released: int, seed: int, *, charge_first: bool = True) -> None:
    """Reserve runs, make steps of them, settle at what was made, for ever; each step is told as it is made.

    Without ``charge_first`` steps are made before they are reserved, and charged just the same afterwards.
    """
    ledger = pp.Ledger.open(url, key=KEY)
    people, rng, first = ledger.members(IDS), random.Random(seed), np.zeros(len(IDS), dtype=int)

    def make(steps: int, run: str) -> None:
        for _ in range(steps):
            os.write(released, run.encode() + b"\n")

    while True:
        steps, name = rng.randint(1, 5), f"run {rng.getrandbits(60)}"
        made, table = rng.randint(0, steps), np.full((1, len(ledger.rungs)), STEP)
        if not charge_first:
            make(made, name)
        run = ledger.reserve(name, people, steps * table, first, at_most=0.01)
        assert run.admitted.all()
        if charge_first:
            make(made, name)
        if rng.random() < 0.8:
            run.settle(made * table, first)
        else:
            if not charge_first:
                make(1, f"question of {name}")
            ledger.charge(f"question of {name}", people, table, first)
            if charge_first:
                make(1, f"question of {name}")


def killed(url: str, rng: random.Random, *, charge_first: bool) -> Counter[str]:
    """How many steps of each run a process made before it was killed, a random moment after a random step."""
    reading, writing = os.pipe()
    seed, steps, after = rng.getrandbits(60), rng.randint(0, 3), rng.uniform(0.0, 0.02)
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            live(url, writing, seed, charge_first=charge_first)
        finally:
            os._exit(1)
    os.close(writing)
    content = b""
    while content.count(b"\n") < steps and (part := os.read(reading, 65536)):
        content += part
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while part := os.read(reading, 65536):
        content += part
    os.close(reading)
    assert os.WIFSIGNALED(status), "the process ended by itself"
    return Counter(content.decode().splitlines())


def charged(ledger: pp.Ledger) -> dict[str, int]:
    """What each run took: what it settled at, or has reserved if it is open."""
    events = [event for event in ledger.history(IDS[0]) if event.charged]
    return {str(event.run): event.charged[0] for event in events if event.charged}


def survive(url: str, times: int, *, charge_first: bool = True, check_every: int = 50) -> None:
    """Kill so many processes, one after another, on one ledger; at least what was released is charged."""
    ledger = pp.Ledger.open(url, key=KEY)
    ledger.join(IDS, ledger.rungs[-1].epsilon)
    rng, released = random.Random(0), Counter[str]()
    for number in range(times):
        released += killed(url, rng, charge_first=charge_first)
        if (number + 1) % check_every == 0 or number == times - 1:
            paid = charged(ledger)
            missing = [run for run, steps in released.items() if paid.get(run, 0) < steps * STEP]
            assert not missing, f"released and not charged: {missing}"
            for run in ledger.runs():
                if run.settled is None:
                    ledger.recover(run.run_id)
            assert ledger.verify().problems == []
    assert released

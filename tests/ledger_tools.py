"""What tests under a ledger share: people in a fresh one, and what steps cost by other code than the ledger's."""

from __future__ import annotations

import math
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

import privypurse as pp
from privypurse.ledger import people

EPSILONS = (0.5, 1.0, 2.0)
"""Their orders for life (28, 16 and 9) are whole numbers, at which a plain sum is exact."""
DELTA = 1e-5
KEY = bytes(range(32))
UNIT = 2.0**-40


@cache
def _template(epsilons: tuple[float, ...]) -> Path:
    """Made once and copied: making tables takes longer than most tests."""
    path = Path(tempfile.mkdtemp()) / "template.db"
    pp.Ledger.create(f"sqlite:///{path}", epsilons=epsilons, delta=DELTA, key=KEY)
    return path


def new_ledger(folder: Path, name: str = "purses.db", epsilons: tuple[float, ...] = EPSILONS) -> pp.Ledger:
    """One without people; opened again if it is there."""
    if not (folder / name).exists():
        shutil.copy(_template(epsilons), folder / name)
    return pp.Ledger.open(f"sqlite:///{folder / name}", key=KEY)


def copied(ledger: pp.Ledger, path: Path) -> pp.Ledger:
    """The same ledger, to go on with otherwise."""
    ledger.backup(path)
    return pp.Ledger.open(f"sqlite:///{path}", key=KEY)


def step_cost(rate: float, noise: float, order: float) -> float:
    """Rényi divergence of one sampled Gaussian step at a whole order (Mironov et al. 2019, arXiv 1908.10530, 3.3).

    The binomial weights add up to 1, so the moment minus 1 is a sum of positive terms.
    """
    whole = int(order)
    assert whole == order
    terms = [
        math.comb(whole, k) * (1 - rate) ** (whole - k) * rate**k * math.expm1((k * k - k) / (2 * noise**2))
        for k in range(2, whole + 1)
    ]
    return math.log1p(math.fsum(terms)) / (whole - 1)


def charged(ledger: pp.Ledger, ids: np.ndarray) -> np.ndarray:
    """[people, rungs] in nats: what everybody was charged in settled runs."""
    numbers = ledger.members(ids).numbers
    with ledger._reading() as connection:
        stand, places = people.of(connection, ledger.lifetime, numbers, None)
    return stand.spent[:, places].T * UNIT

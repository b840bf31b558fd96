"""What a plan under a ledger says beforehand of its cap and of everybody's ε: by public numbers alone (rule 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privypurse.arrays import IntArray
from privypurse.budgets import Budgets

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members


def notes_on(ledger: Ledger, members: Members, budgets: Budgets, at_most: float | None) -> Iterator[str]:
    """Of the ladder, the cap, grants and declared ε; ``members`` are the people of the budgets, in their order."""
    ladder = np.array([rung.epsilon for rung in ledger.rungs])
    if at_most is not None:
        yield share_of_cap(ledger, at_most)
    if (budgets.epsilon[budgets.first_record] > ladder[members.rung.astype(np.int64)]).any():
        yield (
            "somebody's ε here is above what they granted in the ledger: this training takes no more than the grant "
            "has left. Who shall allow more is raised there first (privypurse ledger consent)"
        )


def share_of_cap(ledger: Ledger, at_most: float, uses: int = 1) -> str:
    """How much of a purse the cap of so many uses is: at the order of its rung, over what the rung holds there."""
    rungs = ledger.rungs
    if at_most >= rungs[-1].epsilon:
        return (
            f"at_most is {at_most:g}, no less than the highest rung (ε = {rungs[-1].epsilon:g}): it caps nothing, "
            "and by public account nothing is left for later uses"
        )
    own = uses * _own_caps(ledger, at_most)
    shares = [
        f"{min(1.0, cap / rung.limit):.0%} of the {name} rung (ε = {rung.epsilon:g})".replace("%", " %")
        for name, rung, cap in (("lowest", rungs[0], own[0]), ("highest", rungs[-1], own[len(rungs) - 1]))
    ]
    times = "" if uses == 1 else f" {uses} times"
    said = f"the cap, ε = {at_most:g},{times} is " + " and ".join(shares[: min(len(rungs), 2)]) + ", for life"
    if len(rungs) > 1 and at_most <= rungs[0].epsilon:
        said += ". It is no more than the lowest rung, so nobody pays more than others: everybody is treated alike"
    if gone := _used_up(ledger, own):  # by this cap alone
        said += f". After this run no noise can be solved for {gone}: give later runs a noise multiplier"
    return said


def too_little_left(ledger: Ledger) -> str | None:
    """Why no noise makes so large a batch, where earlier uses took of public balances: by ladder and caps alone."""
    taken = _by_earlier_caps(ledger)
    if not taken.any():
        return None
    lowest, gone = ledger.rungs[0], _used_up(ledger, taken)
    share = f"{taken[0] / lowest.limit:.0%}".replace("%", " %")
    much = f"all of {gone}" if gone else f"{share} of the lowest rung (ε = {lowest.epsilon:g})"
    return (
        "no noise multiplier makes a batch as large as batch_size on average of what public balances have left: the "
        f"caps (at_most) of earlier uses took {much} from whoever was in all of them. Give noise_multiplier= (such "
        "as an earlier run's: everybody's rate then follows from what they really have left), a smaller batch_size, "
        "or from the first run on a smaller at_most"
    )


def _used_up(ledger: Ledger, taken: IntArray) -> str:
    """The rungs that so much takes whole; "" where it is none."""
    rungs = ledger.rungs
    gone = [f"{rung.epsilon:g}" for rung, units in zip(rungs, taken.tolist(), strict=True) if units >= rung.limit]
    return f"{len(gone)} of the ladder's {len(rungs)} rungs (ε = {', '.join(gone)})" if gone else ""


def _by_earlier_caps(ledger: Ledger) -> IntArray:
    """For each rung the sum of the caps of all uses so far, at its own order."""
    taken = np.zeros(len(ledger.rungs), dtype=np.int64)
    limits = np.array([rung.limit for rung in ledger.rungs])
    for use in ledger.runs():
        taken = np.minimum(taken + _own_caps(ledger, use.at_most), limits)
    return taken


def _own_caps(ledger: Ledger, at_most: float | None) -> IntArray:
    """For each rung the public cap of a run, at its own order."""
    none = np.zeros((0, ledger.lifetime.columns), dtype=np.int64)
    return np.diag(ledger.caps(none, at_most))[: len(ledger.rungs)]

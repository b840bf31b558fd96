"""What a plan under a ledger says beforehand of its cap and of everybody's ε: by public numbers alone (rule 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from privypurse.budgets import Budgets

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger
    from privypurse.ledger.people import Members


def notes_on(ledger: Ledger, members: Members, budgets: Budgets, at_most: float | None) -> Iterator[str]:
    """Of the ladder, the cap, grants and declared ε; ``members`` are the people of the budgets, in their order."""
    ladder = np.array([rung.epsilon for rung in ledger.rungs])
    if at_most is not None:
        yield _share_of_cap(ledger, at_most)
    if (budgets.epsilon[budgets.first_record] > ladder[members.rung.astype(np.int64)]).any():
        yield (
            "somebody's ε here is above what they granted in the ledger: this training takes no more than the grant "
            "has left. Who shall allow more is raised there first (privypurse ledger consent)"
        )


def _share_of_cap(ledger: Ledger, at_most: float) -> str:
    """How much of a purse the cap is: at the order of its rung, over what the rung holds there."""
    rungs = ledger.rungs
    if at_most >= rungs[-1].epsilon:
        return (
            f"at_most is {at_most:g}, no less than the highest rung (ε = {rungs[-1].epsilon:g}): it caps nothing, "
            "and by public account nothing is left for later uses"
        )
    own = np.diag(ledger.caps(np.zeros((0, ledger.lifetime.columns), dtype=np.int64), at_most))
    shares = [
        f"{cap / rung.limit:.0%} of the {name} rung (ε = {rung.epsilon:g})".replace("%", " %")
        for name, rung, cap in (("lowest", rungs[0], own[0]), ("highest", rungs[-1], own[len(rungs) - 1]))
    ]
    return f"the cap, ε = {at_most:g}, is " + " and ".join(shares[: min(len(rungs), 2)]) + ", for life"

"""Purses that last: who granted what, what was taken out of it, and the proof that nobody's is overdrawn.

`Ledger` is the way in. A *run* is one use of people's data: it *reserves* its whole cost before its first release,
and *settles* what it really took. A *rung* is one of the few grants (ε, δ) that people choose from. *Balances* are
what people really have left and a secret (rule 15); *public balances* follow from grants and the runs' public caps.
"""

from privypurse._lazy import lazily

__getattr__, __dir__ = lazily(
    __name__,
    {
        "ApproximateDP": "privypurse.ledger.lifetime",
        "Ledger": "privypurse.ledger.ledger",
        "Rung": "privypurse.ledger.lifetime",
        "private_ledger": "privypurse.ledger.private",
        "row_ids": "privypurse.ledger.private",
    },
)

__all__ = ["ApproximateDP", "Ledger", "Rung", "private_ledger", "row_ids"]

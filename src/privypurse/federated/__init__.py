"""Federated training in which every record spends its own ε: nobody's data, budgets or rates leave their client.

Words of this room:

- *terms*: the public constants of the whole training (rounds, noise, trust model, …), chosen without anybody's data.
- *offer*: what the server sends: the terms, and a table that gives each ε the sampling rate it pays for.
- *book*: a client's own record, on disk, of the rounds it joined and what it answered.
- *round*: the server asks some clients, each trains for a few steps and answers with a noisy update. The *cap* of the
  terms is how many rounds a client joins at most.
"""

from typing import TYPE_CHECKING

from privypurse._lazy import lazily

if TYPE_CHECKING:
    from privypurse.federated.book_import import import_book
    from privypurse.federated.client import Client
    from privypurse.federated.terms import Offer, Terms

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Client": "privypurse.federated.client",
        "Offer": "privypurse.federated.terms",
        "Terms": "privypurse.federated.terms",
        "import_book": "privypurse.federated.book_import",
    },
)

__all__ = ["Client", "Offer", "Terms", "import_book"]

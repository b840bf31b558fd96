"""Federated training: records with their own ε at several clients, a server that never sees a budget."""

from typing import TYPE_CHECKING

from privypurse._lazy import lazily

if TYPE_CHECKING:
    from privypurse.federated.client import Client
    from privypurse.federated.terms import Offer, Terms

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Client": "privypurse.federated.client",
        "Offer": "privypurse.federated.terms",
        "Terms": "privypurse.federated.terms",
    },
)

__all__ = ["Client", "Offer", "Terms"]

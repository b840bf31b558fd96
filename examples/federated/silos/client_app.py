"""A client: its node's configuration names the silo and a folder for its book."""

from pathlib import Path

from flwr.app import Context

from privypurse.federated import flower
from privypurse.federated.client import Client
from privypurse.federated.terms import Offer
from silos import data


def client_of(context: Context, offer: Offer) -> Client:
    """The silo with the number ``silo`` of Adult by employer, budgets simulated; ``folder`` has to last.

    Its people's ε holds against the server: terms that keep it against the public only are refused.
    """
    index = int(context.node_config["silo"])
    folder = Path(str(context.node_config["folder"]))
    if not folder.is_absolute():
        raise ValueError(f"folder is {folder}; name it from the root, or another start would begin another book")
    records, budgets = data.silo(index, offer.terms.delta)
    return Client(records, budgets, data.new_model, data.losses, offer, folder / str(index))


app = flower.client_app(client_of)

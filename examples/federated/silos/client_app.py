"""A client: its node's configuration names the silo, a folder for its book, and one for purses that last."""

from pathlib import Path

from flwr.app import Context

from privypurse.federated import flower
from privypurse.federated.client import Client
from privypurse.federated.terms import Offer
from privypurse.ledger import private_ledger
from silos import data


def client_of(context: Context, offer: Offer) -> Client:
    """The silo with the number ``silo`` of Adult by employer, budgets simulated; ``folder`` has to last.

    Its people's ε holds against the server, at a δ of their own: terms that keep it against the public only are
    refused, and under terms with a larger δ nobody takes part. Where the node's configuration has ``ledger``, a
    folder, people pay for life from a private ledger there, whatever ``folder`` is: for this training ``at-most`` an
    ε, for a ``purpose``.
    """
    node, index = context.node_config, int(context.node_config["silo"])
    folder = _from_the_root(context, "folder")
    records, budgets, ids = data.silo(index)
    paying = {}
    if "ledger" in node:
        purpose, at_most = str(node.get("purpose", "")), float(node["at-most"]) if "at-most" in node else None
        home = _from_the_root(context, "ledger") / str(index)
        ledger = private_ledger(home, budgets, purpose=purpose, by_row=True)
        paying = {"ledger": ledger, "at_most": at_most, "purpose": purpose}
    return Client(records, budgets, data.new_model, data.losses, offer, folder / str(index), person=ids, **paying)


def _from_the_root(context: Context, name: str) -> Path:
    folder = Path(str(context.node_config[name]))
    if not folder.is_absolute():
        raise ValueError(f"{name} is {folder}; name it from the root, or another start would begin another one")
    return folder


app = flower.client_app(client_of)

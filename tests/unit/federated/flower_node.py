"""One client behind a Flower app, asked without a network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from federation import STATE, Arrays, book_in
from flwr.app import ConfigRecord, Context, Message, RecordDict

from privypurse.federated.client import Client
from privypurse.federated.flower import ARRAYS, CONFIG, client_app, to_record
from privypurse.federated.terms import Offer


class Node:
    """Makes its client by ``new_client(folder, offer=…)``, and counts how often."""

    def __init__(self, folder: Path, new_client: Callable[..., Client], offer: Offer) -> None:
        self.folder, self.offer, self.made = folder, offer, 0

        def counted(context: Context, offer: Offer) -> Client:
            self.made += 1
            return new_client(folder, offer=offer)

        self.app = client_app(counted)

    def ask(self, number: int = 1, offer: Offer | None = None, state: Arrays = STATE, node: int = 5) -> Message:
        told = ConfigRecord({"server-round": number, "offer": json.dumps((offer or self.offer).to_json())})
        content = RecordDict({ARRAYS: to_record(state), CONFIG: told})
        message = Message(content=content, dst_node_id=node, message_type="train")
        return self.app(message, Context(1, node, {}, RecordDict(), {}))

    def begun(self) -> list[int]:
        return book_in(self.folder)["begun"]


def said(answer: Message) -> dict[str, Any]:
    """What the server gets to read: names of arrays, and metrics."""
    assert not answer.has_error()
    return {name: sorted(record) if name == ARRAYS else dict(record) for name, record in answer.content.items()}

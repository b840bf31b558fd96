"""Flower around the rounds: a strategy for the server, an app for each client. Nothing of the transport is ours."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Nobody is told that anything runs here. Flower's own commands do not import this; docs/federated.md says what they
# need.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from privypurse.errors import InvalidInput
from privypurse.federated.client import Client, Declined
from privypurse.federated.parameters import State, Update
from privypurse.federated.server import Aggregated, aggregate, asked
from privypurse.federated.terms import Offer
from privypurse.randomness import randomness
from privypurse.training.failing_records import ENDS

_log = logging.getLogger("privypurse.federated")
_PAUSE = 0.5  # seconds between two questions who is there
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
NewClient = Callable[[Context, Offer], Client]


def to_record(arrays: State) -> ArrayRecord:
    """Parameters as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> State:
    """Parameters as they came."""
    return {str(name): array.numpy() for name, array in record.items()}


class PersonalisedAverage(Strategy):
    """FedAvg in which each record spends its own ε (Liu et al. 2024, Algorithm 1).

    Each client is in a round by its own coin with the rate of the terms; their number is not fixed, and a round with
    nobody in it is a round. Against the server it flips the coins, and asks whom they choose. Against the public it
    asks everybody, and each client flips its own, once: a server that begins again has no new ones.

    Updates are added with public weights. An answer that is missing, an error, not finite or of another model leaves
    its place empty; the log says so, and the client's book has paid for it.
    """

    def __init__(
        self,
        offer: Offer,
        seed: int | None = None,
        patience: float = 300.0,
        told: Callable[[int, Aggregated], None] = lambda number, outcome: None,
    ) -> None:
        """``patience`` is how many seconds the first round waits for all clients; ``told`` hears of each round."""
        self.offer, self.patience, self._told = offer, patience, told
        self.history: list[Aggregated] = []
        self._source = randomness(seed)
        self._state: State = {}
        self._asked: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._state = from_record(arrays)
        if server_round == 1:
            self._wait(grid)
        nodes = sorted(grid.get_node_ids())
        if len(nodes) < self.offer.terms.clients:
            _log.warning("round %d: %d of %d clients are there", server_round, len(nodes), self.offer.terms.clients)
        if len(nodes) > self.offer.terms.clients:
            raise InvalidInput(
                f"{len(nodes)} clients are there, but the terms were made for {self.offer.terms.clients}"
            )
        chosen = asked(self.offer.terms, self._source.for_step(server_round).uniform(len(nodes)))
        self._asked = [nodes[k] for k in chosen]
        told = ConfigRecord({**dict(config), "server-round": server_round, "offer": json.dumps(self.offer.to_json())})
        content = RecordDict({ARRAYS: arrays, CONFIG: told})
        return [Message(content=content, dst_node_id=node, message_type=MessageType.TRAIN) for node in self._asked]

    def _wait(self, grid: Grid) -> None:
        """Until all clients are connected: Flower begins before they are, and a round without them is lost."""
        waited = 0.0
        while len(list(grid.get_node_ids())) < self.offer.terms.clients and waited < self.patience:
            time.sleep(_PAUSE)
            waited += _PAUSE

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers: list[tuple[int, Update]] = []
        silent = set(self._asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._asked:
                _log.warning("round %d: client %d answered unasked", server_round, node)
                continue
            silent.discard(node)
            if reply.has_error():
                _log.warning("round %d: client %d failed: %s", server_round, node, reply.error.reason)
            elif ARRAYS not in reply.content.array_records:
                failed = any("failed" in record for record in reply.content.metric_records.values())
                log, what = (_log.warning, "failed") if failed else (_log.info, "declined")
                log("round %d: client %d %s", server_round, node, what)
            else:
                try:
                    answers.append((node, from_record(reply.content.array_records[ARRAYS])))
                except Exception as error:  # whatever a stranger's bytes may cause
                    _log.warning("round %d: the answer of client %d cannot be read: %r", server_round, node, error)
        for node in sorted(silent):
            _log.warning("round %d: client %d did not answer", server_round, node)
        outcome = aggregate(self.offer.terms, self._state, answers)
        for node, why in outcome.refused.items():
            _log.warning("round %d: the answer of client %s is left out: %s", server_round, node, why)
        self.history.append(outcome)
        self._told(server_round, outcome)
        return to_record(outcome.state), MetricRecord({"answers": len(outcome.used)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # what a model does to the people in training is not for the server to know

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        terms = self.offer.terms
        _log.info(
            "%d rounds of %d steps, %d clients, each with rate %g and in at most %d; ε holds against the %s",
            *(terms.rounds, terms.local_steps, terms.clients, terms.client_rate, terms.cap, terms.adversary),
        )


_kept: OrderedDict[tuple[Any, ...], Client] = OrderedDict()
"""Clients of the nodes in this process, closed between messages. Here, since Ray makes a copy of an app for each."""
_MOST_KEPT = 32


@contextmanager
def _client_of(app: str, new_client: NewClient, context: Context, offer: Offer) -> Iterator[Client]:
    """The node's client while it answers a message: the one it has kept if that was made for this offer, else new.

    What is kept is what takes long: data, a model that was tried, certified rates. The book on disk stays the truth:
    nobody holds it between messages, and it is read and checked again for each.
    """
    told = (repr(sorted(dict(config).items())) for config in (context.node_config, context.run_config))
    node = (app, os.getpid(), context.run_id, context.node_id, *told)
    client = _kept.get(node)
    if client is not None and client.offer.digest == offer.digest:
        client.reopen()
    else:
        client = new_client(context, offer)
    try:
        _kept[node] = client
        _kept.move_to_end(node)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
        yield client
    finally:
        client.close()


def _wait(seconds: float, begun: float) -> None:
    """Until the time that the terms allow for every answer is over: how long it took is nobody's business."""
    left = begun + seconds - time.monotonic()
    if left > 0:
        time.sleep(left)
    elif seconds:
        _log.warning("answering took %.1f s longer than answer_seconds, and the server can see that", -left)


def _answer(app: str, new_client: NewClient, message: Message, context: Context) -> Message:
    begun, seconds = time.monotonic(), 0.0  # without an offer there is no client that takes any time over it
    # Flower would send the text of an exception to the server, and it may name people: it stays here.
    try:
        config: Any = message.content.config_records[CONFIG]
        offer = Offer.from_json(json.loads(str(config["offer"])))
        seconds = offer.terms.answer_seconds
        with _client_of(app, new_client, context, offer) as client:
            update = client.answer(int(config["server-round"]), from_record(message.content.array_records[ARRAYS]))
        content = RecordDict({ARRAYS: to_record(update)})
    except Declined as reason:
        _log.info("declined: %s", reason)
        content = RecordDict({METRICS: MetricRecord({"declined": 1})})
    except ENDS:
        raise
    except BaseException:
        _log.exception("this client failed; the server is told that, and nothing else")
        content = RecordDict({METRICS: MetricRecord({"failed": 1})})
    _wait(seconds, begun)
    return Message(content=content, reply_to=message)


def client_app(new_client: NewClient) -> ClientApp:
    """A Flower app for a client: ``new_client`` makes it from the node's context and the server's offer.

    A node keeps its client as long as its process lives, and asks ``new_client`` again only for another offer. So
    data are read once in a process: rows that come or go are seen by the next. Flower's simulation engine has
    processes that last; its SuperNodes have one for each message.
    """
    app, name = ClientApp(), secrets.token_hex(8)  # the same in every copy of this app, and in no other

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return _answer(name, new_client, message, context)

    return app

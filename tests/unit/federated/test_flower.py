"""Flower around the rounds: coins by node, public weights, and nothing of a client but its update."""

import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import book_in, maker, records, terms_with
from flower_node import Node
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from torch.nn import functional as F

import privypurse as pp
from privypurse._storage import HeldFile
from privypurse.federated import flower
from privypurse.federated.book import Book
from privypurse.federated.flower import ARRAYS, CONFIG, PersonalisedAverage, from_record, to_record
from privypurse.federated.parameters import State
from privypurse.federated.server import aggregate, asked
from privypurse.federated.terms import Offer
from privypurse.randomness import randomness

pytestmark = [
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),  # seeded: for tests
    pytest.mark.usefixtures("at_home"),
]

TERMS = terms_with(rounds=3, clients=4, most_joined=1)
OFFER = Offer.of(TERMS)
EVERYBODY = Offer(replace(TERMS, client_rate=1.0), OFFER.table)
NODES = [70, 11, 42, 5]
STATE: State = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}


class FakeGrid:
    """Knows who is there."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self.nodes


def configured(strategy: PersonalisedAverage, number: int = 1, nodes: list[int] = NODES) -> list[Message]:
    return list(strategy.configure_train(number, to_record(STATE), ConfigRecord({"lr": 1.0}), FakeGrid(nodes)))  # type: ignore[arg-type]


def update(seed: int) -> State:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=value.shape).astype(np.float32) for name, value in STATE.items()}


def reply(message: Message, content: Any) -> Message:
    """What a client makes of a message: parameters, an error or a record."""
    if isinstance(content, Error):
        return Message(content, reply_to=message)
    return Message(
        content=content if isinstance(content, RecordDict) else RecordDict({ARRAYS: to_record(content)}),
        reply_to=message,
    )


def log_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "privypurse.federated"]


# --- Records ------------------------------------------------------------------------------------------


def test_parameters_travel_and_come_back_bit_for_bit() -> None:
    sent: State = {**update(1), "turned": np.asfortranarray(update(2)["weight"]), "empty": np.zeros((0, 3))}
    came = from_record(to_record(sent))
    assert list(came) == list(sent)
    for name, value in sent.items():
        assert (came[name].shape, came[name].dtype) == (value.shape, value.dtype)
        assert (came[name] == value).all()


def test_a_parameter_that_is_a_number_stays_one() -> None:
    """Such as a learned temperature; else every client takes the server's model for another."""
    assert from_record(to_record({"scale": np.array(1.5, np.float32)}))["scale"].shape == ()


def test_nobody_is_told_that_flower_runs() -> None:
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


# --- The server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_node_has_its_own_coin(number: int) -> None:
    expected = asked(TERMS, randomness(3).for_step(number).uniform(4))
    messages = configured(PersonalisedAverage(OFFER, seed=3), number)
    assert [message.metadata.dst_node_id for message in messages] == [sorted(NODES)[k] for k in expected]


def test_without_a_seed_any_number_may_be_asked() -> None:
    strategy = PersonalisedAverage(OFFER)
    sizes = [len(configured(strategy)) for _ in range(300)]
    assert set(sizes) == {0, 1, 2, 3, 4}  # each but for a chance of 4e-9
    assert np.mean(sizes) == pytest.approx(2.0, abs=0.35)  # six deviations


def test_a_message_holds_the_round_the_offer_and_the_parameters() -> None:
    messages = configured(PersonalisedAverage(EVERYBODY), 2)
    assert len(messages) == 4
    for message in messages:
        assert message.metadata.message_type == "train"
        told = message.content.config_records[CONFIG]
        assert set(told) == {"server-round", "offer", "lr"}
        assert told["server-round"] == 2
        assert Offer.from_json(json.loads(str(told["offer"]))).terms == EVERYBODY.terms
        assert all((from_record(message.content.array_records[ARRAYS])[name] == STATE[name]).all() for name in STATE)


def test_more_clients_than_the_terms_were_made_for_is_an_error() -> None:
    with pytest.raises(pp.InvalidInput, match=r"5 clients are there.*made for 4"):
        configured(PersonalisedAverage(OFFER, patience=0), nodes=[1, 2, 3, 4, 5])
    configured(PersonalisedAverage(OFFER, patience=0), nodes=[1])
    assert configured(PersonalisedAverage(OFFER, patience=0), nodes=[]) == []


def test_the_first_round_waits_for_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower starts the server before its nodes; a round that is held without them is lost."""

    class Slow(FakeGrid):
        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return self.nodes[: max(0, self.looks - 2)]

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    strategy = PersonalisedAverage(EVERYBODY)
    grid: Any = Slow(NODES)
    assert len(list(strategy.configure_train(1, to_record(STATE), ConfigRecord(), grid))) == 4


def test_a_round_is_what_the_answers_come_to(caplog: pytest.LogCaptureFixture) -> None:
    """One answers, one fails, one declines, one is silent: its place stays empty, and the log says so."""
    strategy = PersonalisedAverage(EVERYBODY)
    first, second, third, _ = configured(strategy)  # 5, 11, 42, 70
    declined = RecordDict({"metrics": MetricRecord({"declined": 1})})
    replies = [reply(first, update(1)), reply(second, Error(1, "out of memory")), reply(third, declined)]
    with caplog.at_level(logging.INFO, "privypurse.federated"):
        arrays, metrics = strategy.aggregate_train(1, replies)
    expected = {name: STATE[name] + update(1)[name] / 4 for name in STATE}
    assert arrays is not None
    assert all(np.allclose(from_record(arrays)[name], expected[name], atol=1e-6) for name in STATE)
    assert dict(metrics or {}) == {"answers": 1}
    assert strategy.history[-1].used == (5,)
    text = log_of(caplog)
    assert len(text) == 3
    assert "client 11 failed: out of memory" in text[0]
    assert "client 42 declined" in text[1]
    assert "client 70 did not answer" in text[2]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({**update(1), "bias": np.array([np.nan, 0], np.float32)}, "not finite"),
        ({**update(1), "bias": np.zeros(3, np.float32)}, "has shape"),
        ({"weight": update(1)["weight"]}, "another model"),
        ({**update(1), "bias": np.array([1, 2])}, "'bias'"),
    ],
)
def test_what_is_no_answer_is_left_out_and_logged(content: State, why: str, caplog: pytest.LogCaptureFixture) -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    first, second, *_ = configured(strategy)
    arrays, _ = strategy.aggregate_train(1, [reply(first, content), reply(second, update(2))])
    assert arrays is not None
    plain = aggregate(EVERYBODY.terms, STATE, [(11, update(2))]).state
    assert all((from_record(arrays)[name] == plain[name]).all() for name in STATE)
    assert any(why in line and "client 5" in line for line in log_of(caplog))


def test_a_second_answer_of_a_client_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    first, *_ = configured(strategy)
    arrays, _ = strategy.aggregate_train(1, [reply(first, update(1)), reply(first, update(2))])
    assert arrays is not None
    plain = aggregate(EVERYBODY.terms, STATE, [(5, update(1))]).state
    assert all((from_record(arrays)[name] == plain[name]).all() for name in STATE)
    assert any("answered twice" in line for line in log_of(caplog))


def test_a_round_that_nobody_answers_is_a_round(caplog: pytest.LogCaptureFixture) -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    configured(strategy)
    arrays, metrics = strategy.aggregate_train(1, [])
    assert arrays is not None
    assert all((from_record(arrays)[name] == STATE[name]).all() for name in STATE)
    assert dict(metrics or {}) == {"answers": 0}
    assert sum("did not answer" in line for line in log_of(caplog)) == 4


@pytest.mark.parametrize(
    "array",
    [
        Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"garbage"),
        Array(dtype="float32", shape=(2,), stype="pickle", data=b""),
    ],
    ids=["garbage", "other kind"],
)
def test_an_answer_that_cannot_be_read_is_left_out(array: Array) -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    first, second, *_ = configured(strategy)
    bad = RecordDict({ARRAYS: ArrayRecord({"weight": array, "bias": array})})
    strategy.aggregate_train(1, [reply(first, bad), reply(second, update(2))])
    assert strategy.history[-1].used == (11,)


def test_an_answer_of_somebody_who_was_not_asked_is_left_out() -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    stranger, *_ = configured(strategy)
    configured(strategy, 2, nodes=[11, 42])
    strategy.aggregate_train(2, [reply(stranger, update(1))])
    assert strategy.history[-1].used == ()


def test_a_client_that_failed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Else a training in which everybody fails every time ends like any other."""
    strategy = PersonalisedAverage(EVERYBODY)
    messages = configured(strategy)
    failed = RecordDict({"metrics": MetricRecord({"failed": 1})})
    with caplog.at_level(logging.WARNING, "privypurse.federated"):
        strategy.aggregate_train(1, [reply(message, failed) for message in messages])
    assert sum("failed" in line for line in log_of(caplog)) == 4


def test_nobody_is_asked_how_well_the_model_does_on_their_people() -> None:
    strategy = PersonalisedAverage(EVERYBODY)
    assert list(strategy.configure_evaluate(1, to_record(STATE), ConfigRecord(), FakeGrid(NODES))) == []  # type: ignore[arg-type]
    assert strategy.aggregate_evaluate(1, []) is None


# --- The client ---------------------------------------------------------------------------------------


made = maker(EVERYBODY, [0.5, 1.0, 4.0], dataset=records(3), seed=1)


@pytest.fixture
def home(tmp_path: Path) -> Node:
    return Node(tmp_path, made, EVERYBODY)


def test_an_answer_is_the_update_alone(home: Node) -> None:
    answer = home.ask(1)
    assert set(answer.content) == {ARRAYS}
    assert set(answer.content.array_records[ARRAYS]) == {"weight", "bias"}
    assert answer.metadata.src_node_id == 5
    assert home.begun() == [1]


def test_the_same_message_again_has_the_same_answer_and_one_price(home: Node) -> None:
    first, second = (from_record(home.ask(1).content.array_records[ARRAYS]) for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in STATE)
    assert home.begun() == [1]


def test_declining_says_only_that(home: Node) -> None:
    home.ask(1)
    answer = home.ask(2)
    assert not answer.has_error()
    assert {name: dict(record) for name, record in answer.content.items()} == {"metrics": {"declined": 1}}
    assert home.begun() == [1]


def refusal(home: Node, number: int = 1, **how: Any) -> str:
    """What the server gets to read if there is no answer: that there is none. Flower would send exceptions' texts."""
    answer = home.ask(number, **how)
    assert not answer.has_error()
    assert not answer.content.array_records
    return repr(answer.content)


def test_changed_terms_get_no_answer_and_cost_nothing(home: Node) -> None:
    home.ask(1)
    assert refusal(home, 2, offer=Offer(replace(EVERYBODY.terms, most_joined=3), EVERYBODY.table))
    assert home.begun() == [1]


def test_a_wrong_model_costs_nothing_and_the_next_message_is_answered(home: Node) -> None:
    assert refusal(home, state={**STATE, "bias": np.full(2, np.nan, np.float32)})
    assert refusal(home, state={"weight": STATE["weight"]})
    assert refusal(home, 0)
    assert home.begun() == []
    home.ask(1)
    assert home.begun() == [1]


@pytest.mark.parametrize("case", ["record", "head count", "folder"])
def test_no_error_tells_the_server_about_people(tmp_path: Path, case: str) -> None:
    def complains(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        raise ValueError("Mrs Miller's blood pressure is 180")

    folder = tmp_path / "hospital"
    homes: dict[str, tuple[dict[str, Any], str]] = {
        "record": ({"loss_fn": complains}, "Miller"),
        "head count": ({"dataset": records(4)}, "4 records"),
        "folder": ({}, "hospital"),
    }
    other, secret = homes[case]
    home = Node(folder, partial(made, **other), EVERYBODY)
    if case == "folder":
        home.ask(1)
    longer = Offer(replace(EVERYBODY.terms, rounds=9), EVERYBODY.table)
    assert secret not in refusal(home, **({"number": 2, "offer": longer} if case == "folder" else {}))


def test_the_log_of_a_client_names_nobody(home: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        home.ask(1)
        home.ask(2)
    assert log_of(caplog) == ["declined: all 1 rounds that this client joins at most are spent"]


# --- A node keeps its client --------------------------------------------------------------------------

THRICE = Offer(replace(EVERYBODY.terms, most_joined=3), EVERYBODY.table)


def answered(message: Message) -> bool:
    return ARRAYS in message.content.array_records


def test_a_node_makes_its_client_once_and_holds_the_book_only_while_it_answers(home: Node) -> None:
    for number in (1, 2, 2):
        assert answered(home.ask(number, THRICE))
        whose = book_in(home.folder)
        Book(home.folder, whose["terms"], whose["records"]).close()
    assert home.made == 1
    assert home.begun() == [1, 2]


def test_each_app_and_node_has_a_client_of_its_own(tmp_path: Path) -> None:
    for home in (Node(tmp_path / "one", made, THRICE), Node(tmp_path / "other", made, THRICE)):
        for node in (5, 6, 5):
            home.ask(1, THRICE, node=node)
        assert home.made == 2
        assert home.begun() == [1]


def test_a_copy_of_an_app_keeps_the_same_client(tmp_path: Path) -> None:
    """Ray's actors get a copy of the app with every message."""
    from ray import cloudpickle

    home = Node(tmp_path, made, THRICE)
    home.ask(1, THRICE)
    home.app = cloudpickle.loads(cloudpickle.dumps(home.app))
    kept = dict(flower._kept)
    assert answered(home.ask(2, THRICE))
    assert dict(flower._kept) == kept
    assert home.begun() == [1, 2]


def test_rounds_of_another_process_are_counted_by_a_kept_client(tmp_path: Path) -> None:
    """The book on disk is the truth, not what the client remembers."""
    home, elsewhere = Node(tmp_path, made, THRICE), Node(tmp_path, made, THRICE)
    home.ask(1, THRICE)
    elsewhere.ask(2, THRICE)
    assert answered(home.ask(3, THRICE))
    first, second = (from_record(one.ask(2, THRICE).content.array_records[ARRAYS]) for one in (home, elsewhere))
    assert all(first[name].tobytes() == second[name].tobytes() for name in STATE)
    assert home.begun() == [1, 2, 3]
    assert (home.made, elsewhere.made) == (1, 1)


def test_an_old_copy_of_the_book_is_not_believed(home: Node) -> None:
    home.ask(1, THRICE)
    before = (home.folder / "book").read_bytes()
    home.ask(2, THRICE)
    (home.folder / "book").write_bytes(before)
    for _ in range(2):  # nor at the second try
        assert refusal(home, 3, offer=THRICE)
    assert home.begun() == [1]
    assert home.made == 1


def test_a_folder_that_was_emptied_does_not_empty_the_count(home: Node) -> None:
    home.ask(1)  # all that the terms allow
    for path in home.folder.iterdir():
        path.unlink()
    assert refusal(home, 2)
    assert home.begun() == [1]


def test_another_offer_is_refused_and_the_kept_client_goes_on(home: Node) -> None:
    home.ask(1, THRICE)
    assert refusal(home, 2)
    assert answered(home.ask(2, THRICE))
    assert home.made == 2  # the refused one was not kept


def test_a_round_that_could_not_be_counted_is_not_held_against_the_book(
    home: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    home.ask(1, THRICE)
    with monkeypatch.context() as patch:
        patch.setattr(HeldFile, "write", full)
        assert refusal(home, 2, offer=THRICE)
    assert answered(home.ask(2, THRICE))
    assert home.begun() == [1, 2]


def test_so_many_clients_are_kept_and_no_more(home: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_MOST_KEPT", 2)
    for node in (1, 2, 3, 3, 2, 1):
        home.ask(1, THRICE, node=node)
    assert home.made == 4  # that of node 1 twice
    assert len(flower._kept) == 2


def test_two_messages_to_a_node_at_once_break_no_cap(tmp_path: Path) -> None:
    """The second waits, or is refused since the book is in use; never do both pay with one count."""
    meeting = threading.Barrier(2)

    def slow(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        return F.cross_entropy(output, label, reduction="none")

    twice = Offer(replace(EVERYBODY.terms, most_joined=2), EVERYBODY.table)
    home = Node(tmp_path, partial(made, loss_fn=slow), twice)
    home.ask(1, twice)
    replies: list[Message] = []
    threads = [
        threading.Thread(target=lambda number=number: replies.append(home.ask(number, twice))) for number in (2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(answered, replies)) == 1
    assert len(home.begun()) == 2

"""People who leave while a federation is under way: their client goes on without them, and no server sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, bits
from flower_node import Node
from flwr.app import Message
from paying_client import IDS, OFFER, client, taken

import privypurse as pp
from privypurse.federated.flower import ARRAYS, from_record
from privypurse.federated.ledger_account import LedgerAccount

pytestmark = [
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),  # seeded: for tests
    pytest.mark.usefixtures("at_home"),
]
NewLedger = Callable[..., pp.Ledger]


def seen_by_server(answer: Message) -> list[Any]:
    """All that an answer is made of, but for the noisy numbers themselves."""
    records = {name: sorted(record) for name, record in answer.content.items()}
    arrays = answer.content.array_records.get(ARRAYS)
    kinds = [] if arrays is None else [(name, one.shape, one.dtype, len(one.data)) for name, one in arrays.items()]
    return [answer.has_error(), records, kinds]


def told_by_leaving(tmp_path: Path, new_ledger: NewLedger, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a server, or whoever reads the client's log, learns of somebody's leaving: [] for nothing."""
    told = []
    ways: dict[str, Callable[[pp.Ledger], None]] = {
        "one withdraws": lambda ledger: ledger.withdraw(["P3"]),
        "one is forgotten": lambda ledger: ledger.forget(["P3"]),
        "all withdraw": lambda ledger: ledger.withdraw(IDS),
        "one lowers": lambda ledger: ledger.change(["P3"], 0.5),
    }
    for way, leave in ways.items():
        for kept in (True, False):  # the client is in the node's memory, or is made by a new process
            ledger = new_ledger()
            home = Node(tmp_path / f"{way} {kept}" / "home", partial(client, ledger=ledger, seed=None), OFFER)
            before = seen_by_server(home.ask(1))
            caplog.clear()
            leave(ledger)
            if not kept:
                home = Node(home.folder, partial(client, ledger=ledger, seed=None), OFFER)
            after = [seen_by_server(home.ask(number)) for number in (2, 3)]
            if after != [before, before]:
                told.append(f"{way}: the answer is another")
            if any(record.name == "privypurse.federated" for record in caplog.records):
                told.append(f"{way}: the log says so")
    return told


@pytest.mark.slow
def test_leaving_is_not_seen(tmp_path: Path, new_ledger: NewLedger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "privypurse.federated"):
        assert told_by_leaving(tmp_path, new_ledger, caplog) == []


@pytest.mark.slow
def test_a_client_that_stops_where_somebody_left_would_be_seen(
    tmp_path: Path, new_ledger: NewLedger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LedgerAccount.takes_part

    def all_or_nobody(self: LedgerAccount) -> np.ndarray:
        if not real(self).all():
            raise pp.InvalidInput("somebody has withdrawn; plan anew")
        return real(self)

    monkeypatch.setattr(LedgerAccount, "takes_part", all_or_nobody)
    told = told_by_leaving(tmp_path, new_ledger, caplog)
    assert {"one withdraws: the answer is another", "all withdraw: the answer is another"} <= set(told)


def test_who_left_before_the_first_round_pays_nothing_and_the_others_train(
    tmp_path: Path, new_ledger: NewLedger
) -> None:
    ledger = new_ledger()
    ledger.withdraw(["P3"])
    ours = client(tmp_path / "a", ledger=ledger)
    sits_out = np.where(IDS == "P3", 0.01, 1.0)
    reference = client(tmp_path / "other" / "b", sits_out, ledger=new_ledger())
    assert bits(ours.answer(1, STATE)) == bits(reference.answer(1, STATE))
    assert taken(ledger, "P3") == 0 < taken(ledger, "P4")
    ours.close()
    reference.close()


def test_where_everybody_left_the_answer_is_noise_alone(tmp_path: Path, new_ledger: NewLedger) -> None:
    """Noise 20 over two steps, divided by 4 with learning rate 0.5: deviations of 3.5, whoever is drawn."""
    ledger = new_ledger()
    ledger.withdraw(IDS)
    home = Node(tmp_path / "a", partial(client, ledger=ledger, seed=None), OFFER)
    values = np.concatenate(
        [
            value.ravel()
            for number in (1, 2, 3)
            for value in from_record(home.ask(number).content.array_records[ARRAYS]).values()
        ]
    )
    scale = 20 * 2**0.5 / 4 * 0.5
    assert 0.4 * scale < values.std() < 1.8 * scale  # 24 numbers: beyond it with a chance below 1e-5
    assert [taken(ledger, who) for who in IDS] == [0] * 9

"""Promises of a client that a hostile server or a small slip in the code would break first."""

import errno
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everybody_drawn import EVERYTHING, NOTHING, ONE_STEP, RATE_1, TERMS, made
from federation import STATE, PowerFailure, bits, flat, granted, raises, records
from flower_node import ARRAYS, Node, said
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.accounting import RDP, CertifiedTable, ClientSampled, SampledGaussian
from privypurse.budgets import ladder
from privypurse.errors import Unsupported
from privypurse.federated import client as client_module
from privypurse.federated.book import Book
from privypurse.federated.terms import Offer, Terms

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_model_that_rounds_would_refuse_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    x, y = records().tensors
    half = TensorDataset(x.bfloat16(), y)
    with pytest.raises(pp.InvalidInput, match="float32 or float64"):
        made(tmp_path, dataset=half, new_model=lambda: nn.Linear(3, 2).bfloat16())
    assert not (tmp_path / "book").exists()


def test_a_stricter_delta_looks_like_anybody_who_sits_out(tmp_path: Path) -> None:
    """A refusal would tell the server the least δ, one offer after another."""
    delta = np.full(9, 1e-2)
    delta[4] = TERMS.delta / 2
    epsilon = np.full(9, EVERYTHING)
    strict = made(tmp_path / "strict", budgets=granted(epsilon, delta=delta))
    epsilon[4] = NOTHING
    poor = made(tmp_path / "poor", budgets=granted(epsilon, delta=1e-2))
    assert strict.plan.rates.tolist() == poor.plan.rates.tolist() == [1.0] * 4 + [0.0] + [1.0] * 4
    assert bits(strict.answer(1, STATE)) == bits(poor.answer(1, STATE))
    assert strict.spent().against_server[4] == 0


def test_a_rate_that_cannot_be_certified_is_sat_out_by_those_who_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CertifiedTable(np.array([0.5, 1.0]), np.array([400.0, 500.0]))
    certified = Terms.certified

    def partly(self: Terms, rates: np.ndarray, progress: Any = None) -> np.ndarray:
        if (np.asarray(rates) == 1.0).any():
            raise Unsupported("too large")
        return certified(self, rates, progress)

    monkeypatch.setattr(Terms, "certified", partly)
    epsilon = [NOTHING, 450.0, EVERYTHING]
    client = made(tmp_path, dataset=records(3), budgets=granted(epsilon), offer=Offer(TERMS, table))
    assert client.plan.rates.tolist() == [0.0, 0.5, 0.0]
    client.answer(1, STATE)


def test_an_offer_that_no_accountant_can_certify_gets_noise(tmp_path: Path) -> None:
    """The server's own table, for nothing: whoever grants the ε in it would have made the client fail."""
    terms = replace(TERMS, accountant="pld", delta=1e-11)  # below what holds in double precision
    with pytest.raises(Unsupported):
        terms.certified(np.array([1e-9]))
    offer = Offer(terms, CertifiedTable(np.array([1e-9]), np.full(1, 5.0)))
    answers = set()
    for most in (4.9, 5.0):
        budgets = granted([4.0, most], delta=1e-11)
        client = made(tmp_path / str(most), dataset=records(2), budgets=budgets, offer=offer)
        assert client.sitting_out == 2
        answers.add(flat(client.answer(1, STATE)).tobytes())
    assert len(answers) == 1


def test_a_table_that_lies_by_one_per_cent_is_not_believed(tmp_path: Path) -> None:
    rate = np.array([0.1, 0.3, 1.0])
    cost = TERMS.certified(rate)
    rung = ladder.rung_below(cost)
    below, above = ladder.rung_value(rung), ladder.rung_value(rung + 1)
    assert ((0.99 * cost <= below) & (below < cost) & (cost <= above)).all()
    lie = Offer(TERMS, CertifiedTable(rate, 0.99 * cost))
    assert lie.table.within(below).tolist() == rate.tolist()  # what it would have done
    cheated = made(tmp_path / "below", dataset=records(3), budgets=granted(below), offer=lie)
    assert cheated.plan.rates.tolist() == [0, 0, 0]
    assert cheated.sitting_out == 3
    rich = made(tmp_path / "above", dataset=records(3), budgets=granted(above), offer=lie)
    assert rich.plan.rates.tolist() == rate.tolist()


def test_frozen_parameters_are_refused_before_anything_is_paid_or_bound(tmp_path: Path) -> None:
    def frozen() -> nn.Module:
        model = nn.Linear(3, 2)
        model.bias.requires_grad = False
        return model

    with pytest.raises(pp.InvalidInput, match="frozen"):
        made(tmp_path, new_model=frozen).answer(1, STATE)
    assert not (tmp_path / "book").exists()


def test_a_round_that_was_begun_twice_counts_twice_against_the_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 1 broke off and was answered anew: two draws of noise, though the server has come to round 1 only."""
    client = made(tmp_path, offer=Offer(TERMS, CertifiedTable(np.full(1, 0.1), np.full(1, 500.0))))
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "train", raises(PowerFailure()))
        with pytest.raises(PowerFailure):
            client.answer(1, STATE)
    client.answer(1, STATE)
    once = SampledGaussian(0.1, 1.7, 4)
    one, two = RDP().epsilons([ClientSampled(0.5, once, rounds) for rounds in (1, 2)], TERMS.delta)
    full = RDP().epsilons([SampledGaussian(0.1, 1.7, 8)], TERMS.delta)[0]
    assert one < min(two, full)
    account = client.spent()
    assert account.against_public == pytest.approx(np.full(9, min(two, full)))
    assert account.against_server == pytest.approx(np.full(9, full))


def test_no_logger_hears_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name and level, and whether or not its records go up to the root."""
    client = made(tmp_path)
    heard: list[Any] = []
    monkeypatch.setattr(logging.Logger, "isEnabledFor", lambda self, level: True)
    monkeypatch.setattr(logging.Logger, "handle", lambda self, record: heard.append((self.name, record.getMessage())))
    logging.getLogger("anybody").debug("this is heard")
    assert heard == [("anybody", "this is heard")]
    heard.clear()
    client.answer(1, STATE)
    assert heard == []


def node(folder: Path, seconds: float = 0.0) -> Node:
    """A client that joins one round, and takes so long over every answer."""
    return Node(folder, made, Offer(replace(ONE_STEP.terms, most_joined=1, answer_seconds=seconds), RATE_1))


@pytest.mark.usefixtures("at_home")
def test_every_answer_takes_the_time_of_the_terms(tmp_path: Path) -> None:
    """Whether it is new, old, none, or an error: how long it took is nobody's business."""
    home = node(tmp_path, 0.3)
    update, declined, failed = {ARRAYS: ["bias", "weight"]}, {"metrics": {"declined": 1}}, {"metrics": {"failed": 1}}
    questions: list[tuple[dict[str, Any], Any]] = [
        ({}, update),
        ({}, update),
        ({"number": 2}, declined),
        ({"number": 0}, failed),
        ({"state": {"weight": STATE["weight"]}}, failed),
    ]
    for question, expected in questions:
        begun = time.monotonic()
        assert said(home.ask(**question)) == expected
        took = time.monotonic() - begun
        assert 0.3 <= took < 0.3 + 60  # at once after the terms' time, but for a machine that is busy


@pytest.mark.usefixtures("at_home")
def test_a_failure_says_nothing_but_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = node(tmp_path)
    home.ask()
    other = Offer(replace(TERMS, rounds=301), RATE_1)
    failures = [home.ask(number=0), home.ask(offer=other), home.ask(state={"weight": STATE["weight"]})]
    with monkeypatch.context() as patch:
        for place, error in (("new", ValueError), ("panic", BaseException)):
            patch.setattr(client_module, "train", raises(error("Mrs Miller's blood pressure is 180")))
            failures.append(node(tmp_path / place).ask())
        patch.setattr(Book, "_write", raises(FULL))
        failures.append(node(tmp_path / "full").ask())
    assert [said(answer) for answer in failures] == [{"metrics": {"failed": 1}}] * 6
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "train", raises(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            node(tmp_path / "ended").ask()

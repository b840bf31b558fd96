"""A client: whatever the server asks, however often, and wherever it breaks, nobody's ε is overdrawn."""

import contextlib
import json
import logging
import math
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse._storage import read_held
from privypurse.accounting import RDP, CertifiedTable, ClientSampled, SampledGaussian
from privypurse.errors import PrivyPurseWarning, Unsupported
from privypurse.federated import client as client_module
from privypurse.federated.book import Book
from privypurse.federated.client import Client, Declined
from privypurse.federated.terms import Offer, Terms

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests

TERMS = Terms(
    rounds=5,
    local_steps=2,
    noise_multiplier=1.0,
    batch_size=4,
    learning_rate=0.5,
    clients=2,
    client_rate=0.5,
    most_joined=3,
    delta=1e-3,
    accountant="rdp",
)
OFFER = Offer.of(TERMS)
EPSILON = np.array([0.01, 0.5, 1.0, 1.0, 2.0, 3.0, 4.5, 8.0, 30.0])  # the first affords nothing, the last rate 1
STATE = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def records(seed: int = 0, size: int = EPSILON.size) -> TensorDataset:
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.normal(size=(size, 3)).astype(np.float32))
    return TensorDataset(x, torch.as_tensor(rng.integers(0, 2, size)))


def losses(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, label, reduction="none")


def linear() -> nn.Module:
    return nn.Linear(3, 2)


def made(folder: Path, **other: Any) -> Client:
    """A client; ``other`` replaces what it is made of."""
    parts: dict[str, Any] = {
        "dataset": records(),
        "budgets": pp.Budgets(EPSILON, delta=TERMS.delta),
        "new_model": linear,
        "loss_fn": losses,
        "offer": OFFER,
        "seed": 7,
        **other,
    }
    return Client(folder=folder, **parts)


def bits(update: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in update.items()}


def content(folder: Path) -> dict[str, Any]:
    return json.loads(read_held(folder / "book"))


class PowerFailure(BaseException):
    """Nothing in between catches it."""


# --- One round, one answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, None], ids=["seeded", "secure"])
def test_the_same_round_asked_twice_has_one_answer_and_one_price(tmp_path: Path, seed: int | None) -> None:
    client = made(tmp_path, seed=seed)
    first = client.answer(1, STATE)
    assert client.joined == 1
    assert bits(client.answer(1, {name: value.copy() for name, value in STATE.items()})) == bits(first)
    assert client.joined == 1
    assert bits(client.answer(2, STATE)) != bits(first)
    assert bits(client.answer(1, STATE)) == bits(first)
    assert client.joined == 2


def test_an_answered_round_is_not_answered_from_other_parameters(tmp_path: Path) -> None:
    """A server that begins anew would add old differences to another model, and nobody would notice."""
    client = made(tmp_path)
    first = client.answer(1, STATE)
    elsewhere = {name: value.copy() for name, value in STATE.items()}
    elsewhere["bias"][1] = np.nextafter(elsewhere["bias"][1], np.float32(1))
    for _ in range(2):
        with pytest.raises(pp.InvalidInput, match="answered before, from other parameters"):
            client.answer(1, elsewhere)
        assert client.joined == 1
        assert bits(client.answer(1, STATE)) == bits(first)
        client.close()
        client = made(tmp_path)  # another process knows it too


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"loss_fn": F.cross_entropy}, "reduction"),
        ({"new_model": lambda: nn.Linear(4, 2)}, "does not take these records"),
        ({"new_model": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, "BatchNorm"),
        ({"new_model": nn.Linear(3, 2)}, "new_model is a model"),
        ({"offer": TERMS}, "offer is a Terms"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_paid_or_bound(
    tmp_path: Path, mistake: dict[str, Any], message: str
) -> None:
    with pytest.raises((pp.InvalidInput, Unsupported), match=message):
        made(tmp_path, **mistake)
    assert not (tmp_path / "book").exists()


@pytest.mark.parametrize("dataset", [
    [{"x": torch.zeros(3), "y": 0}] * len(EPSILON),
    TensorDataset(torch.zeros(len(EPSILON), 3, dtype=torch.float64), torch.zeros(len(EPSILON), dtype=torch.int64)),
    TensorDataset(torch.zeros(len(EPSILON), 3), torch.zeros(len(EPSILON))),
])  # fmt: skip
def test_records_that_do_not_fit_are_refused_before_anything_is_paid(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=r"does not take these records|give example="):
        made(tmp_path, dataset=dataset)
    assert not (tmp_path / "book").exists()


def test_numbers_that_are_not_finite_are_said_here_and_nowhere_else(tmp_path: Path) -> None:
    """Refusing would tell the server what is in somebody's record."""
    x, y = records().tensors
    x = x.clone()
    x[3, 1] = math.nan
    with pytest.warns(PrivyPurseWarning, match="1 records have numbers that are not finite, such as record 3"):
        client = made(tmp_path, dataset=TensorDataset(x, y))
    assert all(np.isfinite(value).all() for value in client.answer(1, STATE).values())


def test_an_account_can_be_read_later(tmp_path: Path) -> None:
    client = made(tmp_path, seed=None)
    client.answer(2, STATE)
    before = client.spent()
    client.close()
    later = made(tmp_path, seed=None, offer=Offer.load(tmp_path / "offer.json"))
    assert later.spent().against_server.tolist() == before.against_server.tolist()
    with pytest.raises(pp.InvalidInput, match="holds no offer"):
        Offer.load(tmp_path / "book")


def test_a_folder_that_cannot_hold_a_book_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(pp.InvalidInput, match="cannot hold a book"):
            made(folder)


def test_an_update_is_parameters_and_nothing_else(tmp_path: Path) -> None:
    update = made(tmp_path).answer(1, STATE)
    assert {name: (value.shape, value.dtype) for name, value in update.items()} == {
        "weight": ((2, 3), np.dtype(np.float32)),
        "bias": ((2,), np.dtype(np.float32)),
    }


def test_an_update_is_a_difference_to_what_the_server_sent(tmp_path: Path) -> None:
    far = {name: value + 100 for name, value in STATE.items()}
    update = made(tmp_path).answer(1, far)
    assert all(np.abs(value).max() < 10 for value in update.values())
    assert far["bias"].tolist() == [100, 100]


def test_after_its_rounds_a_client_declines_and_says_old_answers_again(tmp_path: Path) -> None:
    client = made(tmp_path)
    answers = {number: bits(client.answer(number, STATE)) for number in (5, 1, 3)}
    for number in (2, 4):
        with pytest.raises(Declined, match="all 3 rounds"):
            client.answer(number, STATE)
    assert client.joined == 3
    assert {number: bits(client.answer(number, STATE)) for number in answers} == answers


@pytest.mark.parametrize("number", [0, -1, 6, 1.0, "1", None, True, 10**30])
def test_a_round_that_is_not_in_the_terms_is_refused(tmp_path: Path, number: Any) -> None:
    client = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="not among the 5"):
        client.answer(number, STATE)
    assert client.joined == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weight": STATE["weight"]}, "'bias' is on one side only"),
        ({**STATE, "more": STATE["bias"]}, "'more' is on one side only"),
        ({"weight": STATE["weight"], "Bias": STATE["bias"]}, "on one side only"),
        ({}, "on one side only"),
        ({**STATE, "weight": STATE["weight"].T}, r"'weight' has shape \(3, 2\)"),
        ({**STATE, "bias": np.zeros((1, 2))}, r"'bias' has shape \(1, 2\)"),
        ({**STATE, "bias": np.array([0, np.nan])}, "'bias'.*not finite"),
        ({**STATE, "bias": np.array([0, -np.inf])}, "'bias'.*not finite"),
        pytest.param(
            {**STATE, "bias": np.array([0, 1e300])},
            "'bias'.*not finite",
            marks=pytest.mark.filterwarnings("ignore:overflow"),
        ),
    ],
)
def test_another_model_is_refused_and_nothing_is_counted(tmp_path: Path, state: Any, message: str) -> None:
    client = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match=message):
        client.answer(1, state)
    assert client.joined == 0
    assert content(tmp_path)["begun"] == []
    assert client.spent().against_server.max() == 0


def test_huge_parameters_break_nothing(tmp_path: Path) -> None:
    """Whoever overflows contributes nothing (rule 12); the step is noise, and paid for."""
    client = made(tmp_path)
    client.answer(1, {"weight": np.full((2, 3), 3e38, np.float32), "bias": np.full(2, -3e38, np.float32)})
    assert client.joined == 1


@pytest.mark.parametrize("scale", [1.3e15, 1.41e15])
def test_no_terms_and_no_parameters_make_a_record_count_for_more_than_its_clip_norm(
    tmp_path: Path, scale: float
) -> None:
    """The server chooses clip norm, learning rate and parameters: a tiny norm times a huge gradient."""
    try:
        terms = replace(TERMS, clip_norm=1e-30, learning_rate=1e30, local_steps=1, batch_size=1)
    except pp.InvalidInput:
        return  # refusing it is as good
    offer = Offer.of(terms)
    state = {"0.weight": np.zeros((1, 1), np.float32), "1.weight": np.array([[scale], [-scale]], np.float32)}

    def answer(x: float) -> float:
        client = made(
            tmp_path / str(x),
            dataset=TensorDataset(torch.full((1, 1), x), torch.zeros(1, dtype=torch.int64)),
            budgets=pp.Budgets([1000.0], delta=1e-3),
            new_model=lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)),
            offer=offer,
        )
        return float(client.answer(1, state)["0.weight"][0, 0])

    # Rate 1 and the same noise: the difference is what the record adds, in clip norms.
    assert abs(answer(1.0) - answer(0.0)) <= 1.001


# --- What cannot be a client --------------------------------------------------------------------------


def test_no_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="no records"):
        made(tmp_path, dataset=records(size=0))


@pytest.mark.parametrize("number", [8, 10])
def test_another_number_of_budgets_than_records_is_an_error(tmp_path: Path, number: int) -> None:
    with pytest.raises(pp.InvalidInput, match=f"9 records but {number} budgets"):
        made(tmp_path, budgets=pp.Budgets(np.ones(number), delta=1e-3))


def test_whoever_grants_a_stricter_delta_sits_out_and_the_server_is_not_told(tmp_path: Path) -> None:
    delta = np.full(EPSILON.size, 1e-2)
    looser = made(tmp_path / "looser", budgets=pp.Budgets(EPSILON, delta=delta))
    delta[4] = TERMS.delta / 10
    stricter = made(tmp_path / "stricter", budgets=pp.Budgets(EPSILON, delta=delta))
    assert stricter.sitting_out == looser.sitting_out + 1
    assert stricter.plan.rates[4] == 0 < looser.plan.rates[4]
    others = np.arange(EPSILON.size) != 4
    assert stricter.plan.rates[others].tolist() == looser.plan.rates[others].tolist()
    stricter.answer(1, STATE)
    assert stricter.spent().against_server[4] == 0
    everybody = made(tmp_path / "all", budgets=pp.Budgets(EPSILON, delta=TERMS.delta / 10))
    assert everybody.sitting_out == EPSILON.size
    everybody.answer(1, STATE)


# --- What a record pays -------------------------------------------------------------------------------


def test_each_record_has_the_rate_that_its_own_epsilon_buys(tmp_path: Path) -> None:
    client = made(tmp_path)
    assert client.plan.rates.tolist() == OFFER.table.within(EPSILON).tolist()
    assert client.plan.rates[0] == 0
    assert client.plan.rates[-1] == 1
    assert client.sitting_out == 1


def test_a_lying_table_is_caught(tmp_path: Path) -> None:
    table = OFFER.table
    lie = Offer(TERMS, CertifiedTable(np.minimum(10 * table.parameter, 1), table.epsilon))
    believed = lie.table.within(EPSILON)
    assert (TERMS.certified(believed) > EPSILON).sum() >= 4  # what it would have done
    client = made(tmp_path, offer=lie)
    rates = client.plan.rates
    assert (rates == np.where(TERMS.certified(believed) > EPSILON, 0, believed)).all()
    assert client.sitting_out == (rates == 0).sum() >= 4
    for number in (1, 2, 3):
        client.answer(number, STATE)
    assert (client.spent().against_server <= EPSILON).all()


def test_a_table_of_rates_above_one_is_no_way_around(tmp_path: Path) -> None:
    client = made(tmp_path, offer=Offer(TERMS, CertifiedTable(np.array([0.5, 40.0]), np.array([3.0, 20.0]))))
    assert client.plan.rates.max() == 1
    assert (TERMS.certified(client.plan.rates) <= EPSILON).all()


@cache
def peer(rate: float, steps: int) -> float:
    """ε by Google's accountant, with some of the orders of ours."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    if rate == 0 or steps == 0:
        return 0.0
    event = GaussianDpEvent(TERMS.noise_multiplier)
    accountant = RdpAccountant([order for order in RDP().orders.tolist() if order < 3 or order in range(64)])
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, event) if rate < 1 else event, steps))
    return float(accountant.get_epsilon(TERMS.delta))


REQUEST = st.tuples(st.integers(-1, 6), st.sampled_from(["good", "nan", "other", "crash"]), st.booleans())


@given(requests=st.lists(REQUEST, max_size=9))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nobody_is_overdrawn_whatever_is_asked(tmp_path_factory: Any, requests: list[tuple[int, str, bool]]) -> None:
    """Repeated, out of order, out of range, with wrong parameters, with crashes, and by one process after another."""
    folder = tmp_path_factory.mktemp("client")
    states = {
        "good": STATE,
        "crash": STATE,
        "nan": {**STATE, "bias": np.full(2, math.nan)},
        "other": {"weight": STATE["weight"]},
    }
    broken = False
    trained, answers = 0, {}

    def maybe(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if broken:
            raise PowerFailure
        return losses(output, label)

    client = made(folder, loss_fn=maybe)
    for number, how, anew in requests:
        broken = how == "crash"
        fits = 1 <= number <= 5 and how in ("good", "crash")
        if number in answers and how in ("good", "crash"):
            assert bits(client.answer(number, states[how])) == answers[number]
        elif fits and trained < 3:
            trained += 1  # whatever becomes of it
            try:
                answers[number] = bits(client.answer(number, states[how]))
            except PowerFailure:
                anew = True
        else:
            with pytest.raises((pp.InvalidInput, Declined)):
                client.answer(number, states[how])
        broken = False
        if anew:
            client.close()
            client = made(folder, loss_fn=maybe)
        assert client.joined == trained <= 3
    spent = client.spent().against_server
    client.close()
    assert (spent <= EPSILON).all()
    some = [0, 2, 5, 8]
    again = [peer(rate, TERMS.local_steps * trained) for rate in OFFER.table.within(EPSILON[some]).tolist()]
    assert spent[some] == pytest.approx(again, rel=0.03)  # ours has more orders
    assert (spent[some] <= np.array(again) * (1 + 1e-9)).all()


def test_all_joined_is_all_that_was_certified(tmp_path: Path) -> None:
    client = made(tmp_path)
    for number in (1, 2, 3):
        client.answer(number, STATE)
    spent = client.spent().against_server
    assert spent == pytest.approx(TERMS.certified(client.plan.rates))
    assert ((spent <= EPSILON) & (spent[0] == 0)).all()
    assert (spent[1:-1] > 0.9 * EPSILON[1:-1]).all()
    # The broken twin: one more round would overdraw nearly everybody.
    more = RDP().epsilons([SampledGaussian(rate, 1.0, 2 * 4) for rate in client.plan.rates.tolist()], TERMS.delta)
    assert (more > EPSILON).sum() >= 6


def against_public(client: Client, held: int) -> np.ndarray:
    """So many rounds, joined or not, or the cap in full, whichever is less; however often was really joined."""
    rates = client.plan.rates[1:].tolist()
    seen = [ClientSampled(0.5, SampledGaussian(rate, 1.0, 2), held) for rate in rates]
    full = [SampledGaussian(rate, 1.0, 2 * min(held, TERMS.cap)) for rate in rates]
    return np.minimum(RDP().epsilons(seen, TERMS.delta), RDP().epsilons(full, TERMS.delta))


def test_against_the_public_every_round_counts_that_was_held(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.held(1)
    assert client.joined == 0
    account = client.spent()
    assert account.against_server.max() == 0
    once = [ClientSampled(0.5, SampledGaussian(rate, 1.0, 2)) for rate in client.plan.rates[1:].tolist()]
    assert account.against_public[0] == 0
    assert account.against_public[1:] == pytest.approx(RDP().epsilons(once, TERMS.delta))
    client.answer(2, STATE)
    client.held(4)
    client.held(3)  # late news changes nothing
    expected = against_public(client, 4)
    assert client.spent().against_public[1:] == pytest.approx(expected)
    client.close()
    assert made(tmp_path).spent().against_public[1:] == pytest.approx(expected)


def test_terms_against_the_public_keep_epsilon_over_all_rounds(tmp_path: Path) -> None:
    terms = replace(TERMS, adversary="public", most_joined=5)
    client = made(tmp_path, offer=Offer.of(terms), adversary="public")
    for number in range(1, 6):
        client.answer(number, STATE)
    account = client.spent()
    assert (account.against_public <= EPSILON).all()
    assert (account.against_public[1:-1] > 0.9 * EPSILON[1:-1]).all()
    assert (account.against_server > EPSILON).any()  # which is why it is not the default


def test_the_records_of_a_person_are_one(tmp_path: Path) -> None:
    person = [0, 0, 0, 1, 1, 2, 2, 3, 3]
    granted = np.array([1.0, 4.0, 0.01, 8.0])[person]
    client = made(tmp_path, budgets=pp.Budgets(granted, delta=1e-3, person=person), person=person)
    client.answer(1, STATE)
    spent = client.spent().against_server
    assert (spent <= granted).all()
    assert client.sitting_out == 1
    assert [len(set(spent[np.array(person) == who])) for who in range(4)] == [1, 1, 1, 1]


def test_an_account_cannot_be_changed(tmp_path: Path) -> None:
    account = made(tmp_path).spent()
    with pytest.raises(ValueError, match="read-only"):
        account.against_server[0] = 0


# --- Crashes ------------------------------------------------------------------------------------------


def test_a_round_that_broke_off_is_paid_for_and_paid_for_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    clients: list[Client] = []

    def breaks(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if clients and clients[0].joined == 2 and len(seen) < 1:
            seen.append(content(tmp_path)["begun"])  # what is on disk while training
            raise PowerFailure
        return losses(output, label)

    clients.append(client := made(tmp_path, loss_fn=breaks))
    client.answer(1, STATE)
    with pytest.raises(PowerFailure):
        client.answer(2, STATE)
    assert seen == [[1, 2]]
    assert client.joined == 2
    client.answer(2, STATE)
    assert content(tmp_path)["begun"] == [1, 2, 2]
    with pytest.raises(Declined):
        client.answer(3, STATE)
    assert (client.spent().against_server <= EPSILON).all()


POINTS = ["model", "optimizer", "write book", "point book", "train", "write answer", "replace answer", "last"]


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_never_gives_a_round_for_nothing(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was computed is counted on disk before; and what may have been sent is never computed again."""
    client = made(tmp_path, seed=None)
    sent = bits(client.answer(1, STATE))
    trained = []

    def fails(*_: Any, **__: Any) -> Any:
        raise PowerFailure

    def only_then(real: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        return lambda *a, **k: fails() if when(*a) else real(*a, **k)

    real_train = client_module.train

    def training(*a: Any, **k: Any) -> Any:
        trained.append(content(tmp_path)["begun"].count(2))
        return real_train(*a, **k)

    monkeypatch.setattr(client_module, "train", training)
    with monkeypatch.context() as patch:
        if point == "model":
            client._new_model = fails
        elif point == "optimizer":
            patch.setattr(torch.optim, "SGD", fails)
        elif point == "train":
            patch.setattr(client_module, "train", fails)
        elif point == "write answer":
            patch.setattr(np, "savez", fails)
        elif point == "last":  # all is on disk, nothing was sent
            patch.setattr(
                Book, "keep", lambda self, number, update, keep=Book.keep: (keep(self, number, update), fails())
            )
        elif point == "write book":
            patch.setattr(os, "fsync", fails)
        elif point == "point book":  # the new content is on disk, what says so is not
            patch.setattr(os, "pwrite", only_then(os.pwrite, lambda file, data, offset: offset == 0))
        else:
            patch.setattr(os, "replace", only_then(os.replace, lambda old, new: "answer" in str(new)))
        with pytest.raises(PowerFailure):
            client.answer(2, STATE)
    client.close()
    counted = content(tmp_path)["begun"].count(2)
    assert counted == (point not in ("model", "write book", "point book"))
    assert trained == ([1] if point in ("write answer", "replace answer", "last") else [])
    client = made(tmp_path, seed=None)
    assert client.joined == 1 + counted
    assert bits(client.answer(1, STATE)) == sent
    update = bits(client.answer(2, STATE))
    assert client.joined == 2 + (counted and point != "last")
    assert bits(client.answer(2, STATE)) == update


def test_a_killed_process_has_counted_and_lets_the_next_one_in(tmp_path: Path) -> None:
    """For real: the process dies in its first step, with no chance to tidy up."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_client as t
loss = t.losses
client = t.made(t.Path({str(tmp_path)!r}), loss_fn=lambda output, label: loss(output, label), seed=None)
def loss(output, label):
    os.kill(os.getpid(), 9)
client.answer(2, t.STATE)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == -9, done.stderr
    client = made(tmp_path)
    assert client.joined == 1
    client.answer(2, STATE)
    assert client.joined == 2


# --- The book -----------------------------------------------------------------------------------------


def test_a_new_client_on_the_same_folder_goes_on(tmp_path: Path) -> None:
    first = made(tmp_path, seed=None)
    answers = {number: bits(first.answer(number, STATE)) for number in (1, 4)}
    before = first.spent()
    first.close()
    second = made(tmp_path, seed=None)
    assert second.joined == 2
    assert second.spent().against_server.tolist() == before.against_server.tolist()
    assert second.spent().against_public.tolist() == before.against_public.tolist()
    assert {number: bits(second.answer(number, STATE)) for number in answers} == answers
    second.answer(2, STATE)
    with pytest.raises(Declined):
        second.answer(3, STATE)


def strangers() -> dict[str, dict[str, Any]]:
    return {
        "terms": {"offer": Offer(replace(TERMS, most_joined=4), OFFER.table)},
        "adversary": {"offer": Offer(replace(TERMS, adversary="public"), OFFER.table), "adversary": "public"},
        "data": {"dataset": records(1)},
        "epsilon": {"budgets": pp.Budgets(np.maximum(EPSILON, 1), delta=1e-3)},
        "delta": {"budgets": pp.Budgets(EPSILON, delta=1e-2)},
    }


@pytest.mark.parametrize("which", strangers())
def test_other_terms_data_or_budgets_in_the_same_folder_are_refused(tmp_path: Path, which: str) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    before = (tmp_path / "book").read_bytes()
    with pytest.raises(pp.InvalidInput, match=r"begun with other (terms|records).*spent again"):
        made(tmp_path, **strangers()[which])
    assert (tmp_path / "book").read_bytes() == before


def test_other_people_with_the_same_budgets_are_refused(tmp_path: Path) -> None:
    made(tmp_path, budgets=pp.Budgets(np.ones(9), delta=1e-3)).close()
    person = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(pp.InvalidInput, match="begun with other"):
        made(tmp_path, budgets=pp.Budgets(np.ones(9), delta=1e-3, person=person), person=person)


def test_a_refused_offer_does_not_lock_the_client_out(tmp_path: Path) -> None:
    """One wrong message from the server, and the right ones still get their answers."""
    made(tmp_path).close()
    with pytest.raises(pp.InvalidInput, match="begun with other terms"):
        made(tmp_path, offer=strangers()["terms"]["offer"])
    made(tmp_path).answer(1, STATE)


def test_two_clients_in_one_folder_are_refused(tmp_path: Path) -> None:
    first = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="in use by another client"):
        made(tmp_path)
    first.answer(1, STATE)  # it was not disturbed
    first.close()
    second = made(tmp_path)
    assert second.joined == 1


def test_two_processes_on_one_folder_are_refused(tmp_path: Path) -> None:
    client = made(tmp_path)
    code = (
        "from privypurse.federated.book import Book\nfrom pathlib import Path\n"
        f"try: Book(Path({str(tmp_path)!r}), 't', 'r')\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert "in use by another client" in done.stdout
    client.answer(1, STATE)


def test_two_threads_do_not_join_more_rounds_than_the_terms_allow(tmp_path: Path) -> None:
    """The check and the count are one: nobody gets in between."""
    offer = Offer.of(replace(TERMS, most_joined=1))
    meeting = threading.Barrier(2)

    def slow() -> nn.Module:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one waits outside, as it should
            meeting.wait(0.5)
        return linear()

    client = made(tmp_path, offer=offer, new_model=slow)
    outcome: list[Any] = []

    def ask(number: int) -> None:
        try:
            outcome.append(client.answer(number, STATE))
        except Exception as error:
            outcome.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.joined == 1
    assert sorted(type(one).__name__ for one in outcome) == ["Declined", "dict"]


def test_after_close_there_are_no_answers(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.close()
    other = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="closed"):
        client.answer(1, STATE)
    other.close()
    client.close()  # twice does no harm


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        client = made(tmp_path / "client")
        client.answer(1, STATE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "client").stat().st_mode) == 0o700
    files = list((tmp_path / "client").iterdir())
    assert {path.name for path in files} == {"book", "offer.json", "answer-1.npz"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b'{"terms": "x"}', b"\xff\xfe", b"[]", b"null"],
)
def test_a_damaged_book_is_refused(tmp_path: Path, damage: bytes) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    (tmp_path / "book").write_bytes(damage)
    with pytest.raises(pp.InvalidInput, match=r"holds no book"):
        made(tmp_path)


def test_a_lost_count_beside_answers_is_refused(tmp_path: Path) -> None:
    """Somebody removed the count alone: what was spent is not known any more."""
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    (tmp_path / "book").unlink()
    with pytest.raises(pp.InvalidInput):
        made(tmp_path)


def test_a_parameter_may_be_called_anything(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.file = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.file(x)

    client = made(tmp_path, new_model=Odd)
    state = {f"file.{name}": value for name, value in STATE.items()}
    first = client.answer(1, state)
    assert bits(client.answer(1, state)) == bits(first)


# --- What leaks ---------------------------------------------------------------------------------------


def test_nothing_is_logged_or_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        client = made(tmp_path)
        client.answer(1, STATE)
        client.spent()
    assert not [record for record in caplog.records if record.name.startswith("privypurse")]
    assert capfd.readouterr() == ("", "")


def test_declining_tells_nothing_that_the_server_does_not_know(tmp_path: Path) -> None:
    words = []
    for name, granted in (("a", EPSILON), ("b", np.full(9, 30.0))):
        client = made(tmp_path / name, budgets=pp.Budgets(granted, delta=1e-3))
        for number in (1, 2, 3):
            client.answer(number, STATE)
        with pytest.raises(Declined) as refusal:
            client.answer(4, STATE)
        words.append(str(refusal.value))
    assert words[0] == words[1]


def test_a_declined_round_was_held_all_the_same(tmp_path: Path) -> None:
    client = made(tmp_path)
    for number in (1, 2, 3):
        client.answer(number, STATE)
    with pytest.raises(Declined):
        client.answer(5, STATE)
    assert client.spent().against_public[1:] == pytest.approx(against_public(client, 5))


@pytest.mark.parametrize("number", [0, -3, 6, 10_000, True, 1.5, "2"])
def test_a_round_that_cannot_have_been_held_is_refused(tmp_path: Path, number: Any) -> None:
    client = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="not among the 5"):
        client.held(number)
    assert client.spent().against_public.max() == 0


def test_another_table_in_a_later_message_does_not_make_the_past_cheaper(tmp_path: Path) -> None:
    """The server sends the table with every message; the account is of the rates that were really used."""
    client = made(tmp_path)
    for number in (1, 2):
        client.answer(number, STATE)
    spent = client.spent().against_server
    client.close()
    lower = Offer(TERMS, CertifiedTable(OFFER.table.parameter / 100, OFFER.table.epsilon))
    try:
        client = made(tmp_path, offer=lower)
    except pp.InvalidInput:
        return  # refusing it is as good
    assert (client.spent().against_server >= spent).all()


def test_terms_do_not_tell_what_the_people_of_a_client_grant(tmp_path: Path) -> None:
    """Whether anybody affords the terms is about budgets (rule 6); a client where nobody does answers with noise."""
    client = made(tmp_path, budgets=pp.Budgets(np.full(9, 0.01), delta=1e-3))
    assert client.sitting_out == 9
    assert set(client.answer(1, STATE)) == set(STATE)
    assert client.spent().against_server.max() == 0


def test_other_terms_are_refused_before_anybodys_budget_is_looked_at(tmp_path: Path) -> None:
    """Else the server finds out everybody's ε by asking with one set of terms after another."""
    made(tmp_path).close()
    words = set()
    for noise in (0.05, 50.0):  # nobody could afford the first at rate 1, everybody the second
        terms = replace(TERMS, noise_multiplier=noise)
        with pytest.raises(pp.InvalidInput) as refusal:
            made(tmp_path, offer=Offer(terms, CertifiedTable(np.ones(1), np.full(1, 0.005))))
        words.add(str(refusal.value))
    assert len(words) == 1


def test_budgets_against_the_server_refuse_terms_against_the_public(tmp_path: Path) -> None:
    """Whom ε holds against is for the people to say, not for the server that sends the terms."""
    terms = replace(TERMS, adversary="public", client_rate=0.001, most_joined=5)
    with pytest.raises(pp.InvalidInput, match="public"):
        made(tmp_path, offer=Offer.of(terms))


@pytest.mark.parametrize("adversary", ["Server", "nobody", None])
def test_an_unknown_adversary_is_no_way_around(tmp_path: Path, adversary: Any) -> None:
    with pytest.raises(pp.InvalidInput, match="adversary"):
        made(tmp_path, offer=Offer.of(replace(TERMS, adversary="public")), adversary=adversary)


def test_changing_the_table_here_and_there_does_not_tell_who_is_where(tmp_path: Path) -> None:
    """Repeated questions are free. If only a change at somebody's ε is refused, they tell the server every ε."""
    outcome = set()
    for granted in (2.0, 2.5):  # somebody grants the first, nobody the second
        folder = tmp_path / str(granted)
        client = made(folder)
        client.answer(1, STATE)
        client.close()
        rate = OFFER.table.parameter.copy()
        place = np.searchsorted(OFFER.table.epsilon, granted, side="right") - 1
        rate[place] *= 0.999
        try:
            made(folder, offer=Offer(TERMS, CertifiedTable(rate, OFFER.table.epsilon))).answer(1, STATE)
            outcome.add("answered")
        except pp.InvalidInput:
            outcome.add("refused")
    assert len(outcome) == 1

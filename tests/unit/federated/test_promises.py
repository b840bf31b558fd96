"""Promises of a client that a hostile server, a full disk or a small slip in the code would break first."""

import errno
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from privypurse import _storage
from privypurse._storage import read_held
from privypurse.accounting import RDP, CertifiedTable, ClientSampled, SampledGaussian
from privypurse.budgets import ladder
from privypurse.errors import Unsupported
from privypurse.federated import client as client_module
from privypurse.federated import engine, silos
from privypurse.federated.book import Book
from privypurse.federated.client import Client
from privypurse.federated.flower import ARRAYS, CONFIG, client_app, to_record
from privypurse.federated.terms import Offer, Terms
from privypurse.plans import TrainingShape
from privypurse.training import loop
from privypurse.training.gradients import clipped

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests

TERMS = Terms(
    rounds=300,
    local_steps=4,
    noise_multiplier=1.7,
    batch_size=7,
    learning_rate=0.5,
    clients=2,
    client_rate=0.5,
    most_joined=300,
    clip_norm=0.25,
    delta=1e-3,
    accountant="rdp",
)
RATE_1 = CertifiedTable(np.ones(1), np.full(1, 500.0))  # it costs less than that
OFFER = Offer(TERMS, RATE_1)
ONE_STEP = Offer(replace(TERMS, local_steps=1), RATE_1)
EVERYTHING, NOTHING = 1000.0, 1.0  # what people grant: rate 1, or too little for any
STATE = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
Arrays = dict[str, np.ndarray]
UNSEEDED = pytest.mark.filterwarnings("error::privypurse.errors.PrivyPurseWarning")  # a seed would say so


def records(size: int = 9) -> TensorDataset:
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(size, 3)).astype(np.float32))
    return TensorDataset(x, torch.as_tensor(rng.integers(0, 2, size)))


def granted(epsilon: Any, size: int | None = None, **other: Any) -> pp.Budgets:
    """The budgets of so many records with that ε."""
    each = epsilon if size is None else np.full(size, epsilon)
    return pp.Budgets(each, **{"delta": TERMS.delta, **other})


losses = partial(F.cross_entropy, reduction="none")


def made(folder: Path, **other: Any) -> Client:
    """A client; ``other`` replaces what it is made of."""
    dataset = other.get("dataset", records())
    parts: dict[str, Any] = {
        "dataset": dataset,
        "budgets": granted(EVERYTHING, len(dataset)),
        "new_model": lambda: nn.Linear(3, 2),
        "loss_fn": losses,
        "offer": OFFER,
        "seed": 7,
        "example": None if type(dataset) is TensorDataset else (torch.zeros(3), 0),
        **other,
    }
    return Client(folder=folder, **parts)


def bits(update: Arrays) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in update.items()}


def flat(update: Arrays) -> np.ndarray:
    return np.concatenate([value.ravel() for value in update.values()]).astype(np.float64)


class PowerFailure(BaseException):
    """Nothing in between catches it."""


def raises(error: BaseException) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


# --- Records that cannot be read -------------------------------------------------------------------------


class Files(Dataset[Any]):
    """Records as of files; ``broken`` says what comes of some of them."""

    def __init__(self, size: int = 9, broken: dict[int, Any] | None = None) -> None:
        self._tensors, self._broken = [tensor[:size] for tensor in records().tensors], broken or {}

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        instead = self._broken.get(index)
        if isinstance(instead, Exception):
            raise instead
        return instead or (self._tensors[0][index], int(self._tensors[1][index]))


@pytest.mark.parametrize(
    "instead",
    [
        OSError("the file of Jane Doe is damaged"),
        (torch.zeros(4), 0),
        (torch.zeros(3, dtype=torch.float64), 0),
        (torch.zeros(3), "B"),
        (torch.zeros(3),),
        (torch.full((3,), torch.nan), 0),
    ],
    ids=["raises", "longer", "wider", "a label that is no number", "no label", "not finite"],
)
def test_a_record_that_cannot_be_read_contributes_nothing_and_the_others_all(tmp_path: Path, instead: Any) -> None:
    """It pays, and the server is not told; what is left is what an answer without it would be."""
    found = made(tmp_path / "a", dataset=Files(9, {8: instead})).answer(1, STATE)
    without = made(tmp_path / "b", dataset=Files(8), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    whole = made(tmp_path / "c", dataset=Files(9)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)
    assert np.abs(flat(found) - flat(whole)).max() > 1e-3


def test_it_is_said_here_once_which_record_that_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = made(tmp_path, dataset=Files(9, {8: OSError("damaged"), 0: (torch.zeros(4), 0)}))
    for number in (1, 2):
        client.answer(number, STATE)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "record 0 is left blank: its shape or type is not that of the example",
        "record 8 is left blank: OSError damaged",
    ]


def test_the_first_record_may_be_the_broken_one(tmp_path: Path) -> None:
    found = made(tmp_path / "a", dataset=Files(9, {0: OSError("damaged")})).answer(1, STATE)
    x, y = (tensor[1:] for tensor in records().tensors)
    without = made(tmp_path / "b", dataset=TensorDataset(x, y), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)


def test_a_record_that_breaks_between_two_rounds_does_not_end_the_client(tmp_path: Path) -> None:
    """A client is made for each message: what is in one record must not decide whether there is one."""
    made(tmp_path, dataset=Files(9)).close()
    for index in range(9):
        client = made(tmp_path, dataset=Files(9, {index: OSError("damaged")}))
        client.answer(1 + index, STATE)
        client.close()


class Picky(TensorDataset):
    """Tensors, but one of the records cannot be had."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == 8:
            raise OSError("damaged")
        return super().__getitem__(index)


def test_tensors_with_a_way_of_their_own_are_files_too(tmp_path: Path) -> None:
    found = made(tmp_path / "a", dataset=Picky(*records().tensors)).answer(1, STATE)
    without = made(tmp_path / "b", dataset=Files(8), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)


def test_where_no_record_can_be_read_the_answer_is_noise(tmp_path: Path) -> None:
    broken = {index: OSError("damaged") for index in range(9)}
    found = made(tmp_path / "a", dataset=Files(9, broken)).answer(1, STATE)
    nobody = made(tmp_path / "b", budgets=granted(NOTHING, 9)).answer(1, STATE)
    assert bits(found) == bits(nobody)


def test_files_need_an_example_for_a_record_would_decide_about_others(tmp_path: Path) -> None:
    """Were it the first record or the usual one, whoever changes theirs could turn all others blank."""
    with pytest.raises(pp.InvalidInput, match="give example="):
        made(tmp_path, dataset=Files(9), example=None)
    with pytest.raises(pp.InvalidInput, match="example must be inputs and a label"):
        made(tmp_path, dataset=Files(9), example=("x", "y"))
    longer = (torch.zeros(4), 0)
    sums = [
        flat(made(tmp_path / str(many), dataset=Files(9, dict.fromkeys(range(many), longer))).answer(1, STATE))
        for many in (4, 5)
    ]
    lr, clip, steps, divisor = 0.5, 0.25, 4, 7
    assert np.linalg.norm(sums[0] - sums[1]) < 1.5 * steps * lr * clip / divisor  # a person, and no more


def test_files_give_what_tensors_give(tmp_path: Path) -> None:
    one, other = (
        made(tmp_path / str(k), dataset=data).answer(1, STATE) for k, data in enumerate((Files(), records()))
    )
    assert bits(one) == bits(other)


def test_a_model_that_rounds_would_refuse_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    x, y = records().tensors
    half = TensorDataset(x.bfloat16(), y)
    with pytest.raises(pp.InvalidInput, match="float32 or float64"):
        made(tmp_path, dataset=half, new_model=lambda: nn.Linear(3, 2).bfloat16())
    assert not (tmp_path / "book").exists()


# --- What the mechanism does is what was paid for -----------------------------------------------------


@pytest.mark.parametrize("size", [1, 9])
def test_a_round_is_that_of_the_terms(tmp_path: Path, size: int) -> None:
    plan = made(tmp_path, dataset=records(size)).plan
    assert plan.shape == TrainingShape(steps=4, batch_size=7, clip_norm=0.25, noise_multiplier=1.7)
    assert plan.all_steps == 4
    assert plan.levels.clip_norm.tolist() == [0.25]
    assert plan.levels.delta.tolist() == [1e-3]
    assert plan.accountant == "rdp"
    assert plan.rates.tolist() == [1.0] * size


@UNSEEDED
def test_the_noise_of_an_answer_is_what_was_certified(tmp_path: Path) -> None:
    """Everybody sits out, so an answer is noise alone: lr·σ·C·√τ / B, in every number and in every round anew."""
    state = {"weight": np.zeros((4, 74), np.float32), "bias": np.zeros(4, np.float32)}
    client = made(
        tmp_path,
        dataset=TensorDataset(torch.ones(2, 74), torch.zeros(2, dtype=torch.int64)),
        budgets=granted(NOTHING, 2),
        new_model=lambda: nn.Linear(74, 4),
        seed=None,
    )
    assert client.sitting_out == 2
    noise = np.stack([flat(client.answer(number, state)) for number in range(1, 61)])
    assert noise.shape == (60, 300)
    expected = 0.5 * 1.7 * 0.25 * np.sqrt(4) / 7
    found, six = np.sqrt((noise**2).mean()) / expected, 6 / np.sqrt(2 * noise.size)  # six deviations: 3.2 %
    assert found == pytest.approx(1.0, abs=six)
    for wrong in (1.1, 1 / 1.1):  # what it would find out
        assert found != pytest.approx(wrong, abs=six)
    assert np.abs(noise.mean(0)).max() < 6 * expected / np.sqrt(60)  # no part of it comes again
    assert np.abs(noise.mean(1)).max() < 6 * expected / np.sqrt(300)


@pytest.mark.parametrize("huge", [1, 3])
def test_a_person_moves_an_update_by_one_clip_norm(tmp_path: Path, huge: int) -> None:
    """A gradient far above the clip norm, one record or three of one person: lr·C / B, and nothing more."""
    x, y = records(1).tensors
    large, label = 1e4 * x.repeat(huge, 1), 1 - y.repeat(huge)
    person = [0] + [1] * huge
    without = made(tmp_path / "without", dataset=TensorDataset(x, y), offer=ONE_STEP, budgets=granted([EVERYTHING]))
    joined = made(
        tmp_path / "with",
        dataset=TensorDataset(torch.cat([x, large]), torch.cat([y, label])),
        offer=ONE_STEP,
        budgets=granted(EVERYTHING, 1 + huge, person=person),
        person=person,
    )
    moved = flat(joined.answer(1, STATE)) - flat(without.answer(1, STATE))
    assert np.linalg.norm(moved) == pytest.approx(0.5 * 0.25 / 7, rel=1e-3)


@UNSEEDED
def test_without_a_seed_two_clients_have_different_noise(tmp_path: Path) -> None:
    one, other = (made(tmp_path / name, seed=None).answer(1, STATE) for name in ("one", "other"))
    assert all((one[name] != other[name]).any() for name in STATE)


@UNSEEDED
def test_without_a_seed_two_clients_of_a_federation_have_different_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = silos.Federation("tiny", (silos.Silo("only", records()),), records(), lambda: nn.Linear(3, 2))
    monkeypatch.setattr(silos, "federation", lambda name, seed: tiny)
    monkeypatch.setattr(silos, "granted_in", lambda *_: [np.full(9, EVERYTHING)])
    one, other = (
        engine.new_client("tiny", "any", 0, OFFER, tmp_path / name, None).answer(1, STATE) for name in ("a", "b")
    )
    assert all((one[name] != other[name]).any() for name in STATE)


def test_an_update_does_not_tell_how_many_sit_out(tmp_path: Path) -> None:
    few, many = (
        made(tmp_path / str(size), dataset=records(size), budgets=granted(NOTHING, size)) for size in (9, 90)
    )
    assert (few.sitting_out, many.sitting_out) == (9, 90)
    assert bits(few.answer(1, STATE)) == bits(many.answer(1, STATE))


# --- What is in a record decides nothing but its own contribution -------------------------------------


@dataclass(frozen=True)
class Trap:
    """Parameters with which a good record trains and a bad one makes the loss raise."""

    new_model: Callable[[], nn.Module]
    loss_fn: Callable[..., torch.Tensor]
    state: Arrays
    good: tuple[list[float], float]
    bad: tuple[list[float], float]

    def dataset(self, which: list[bool]) -> TensorDataset:
        """Good records, and bad ones where ``which`` says so."""
        some = [self.bad if bad else self.good for bad in which]
        x, y = (torch.tensor(part, dtype=torch.float32) for part in zip(*some, strict=True))
        return TensorDataset(x, y.long() if self.loss_fn is losses else y)


def in_between() -> nn.Module:
    """What it gives lies in (0, 0.5), until a server says otherwise."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Sigmoid(), nn.Linear(1, 1, bias=False), nn.Flatten(0))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Sigmoid(), nn.Flatten(0))


def array(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


entropies = partial(F.binary_cross_entropy, reduction="none")
TRAPS = {
    "not a number": Trap(
        deep, entropies, {"0.weight": array([1, 3e38]), "1.weight": array([0])}, ([1, 0], 0), ([1, 2], 0)
    ),
    "out of range": Trap(
        in_between, entropies, {"0.weight": array([1, 3]), "2.weight": array([2])}, ([-1, 0], 0), ([0, 1], 0)
    ),
    "no such label": Trap(
        lambda: nn.Linear(2, 2),
        losses,
        {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)},
        ([1, 0.5], 1),
        ([1, 0.5], 7),
    ),
}


def trapped(folder: Path, trap: Trap, which: list[bool], person: list[int] | None = None, **other: Any) -> np.ndarray:
    """The first answer of a client whose people all have rate 1."""
    dataset = trap.dataset(which)
    parts: dict[str, Any] = {"budgets": granted(EVERYTHING, len(which), person=person), "offer": ONE_STEP, **other}
    whose = {} if person is None else {"person": person}
    client = made(folder, dataset=dataset, new_model=trap.new_model, loss_fn=trap.loss_fn, **whose, **parts)
    return flat(client.answer(1, trap.state))


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_record_that_raises_contributes_nothing_and_the_others_all(tmp_path: Path, trap: Trap, place: int) -> None:
    """Else "failed" tells the server that a record is there which its parameters were made for."""
    x, y = trap.dataset([True]).tensors
    model = trap.new_model()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in trap.state.items()})
    with pytest.raises((RuntimeError, IndexError)):
        trap.loss_fn(model(x), y)
    found = trapped(tmp_path / "bad", trap, [at == place for at in range(5)])
    assert found == pytest.approx(trapped(tmp_path / "without", trap, [False] * 4), abs=1e-7)
    fewer = trapped(tmp_path / "fewer", trap, [False] * 3)
    assert np.linalg.norm(found - fewer) == pytest.approx(0.5 * 0.25 / 7, rel=0.5)  # each of them counts


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_person_with_a_record_that_raises_contributes_nothing(tmp_path: Path, trap: Trap) -> None:
    which, person = [False, True, False, False, False, False], [0, 1, 1, 0, 2, 2]
    others = [0, 0, 2, 2]
    found = trapped(tmp_path / "bad", trap, which, person)
    assert found == pytest.approx(trapped(tmp_path / "without", trap, [False] * 4, others), abs=1e-7)
    fewer = trapped(tmp_path / "fewer", trap, [False] * 2, [0, 0])
    assert np.linalg.norm(found - fewer) == pytest.approx(0.5 * 0.25 / 7, rel=0.5)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_record_that_stands_in_for_nobody_tells_nothing(tmp_path: Path, trap: Trap) -> None:
    """A step that draws nobody still has a batch; whose record is in it, and sits out, is not seen."""
    budgets = granted(NOTHING, 3)
    bad, good = (
        trapped(tmp_path / str(first), trap, [first, False, False], budgets=budgets, offer=OFFER)
        for first in (True, False)
    )
    assert bad.tobytes() == good.tobytes()


def test_a_first_record_that_is_not_finite_does_not_decide_whether_a_client_joins(tmp_path: Path) -> None:
    state = {"0.weight": array([1, 1]), "1.weight": array([1])}

    def answered(first: float) -> bytes:
        x = torch.zeros(3, 2)
        x[0] = first
        client = made(
            tmp_path / str(first),
            dataset=TensorDataset(x, torch.zeros(3)),
            new_model=deep,
            loss_fn=entropies,
            budgets=granted(NOTHING, 3),
        )
        return flat(client.answer(1, state)).tobytes()

    assert answered(float("nan")) == answered(float("inf")) == answered(0.0)


def test_whether_a_model_mixes_is_not_looked_at_with_the_parameters_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numbers large enough, rounding alone looks like mixing, and a server can aim it at one record."""
    client = made(tmp_path)
    refusal = raises(pp.InvalidInput("a record changes with the others"))
    monkeypatch.setattr(loop, "require_isolated", refusal)
    monkeypatch.setattr(clipped, "require_own_losses", refusal)
    client.answer(1, STATE)
    assert client.joined == 1
    with pytest.raises(pp.InvalidInput, match="changes with the others"):
        made(tmp_path / "other")  # it is here, with parameters and records that say nothing


class Squeeze(nn.Module):
    """Takes any number of records but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze()


def test_a_model_that_cannot_take_one_record_is_refused(tmp_path: Path) -> None:
    """Where one record raises, the others are tried alone: whoever cannot be would be left out with it."""

    def squeezed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Sigmoid(), Squeeze())

    with pytest.raises(pp.InvalidInput):
        trapped(tmp_path / "bad", replace(TRAPS["not a number"], new_model=squeezed), [False] * 9)


# --- Whether anybody joins, and why not ---------------------------------------------------------------


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
    terms = replace(TERMS, accountant="pld", rounds=10**6, most_joined=10**6, local_steps=1, delta=1e-10)
    with pytest.raises(Unsupported):
        terms.certified(np.array([1e-9]))
    offer = Offer(terms, CertifiedTable(np.array([1e-9]), np.full(1, 5.0)))
    answers = set()
    for most in (4.9, 5.0):
        budgets = granted([4.0, most], delta=1e-10)
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


# --- The book -----------------------------------------------------------------------------------------


def test_a_fork_of_a_client_answers_nothing(tmp_path: Path) -> None:
    """It has inherited the lock and the count: both would answer, and neither would know of the other."""
    client = made(tmp_path, seed=None)
    child = os.fork()
    if not child:
        signal.alarm(20)
        refused = 0
        for ask in (lambda: client.answer(1, STATE), lambda: client.held(2)):
            try:
                ask()
            except pp.InvalidInput as error:
                refused += "opened by another process" in str(error)
            except BaseException:
                pass
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert not list(tmp_path.glob("answer-*"))
    assert json.loads(read_held(tmp_path / "book"))["begun"] == []
    client.answer(1, STATE)
    assert client.joined == 1


def noted(patch: pytest.MonkeyPatch, where: Any, name: str, events: list[str]) -> None:
    """Writes down each call of a function, and calls it."""
    real = getattr(where, name)

    def called(*a: Any, **k: Any) -> Any:
        events.append(name)
        return real(*a, **k)

    patch.setattr(where, name, called)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_round_that_cannot_be_counted_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = made(tmp_path)
    calls: list[str] = []
    noted(monkeypatch, client_module, "train", calls)
    with monkeypatch.context() as patch:
        patch.setattr(Book, "_write", raises(FULL))
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                client.answer(1, STATE)
    assert calls == []
    assert not list(tmp_path.glob("answer-*"))
    client.answer(1, STATE)
    assert calls == ["train"]
    client.close()
    assert made(tmp_path).joined >= 1


@pytest.mark.parametrize("where", ["savez", "replace"])
def test_an_answer_that_cannot_be_kept_is_not_given(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next request for the same round would get another one, for which nobody has paid."""
    client = made(tmp_path, seed=None)
    given: list[Any] = []
    with monkeypatch.context() as patch:
        if where == "savez":
            patch.setattr(np, "savez", raises(FULL))
        else:
            real, fails = os.replace, raises(FULL)
            patch.setattr(os, "replace", lambda old, new: fails() if "answer" in str(new) else real(old, new))
        with pytest.raises(OSError, match="No space"):
            given.append(client.answer(1, STATE))
    assert given == []
    assert client.joined == 1
    client.answer(1, STATE)
    assert client.joined == 2  # paid for again


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


def test_the_same_budgets_in_another_order_are_refused(tmp_path: Path) -> None:
    """Somebody would go on with another's rate, and with what another has spent."""
    epsilon = np.arange(1.0, 10.0)
    made(tmp_path, budgets=granted(epsilon)).close()
    epsilon[[2, 6]] = epsilon[[6, 2]]
    with pytest.raises(pp.InvalidInput, match="other records or budgets"):
        made(tmp_path, budgets=granted(epsilon))


def test_every_file_is_on_disk_under_its_name_before_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure undoes a rename that the folder does not know of."""
    events: list[str] = []
    for name in ("link", "replace"):
        noted(monkeypatch, os, name, events)
    noted(monkeypatch, _storage, "synchronise_folder", events)
    client = made(tmp_path / "client")
    assert events == ["synchronise_folder", "link", "synchronise_folder", "replace", "synchronise_folder"]
    events.clear()
    noted(monkeypatch, os, "fsync", events)
    noted(monkeypatch, client_module, "train", events)
    client.answer(1, STATE)
    counted = ["fsync", "fsync"]  # the content, then what says that it is valid
    kept = ["fsync", "replace", "synchronise_folder", "fsync"]  # the file, its name, and the folder
    assert events == [*counted, "train", *kept]
    assert (tmp_path / "client" / "answer-1.npz").exists()


# --- What leaves a client -----------------------------------------------------------------------------


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


class Home:
    """One client behind a Flower app."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        for name in ("_run_id", "_node_id", "_task_id"):  # a message asks for them
            monkeypatch.setattr(TaskIdentity, name, 1)
        self._offer = Offer(replace(ONE_STEP.terms, most_joined=1, answer_seconds=seconds), RATE_1)
        self._app = client_app(lambda context, offer: made(folder, offer=offer))

    def ask(self, number: int = 1, state: Arrays = STATE, offer: Offer | None = None) -> Message:
        told = ConfigRecord({"server-round": number, "offer": json.dumps((offer or self._offer).to_json())})
        content = RecordDict({ARRAYS: to_record(state), CONFIG: told})
        message = Message(content=content, dst_node_id=5, message_type="train")
        return self._app(message, Context(1, 5, {}, RecordDict(), {}))


def said(answer: Message) -> dict[str, Any]:
    assert not answer.has_error()
    return {name: sorted(record) if name == ARRAYS else dict(record) for name, record in answer.content.items()}


def test_every_answer_takes_the_time_of_the_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is new, old, none, or an error: how long it took is nobody's business."""
    home = Home(tmp_path, monkeypatch, 0.3)
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


def test_a_failure_says_nothing_but_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path, monkeypatch)
    home.ask()
    other = Offer(replace(TERMS, rounds=301), RATE_1)
    failures = [home.ask(number=0), home.ask(offer=other), home.ask(state={"weight": STATE["weight"]})]
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "train", raises(ValueError("Mrs Miller's blood pressure is 180")))
        failures.append(Home(tmp_path / "new", monkeypatch).ask())
        patch.setattr(Book, "_write", raises(FULL))
        failures.append(Home(tmp_path / "full", monkeypatch).ask())
    assert [said(answer) for answer in failures] == [{"metrics": {"failed": 1}}] * 5

"""A client: whatever the server asks, it gets one answer for a round, or none, and learns nothing else."""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import EPSILON, OFFER, STATE, TERMS, bits, book_in, made, records
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.accounting import CertifiedTable
from privypurse.errors import PrivyPurseWarning, Unsupported
from privypurse.federated import client as client_module
from privypurse.federated.client import Declined
from privypurse.federated.terms import Offer

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


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
        made(tmp_path, dataset=dataset, example=None)
    assert not (tmp_path / "book").exists()


def test_numbers_that_are_not_finite_are_said_here_and_nowhere_else(tmp_path: Path) -> None:
    """Refusing would tell the server what is in somebody's record."""
    x, y = records().tensors
    x = x.clone()
    x[3, 1] = math.nan
    with pytest.warns(PrivyPurseWarning, match="1 records have numbers that are not finite, such as record 3"):
        client = made(tmp_path, dataset=TensorDataset(x, y))
    assert all(np.isfinite(value).all() for value in client.answer(1, STATE).values())


def test_an_update_is_parameters_and_nothing_else(tmp_path: Path) -> None:
    update = made(tmp_path).answer(1, STATE)
    assert {name: (value.shape, value.dtype) for name, value in update.items()} == {
        "weight": ((2, 3), np.dtype(np.float32)),
        "bias": ((2,), np.dtype(np.float32)),
    }


class OddlyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.file, self.allow_pickle = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.file + self.allow_pickle


def test_an_answer_is_kept_whatever_parameters_are_called(tmp_path: Path) -> None:
    state = {"file": np.zeros((3, 2), np.float32), "allow_pickle": np.zeros(2, np.float32)}
    client = made(tmp_path, new_model=OddlyNamed)
    assert bits(client.answer(1, state)) == bits(client.answer(1, state))
    assert client.joined == 1


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
    assert book_in(tmp_path)["begun"] == []
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


IDS = np.array([f"P{number}" for number in range(EPSILON.size)])


def test_without_ids_there_is_a_record_for_each_budget(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="0 records but 9 budgets"):
        made(tmp_path, dataset=records(size=0), budgets=pp.Budgets(EPSILON, delta=TERMS.delta))


@pytest.mark.parametrize("owners", [[], ["P3"], [*IDS, "P3"], ["P3", "P3"]], ids=["nobody", "one", "twice", "alone"])
def test_whether_somebody_has_no_row_or_a_second_one_fails_nothing(tmp_path: Path, owners: list[str]) -> None:
    """A client that fails tells the server so: then it would tell whether P3 is in the data (rule 13)."""
    budgets = pp.Budgets(EPSILON, delta=TERMS.delta, person=IDS)
    client = made(tmp_path, dataset=records(size=len(owners)), budgets=budgets, person=owners)
    update = client.answer(1, STATE)
    assert client.joined == 1
    assert all(np.isfinite(value).all() and value.any() for value in update.values())


@pytest.mark.parametrize("files", [False, True], ids=["tensors", "files"])
def test_rows_of_somebody_who_is_not_in_the_budgets_are_left_out(
    tmp_path: Path, files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that failed would tell the server; the answer is the one without them, bit for bit."""

    def whose(rows: list[int], owners: list[str]) -> dict[str, Any]:
        x, y = (tensor[rows] for tensor in records().tensors)
        data: Any = list(zip(x, y, strict=True)) if files else TensorDataset(x, y)
        return {"dataset": data, "person": owners, "example": (torch.zeros(3), 0) if files else None}

    budgets = pp.Budgets(EPSILON, delta=TERMS.delta, person=IDS)
    without = made(tmp_path / "a", budgets=budgets, **whose([7, 8], ["P7", "P8"]))
    assert not caplog.records
    client = made(tmp_path / "b", budgets=budgets, **whose([0, 7, 1, 8, 2], ["Q", "P7", "Q", "P8", "R"]))
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "3 records of people who are not in the budgets are left out"
    assert bits(client.answer(1, STATE)) == bits(without.answer(1, STATE))
    assert client.sitting_out == without.sitting_out
    for ours, theirs in zip(vars(client.spent()).values(), vars(without.spent()).values(), strict=True):
        assert ours.tolist() == [0, theirs[0], 0, theirs[1], 0]


def test_where_all_rows_are_of_strangers_the_answer_is_that_of_nobody(tmp_path: Path) -> None:
    budgets = pp.Budgets(EPSILON, delta=TERMS.delta, person=IDS)
    strangers = made(tmp_path / "a", dataset=records(2), budgets=budgets, person=["Q", "R"])
    nobody = made(tmp_path / "b", dataset=records(0), budgets=budgets, person=[])
    assert bits(strangers.answer(1, STATE)) == bits(nobody.answer(1, STATE))
    assert strangers.spent().against_server.tolist() == [0, 0]


def test_where_nobody_has_a_record_the_answer_is_noise_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for missing records is drawn for nobody: else whoever comes would change two people's parts."""
    budgets = pp.Budgets(np.full(9, 30.0), delta=TERMS.delta, person=IDS)
    drawn = []
    real = client_module.train

    def seen(model: Any, optimizer: Any, dataset: Any, plan: pp.Plan, *others: Any, **named: Any) -> Any:
        drawn.append(plan.levels.rate.max())
        return real(model, optimizer, dataset, plan, *others, **named)

    monkeypatch.setattr(client_module, "train", seen)
    for name, owners in (("nobody", []), ("one", IDS[:1])):
        client = made(tmp_path / name, dataset=records(len(owners)), budgets=budgets, person=owners)
        assert client.plan.levels.rate.max() == 1.0  # and so everybody pays
        assert any(value.any() for value in client.answer(1, STATE).values())
    assert drawn == [0.0, 1.0]


def test_a_cap_without_a_ledger_is_refused(tmp_path: Path) -> None:
    """It was taken and kept by nobody: everybody spent the whole of their ε."""
    for given in ({"at_most": 0.5}, {"purpose": "buses"}):
        with pytest.raises(pp.InvalidInput, match="give ledger= too"):
            made(tmp_path, **given)


def test_a_book_that_is_older_than_an_answer_beside_it_is_an_old_copy(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    before = (tmp_path / "book").read_bytes()
    (tmp_path / "answer-1 (copy).npz").write_bytes(b"somebody's own")  # is no answer of ours
    client = made(tmp_path)
    client.answer(2, STATE)
    client.close()
    (tmp_path / "book").write_bytes(before)
    with pytest.raises(pp.InvalidInput, match="does not count round 2"):
        made(tmp_path)


@pytest.mark.parametrize("number", [8, 10])
def test_another_number_of_budgets_than_records_is_an_error(tmp_path: Path, number: int) -> None:
    with pytest.raises(pp.InvalidInput, match=f"9 records but {number} budgets"):
        made(tmp_path, budgets=pp.Budgets(np.ones(number), delta=1e-3))


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


@pytest.mark.parametrize("number", [0, -3, 6, 10_000, True, 1.5, "2"])
def test_a_round_that_cannot_have_been_held_is_refused(tmp_path: Path, number: Any) -> None:
    client = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="not among the 5"):
        client.held(number)
    assert client.spent().against_public.max() == 0


def test_terms_do_not_tell_what_the_people_of_a_client_grant(tmp_path: Path) -> None:
    """Whether anybody affords the terms is about budgets (rule 6); a client where nobody does answers with noise."""
    with pytest.warns(pp.PrivyPurseWarning, match="Nobody here takes part"):  # the client itself is told
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

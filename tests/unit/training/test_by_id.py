"""Rule 13 in training: a plan made with ids is applied by id, by whatever call trains; and an altered one by none."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.federated.client import Client
from privypurse.federated.terms import Offer, Terms
from privypurse.plans import LevelTable
from privypurse.plans import file as planfile
from privypurse.training import train_rounds as in_rounds
from privypurse.training.mechanism import PrivateRun
from training_tools import LOSS

N = 48
IDS = np.array([f"C{k:04d}" for k in range(N)])
EPSILON = np.where(np.arange(N) % 3 == 0, 0.3, 12.0)


def data() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(N, 5).double(), torch.randint(0, 2, (N,)))


def some(order: np.ndarray) -> TensorDataset:
    return TensorDataset(*(tensor[torch.as_tensor(order.copy())] for tensor in data().tensors))


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(5, 2).double()


def planned(ids: Any = IDS, method: str = "sample", **changes: Any) -> pp.Plan:
    shape = {"steps": 6, "batch_size": 12, "accountant": "rdp", **changes}
    return pp.plan(pp.Budgets(EPSILON[: len(ids)], person=ids), method, **shape)


def by_train(dataset: TensorDataset, plan: pp.Plan, **options: Any) -> torch.Tensor:
    model = network()
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, plan, LOSS, **options)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_loop(dataset: TensorDataset, plan: pp.Plan, **options: Any) -> torch.Tensor:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watched, optimizer, loader = pp.make_private(model, optimizer, dataset, plan, **options)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(watched(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_rounds(dataset: TensorDataset, plan: pp.rounds.Schedule, **options: Any) -> torch.Tensor:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    model = pp.rounds.train(network, sgd, dataset, plan, LOSS, **options).model
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def scheduled() -> pp.rounds.Schedule:
    epsilon = np.where(np.arange(N) % 3 == 0, 1.0, 3.0)
    return pp.rounds.schedule(pp.Budgets(epsilon, person=IDS), "pdp-sgd", epochs=2, batch_size=12, accountant="rdp")


WAYS: dict[str, Any] = {
    "train": (by_train, planned),
    "make_private": (by_loop, planned),
    "train_rounds": (by_rounds, scheduled),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*seed")


@pytest.mark.parametrize("way", WAYS)
def test_rows_in_another_order_train_the_same_model(way: str) -> None:
    """Seeded, so that the coins are the same: they are people's, not rows'."""
    trained, made = WAYS[way]
    plan, order = made(), np.random.default_rng(0).permutation(N)
    here = trained(data(), plan, person=IDS, seed=3)
    there = trained(some(order), plan, person=IDS[order], seed=3)
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(here, trained(some(order), plan, person=IDS, seed=3), rtol=1e-4)  # by row


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_with_ids_needs_those_of_the_records(way: str) -> None:
    trained, made = WAYS[way]
    with pytest.raises(pp.InvalidInput, match="made with ids and is applied by id; give person="):
        trained(data(), made(), seed=3)
    with pytest.raises(pp.InvalidInput, match="not in the plan: 'nobody'"):
        trained(data(), made(), person=[*IDS[1:], "nobody"], seed=3)


@pytest.mark.parametrize("trained", [by_train, by_loop])
def test_a_plan_without_ids_takes_none(trained: Any) -> None:
    plain = pp.plan(pp.Budgets(EPSILON), steps=6, batch_size=12, accountant="rdp")
    with pytest.raises(pp.InvalidInput, match="made without ids"):
        trained(data(), plain, person=IDS, seed=3)
    trained(data(), plain, seed=3)


@pytest.mark.parametrize("most", [None, 4])
def test_whoever_is_missing_is_absent_and_nobody_else_notices(most: int | None) -> None:
    """As if their records contributed nothing; noise and divisor stay. No error, for that would tell."""
    plan = planned(noise_multiplier=3.0)
    gone = np.arange(N) % 5 == 0
    model = network()

    def zero(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return LOSS(output, y.clamp(min=0)) * (y >= 0)

    x, y = data().tensors
    silent = TensorDataset(x, torch.where(torch.as_tensor(gone), -1, y))
    options: dict[str, Any] = {"seed": 4, "execution": pp.Execution(max_physical_batch=most)}
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), silent, plan, zero, person=IDS, **options)
    whole = torch.cat([p.detach().flatten() for p in model.parameters()])
    rest = np.flatnonzero(~gone)
    found = by_train(some(rest), plan, person=IDS[rest], **options)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-9)
    assert plan.applied_to(IDS[rest]).absent == gone.sum()


def test_every_unit_is_limited_by_its_own_clip_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run reads for each record, in an order of its own, is what the plan gave its id."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    add = PrivateRun.weights

    def watched(self: PrivateRun, tape: Any, units: Any, owner: Any = None) -> Any:
        records = (units if owner is None else units[owner]).cpu().numpy()
        seen.append((records, self.setup.clip_norms.cpu().numpy()))
        return add(self, tape, units, owner)

    monkeypatch.setattr(PrivateRun, "weights", watched)
    plan, order = planned(method="scale"), np.random.default_rng(5).permutation(N)
    by_train(some(order), plan, person=IDS[order], seed=1)
    limits = dict(zip(IDS.tolist(), plan.clip_norms.tolist(), strict=True))
    assert len(set(limits.values())) == 2
    for units, clip_norms in seen:
        real = units[units < N]
        assert [clip_norms[unit] for unit in real] == [limits[who] for who in IDS[real]]


def test_a_run_goes_on_with_the_rows_in_another_order_edited_and_fewer(tmp_path: Path) -> None:
    """And with a plan made anew, whose key is another: the same run, counted by one journal."""
    ids = np.concatenate([IDS[:30], IDS[:18]])  # 18 people have two records
    epsilon = np.concatenate([EPSILON[:30], EPSILON[:18]])

    def made() -> pp.Plan:
        return pp.plan(pp.Budgets(epsilon, person=ids), steps=6, batch_size=8, accountant="rdp", extra_steps=2)

    def part(rows: np.ndarray, steps: int | None, plan: pp.Plan) -> Any:
        model = network()
        x, y = some(rows).tensors
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        how: dict[str, Any] = {"person": ids[rows], "checkpoint": tmp_path / "run", "steps": steps}
        return pp.train(model, optimizer, TensorDataset(1.01 * x, y), plan, LOSS, **how)

    rng = np.random.default_rng(0)
    first = part(np.arange(N), 3, made())
    second = part(rng.permutation(N)[:40], None, made())
    assert (first.steps, second.resumed_from, second.steps) == (3, 3, 8)
    assert second.spending.epsilon().shape == (40,)
    with pytest.raises(pp.InvalidInput, match="another plan"):
        part(np.arange(N), None, dataclasses.replace(made(), notes=("another",)))


def test_a_person_is_told_by_id_what_they_spent() -> None:
    plan, order = planned(), np.random.default_rng(6).permutation(N)
    model = network()
    done = pp.train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        some(order),
        plan,
        LOSS,
        person=IDS[order],
        individual=pp.Individual(every=2),
    )
    assert done.spending is not None
    spent = done.spending.epsilon("rdp")
    for place in (0, 7, 31):
        assert done.spending.of(IDS[order][place], "rdp") == pytest.approx(spent[place], rel=1e-9)
    assert len(set(spent.round(9))) > 2
    with pytest.raises(pp.InvalidInput, match="person is 7, who is not in the plan"):
        done.spending.of(7)
    assert "of(id)" in repr(done.spending)


# --------------------------------------------------------------------------------------------------- altered plans


def altered(plan: pp.Plan) -> pp.Plan:
    """Every rate 1, and the checksum made to fit again."""
    content = json.loads(planfile.dumps(plan))
    content["levels"]["rate"] = [1.0] * len(plan.levels)
    content.pop("sha256")
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return planfile.loads(json.dumps(content), pp.Plan)


@pytest.mark.each_value_once
@pytest.mark.parametrize("trained", [by_train, by_loop])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_an_altered_plan_is_not_trained(trained: Any, accountant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = altered(planned(accountant=accountant))
    assert greedy.spent().max() > 2 * EPSILON.min()
    monkeypatch.setattr(PrivateRun, "release", lambda self: pytest.fail("a step was released"))
    with pytest.raises(pp.InvalidInput, match="the plan spends more than it promises"):
        trained(data(), greedy, person=IDS)


def test_a_schedule_that_overspends_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduled()
    greedy = dataclasses.replace(
        made,
        rounds=tuple(dataclasses.replace(one, chance=np.ones(made.epsilon_by_level.size)) for one in made.rounds),
    )
    monkeypatch.setattr(in_rounds, "train", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(pp.InvalidInput, match="the schedule spends more than it promises"):
        by_rounds(data(), greedy, person=IDS)


def test_a_plan_by_hand_that_keeps_its_promise_trains() -> None:
    table = LevelTable(epsilon=[8.0], delta=[1e-5], rate=[0.2], clip_norm=[1.0], capped=[False])
    shape = pp.TrainingShape(steps=3, batch_size=10, noise_multiplier=2.0)
    plan = pp.Plan(
        method="mine", accountant="rdp", promise="data", shape=shape, levels=table, level_of=np.zeros(N, np.int64)
    )
    by_train(data(), plan, seed=0)
    with pytest.raises(pp.InvalidInput, match=r"ε = .* where 0\.1 is promised"):
        by_train(data(), dataclasses.replace(plan, levels=dataclasses.replace(table, epsilon=[0.1])), seed=0)


# ------------------------------------------------------------------------------------------------------- clients

TERMS = Terms(
    rounds=4, local_steps=2, noise_multiplier=2.0, batch_size=8, learning_rate=0.5, clients=2, accountant="rdp"
)
OFFER = Offer.of(TERMS)


def client(folder: Path, dataset: TensorDataset, person: Any, budgets: pp.Budgets | None = None) -> Client:
    granted = pp.Budgets(EPSILON, delta=TERMS.delta, person=IDS) if budgets is None else budgets
    x, y = dataset.tensors
    single = TensorDataset(x.float(), y)
    return Client(single, granted, lambda: nn.Linear(5, 2), LOSS, OFFER, folder, person=person, seed=1)


def test_a_client_matches_budgets_by_id(tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(N)[:40]
    mine = client(tmp_path / "a", some(order), IDS[order])
    whole = client(tmp_path / "b", data(), IDS)
    np.testing.assert_array_equal(mine.plan.rates, whole.plan.rates[order])
    assert len(set(whole.plan.rates.tolist())) == 2
    state = {name: value.detach().numpy() for name, value in nn.Linear(5, 2).named_parameters()}
    mine.answer(1, state)
    assert (mine.spent().against_server <= EPSILON[order]).all()
    mine.close()
    # Its people's rows may change: the book is theirs.
    again = client(tmp_path / "a", some(order[::-1][:30]), IDS[order[::-1][:30]])
    assert again.joined == 1
    again.close()
    budgets = pp.Budgets(2 * EPSILON, delta=TERMS.delta, person=IDS)
    with pytest.raises(pp.InvalidInput, match="begun with other"):
        client(tmp_path / "a", data(), IDS, budgets)
    with pytest.raises(pp.InvalidInput, match="budgets have ids and are matched by id; give person="):
        client(tmp_path / "c", data(), None)
    stranger = client(tmp_path / "d", some(np.arange(1)), ["gil"])  # an error would tell the server
    stranger.answer(1, state)
    assert stranger.spent().against_server.tolist() == [0.0]
    stranger.close()
    with pytest.raises(pp.InvalidInput, match="made without ids"):
        client(tmp_path / "e", data(), IDS, pp.Budgets(EPSILON, delta=TERMS.delta))

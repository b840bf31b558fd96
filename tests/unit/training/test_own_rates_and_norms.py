"""Each person is drawn by their own rate and clipped to their own norm, and one whose norm is unusable adds nothing.

Record i moves the weights of input i alone, so that a released gradient says of each record by itself what it
contributed. Noise is taken off by a second run with the same seed on data that contributes nothing.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from training_tools import CUDA, Keeping

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
PEOPLE, STEPS = 37, 3
# No shift of these, by whatever number of records, is these again.
GRANTED = np.random.default_rng(3).choice([0.5, 1.0, 2.0, 3.0, 5.0], PEOPLE)


def branches(device: str) -> nn.Module:
    """One weight for each record and each of two branches, which do not meet but in the loss."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (nn.Linear(PEOPLE, 1, bias=False) for _ in range(2))
            for branch in (self.one, self.other):
                nn.init.zeros_(branch.weight)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.one(x[:, 0]), self.other(x[:, 1])], dim=1)

    return Branches().double().to(device)


def data(size: float | tuple[float, float] = 1e3) -> TensorDataset:
    """Record i: so large at place i of both branches, or of each by itself."""
    each = torch.tensor(size if isinstance(size, tuple) else (size, size), dtype=torch.float64)
    return TensorDataset(
        torch.eye(PEOPLE).double()[:, None, :] * each[:, None], torch.full((PEOPLE, 2), 50.0).double()
    )


def nothing() -> TensorDataset:
    return TensorDataset(torch.zeros(PEOPLE, 2, PEOPLE).double(), torch.full((PEOPLE, 2), 50.0).double())


def in_the_loop(plan: pp.Plan, dataset: TensorDataset, device: str, **options: object) -> list[Tensor]:
    inner = branches(device)
    keeping = Keeping(inner)
    model, optimizer, loader = pp.make_private(
        inner, keeping, dataset, plan, loss_reduction="sum", seed=11, **options
    )
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device), reduction="sum").backward()
        optimizer.step()
    return keeping.seen


def by_train(plan: pp.Plan, dataset: TensorDataset, device: str, **options: object) -> list[Tensor]:
    model = branches(device)
    keeping = Keeping(model)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().sum(dim=1)

    pp.train(model, keeping, dataset, plan, loss, seed=11, **options)
    return keeping.seen


WAYS = [
    pytest.param(partial(in_the_loop, device="cpu"), id="make_private"),
    pytest.param(
        partial(in_the_loop, device="cpu", execution=pp.Execution(max_physical_batch=5)), id="make_private in parts"
    ),
    pytest.param(
        partial(in_the_loop, device="cpu", execution=pp.Execution(num_workers=1)), id="make_private with a worker"
    ),
    pytest.param(partial(by_train, device="cpu"), id="train"),
    pytest.param(partial(by_train, device="cpu", execution=pp.Execution(max_physical_batch=5)), id="train in parts"),
    pytest.param(partial(by_train, device="cuda"), marks=CUDA.marks, id="captured"),
]
Way = Callable[[pp.Plan, TensorDataset], list[Tensor]]


def contributed(way: Way, plan: pp.Plan, dataset: TensorDataset) -> np.ndarray:
    """What each record added to both branches, step by step: [steps, 2, people]."""
    released, noise = way(plan, dataset), way(plan, nothing())
    moved = torch.stack([one - other for one, other in zip(released, noise, strict=True)])
    return moved.reshape(STEPS, 2, PEOPLE).numpy() * plan.batch_size


@made_once
def planned(method: object, person: object = None, **options: object) -> pp.Plan:
    budgets = pp.Budgets(GRANTED if person is None else GRANTED[person], delta=1e-5, person=person)
    settings = {"steps": STEPS, "batch_size": 20, "clip_norm": 0.5, "accountant": "rdp", **options}
    plan = pp.plan(budgets, method, **settings)
    return plan if person is None else plan.applied_to(person)


def test_no_shift_looks_like_the_truth() -> None:
    for shift in range(1, PEOPLE):
        assert ((np.roll(GRANTED, shift) >= 2) != (GRANTED >= 2)).any()


@pytest.mark.parametrize("way", WAYS)
def test_who_takes_part_is_drawn_and_nobody_else(way: Way) -> None:
    """Of those who are left everyone is in every step: rate 1 beside rate 0."""
    stays = GRANTED >= 2
    plan = planned(pp.assignment.Exclude(2.0), batch_size=int(stays.sum()))
    assert (plan.rates == stays).all()
    for step in contributed(way, plan, data()):
        assert ((np.abs(step) > 1e-3).all(axis=0) == stays).all()
        assert (np.abs(step[:, ~stays]) < 1e-9).all()


@pytest.mark.parametrize("way", WAYS)
def test_everyone_is_clipped_to_their_own_norm(way: Way) -> None:
    plan = planned("scale", batch_size=PEOPLE)
    assert np.unique(plan.clip_norms).size == 5
    for step in contributed(way, plan, data()):
        np.testing.assert_allclose(np.linalg.norm(step, axis=0), plan.clip_norms, rtol=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_rates_are_peoples_where_people_have_several_records(way: Way) -> None:
    """Owners in no order: who stays is a matter of the person, not of the place of a row."""
    person = np.random.default_rng(4).permutation(np.arange(PEOPLE) % 11)
    stays = GRANTED[person] >= 2
    plan = planned(pp.assignment.Exclude(2.0), person, batch_size=np.unique(person[stays]).size)
    for step in contributed(way, plan, data()):
        assert ((np.abs(step) > 1e-3).all(axis=0) == stays).all()
        for who in np.unique(person):
            together = np.linalg.norm(step[:, person == who])
            assert together == pytest.approx(0.5 if GRANTED[who] >= 2 else 0.0, rel=1e-3)


@pytest.mark.each_value_once
@pytest.mark.parametrize("unusable", [math.nan, math.inf, -math.inf, 1e200], ids=["NaN", "∞", "-∞", "too large"])
@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_unusable_in_one_branch_adds_nothing_in_the_other(way: Way, unusable: float) -> None:
    """NaN in one branch, 1e3 in the other: what cannot be measured cannot be clipped, so it weighs 0, not 1."""
    plan, broken, spoiled = planned("scale", batch_size=PEOPLE), 5, data()
    spoiled.tensors[0][broken, 0] *= unusable
    for step in contributed(way, plan, spoiled):
        assert np.isfinite(step).all()
        assert (np.abs(step[:, broken]) < 1e-9).all()
        others = np.arange(PEOPLE) != broken
        np.testing.assert_allclose(np.linalg.norm(step, axis=0)[others], plan.clip_norms[others], rtol=1e-3)


@pytest.mark.each_value_once
@pytest.mark.parametrize("unusable", [math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_person_with_one_unusable_record_adds_nothing(way: Way, unusable: float) -> None:
    """All records of a person are one gradient: the others of theirs do not stay behind unclipped."""
    person = np.random.default_rng(4).permutation(np.arange(PEOPLE) % 11)
    plan, broken, spoiled = planned("uniform", person, batch_size=11), 5, data()
    spoiled.tensors[0][broken, 0] *= unusable
    for step in contributed(way, plan, spoiled):
        for who in range(11):
            together = np.linalg.norm(step[:, person == who])
            assert together == pytest.approx(0.5 if who != person[broken] else 0.0, rel=1e-3, abs=1e-9)

"""Rule 12 from outside: what one person has, does or breaks moves nobody else's contribution."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape
from privypurse.randomness import SeededRandomness
from privypurse.training import loop
from privypurse.training.gradients import clipping
from privypurse.training.isolation.dropout import DropoutOff
from privypurse.training.planned_records import PlannedRecords

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
LOSS = partial(F.cross_entropy, reduction="none")
BAD = 7.0  # the first number of a record that makes the model raise
CLIP = 0.5


def planned(size: int, person: Any = None, batch_size: int = 36) -> Plan:
    """One step without noise to speak of, that draws everybody."""
    one = np.ones(1)
    return Plan(
        method="test",
        accountant="rdp",
        promise=Promise.PART,  # no promise of its own: the noise is as small as the test needs it
        shape=TrainingShape(steps=1, batch_size=batch_size, clip_norm=CLIP, noise_multiplier=1e-9),
        levels=LevelTable(epsilon=one, delta=1e-5 * one, rate=one, clip_norm=CLIP * one, capped=one < 0),
        level_of=np.zeros(size if person is None else int(person.max()) + 1, np.int64),
        owner=person,
    )


class Reading(torch.optim.SGD):
    """Takes no step, and remembers what it was asked to take."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.seen = torch.cat([parameter.grad.double().flatten() for parameter in parameters])


def total(model: nn.Module, dataset: Dataset[Any], plan: Plan, loss: Any = LOSS, **options: Any) -> Tensor:
    """The step's sum in clip norms."""
    optimizer = Reading(model.parameters(), lr=1.0)
    pp.train(model, optimizer, dataset, plan, loss, seed=3, **options)
    return optimizer.seen * plan.shape.batch_size / CLIP


# --- How many records somebody has ----------------------------------------------------------------------


def pictures(others: int, each: int, theirs: int) -> tuple[TensorDataset, np.ndarray]:
    """Of people with so many each, and of one more whose pictures are not finite and so contribute nothing.

    Margins are black, so that a bound on the rounding of a gradient is large beside it.
    """
    x = torch.rand(others * each + theirs, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    x[..., :7] = x[..., -7:] = 0.0
    x[others * each :] = torch.nan
    person = np.concatenate([np.repeat(np.arange(others), each), np.full(theirs, others)])
    return TensorDataset(x, torch.zeros(len(x), dtype=torch.int64)), person


def layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(392, 2))


def corners() -> nn.Module:
    """Parameters with large gradients where pictures are black."""
    model = layers()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        weight = model[4].weight.view(2, 8, 7, 7)  # type: ignore[index, union-attr, operator]
        weight[0, :, 0, 0], weight[0, :, 0, 6] = 300.0, -300.0
    return model


def through_the_loop(model: nn.Module, dataset: TensorDataset, plan: Plan) -> Tensor:
    optimizer = Reading(model.parameters(), lr=1.0)
    private, stepping, loader = pp.make_private(model, optimizer, dataset, plan, loss_reduction="sum", seed=3)
    for x, y in loader:
        F.cross_entropy(private(x), y, reduction="sum").backward()
        stepping.step()
    return optimizer.seen * plan.shape.batch_size / CLIP


@pytest.mark.each_value_once
@pytest.mark.parametrize("how", ["train", "forgiving", "make_private"])
@pytest.mark.parametrize("each", [1, 2])
def test_how_many_records_somebody_has_moves_nobody_else(how: str, each: int) -> None:
    torch.manual_seed(0)
    # What two records add up to in the corners cancels to nothing that could be moved.
    model = corners() if each == 1 else layers()
    sums = []
    for theirs in (1, 2, 90):
        dataset, person = pictures(30, each, theirs)
        plan = planned(len(dataset), person)
        if how == "make_private":
            sums.append(through_the_loop(copy.deepcopy(model), dataset, plan))
        else:
            sums.append(total(model, dataset, plan, forgiving=how == "forgiving"))
    assert float(sums[0].norm()) > 20  # there is something to move
    for other in sums[1:]:
        assert float((sums[0] - other).norm()) <= 1e-4


@pytest.mark.slow
def test_a_bound_by_the_largest_of_all_would_move_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: everybody's norm with the rounding of whoever has most records."""
    honest = clipping.never_too_small
    monkeypatch.setattr(
        clipping,
        "never_too_small",
        lambda squares, terms, added: honest(squares, terms, added.max().expand_as(added)),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        usual = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(392, 2)
        )
    sums = []
    for theirs in (2, 400):
        dataset, person = pictures(100, 2, theirs)
        sums.append(total(usual, dataset, planned(len(dataset), person)))
    assert float((sums[0] - sums[1]).norm()) > 1


# --- Where somebody stands in a batch, and who raises beside them ---------------------------------------


class Touchy(nn.Module):
    """Raises if a bad record is there."""

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, 0] == BAD).any():
            raise ValueError("what is wrong with a record is not said")
        return x


def bent(activation: nn.Module, hidden: int) -> nn.Module:
    """Parameters by which it decides every gradient whether vector or scalar code computed an activation."""
    model = nn.Sequential(Touchy(), nn.Linear(4, hidden), activation, nn.Linear(hidden, 2))
    numbers = -0.001 * torch.arange(1.0, 4000.0)
    pairs = ((float(b), activation(b.expand(64))[0], activation(b.expand(7))[0]) for b in numbers)
    found = next(((b, one, other) for b, one, other in pairs if one != other), None)
    if found is None:
        pytest.skip("this machine computes both alike")
    bias, vector, scalar = found
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model[1].bias.fill_(bias)  # type: ignore[union-attr, operator]
        factor = 2.0**44 if scalar > vector else -(2.0**44)
        model[3].weight[0, -1] = factor  # type: ignore[union-attr, index]
        model[3].bias[0] = -factor * vector  # type: ignore[union-attr, index, operator]
    return model


def three(model: nn.Module, size: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The sum with the first person, without, and with them raising."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + 0.01 * torch.randn(size, 4, generator=generator)
    x[:, 0] = 0.0
    y = torch.zeros(size, dtype=torch.int64)
    raising = x.clone()
    raising[0, 0] = BAD
    return (
        total(model, TensorDataset(x, y), planned(size), forgiving=True, **options),
        total(model, TensorDataset(x[1:], y[1:]), planned(size - 1), forgiving=True, **options),
        total(model, TensorDataset(raising, y), planned(size), forgiving=True, **options),
    )


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    assert torch.get_num_threads() == request.param  # a run gives them back
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.SiLU, nn.ELU, nn.Softplus, partial(nn.GELU, "tanh")])
@pytest.mark.parametrize(
    ("hidden", "size", "most"),
    [(1, 48, None), (3, 16, None), (1, 130, None), (1, 130, 33), (5, 130, 100), (701, 97, None)],
)
def test_every_row_of_a_batch_is_computed_alike(activation: Any, hidden: int, size: int, most: int | None) -> None:
    whole, without, raising = three(bent(activation(), hidden), size, execution=pp.Execution(max_physical_batch=most))
    assert float((whole - without).norm()) <= 1 + 1e-6
    assert float((raising - without).norm()) <= 1e-6


def test_in_other_shapes_they_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: 47 rows, of which the last 15 are a rest."""
    monkeypatch.setattr(loop, "one_shape", lambda *_: 47)
    _, without, raising = three(bent(nn.Sigmoid(), 1), 47)
    assert float((raising - without).norm()) > 2


# --- What cannot be taken apart, and what a forward pass leaves behind ------------------------------------


class Named(Dataset[Any]):
    """Labels that are no tensors."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return torch.ones(4), "cat"


def test_what_has_no_row_for_each_record_is_refused() -> None:
    """In a batch that raises everybody would be judged by the whole list, or by whoever is first in it."""
    with pytest.raises(pp.InvalidInput, match="one row for each record"):
        total(nn.Linear(4, 2), Named(), planned(12), forgiving=True)


def test_what_people_spend_is_not_followed_forgivingly() -> None:
    data = TensorDataset(torch.ones(12, 4), torch.zeros(12, dtype=torch.int64))
    with pytest.raises(pp.InvalidInput, match="cannot follow"):
        total(nn.Linear(4, 2), data, planned(12), forgiving=True, individual=pp.Individual())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_floats_are_refused_where_somebody_else_chooses_the_parameters(dtype: torch.dtype) -> None:
    data = TensorDataset(torch.ones(12, 4, dtype=dtype), torch.zeros(12, dtype=torch.int64))
    with pytest.raises(pp.InvalidInput, match="float32 or float64"):
        total(nn.Linear(4, 2).to(dtype), data, planned(12), forgiving=True)


class Mixed(nn.Module):
    """Two kinds of numbers in one model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).double())


@pytest.mark.parametrize("person", [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_whether_a_step_works_hangs_on_nobodys_number_of_records(person: list[int]) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    found = total(Mixed(), TensorDataset(x, torch.zeros(6, dtype=torch.int64)), planned(6, np.array(person)))
    assert 0 < float(found.norm()) <= max(person) + 1


@pytest.mark.parametrize("most", [None, 2])
def test_who_has_no_records_is_in_no_batch(most: int | None) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    data, person = TensorDataset(x, torch.zeros(4, dtype=torch.int64)), np.array([0, 0, 3, 3])  # nobody is 1 or 2
    torch.manual_seed(0)
    assert (
        0
        < float(
            total(nn.Linear(4, 2), data, planned(4, person), execution=pp.Execution(max_physical_batch=most)).norm()
        )
        <= 2
    )


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("most", [None, 2])
def test_whoever_is_absent_makes_no_difference_to_the_batches(most: int | None, multiple: int) -> None:
    """A step that draws absent people alone is one that draws nobody; its shape would tell (rule 13)."""
    data, person = TensorDataset(torch.zeros(4, 4), torch.zeros(4)), np.array([0, 0, 3, 3])
    records, source = PlannedRecords(data, planned(4, person)), SeededRandomness(0)
    for drawn, present in (([0, 1, 2, 3], [0, 3]), ([1, 2], []), ([1], [])):
        found, expected = (
            records.batches(np.array(units, dtype=np.int64), source, most, multiple) for units in (drawn, present)
        )
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            for name in ("records", "units", "owner"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert (one.first, one.last) == (other.first, other.last)


def far_off(size: int = 12) -> TensorDataset:
    """Records near 0, and the sixth far away."""
    x = 0.3 * torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    x[5] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    return TensorDataset(x, (x[:, 1] > 0).long())


class Detour(nn.Module):
    """Only records that are far away reach the second layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        far = x.norm(dim=1) > 3
        h = torch.tanh(self.first(x))
        if far.any():
            h = h.clone()
            h[far] = self.second(h[far])
        return self.last(h)


class Remembering(nn.Module):
    """Writes down whoever is far away, and shrinks its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 2)
        self.register_buffer("written", torch.zeros(4))
        self.register_buffer("replaced", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        far = x.norm(dim=1) > 3
        if far.any():
            with torch.no_grad():
                self.written.copy_(x[far][0])  # type: ignore[operator]
                self.replaced = x[far][0]
                self.last.weight.mul_(0.5)
        return self.last(x)


@pytest.mark.parametrize(("build", "own"), [(Detour, 1.0), (Remembering, 0.0)])
def test_a_record_that_takes_a_way_of_its_own_moves_no_other_and_leaves_nothing(
    build: type[nn.Module], own: float
) -> None:
    """By itself it may take a detour; what writes into the model never counts."""
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = far_off().tensors
    found = total(model, TensorDataset(x, y), planned(12), forgiving=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    others = torch.arange(12) != 5
    expected = total(build(), TensorDataset(x[others], y[others]), planned(11), forgiving=True)
    assert float((found - expected).norm()) <= own + 1e-6
    assert float(expected.norm()) > 1


@pytest.mark.parametrize(
    "layer", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_is_off_in_layers_and_functions_while_a_model_is_asked(layer: type[nn.Module], inplace: bool) -> None:
    drops = layer(0.5, inplace)
    x = torch.randn(*(3, 4, 2, 5, 5)[: {nn.Dropout1d: 3, nn.Dropout2d: 4}.get(layer, 5)])
    with DropoutOff():
        assert torch.equal(drops(x.clone()), x)
    assert not torch.equal(drops(x.clone()), x)

"""Ways around the isolation of records: each is refused, or one person moves the released sum by one clip norm.

Sums are taken without noise to speak of, with everybody drawn, on data made to be moved; in clip norms.
"""

import contextlib
import copy
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape
from privypurse.randomness import SecureRandomness
from privypurse.training import step_randomness

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
LOSS = partial(F.cross_entropy, reduction="none")
CLIP = 0.5
PEOPLE = 40


def planned(size: int = PEOPLE, steps: int = 1, rate: float = 1.0) -> Plan:
    """Steps without noise to speak of."""
    one = np.ones(1)
    return Plan(
        method="test",
        accountant="rdp",
        promise=Promise.PART,  # no promise of its own: the noise is as small as the test needs it
        shape=TrainingShape(steps=steps, batch_size=36, clip_norm=CLIP, noise_multiplier=1e-9),
        levels=LevelTable(epsilon=one, delta=1e-5 * one, rate=rate * one, clip_norm=CLIP * one, capped=one < 0),
        level_of=np.zeros(size, np.int64),
    )


class Reading(torch.optim.SGD):
    """Takes no step, and remembers what it was asked to take."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.seen = torch.cat([parameter.grad.double().flatten() for parameter in parameters])


def reading(model: nn.Module) -> Reading:
    return Reading([value for value in model.parameters() if value.requires_grad], lr=1.0)


def by_train(model: nn.Module, dataset: Any, loss: Any = LOSS, **options: Any) -> Tensor:
    """The last step's sum in clip norms, by pp.train, from a state of all generators that everybody knows."""
    optimizer, steps = (
        Reading([value for value in model.parameters() if value.requires_grad], lr=1.0),
        options.pop("steps", 1),
    )
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    pp.train(model, optimizer, dataset, planned(len(dataset), steps), loss, **options)
    return optimizer.seen * 36 / CLIP


def by_loop(model: nn.Module, dataset: Any, **options: Any) -> Tensor:
    """The same by the ordinary loop."""
    optimizer, steps = (
        Reading([value for value in model.parameters() if value.requires_grad], lr=1.0),
        options.pop("steps", 1),
    )
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    private, stepping, loader = pp.make_private(model, optimizer, dataset, planned(len(dataset), steps), **options)
    for x, y in loader:
        F.cross_entropy(private(x), y).backward()
        stepping.step()
    return optimizer.seen * 36 / CLIP


WAYS = pytest.mark.parametrize("way", [by_train, by_loop], ids=["train", "loop"])


def people(size: int = PEOPLE, features: int = 8) -> TensorDataset:
    x = torch.randn(size, features, generator=torch.Generator().manual_seed(0))
    x[0] *= 30.0
    return TensorDataset(x, torch.arange(size) % 2)


def without_first(dataset: TensorDataset) -> TensorDataset:
    return TensorDataset(*(tensor[1:] for tensor in dataset.tensors))


def moved(
    way: Callable[..., Tensor], build: Callable[[], nn.Module], dataset: TensorDataset, **options: Any
) -> float:
    """How far the first person moves the sum."""
    sums = []
    for data in (dataset, without_first(dataset)):
        torch.manual_seed(1)
        sums.append(way(build(), data, **options))
    return float((sums[0] - sums[1]).norm())


# --- What is random in a step ---------------------------------------------------------------------------------


class Numbered(Dataset[Any]):
    """Records by index, with something random in loading them."""

    def __init__(self, data: TensorDataset, noise: Callable[[], float]) -> None:
        self._data, self._noise = data, noise

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self._data[index]
        return x * (1.0 if self._noise() < 0.5 else -1.0), y


def dropping(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Dropout(rate), nn.Linear(8, 2))


class ByHand(nn.Module):
    """Masks of its own, by numbers of Python and NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        signs = [[random.choice((-1.0, 1.0)) * np.sign(np.random.randn())] for _ in range(len(x))]  # noqa: NPY002
        return self.last(x * torch.tensor(signs).float())


def as_it_is(data: TensorDataset) -> Any:
    return data


RANDOM = {
    "dropout 0.5": (dropping, as_it_is),
    "dropout 0.1": (partial(dropping, 0.1), as_it_is),
    "python and numpy": (ByHand, as_it_is),
    "augmentation by torch": (partial(nn.Linear, 8, 2), lambda data: Numbered(data, lambda: float(torch.rand(())))),
    "augmentation by python": (partial(nn.Linear, 8, 2), lambda data: Numbered(data, random.random)),
    "augmentation by numpy": (partial(nn.Linear, 8, 2), lambda data: Numbered(data, np.random.rand)),
}


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize(
    "case", ["dropout 0.5", *(pytest.param(case, marks=pytest.mark.slow) for case in list(RANDOM)[1:])]
)
def test_a_public_seed_tells_nothing_of_masks_that_go_by_row(case: str, way: Callable[..., Tensor]) -> None:
    """Masks are fresh, and alike whoever is there: in the mean sums move by one clip norm."""
    build, data = RANDOM[case]

    def sums(dataset: TensorDataset) -> Tensor:
        found = []
        for _ in range(40):
            torch.manual_seed(1)
            model = build()
            found.append(way(model, data(dataset)))
        return torch.stack(found)

    dataset = people()
    one, other = sums(dataset), sums(without_first(dataset))
    assert float((one[0] - one[1]).norm()) > 0.1  # two runs do not share their masks
    difference = one.mean(dim=0) - other.mean(dim=0)
    chance = (one.var(dim=0).sum() + other.var(dim=0).sum()).div(40).sqrt()  # what means differ by anyway
    assert float(difference.norm()) <= 1 + 3 * float(chance)
    assert float(chance) < 1.7


@pytest.mark.each_value_once
@WAYS
@pytest.mark.parametrize("case", RANDOM)
def test_a_seeded_run_repeats_and_the_users_generators_are_left_alone(case: str, way: Callable[..., Tensor]) -> None:
    build, data = RANDOM[case]
    sums = []
    for public in (3, 4):
        torch.manual_seed(1)
        model = build()
        torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
        expected = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        sums.append(way(model, data(people()), seed=9, steps=public - 2))
        found = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        assert torch.equal(expected[0], found[0])
        assert expected[1:] == found[1:]
        again = way(copy.deepcopy(model), data(people()), seed=9, steps=public - 2)
        assert torch.equal(sums[-1], again)
    assert not torch.equal(sums[0], sums[1])  # the second step draws other numbers


def test_workers_draw_secret_numbers_too() -> None:
    """Their seed would come from torch's generator, which everybody knows."""
    dataset = Numbered(people(), lambda: float(torch.rand(())))
    sums = []
    for _ in range(2):
        torch.manual_seed(1)
        sums.append(by_loop(nn.Linear(8, 2), dataset, execution=pp.Execution(num_workers=1)))
    assert float((sums[0] - sums[1]).norm()) > 0.1


# --- Models that mix, beside something that draws -------------------------------------------------------------


class Standardised(nn.Module):
    """Over the batch, in training mode only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return (x - x.mean(0)) / (x.std(0) + 1e-3)


class MixedUp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.6 * x + 0.4 * x[torch.randperm(len(x))] if self.training else x


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - 0.5 * x.roll(1, 0) * (torch.rand(len(x), 1) > 0.3)


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.1, self.training)
        return (x - x.mean(0)) / (x.std(0) + 1e-3) if self.training else x


MIXING = {
    "standardised beside dropout": lambda: nn.Sequential(nn.Dropout(0.1), Standardised(), nn.Linear(8, 2)),
    "before it": lambda: nn.Sequential(Standardised(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
    "functional dropout": lambda: nn.Sequential(Functional(), nn.Linear(8, 2)),
    "mixup": lambda: nn.Sequential(MixedUp(), nn.Linear(8, 2)),
    "random pairs": lambda: nn.Sequential(Pairs(), nn.Linear(8, 2)),
}


@WAYS
@pytest.mark.parametrize("case", MIXING)
def test_what_draws_does_not_hide_what_mixes(case: str, way: Callable[..., Tensor]) -> None:
    with pytest.raises(pp.InvalidInput, match="other records in the batch"):
        print(moved(way, MIXING[case], people()))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = pp.fix(nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True))
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1).expand(-1, 3, -1)
        return self.last(F.alpha_dropout(self.inner(x, x, x, need_weights=False)[0].mean(1), 0.2, self.training))


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * (torch.rand(len(x), 1) > 0.5) + random.random()


HONEST = {
    "dropout": dropping,
    "attention": Attending,
    "noise": lambda: nn.Sequential(Noisy(), nn.Linear(8, 4), nn.Dropout1d(0.2), Noisy(), nn.Linear(4, 2)),
}


@WAYS
@pytest.mark.parametrize("case", HONEST)
def test_what_only_draws_is_let_through(case: str, way: Callable[..., Tensor]) -> None:
    assert float(way(HONEST[case](), people()).norm()) > 0


# --- What a forward pass leaves behind ------------------------------------------------------------------------


class Remembering(nn.Module):
    """Keeps a mean of all it saw, and looks at it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.last, self.how = nn.Linear(8, 2), how
        self.register_buffer("mean", torch.zeros(8))
        self.plain = torch.zeros(8)
        self.number, self.things, self.deep = 0.0, [], {"inside": [torch.zeros(8)]}
        self.several: set[float] = set()
        self.array = np.zeros(8)
        self.frozen = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        seen = x.detach().mean(0)
        before: Any = 0.0
        if self.how == "buffer":
            before = self.mean.clone()
            self.mean.data.mul_(0.5).add_(0.5 * seen)
        elif self.how == "plain":
            before, self.plain = self.plain, seen
        elif self.how == "in place":
            before = self.plain.clone()
            self.plain.copy_(seen)
        elif self.how == "number":
            before, self.number = self.number, float(seen.sum())
        elif self.how == "list":
            before = sum(self.things) / max(1, len(self.things))
            self.things.append(float(seen.sum()))
        elif self.how == "set":
            self.several.add(float(seen.sum()))  # for later
        elif self.how == "deep":
            before = self.deep["inside"][0].clone()
            self.deep["inside"][0].copy_(seen)
        elif self.how == "array":
            before = torch.from_numpy(self.array.copy()).float()
            self.array += seen.numpy()
        elif self.how == "frozen":
            before = self.frozen.detach().clone()
            self.frozen.data.copy_(seen)
        elif self.how == "new":
            before = getattr(self, "later", 0.0)
            self.later = x.detach()[-1]
        return self.last(x - before)


KEPT = ["buffer", "plain", "in place", "number", "list", "set", "deep", "array", "frozen", "new"]


@WAYS
@pytest.mark.parametrize("how", KEPT)
def test_what_a_model_keeps_of_records_is_refused_wherever_it_keeps_it(how: str, way: Callable[..., Tensor]) -> None:
    with pytest.raises(pp.InvalidInput, match="keeps something of the records"):
        print(moved(way, partial(Remembering, how), people(), steps=2))


class Counting(nn.Module):
    """Keeps what says nothing of records: how often it ran, and a table for a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = nn.Linear(8, 2), 0
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.linspace(0, 1, x.shape[1])
        return self.last(x + self.tables[x.shape[1]])


@WAYS
def test_what_says_nothing_of_records_may_be_kept(way: Callable[..., Tensor]) -> None:
    model = Counting()
    assert float(way(model, people(), steps=4).norm()) > 0
    assert model.calls == 4  # looks leave no trace


class Late(nn.Module):
    """Begins to mix when nobody looks any more."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.last, self.calls, self.begin = nn.Linear(8, 2), 0, begin

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(Standardised()(x) if self.calls > self.begin else x)


@WAYS
def test_later_steps_are_looked_at_by_chance(way: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """150 steps, each with one chance in ten: all are missed once in two million runs."""
    monkeypatch.setattr(step_randomness, "_LATER", 0.1)
    with pytest.raises(pp.InvalidInput, match="other records in the batch"):
        way(Late(10), people(), steps=150)


def test_later_looks_come_as_often_as_is_said() -> None:
    keys = step_randomness.Keys(SecureRandomness())
    keys.begin(1)
    assert [keys.due("something") for _ in range(2)] == [True, True]
    due = sum(keys.due("something") for _ in range(20_000))
    assert stats.binomtest(due, 20_000, 0.01).pvalue > 1e-6
    assert stats.binomtest(due, 20_000, 0.02).pvalue < 1e-6


# --- How records are put together -----------------------------------------------------------------------------


def put(records: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in records]), torch.stack([torch.as_tensor(y) for _, y in records])


def standardised(records: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = put(records)
    return (x - x.mean(0)) / x.std(0), y


def centred_a_little(records: list[Any]) -> dict[str, Tensor]:
    x, y = put(records)
    return x - 0.1 * x.mean(0), y  # type: ignore[return-value]


def by_size(records: list[Any]) -> tuple[Tensor, Tensor]:
    return put(sorted(records, key=lambda record: float(record[0].norm())))


def shuffled(records: list[Any]) -> tuple[Tensor, Tensor]:
    return put([records[k] for k in torch.randperm(len(records)).tolist()])


def mixed_up(records: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = put(records)
    return 0.6 * x + 0.4 * x[torch.randperm(len(x))], y


def divided(records: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = put(records)
    return x / len(records), y


def doubled(records: list[Any]) -> tuple[Tensor, Tensor]:
    return put(records + records)


COLLATES = [standardised, centred_a_little, by_size, shuffled, mixed_up, divided, doubled]


@WAYS
@pytest.mark.parametrize("collate", COLLATES)
def test_a_collate_fn_that_mixes_or_reorders_is_refused(collate: Any, way: Callable[..., Tensor]) -> None:
    with pytest.raises(pp.InvalidInput, match="collate_fn"):
        print(moved(way, partial(nn.Linear, 8, 2), people(), collate_fn=collate))


def test_it_is_looked_at_in_workers_too() -> None:
    with pytest.raises(pp.InvalidInput, match="collate_fn"):
        by_loop(nn.Linear(8, 2), people(), collate_fn=standardised, execution=pp.Execution(num_workers=1))


def noisy(records: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = put(records)
    return x + torch.randn_like(x) * (torch.rand(len(x), 1) > 0.5), y


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("collate", [put, noisy])
def test_a_collate_fn_that_keeps_records_apart_is_not(collate: Any, way: Callable[..., Tensor]) -> None:
    assert float(way(nn.Linear(8, 2), people(), collate_fn=collate).norm()) > 0


def test_columns_by_name_and_lists_by_record_are_told_apart() -> None:
    from privypurse.training.isolation.batches import _row

    x = torch.arange(6.0).reshape(2, 3)
    assert _row((x, x + 1), 1, 2)[0].tolist() == [3.0, 4.0, 5.0]
    assert _row({"text": ["a", "b"], "x": x}, 1, 2)["text"] == "b"
    with pytest.raises(pp.InvalidInput, match="one row for each record"):
        _row({"count": torch.tensor(3)}, 1, 2)


# --- Draws ----------------------------------------------------------------------------------------------------


def drawn(rate: float = 0.3, steps: int = 30, **options: Any) -> tuple[Any, Any, Any]:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return pp.make_private(model, optimizer, people(), planned(steps=steps, rate=rate), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "execution"),
    [
        (None, pp.Execution()),
        (None, pp.Execution(max_physical_batch=5)),
        (None, pp.Execution(num_workers=1)),
        (3, pp.Execution()),
    ],
    ids=str,
)
def test_breaking_off_until_the_draw_is_liked_changes_nothing(seed: int | None, execution: pp.Execution) -> None:
    """Person 0 would be in all 30 steps; a step that is begun again has the draw that it had."""
    model, optimizer, loader = drawn(steps=3 if execution.num_workers else 30, seed=seed, execution=execution)

    def begun() -> tuple[list[int], Tensor]:
        for x, _ in loader:
            return model._current_batch._batch.records.tolist(), x
        raise AssertionError

    joined = 0
    while optimizer.steps_taken < model._current_batch.run.plan.steps:
        first, again, third = begun(), begun(), begun()
        assert first[0] == again[0] == third[0]
        assert torch.equal(first[1], third[1])
        joined += 0 in first[0]
        before = optimizer.steps_taken
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.steps_taken > before:
                break
    assert joined < 30  # at a rate of 0.3 all of 30 once in 10^15 runs


def test_a_step_that_is_begun_again_has_the_same_masks() -> None:
    """Otherwise one could choose among masks."""
    inner = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.0)
    model, stepping, loader = pp.make_private(inner, optimizer, people(), planned(steps=2))

    def output() -> Tensor:
        for x, _ in loader:
            return torch.as_tensor(model(x)).detach()
        raise AssertionError

    first, again = output(), output()
    assert torch.equal(first, again)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        stepping.step()
        break
    assert not torch.equal(output(), first)


def test_draws_of_different_steps_and_runs_differ() -> None:
    found = []
    for _ in range(2):
        model, optimizer, loader = drawn(steps=10)
        for x, y in loader:
            found.append(tuple(model._current_batch._batch.records.tolist()))
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert len(set(found)) == 20


def test_a_second_pass_is_exhausted() -> None:
    model, optimizer, loader = drawn(steps=2)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with pytest.raises(pp.PlanExhausted, match="all 2 steps"):
        for _ in loader:
            pass


# --- Losses ---------------------------------------------------------------------------------------------------


def differences(output: Tensor, y: Tensor) -> Tensor:
    each = LOSS(output, y)
    return torch.cat([each[:1], each[1:] - each[:-1]])


def only_the_last(output: Tensor, y: Tensor) -> Tensor:
    each = LOSS(output, y)
    return torch.cat([each[:-1], each[-1:] + each.mean()])


def ranked(output: Tensor, y: Tensor) -> Tensor:
    each = LOSS(output, y)
    return torch.where(each >= each.median(), 2 * each, each)


def beside_noise(output: Tensor, y: Tensor) -> Tensor:
    return LOSS(output + torch.randn_like(output), y) * output.std()


@pytest.mark.parametrize("loss", [differences, only_the_last, ranked, beside_noise])
def test_a_loss_that_mixes_some_records_is_refused(loss: Any) -> None:
    with pytest.raises(pp.InvalidInput, match="the loss of a record changes"):
        print(moved(by_train, partial(nn.Linear, 8, 2), people(), loss=loss))


def test_a_loss_that_draws_for_each_record_is_not() -> None:
    by_train(nn.Linear(8, 2), people(), lambda output, y: LOSS(output + torch.randn_like(output), y))


def test_a_loss_that_begins_to_mix_later_is_seen_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_randomness, "_LATER", 0.1)
    calls = []

    def late(output: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return differences(output, y) if len(calls) > 50 else LOSS(output, y)

    with pytest.raises(pp.InvalidInput, match="the loss of a record changes"):
        by_train(nn.Linear(8, 2), people(), late, steps=200)


# --- Generators are given back whatever happens ---------------------------------------------------------------


def test_generators_are_given_back_after_an_error_and_after_a_break() -> None:
    model, _, loader = drawn()
    torch.manual_seed(0)
    expected = torch.rand(3)
    for interrupted in (True, False):
        torch.manual_seed(0)
        with contextlib.suppress(ZeroDivisionError):
            for x, _ in loader:
                model(x)
                if interrupted:
                    break
                raise ZeroDivisionError
        assert torch.equal(torch.rand(3), expected)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield

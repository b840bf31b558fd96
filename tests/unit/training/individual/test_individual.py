"""Individual accounting in training: grid norms, limits, purses, resumed runs; and attempts to get past them."""

import copy
import functools
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.plans.level_table import in_every_step
from privypurse.training.fingerprints import fingerprint
from privypurse.training.individual.accounting import Sampled
from privypurse.training.individual.norm_passes import NormPasses
from privypurse.training.mechanism import PrivateRun
from some_of import some_of
from training_tools import EVERYBODY, LOSS, NOBODY, count_on_disk, quiet, same

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
MARGIN = 1e-4  # what clipping takes off a clip norm
PERSONS = np.repeat(np.arange(12), [1, 2, 3, 4, 1, 2, 3, 4, 5, 5, 5, 5])


def data(n: int = 40, seed: int = 0, scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(scale * x, (x[:, 0] + 0.3 * x[:, 1] > 0).long())


def network(dropout: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 5), nn.Tanh(), *([nn.Dropout(0.4)] if dropout else []), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double()


@made_once
def planned(
    n: int = 40, method: str = "scale", person: object = None, steps: int = 10, batch_size: int = 10, **options: Any
) -> pp.Plan:
    epsilon = np.where(np.arange(n) % 2 == 0, 1.0, 3.0) if person is None else np.full(n, 2.0)
    budgets = pp.Budgets(epsilon, delta=1e-5, person=person)
    plan = pp.plan(budgets, method, steps=steps, batch_size=batch_size, accountant="rdp", **options)
    return plan if person is None else plan.applied_to(person)


def trained(
    plan: pp.Plan, dataset: Dataset, model: nn.Module | None = None, lr: float = 0.5, **options: Any
) -> tuple[nn.Module, Any]:
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    torch.manual_seed(7)
    return model, pp.train(model, optimizer, dataset, plan, LOSS, **options)


class Loop:
    """The ordinary loop, a step at a time."""

    def __init__(self, plan: pp.Plan, dataset: Dataset, model: nn.Module | None = None, **options: Any) -> None:
        self.inner = model or network()
        optimizer = torch.optim.SGD(self.inner.parameters(), lr=options.pop("lr", 0.5), momentum=0.5)
        options = {"individual": pp.Individual(), "loss_fn": LOSS} | options
        self.model, self.optimizer, self.loader = pp.make_private(self.inner, optimizer, dataset, plan, **options)
        self.run: PrivateRun = self.optimizer._current_batch.run
        torch.manual_seed(7)
        self._batches = iter(self.loader)

    @property
    def accounting(self) -> Any:
        return self.run.accounting

    def prepared(self) -> tuple[Tensor, Tensor] | None:
        """The next batch, with all norm passes done that come before it; None at the end."""
        return next(self._batches, None)

    def step(self) -> bool:
        batch = self.prepared()
        if batch is not None:
            self.take(*batch)
        return batch is not None

    def take(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def all(self, up_to: int | None = None) -> "Loop":
        while self.optimizer.steps_taken != up_to and self.step():
            pass
        return self

    @property
    def released(self) -> Tensor:
        """The last gradient, with the public divisor undone."""
        return torch.cat([p.grad.flatten() for p in self.inner.parameters()]) * self.run.plan.batch_size


def gradients(model: nn.Module, dataset: TensorDataset, owner: np.ndarray | None = None) -> Tensor:
    """Everybody's summed gradient as a row, one record at a time."""
    owner = np.arange(len(dataset)) if owner is None else owner
    rows = torch.zeros(owner.max() + 1, sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i, person in enumerate(owner.tolist()):
        x, y = dataset[i]
        found = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        rows[person] += torch.cat([g.flatten() for g in found])
    return rows


def meter(spending: Any) -> np.ndarray:
    """Counts by level, or μ²: whatever the run counted in."""
    return spending.meter if isinstance(spending.meter, np.ndarray) else spending.meter.counts


def clips(plan: pp.Plan) -> np.ndarray:
    return plan.levels.clip_norm[plan.level_of]


class Flipping(Dataset):
    """Records that are augmented anew at each turn, by every generator that there is."""

    def __init__(self, n: int = 40, own: bool = False) -> None:
        self._inner, self._own = data(n), np.random.default_rng() if own else None

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self._inner[index]
        if self._own is not None:
            return (x.flip(0) if self._own.random() < 0.5 else x), y
        flips = (torch.rand(()) < 0.5, random.random() < 0.5, np.random.random() < 0.5)  # noqa: NPY002
        return x.flip(0) if sum(map(bool, flips)) % 2 else x, y


# An estimate changes nothing.


@pytest.mark.slow
@pytest.mark.parametrize("how", ["train", "loop", "persons", "augmented"])
def test_without_clipping_training_is_what_it_would_be_anyway(how: str) -> None:
    person = PERSONS if how == "persons" else None
    plan = planned(person=person)
    dataset = Flipping() if how == "augmented" else data()
    found = []
    for individual in (None, pp.Individual(every=3, exact=False)):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        if how == "loop":
            loop = Loop(plan, dataset, network(dropout=True), individual=individual, seed=2).all()
            found.append((loop.inner, loop.optimizer.state_dict()["state"]))
        else:
            found.append((trained(plan, dataset, network(dropout=True), individual=individual, seed=2)[0], {}))
    (plain, state), (followed, other) = found
    assert same(plain, followed)
    assert all(torch.equal(state[k]["momentum_buffer"], other[k]["momentum_buffer"]) for k in state)
    # With clipping to grid norms it is another training, so the comparison can fail.
    assert how == "augmented" or not same(
        plain, trained(plan, dataset, network(dropout=True), individual=pp.Individual(every=3), seed=2)[0]
    )


def test_a_look_leaves_no_trace() -> None:
    model = network(dropout=True)
    model[1].eval()  # a layer that its owner put into evaluation mode
    loop = Loop(planned(), data(), model)
    loop.step()
    kept = [p.grad.clone() for p in model.parameters()]

    def everything() -> list[Any]:
        state = copy.deepcopy(loop.optimizer.state_dict())
        del state["private"]
        modes = [module.training for module in model.modules()]
        wants = [p.requires_grad for p in model.parameters()]
        generators = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        return [str(state), modes, wants, generators, loop.run.steps_taken, len(loop.run._sums)]

    before, parameters = everything(), copy.deepcopy(model)
    passes: NormPasses = loop.accounting._passes
    norms = passes.norms(0)
    right = passes.right(0, np.arange(0, 40, 2))
    assert everything() == before
    assert same(parameters, model)
    assert all(torch.equal(a, p.grad) for a, p in zip(kept, model.parameters(), strict=True))
    assert (norms > 0).all()
    truth = (model.eval()(data().tensors[0]).argmax(dim=1) == data().tensors[1]).double().numpy()
    assert np.array_equal(right[::2], truth[::2])
    assert not right[1::2].any()


def test_a_look_draws_masks_of_its_own() -> None:
    """Were they those of the next step, one person's level would hang on the mask of another's step."""
    model = network(dropout=True)
    masks: list[Tensor] = []
    loop = Loop(planned(), data(), model, individual=pp.Individual(every=1), seed=1)
    for _ in range(2):  # in which it is checked that records do not mix
        loop.step()

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        masks.append((output == 0)[:4])

    model[2].register_forward_hook(note)
    for _ in range(6):
        loop.step()
    assert len(masks) == 12  # a look and a step in turn
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(masks))


# Levels.


@pytest.mark.parametrize(
    ("method", "person"), [("sample", None), ("scale", None), ("uniform", None), ("scale", PERSONS)]
)
@pytest.mark.parametrize("physical", [None, 7])
def test_grid_norms_are_norms_rounded_up(method: str, person: np.ndarray | None, physical: int | None) -> None:
    room = 1.5 if physical else 1.0
    plan = planned(method=method, person=person, clip_norm=2.0 * room)
    individual = pp.Individual(grid_size=20, headroom=room)
    loop = Loop(plan, data(), individual=individual, execution=pp.Execution(max_physical_batch=physical))
    loop.prepared()
    norms = gradients(loop.inner, data(), person).norm(dim=1).numpy()
    shares = room * norms / clips(plan)
    assert np.array_equal(loop.accounting.odometer.grid_norm, np.minimum(np.ceil(shares * 20), 20))
    assert (shares > 1).any()
    assert (shares < 0.95).any()
    # The broken twin: rounding to the nearest level, as Algorithm 2 of Yu et al. has it, charges some too little.
    assert (np.minimum(np.round(shares * 20), 20) < np.minimum(shares * 20, 20)).any()


def test_whose_gradient_is_no_number_is_charged_in_full_and_contributes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet(monkeypatch)
    dataset, plan = data(), planned()
    dataset.tensors[0][3] = math.nan
    dataset.tensors[0][4] = math.inf
    loop = Loop(plan, dataset)
    batch = loop.prepared()
    level = loop.accounting.odometer.grid_norm
    assert (level[[3, 4]] == 100).all()
    rows = gradients(loop.inner, dataset)
    rows[[3, 4]] = 0.0
    limits = torch.from_numpy(clips(plan) * level / 100) * (1 - MARGIN)
    expected = (rows * (limits / rows.norm(dim=1)).nan_to_num(0.0).clamp(max=1.0)[:, None]).sum(dim=0)
    loop.take(*batch)
    torch.testing.assert_close(loop.released, expected, rtol=1e-9, atol=1e-12)


# Limits.


@pytest.mark.parametrize("person", [None, PERSONS], ids=["records", "persons"])
def test_everyone_is_clipped_to_the_level_that_they_are_charged_at(
    monkeypatch: pytest.MonkeyPatch, person: np.ndarray | None
) -> None:
    """Whatever their gradient is at the step: the first look is the only one, and gradients change."""
    quiet(monkeypatch)
    dataset, plan = data(), planned(person=person, clip_norm=3.0, steps=6)
    loop = Loop(plan, dataset, individual=pp.Individual(every=100, grid_size=10, headroom=1.0), lr=2.0)
    grew = 0
    while (batch := loop.prepared()) is not None:
        rows = gradients(loop.inner, dataset, person)
        limits = torch.from_numpy(clips(plan) * loop.accounting.odometer.grid_norm / 10)
        factors = (limits * (1 - MARGIN) / rows.norm(dim=1)).clamp(max=1.0)
        each = rows * factors[:, None]
        assert (each.norm(dim=1) <= limits).all()
        grew += int((rows.norm(dim=1) > limits * 1.01).sum())
        loop.take(*batch)
        torch.testing.assert_close(loop.released, each.sum(dim=0), rtol=1e-9, atol=1e-12)
    assert grew > 10  # without clipping to grid norms their charge would have been too little
    counts = loop.optimizer.spending().meter.counts
    assert (counts.sum(axis=1) == 6).all()
    assert np.array_equal(counts.argmax(axis=1), loop.accounting.odometer.grid_norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_contribution_exceeds_its_limit_by_rounding(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """One person, gradients over twelve decades, grid norms that no float32 holds exactly: measured in float64."""
    quiet(monkeypatch)
    plan = planned(1, steps=30, batch_size=1, noise_multiplier=12.0, method="sample", clip_norm=0.7)
    model = nn.Linear(50, 3, bias=False).to(dtype)
    x = torch.randn(1, 50, dtype=dtype)
    loop = Loop(plan, TensorDataset(x, model(x).argmin(dim=1)), model, lr=0.0)
    accounting: Any = loop.accounting
    generator = torch.Generator().manual_seed(1)
    for exponent in np.linspace(-6, 6, 29):
        batch = loop.prepared()
        assert batch is not None
        level = int(torch.randint(1, 101, (), generator=generator))
        accounting.odometer.settle()
        accounting.odometer.grid_norm = np.array([level], dtype=np.uint16)
        accounting._publish()
        loop.take(batch[0] * 10**exponent, batch[1])
        assert 0 < float(loop.released.double().norm()) <= 0.7 * level / 100


def test_everyone_is_charged_whoever_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1. With a learning rate of 0 both runs look at the same gradients."""
    plan, found, moved = planned(extra_steps=20), [], []
    for coins in (EVERYBODY, NOBODY):
        quiet(monkeypatch, coins)
        loop = Loop(plan, data(), individual=pp.Individual(every=4), lr=0.0)
        loop.step()
        moved.append(float(loop.released.norm()))
        found.append(meter(loop.all().optimizer.spending()))
    assert moved[0] > 0
    assert moved[1] == 0
    assert np.array_equal(*found)
    assert (found[0].sum(axis=1) == 30).all()


def linear() -> nn.Module:
    """Gradients as large as the records."""
    torch.manual_seed(0)
    return nn.Linear(6, 2, bias=False).double()


def hard(scale: float = 100.0) -> TensorDataset:
    """Everybody's gradient is far above their clip norm, and stays so while the model does."""
    x = data().tensors[0] * scale
    return TensorDataset(x, linear()(x).argmin(dim=1))


def late(dataset: TensorDataset) -> list[Tensor]:
    """What is released after the fixed steps."""
    loop, released = Loop(planned(extra_steps=6), dataset, linear(), lr=0.0, seed=3), []
    while loop.step():
        released.append(loop.released.clone())
    assert loop.optimizer.steps_taken == 16
    return released[10:]


def test_a_step_in_which_nobody_can_pay_is_noise_alone() -> None:
    """Large gradients empty every purse by step T. What follows is what data without any gradient gives, bit for bit:
    the divisor is the public one, whoever is left (rule 2)."""
    assert all(torch.equal(a, b) for a, b in zip(late(hard()), late(hard(0.0)), strict=True))


def test_that_would_catch_a_divisor_made_of_who_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PrivateRun.release

    def by_active(self: PrivateRun) -> None:
        honest(self)
        active = max(1, int((self.accounting.odometer.purses.left > 0).sum()))
        for parameter in self.parameters.values():
            parameter.grad.mul_(self.plan.people / active)

    monkeypatch.setattr(PrivateRun, "release", by_active)
    assert not any(torch.allclose(a, b) for a, b in zip(late(hard()), late(hard(0.0)), strict=True))


# Full-batch training: Algorithm 3 of Feldman & Zrnic (2021).


def purse(epsilon: float, delta: float) -> float:
    """μ² of the Gaussian mechanism that is just (ε, δ)-DP (Balle & Wang 2018)."""

    def excess(mu: float) -> float:
        below, above = stats.norm.cdf([-epsilon / mu + mu / 2, -epsilon / mu - mu / 2])
        return float(below - math.exp(epsilon) * above - delta)

    return float(optimize.brentq(excess, 1e-3, 10.0, xtol=1e-13)) ** 2


@pytest.mark.parametrize("extra", [30, 0])
def test_full_batch_spending_is_that_of_algorithm_3(monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    quiet(monkeypatch)
    n = 24
    dataset, plan = data(n), planned(n, steps=8, batch_size=n, extra_steps=extra, clip_norm=2.0)
    assert in_every_step(plan.levels.rate)
    unit = plan.noise_multiplier * plan.clip_norm
    held = np.array([purse(e, 1e-5) for e in plan.epsilon]) * unit**2 if extra else np.full(n, np.inf)
    clip, spent = clips(plan), np.zeros(n)
    loop, shadow = Loop(plan, dataset, lr=1.0), network()
    momentum = torch.optim.SGD(shadow.parameters(), lr=1.0, momentum=0.5)
    active = []
    for _ in range(plan.all_steps):
        rows = gradients(shadow, dataset)
        norms = rows.norm(dim=1).numpy()
        limits = np.minimum(np.minimum(norms, clip), np.sqrt(np.maximum(held - spent, 0.0)))
        spent += limits**2
        place, mean = 0, (rows * torch.from_numpy(limits / norms)[:, None]).sum(dim=0) / n
        for parameter in shadow.parameters():
            parameter.grad = mean[place : place + parameter.numel()].view_as(parameter).clone()
            place += parameter.numel()
        momentum.step()
        assert loop.step()
        found = loop.optimizer.spending().meter * unit**2
        assert (found <= held).all()
        np.testing.assert_allclose(found, spent, rtol=1e-3)
        assert (found >= spent * (1 - 1e-6)).all()  # a charge is never below its step
        active.append(int((held - spent > 1e-9).sum()))
    assert not loop.step()
    for one, other in zip(loop.inner.parameters(), shadow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    if extra:
        assert 0 < active[-1] < active[7] == n  # people drop out, and not before the filter's time
        told = loop.optimizer.spending().active
        assert [step for step, _ in told] == list(range(1, 39))
        assert abs(np.array([count for _, count in told]) - active).max() <= 1
    else:
        eps = loop.optimizer.spending().epsilon("pld")
        assert (eps < plan.spent()).all()


def test_full_batch_records_that_are_no_numbers_are_silent_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    dataset = data(24)
    dataset.tensors[0][3] = math.nan
    dataset.tensors[0][4] = math.inf
    loop = Loop(planned(24, steps=4, batch_size=24, extra_steps=4), dataset).all()
    spent = meter(loop.optimizer.spending())
    assert not spent[[3, 4]].any()
    assert (np.delete(spent, [3, 4]) > 0).all()
    assert all(torch.isfinite(p).all() for p in loop.inner.parameters())


# Poisson sampling with a filter.


@functools.cache
def divergence(rate: float, noise: float, order: float) -> float:
    """D_α of (1-q)·N(0, σ²) + q·N(1, σ²) from N(0, σ²), by plain integration."""
    x = np.linspace(-12 * noise, 12 * noise + 2 * order, 50_001)
    ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    inside = stats.norm.logpdf(x, scale=noise) + order * ratio
    top = inside.max()
    return float((top + np.log(np.exp(inside - top).sum() * (x[1] - x[0]))) / (order - 1))


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_beyond_the_fixed_steps_go_on_only_those_who_can_pay(method: str) -> None:
    plan = planned(method=method, extra_steps=80, clip_norm=2.0)
    loop = Loop(plan, data(), individual=pp.Individual(every=6, grid_size=10), seed=1, lr=2.0).all(10)
    at_first = meter(loop.optimizer.spending()).astype(int)
    counts = meter(loop.all().optimizer.spending()).astype(int)
    extra = counts - at_first
    took = extra[:, 1:].any(axis=1)
    assert (extra.sum(axis=1) == 80).all()  # everyone is in the books for every step, at level 0 if need be
    assert 3 < took.sum() < 40
    purses = loop.accounting.odometer.purses
    stayed_out = 0
    for person in range(40):
        level = plan.level_of[person]
        order, delta = float(purses.order[level]), float(plan.filter_delta[level])
        assert delta < 0.1000001 * 1e-5
        noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm[level]
        rate = float(plan.levels.rate[level])
        cost = np.array([0.0] + [divergence(rate, noise * 10 / k, order) for k in range(1, 11)])

        def epsilon(steps: np.ndarray, cost: np.ndarray = cost, order: float = order, delta: float = delta) -> float:
            rest = math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
            return float(steps @ cost) + rest

        if took[person]:
            assert epsilon(counts[person]) <= plan.levels.epsilon[level]
        if epsilon(at_first[person]) > plan.levels.epsilon[level]:
            stayed_out += 1
            assert not took[person]
    assert stayed_out


def test_what_a_step_is_charged_at_is_what_it_was_clipped_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step through the filter's part: the last drop of a purse, and nothing after it until the next look."""
    quiet(monkeypatch)
    dataset, plan = data(), planned(extra_steps=50, clip_norm=2.0)
    loop = Loop(plan, dataset, individual=pp.Individual(every=7, grid_size=10, headroom=1.0), lr=0.1)
    before, seen_at = np.zeros((40, 11)), []
    while True:
        rows = gradients(loop.inner, dataset)
        if not loop.step():
            break
        counts = meter(loop.optimizer.spending()).astype(int)
        level = (counts - before).argmax(axis=1)
        limits = torch.from_numpy(clips(plan) * level / 10)
        each = rows * (limits * (1 - MARGIN) / rows.norm(dim=1)).clamp(max=1.0)[:, None]
        torch.testing.assert_close(loop.released, each.sum(dim=0), rtol=1e-9, atol=1e-12)
        before = counts
        seen_at.append(level)
    seen = np.array(seen_at)
    fell = [seen[step][seen[step] < seen[step - 1]] for step in range(11, len(seen)) if step % 7]
    assert max(map(max, filter(len, fell))) > 0  # somebody took a last drop between two norm passes
    assert (seen[-1] == 0).any()


def test_empty_purses_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[np.ndarray] = []
    honest = NormPasses.norms

    def watched(self: NormPasses, step: int, units: np.ndarray | None = None) -> Any:
        assert units is not None
        looked.append(units)
        return honest(self, step, units)

    monkeypatch.setattr(NormPasses, "norms", watched)
    dataset, plan = hard(), planned(extra_steps=20)
    dataset.tensors[0][::2] *= 1e-4
    through: list[int] = []
    model = linear()
    model.register_forward_hook(lambda _, inputs, output: through.append(len(inputs[0])))
    loop = Loop(plan, dataset, model, individual=pp.Individual(every=5), lr=0.0).all()
    assert [units.size for units in looked[:2]] == [40, 40]
    assert loop.optimizer.steps_taken == 30
    assert all(np.array_equal(units, np.arange(0, 40, 2)) for units in looked[2:])  # others paid for large gradients
    assert through.count(40) == 2
    assert through.count(20) >= 4


# Stopped, killed and resumed.


STOPS = {
    "none": None,
    "plateau": pp.StopAtPlateau(noise=15.0, every=3, most=4, patience=4),
    "few": pp.StopWhenFew(below=3, epsilon=0.05, every=3),
}


def spec(mode: str, stop: str = "none") -> tuple[pp.Plan, TensorDataset]:
    if mode == "drawn":
        return planned(extra_steps=14, stop=STOPS[stop]), data()
    return planned(24, steps=10, batch_size=24, extra_steps=14, stop=STOPS[stop]), data(24)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "stop"),
    some_of(
        [(mode, stop) for mode in ("drawn", "full batch") for stop in STOPS],
        quick=[("drawn", "none"), ("drawn", "few"), ("full batch", "plateau")],
    ),
)
def test_a_seeded_run_that_stopped_ends_as_if_it_had_not(tmp_path: Path, mode: str, stop: str) -> None:
    plan, dataset = spec(mode, stop)
    options: dict[str, Any] = {"individual": pp.Individual(every=4, grid_size=20), "seed": 4}
    whole, expected = trained(plan, dataset, network(dropout=True), **options)
    for up_to in (7, 10, 13, 15, None):
        parts, found = trained(
            plan, dataset, network(dropout=True), checkpoint=tmp_path / "run", steps=up_to, **options
        )
    assert same(whole, parts)
    assert np.array_equal(meter(expected.spending), meter(found.spending))
    assert expected.spending.told == found.spending.told
    assert expected.spending.active == found.spending.active
    assert (stop == "none") == (not found.spending.told)
    assert expected.steps == found.steps


@pytest.mark.slow
def test_the_ordinary_loop_resumes_too() -> None:
    plan, dataset = spec("drawn", "plateau")
    options = {"individual": pp.Individual(every=4), "seed": 4}
    whole = Loop(plan, dataset, **options).all()
    for up_to in (6, 12):
        first = Loop(plan, dataset, **options).all(up_to)
        state = copy.deepcopy([first.model.state_dict(), first.optimizer.state_dict()])
        second = Loop(plan, dataset, **options)
        second.model.load_state_dict(state[0])
        second.optimizer.load_state_dict(state[1])
        second.all()
        assert same(whole.inner, second.inner)
        assert np.array_equal(meter(whole.optimizer.spending()), meter(second.optimizer.spending()))


def killed_after(folder: Path, counted: int) -> None:
    """As if more steps had been counted after the last checkpoint."""
    count_on_disk(folder / "steps", counted)


@pytest.mark.parametrize(("saved", "counted"), [(5, 8), (5, 10), (5, 13), (13, 17), (None, 6), (None, 15)])
def test_lost_steps_are_charged_at_what_is_known_or_in_full(tmp_path: Path, saved: int | None, counted: int) -> None:
    plan, dataset = spec("drawn")
    options: dict[str, Any] = {"individual": pp.Individual(every=7), "checkpoint": tmp_path, "lr": 0.05}
    before = np.zeros((40, 101), dtype=int)
    if saved is None:
        trained(plan, dataset, steps=1, **options)
        (tmp_path / "checkpoint.pt").unlink()
    else:
        first = trained(plan, dataset, steps=saved, **options)[1].spending
        before, level = meter(first).astype(int), first.meter.grid_norm
    killed_after(tmp_path, counted)
    _, now = trained(plan, dataset, steps=counted, **options)
    lost = meter(now.spending).astype(int) - before
    assert now.resumed_from == counted
    # Levels hold until the next look, at 7, 14, … and when the filter takes over; then nothing is known.
    passes = [step for step in (0, 7, plan.steps, 14, 21) if step >= (saved or 0)]
    known = min(counted, *passes) - (saved or 0)
    expected = np.zeros_like(lost)
    if known and saved < plan.steps:
        expected[np.arange(40), level] += known
    expected[:, 100] += counted - (saved or 0) - known
    assert (lost.sum(axis=1) == counted - (saved or 0)).all()
    if saved is None or saved < plan.steps:
        np.testing.assert_array_equal(lost, expected)
    else:  # some purses paid for less than their level, or for nothing, in the step that is known
        assert (lost[:, 100] >= expected[:, 100]).all()
        assert (lost[:, 100] <= expected[:, 100] + known).all()
    assert now.spending.lost == counted - (saved or 0) - known
    assert (now.spending.epsilon("rdp") <= plan.epsilon).all()  # a filter was at work in them, too
    # What follows is looked at anew and, beyond the fixed steps, paid for out of what is left.
    _, after = trained(plan, dataset, **options)
    took = meter(after.spending).astype(int) - before - lost
    assert (took.sum(axis=1) == plan.all_steps - counted).all()
    odometer = after.spending.meter
    empty = (
        np.einsum("ij,ij->i", before + lost, odometer.purses.cost[plan.level_of])
        > odometer.purses.total[plan.level_of]
    )
    if counted >= plan.steps:
        assert empty.all() if saved is None else empty.any()
        assert not took[empty, 1:].any()  # nobody goes on with an empty purse, from the first step on


def test_lost_full_batch_steps_are_charged_in_full_and_never_beyond_the_purse(tmp_path: Path) -> None:
    plan, dataset = spec("full batch")
    options: dict[str, Any] = {"checkpoint": tmp_path, "lr": 0.05}
    before = meter(trained(plan, dataset, steps=4, **options)[1].spending)
    killed_after(tmp_path, 7)
    _, found = trained(plan, dataset, steps=7, **options)
    unit = (plan.noise_multiplier * plan.clip_norm) ** 2
    np.testing.assert_allclose(meter(found.spending), before + 3 * clips(plan) ** 2 / unit, rtol=1e-12)
    killed_after(tmp_path, 23)
    _, found = trained(plan, dataset, **options)
    held = np.array([purse(e, 1e-5) for e in plan.epsilon])
    assert (meter(found.spending) <= held).all()
    np.testing.assert_allclose(meter(found.spending), held, rtol=1e-6)
    assert [step for step, _ in found.spending.active] == [1, 2, 3, 4, 24]


def other_order() -> TensorDataset:
    x, y = data().tensors
    order = torch.tensor([1, 0, *range(2, 40)])
    return TensorDataset(x[order], y[order])


@pytest.mark.each_value_once
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": data(seed=1)}, "another data set"),
        ({"dataset": other_order()}, "another data set"),
        ({"individual": pp.Individual(every=5)}, "every = 4"),
        ({"individual": pp.Individual(every=4, grid_size=50)}, "grid_size = 100"),
        ({"individual": pp.Individual(every=4, exact=False)}, "exact = True"),
        ({"individual": pp.Individual(every=4, headroom=2)}, "headroom = 1.5"),
        ({"individual": None}, "with individual accounting"),
    ],
    ids=["data", "order", "every", "grid_size", "exact", "headroom", "without"],
)
def test_a_run_goes_on_with_what_it_began_with(
    tmp_path: Path, change: dict[str, Any], words: str, seed: int | None
) -> None:
    plan, options = planned(), {"individual": pp.Individual(every=4), "checkpoint": tmp_path, "seed": seed}
    trained(plan, data(), steps=5, **options)
    before = [(tmp_path / name).read_bytes() for name in ("steps", "checkpoint.pt")]
    with pytest.raises(pp.InvalidInput, match=words):
        trained(plan, **({"dataset": data()} | options | change))
    assert [(tmp_path / name).read_bytes() for name in ("steps", "checkpoint.pt")] == before
    assert trained(plan, data(), **options)[1].resumed_from == 5


def test_individual_accounting_begins_with_the_run(tmp_path: Path) -> None:
    plan = planned()
    trained(plan, data(), steps=5, checkpoint=tmp_path)
    with pytest.raises(pp.InvalidInput, match="without individual accounting"):
        trained(plan, data(), checkpoint=tmp_path, individual=pp.Individual())


def test_a_state_of_other_people_changes_nothing() -> None:
    plan = planned()
    state = Loop(plan, data()).all(4).optimizer.state_dict()
    loop = Loop(plan, data(seed=1)).all(2)
    before = meter(loop.optimizer.spending())
    with pytest.raises(pp.InvalidInput, match="another data set"):
        loop.optimizer.load_state_dict(state)
    assert loop.optimizer.steps_taken == 2
    assert np.array_equal(meter(loop.optimizer.spending()), before)


@pytest.mark.parametrize("mode", ["drawn", "full batch"])
def test_an_old_state_takes_no_step_back(mode: str) -> None:
    """Loaded into a run that has gone on since, without a seed: the steps since then are charged in full."""
    plan, dataset = spec(mode)
    loop = Loop(plan, dataset).all(3)
    state = copy.deepcopy(loop.optimizer.state_dict())
    before = meter(loop.optimizer.spending())
    truth = meter(loop.all(8).optimizer.spending())
    loop.optimizer.load_state_dict(state)
    assert loop.optimizer.steps_taken == 8
    found = meter(loop.optimizer.spending())
    if mode == "drawn":
        assert (found[:, 100] - before[:, 100] == 5).all()
    else:
        assert (found >= truth * (1 - 1e-12)).all()


def test_settings_mean_the_same_in_every_process(tmp_path: Path) -> None:
    """No address of a function in them, and no number that a reader of checkpoints refuses."""
    plan, individual = spec("drawn", "plateau")[0], pp.Individual(np.int64(4), np.int64(30), True, np.float64(2))
    options: dict[str, Any] = {"individual": individual, "checkpoint": tmp_path}
    trained(plan, data(), steps=2, **options)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["run"]["individual"]
    assert "0x" not in str(state["settings"])
    assert trained(plan, data(), **options)[1].resumed_from == 2


class Named(Dataset):
    """Dictionaries and odd objects."""

    def __init__(self, shift: float = 0.0) -> None:
        self._shift = shift

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2000,), index + self._shift / 1e6)}, object()


def test_fingerprints_of_data_that_is_made_on_the_way() -> None:
    """The same each time although records are augmented; another where the labels, or the values, are others."""
    for own in (False, True):
        assert len({fingerprint(Flipping(own=own)) for _ in range(8)}) == 1
        other = Flipping(own=own)
        other._inner.tensors[1][0] += 1
        assert fingerprint(other) != fingerprint(Flipping(own=own))
    assert fingerprint(Named()) == fingerprint(Named()) != fingerprint(Named(1.0))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    fingerprint(Flipping())
    assert torch.equal(before, torch.get_rng_state())


class Alike(Dataset):
    """So many records that are all the same."""

    def __init__(self, size: int, record: Any) -> None:
        self._size, self._record = size, record

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._record


def test_fingerprints_tell_apart_what_differs_in_one_thing() -> None:
    """Size, shape, type, values, order of parts; of tensors, arrays, numbers, and of what lies inside of others."""
    x, y = torch.arange(12.0), torch.zeros(12)
    tensors = [x, x.view(3, 4), x.view(4, 3), x.view(torch.int32), x.double(), x.flip(0), torch.zeros(0), x[:0].int()]
    parts = [
        *tensors,
        x.numpy(),
        x.numpy()[::-1].copy(),
        1,
        1.5,
        "1",
        None,
        {"x": x},
        {"y": x},
        {"x": y},
        [x, y],
        [y, x],
    ]
    sets = [
        TensorDataset(x),
        TensorDataset(x, y),
        TensorDataset(y, x),
        TensorDataset(x.view(12, 1)),
        TensorDataset(y),
    ]
    sets += [TensorDataset(x.view(torch.int32)), TensorDataset(x[:11])]
    sets += [Alike(size, (part, 0)) for size in (40, 41) for part in parts]
    sets += [Alike(40, (0, 1, 2)), Alike(40, (0, 1)), Alike(40, 7), Alike(40, 8)]
    found = [fingerprint(each) for each in sets]
    assert len(set(found)) == len(found)
    assert [fingerprint(each) for each in sets] == found


@pytest.mark.slow
def test_a_look_that_fails_costs_nobody_less(tmp_path: Path) -> None:
    """An exception, or Ctrl-C, in the middle of any look: the run goes on, by what it knew."""
    plan, dataset = spec("drawn")
    whole, expected = trained(plan, dataset, individual=pp.Individual(every=4), seed=4)
    for fails_at in (2, 3, 4):  # norm passes after steps 4, 8 and 10, where the filter takes over
        left = fails_at
        honest = NormPasses.norms

        def fails(self: NormPasses, step: int, units: Any = None, honest: Any = honest) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                honest(self, step, units)
                raise KeyboardInterrupt
            return honest(self, step, units)

        options: dict[str, Any] = {"checkpoint": tmp_path / str(fails_at), "seed": 4}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NormPasses, "norms", fails)
            with pytest.raises(KeyboardInterrupt):
                trained(plan, dataset, individual=pp.Individual(every=4), **options)
        model, found = trained(plan, dataset, individual=pp.Individual(every=4), **options)
        assert 0 < found.resumed_from <= 10
        assert same(whole, model)
        assert np.array_equal(meter(found.spending), meter(expected.spending))


@pytest.mark.parametrize("mode", ["drawn", "full batch"])
def test_breaking_off_between_look_and_release(mode: str) -> None:
    """A batch is left by break; the steps that follow are charged once, and the broken one not at all."""
    plan, dataset = spec(mode)
    loop = Loop(plan, dataset, seed=3, individual=pp.Individual(every=1))
    other = Loop(plan, dataset, seed=3, individual=pp.Individual(every=1))
    for _ in range(5):
        loop.step()
        x, y = loop.prepared()
        loop.optimizer.zero_grad()
        F.cross_entropy(loop.model(x), y).backward()
        if mode == "full batch":
            loop.optimizer._current_batch.clip()  # as far as the sum, and then no release
        loop._batches = iter(loop.loader)
        other.step()
        assert loop.optimizer.steps_taken == other.optimizer.steps_taken
        np.testing.assert_allclose(meter(loop.optimizer.spending()), meter(other.optimizer.spending()), rtol=1e-12)


# What others see depends on public numbers only (rules 2 and 7).


def seen_by_others(dataset: TensorDataset, individual: pp.Individual, **options: Any) -> tuple[Any, ...]:
    """When norm passes happen, who is drawn, how large batches are, how many steps there are."""
    plan = planned(extra_steps=20)
    times: list[int] = []
    honest = Sampled._measure
    loop = Loop(
        plan,
        dataset,
        linear(),
        individual=individual,
        seed=6,
        execution=pp.Execution(max_physical_batch=8),
        lr=0.0,
        **options,
    )

    def watched(self: Sampled, steps_taken: int, filtering: bool) -> None:
        times.append(steps_taken)
        honest(self, steps_taken, filtering)

    loop.accounting._measure = partial(watched, loop.accounting)
    batches = []
    while (batch := loop.prepared()) is not None:
        batches.append((len(batch[0]), loop.optimizer._current_batch._batch.units.tolist()))
        loop.take(*batch)
    return times, batches, loop.optimizer.steps_taken


def changed() -> TensorDataset:
    """One person's data is another."""
    dataset = hard()
    dataset.tensors[0][0] *= 1e-6
    return dataset


def test_one_persons_data_moves_nothing_that_others_see() -> None:
    individual = pp.Individual(every=3)
    one, other = seen_by_others(hard(), individual), seen_by_others(changed(), individual)
    assert one == other
    assert one[0] == [0, 3, 6, 9, 10, 12, 15, 18, 21, 24, 27]
    assert one[2] == 30
    assert seen_by_others(data(), individual) == one


def broken_stop(self: Sampled, steps_taken: int) -> bool:
    honest_prepare(self, steps_taken)
    return bool(self.odometer.active[np.asarray(self.odometer.grid_norm) > 0].any())


def broken_refresh(self: Sampled, steps_taken: int) -> bool:
    norms = self._passes.norms(steps_taken, np.arange(40))
    if steps_taken == 0 or norms[0] < 0.1:
        self._measure(steps_taken, steps_taken >= 10)
    return True


honest_prepare: Callable[[Sampled, int], bool] = Sampled.prepare


@pytest.mark.parametrize("broken", [broken_stop, broken_refresh])
def test_that_would_catch_runs_that_follow_the_data(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    """Broken twins: stopping when nobody is active, looking again when norms have changed."""
    monkeypatch.setattr(Sampled, "prepare", broken)
    assert seen_by_others(hard(), pp.Individual(every=3)) != seen_by_others(changed(), pp.Individual(every=3))


# Both ways into training are one.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "physical"),
    some_of(
        [(mode, physical) for mode in ("drawn", "full batch") for physical in (None, 6)],
        quick=[("drawn", 6), ("full batch", None)],
    ),
)
def test_the_loop_and_train_do_the_same(mode: str, physical: int | None) -> None:
    plan, dataset = spec(mode, "plateau")
    individual = pp.Individual(every=4)
    model, found = trained(
        plan, dataset, individual=individual, seed=2, execution=pp.Execution(max_physical_batch=physical)
    )
    loop = Loop(
        plan, dataset, individual=individual, seed=2, execution=pp.Execution(max_physical_batch=physical)
    ).all()
    assert loop.optimizer.steps_taken == found.steps
    for one, other in zip(model.parameters(), loop.inner.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(meter(found.spending), meter(loop.optimizer.spending()), rtol=1e-9)
    np.testing.assert_allclose(found.spending.told, loop.optimizer.spending().told)


# Attempts to get past it.


def test_parts_of_two_passes_make_no_step() -> None:
    """With physical batches somebody could be in both, and contribute twice for one charge."""
    loop = Loop(planned(), data(), execution=pp.Execution(max_physical_batch=4))
    loop.step()
    other = iter(loop.loader)
    loop.take(*next(other))
    with pytest.raises(pp.InvalidInput, match="another pass"):
        loop.step()


def test_a_run_that_was_closed_asks_nobody(tmp_path: Path) -> None:
    loop = Loop(spec("drawn", "plateau")[0], data(), journal=tmp_path / "steps").all(10)
    loop.optimizer.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        loop.step()
    assert not loop.optimizer.spending().told


def test_a_reading_stays_as_it_was_read() -> None:
    loop = Loop(planned(), data()).all(3)
    early = loop.optimizer.spending()
    before = early.epsilon("rdp")
    loop.all()
    assert np.array_equal(early.epsilon("rdp"), before)
    assert (loop.optimizer.spending().epsilon("rdp") > before).all()


def test_reading_in_the_middle_changes_nothing() -> None:
    plan, dataset = spec("drawn")
    plain, asked = (Loop(plan, dataset, individual=pp.Individual(every=5), seed=2) for _ in range(2))
    while plain.step():
        asked.step()
        asked.optimizer.spending().epsilon_by_person("rdp") if asked.optimizer.steps_taken == 13 else None
        asked.optimizer.spending().meter.counts.sum()
        asked.optimizer.state_dict()
    assert same(plain.inner, asked.inner)
    assert np.array_equal(meter(plain.optimizer.spending()), meter(asked.optimizer.spending()))


def test_a_step_is_taken_once() -> None:
    loop = Loop(planned(extra_steps=3), data()).all(2)
    with pytest.raises(pp.InvalidInput, match="batch of the private loader"):
        loop.optimizer.step()
    assert (meter(loop.optimizer.spending()).sum(axis=1) == 2).all()
    loop.all()
    with pytest.raises(pp.PlanExhausted):  # a second pass finds nothing left
        list(loop.loader)
    assert loop.optimizer.steps_taken == 13


# Small and odd cases, and refusals.


def test_a_journal_is_free_after_a_refusal(tmp_path: Path) -> None:
    plan = planned(extra_steps=2)
    for individual, loss in ((pp.Individual(), None), (pp.Individual(exact=False), LOSS)):
        with pytest.raises(pp.InvalidInput, match=r"loss_fn=|leave exact= out"):
            Loop(plan, data(), individual=individual, loss_fn=loss, journal=tmp_path / "steps")
    Loop(plan, data(), journal=tmp_path / "steps").all().optimizer.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 0}, "every must be .* not 0"),
        ({"every": True}, "every must be .* not True"),
        ({"every": 2.0}, "every must be .* not 2.0"),
        ({"grid_size": 0}, "grid_size must be .* not 0"),
        ({"grid_size": True}, "grid_size must be .* not True"),
        ({"grid_size": 70_000}, "grid_size must be .* 65535, not 70000"),
        ({"exact": "no"}, "exact is 'no'"),
        ({"headroom": 0.99}, "headroom must be .* 1, not 0.99"),
        ({"headroom": math.nan}, "headroom must be .* not nan"),
        ({"right": 5}, "right is 5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        pp.Individual(**settings)


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (planned(extra_steps=2), {"individual": pp.Individual(exact=False)}, "a filter needs exact accounting"),
        (planned(batch_size=40), {"individual": pp.Individual(exact=False)}, "leave exact= out"),
        (planned(), {"individual": True}, "individual is True"),
        (planned(extra_steps=2), {"individual": None, "loss_fn": None}, "give loss_fn="),
        (planned(), {"loss_fn": F.cross_entropy}, "one loss for each"),
        (planned(41), {}, "dataset has 40 records"),
    ],
    ids=["estimate", "full batch", "no settings", "no loss", "mean loss", "shorter"],
)
def test_what_does_not_fit_is_refused(plan: pp.Plan, options: dict[str, Any], words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        Loop(plan, data(), **options).step()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("grid_size", [1, 65_535])
def test_few_people_and_few_or_many_grid_norms(n: int, grid_size: int) -> None:
    for options in ({"batch_size": 1, "noise_multiplier": 20.0, "method": "sample"}, {"batch_size": n}):
        plan = planned(n, steps=3, extra_steps=3, **options)
        _, found = trained(plan, data(n), individual=pp.Individual(every=2, grid_size=grid_size))
        assert found.steps == 6
        assert (found.spending.epsilon("pld") <= plan.epsilon * (1 + 1e-9)).all()
        if grid_size == 1 and plan.filter == "rdp":
            assert (meter(found.spending)[:, 1] >= 3).all()


class Plain(Dataset):
    """Records from plain Python."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        x, y = data().tensors
        return x[index].numpy(), int(y[index])


def test_any_data_set_will_do() -> None:
    plan = planned(extra_steps=4)
    one, found = trained(plan, Plain(), individual=pp.Individual(every=5), seed=1)
    other, expected = trained(plan, data(), individual=pp.Individual(every=5), seed=1)
    assert same(one, other)
    assert np.array_equal(meter(found.spending), meter(expected.spending))


@pytest.mark.parametrize("noise", [20.0, None], ids=["drawn", "full batch"])
def test_people_who_take_no_part_pay_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noise: float | None
) -> None:
    """One of ten trains; the others are excluded. Also after steps of which nothing is known."""
    budgets, stop = pp.Budgets([1.0] * 9 + [4.0], delta=1e-5), pp.StopAtPlateau(noise=20.0, most=2, every=1)
    shape: dict[str, Any] = {"steps": 4, "batch_size": 1, "extra_steps": 4, "stop": stop, "noise_multiplier": noise}
    method = pp.assignment.Exclude(threshold=4.0)
    plan = pp.plan(budgets, method, accountant="rdp", **shape)
    assert np.count_nonzero(plan.rates) == 1
    asked, honest = [], NormPasses.right
    monkeypatch.setattr(
        NormPasses, "right", lambda self, step, units, right: asked.append(units) or honest(self, step, units, right)
    )
    trained(plan, data(10), steps=2, checkpoint=tmp_path)
    killed_after(tmp_path, 3)
    _, found = trained(plan, data(10), checkpoint=tmp_path)
    assert len(asked) == 2
    assert all(set(units.tolist()) == {9} for units in asked)
    epsilon = found.spending.epsilon("rdp")
    assert not epsilon[:9].any()
    assert epsilon[9] > 0
    assert all(count <= 1 for _, count in found.spending.active)


def test_layers_keep_their_mode_to_the_end() -> None:
    """A batch norm in evaluation mode stays so through questions, which evaluate, and after training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    model[1].eval().requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    plan = planned(steps=3, extra_steps=5, stop=pp.StopAtPlateau(noise=300.0, every=2, patience=20))
    assert pp.train(model, optimizer, data(), plan, LOSS).steps == 8
    assert [module.training for module in model] == [True, False, True]

"""The ordinary loop: clipping by person, public divisor, empty draws, physical batches, refusals."""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.randomness import SecureRandomness
from privypurse.training.mechanism import PrivateRun
from privypurse.training.physical_batches import Batch
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.poisson_loader import Draws
from privypurse.training.setup import Setup
from training_tools import quiet

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


def data(n: int = 40, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randint(0, 3, (n,), generator=generator)
    )


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@made_once
def planned(n: int = 40, steps: int = 5, person: object = None, method: str = "scale", **options: object) -> pp.Plan:
    epsilon = np.where(np.arange(n) % 2 == 0, 1.0, 3.0) if person is None else 2.0 * np.ones(n)
    budgets = pp.Budgets(epsilon, delta=1e-5, person=person)
    plan = pp.plan(budgets, method, steps=steps, accountant="rdp", **{"batch_size": 8, "clip_norm": 0.5, **options})
    return plan if person is None else plan.applied_to(person)


def train(
    plan: pp.Plan, dataset: Dataset, model: nn.Module, reduction: str = "mean", parts: int = 1, **options: object
):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, loader = pp.make_private(model, optimizer, dataset, plan, loss_reduction=reduction, **options)
    gradients = []
    for x, y in loader:
        optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            F.cross_entropy(model(some_x), some_y, reduction=reduction).backward()
        optimizer.step()
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return optimizer, gradients


def by_hand(model: nn.Module, dataset: TensorDataset, owner: np.ndarray, clip: np.ndarray) -> list[Tensor]:
    """Σ over persons of their clipped summed gradient, one record at a time."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for person in np.unique(owner):
        summed = [torch.zeros_like(p) for p in model.parameters()]
        for i in np.flatnonzero(owner == person):
            x, y = dataset[i]
            loss = F.cross_entropy(model(x[None]), y[None])
            for s, g in zip(summed, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                s += g
        norm = math.sqrt(sum(float(s.square().sum()) for s in summed))
        for t, s in zip(total, summed, strict=True):
            t += s * min(1.0, clip[person] * (1 - 1e-4) / norm)
    return total


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("physical", [None, 7, 1])
def test_a_step_is_the_clipped_sum_over_the_public_divisor(
    monkeypatch: pytest.MonkeyPatch, reduction: str, physical: int | None
) -> None:
    quiet(monkeypatch)
    dataset, plan = data(), planned(steps=1, batch_size=40)
    clip = plan.levels.clip_norm[plan.level_of]
    expected = [g / 40 for g in by_hand(network(), dataset, np.arange(40), clip)]
    _, found = train(plan, dataset, network(), reduction, execution=pp.Execution(max_physical_batch=physical))
    assert len(found) == (1 if physical is None else math.ceil(40 / physical))
    for ours, theirs in zip(found[-1], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_batch_may_go_through_the_model_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    dataset, plan = data(), planned(steps=1, batch_size=40)
    whole, parts = (train(plan, dataset, network(), parts=k)[1][-1] for k in (1, 3))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("physical", [None, 3])
def test_a_persons_records_are_clipped_as_one_sum_and_never_split(
    monkeypatch: pytest.MonkeyPatch, physical: int | None
) -> None:
    quiet(monkeypatch)
    person = np.repeat(np.arange(12), [1, 2, 3, 4, 1, 2, 3, 4, 5, 5, 5, 5])
    dataset = data(40)
    plan = planned(person=person, steps=1, batch_size=12)
    clip = plan.levels.clip_norm[plan.level_of]
    expected = [g / 12 for g in by_hand(network(), dataset, person, clip)]
    _, found = train(plan, dataset, network(), execution=pp.Execution(max_physical_batch=physical))
    for ours, theirs in zip(found[-1], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    # The broken twin: clipping record by record lets a person contribute several clip norms.
    alone = [g / 12 for g in by_hand(network(), dataset, np.arange(40), np.full(40, clip[0]))]
    assert not torch.allclose(alone[0], expected[0], rtol=1e-3)


@pytest.mark.parametrize("person", [None, np.repeat(np.arange(8), 5)], ids=["records", "persons"])
def test_padding_weighs_nothing(monkeypatch: pytest.MonkeyPatch, person: object) -> None:
    """The same step with batches padded to a multiple of 64, as on a device."""
    quiet(monkeypatch, coins=0.3)
    dataset, plan = data(), planned(person=person, steps=1, batch_size=6)
    _, plain = train(plan, dataset, network())
    made = Draws

    def wider(run: PrivateRun, records: PlannedRecords, most: int | None, multiple: int) -> Draws:
        return made(run, records, most, multiple=64)

    monkeypatch.setattr("privypurse.training.make_private.Draws", wider)
    _, padded = train(plan, dataset, network())
    for one, other in zip(plain[-1], padded[-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_at_most_m_records_of_a_person() -> None:
    person = np.repeat([0, 1], [30, 10])
    plan = planned(person=person, steps=3, batch_size=2)
    model, optimizer, loader = _made(plan, data(40), max_records_per_person=4)
    batches = iter(loader)
    sizes = set()
    for x, y in batches:
        sizes.add(x.shape[0])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert sizes <= {4, 8}


def _made(plan: pp.Plan, dataset: Dataset, **options: object):
    model = network()
    return pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, plan, **options)


def test_an_empty_draw_is_noise_alone() -> None:
    plan = planned(steps=20, method="sample", noise_multiplier=1e-2 * 100, batch_size=8)
    levels = {name: getattr(plan.levels, name) for name in ("epsilon", "delta", "clip_norm", "capped")}
    never = pp.Plan(
        method="sample",
        accountant="rdp",
        promise="data",
        shape=plan.shape,
        levels=type(plan.levels)(rate=np.full(len(plan.levels), 1e-12), **levels),
        level_of=plan.level_of,
    )
    optimizer, found = train(never, data(), network(), seed=5)
    assert optimizer.steps_taken == 20
    noise = torch.cat([g.flatten() for step in found for g in step])
    expected = never.noise_multiplier * never.clip_norm / never.batch_size
    assert float(noise.std()) == pytest.approx(expected, rel=0.08)
    assert torch.isfinite(noise).all()


@pytest.mark.slow
def test_noise_has_the_plans_deviation_and_is_fresh_at_every_step() -> None:
    """With all weights zero and a learning rate of zero the first layer's gradient is noise alone, at every step."""
    plan, inner = planned(steps=500), network()  # by chance a wrong deviation passes once in 3e8 runs
    for parameter in inner.parameters():
        parameter.data.zero_()
    model, optimizer, loader = pp.make_private(inner, torch.optim.SGD(inner.parameters(), lr=0.0), data(), plan)
    seen = []
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.append(inner[0].weight.grad.flatten().clone())
    noise = torch.stack(seen).numpy()
    expected = plan.noise_multiplier * plan.clip_norm / plan.batch_size

    def pvalue(deviation: float) -> float:
        total = float(np.square(noise / deviation).sum())
        return 2 * min(stats.chi2.cdf(total, noise.size), stats.chi2.sf(total, noise.size))

    assert pvalue(expected) > 1e-6
    assert pvalue(expected * 1.05) < 1e-6
    assert pvalue(expected * 0.95) < 1e-6
    between = [np.corrcoef(noise[k], noise[k + 1])[0, 1] for k in range(len(noise) - 1)]
    assert max(map(abs, between)) < 0.9  # no two steps share their noise


def test_no_more_steps_than_the_plan_has() -> None:
    plan = planned(steps=2)
    model, optimizer, loader = _made(plan, data())
    assert len(loader) == 2
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with pytest.raises(pp.PlanExhausted, match="all 2 steps"):
        next(iter(loader))  # a second pass is no silence
    assert optimizer.steps_taken == 2
    with pytest.raises(pp.PlanExhausted, match="all 2 steps"):
        optimizer.step()


def test_a_step_broken_off_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    plan = planned(steps=2, batch_size=40)
    model, optimizer, loader = _made(plan, data(), execution=pp.Execution(max_physical_batch=10))
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # a quarter of a step, then the loop is left
    for k, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if k == 3:
            break
    assert optimizer.steps_taken == 1
    clip = plan.levels.clip_norm[plan.level_of]
    expected = [g / 40 for g in by_hand(network(), data(), np.arange(40), clip)]
    for parameter, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-9, atol=1e-12)


def test_schedulers_momentum_and_checkpoints_work_as_ever() -> None:
    plan, inner = planned(steps=4), network()
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.1)
    model, optimizer, loader = pp.make_private(inner, optimizer, data(), plan)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)
    assert model.state_dict().keys() == network().state_dict().keys()
    network().load_state_dict(model.state_dict())
    model.eval()
    torch.testing.assert_close(model(data()[:5][0]), inner(data()[:5][0]))


@pytest.mark.parametrize("how", ["once a step", "once a batch"])
def test_a_schedule_goes_by_steps_and_not_by_how_many_batches_were_drawn(how: str) -> None:
    """How many there are tells who was drawn, and with them the learning rate that everybody sees would (rule 15)."""
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    execution = pp.Execution(max_physical_batch=2)
    model, optimizer, loader = pp.make_private(
        inner, optimizer, data(), planned(steps=4), execution=execution, seed=0
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def go() -> int:
        batches = 0
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            batches += 1
            if how == "once a batch" or loader.ends_step:
                scheduler.step()
        return batches

    if how == "once a batch":
        with pytest.raises(pp.InvalidInput, match="changed between two batches of one step"):
            go()
        assert optimizer.steps_taken == 0
        return
    assert go() > 8
    assert optimizer.steps_taken == 4
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)


def test_who_leaves_a_step_half_way_may_change_settings_before_the_next() -> None:
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    execution = pp.Execution(max_physical_batch=2)
    model, optimizer, loader = pp.make_private(
        inner, optimizer, data(), planned(steps=2), execution=execution, seed=0
    )
    for number in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if number == 0:
                break  # the loader begins anew with the whole step
        optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
    assert optimizer.steps_taken == 2


@pytest.mark.parametrize("journal", [False, True])
def test_a_state_that_is_loaded_without_a_journal_is_warned_of(tmp_path: Path, journal: bool) -> None:
    def made() -> tuple[nn.Module, Any, Any]:
        inner = network()
        kept = tmp_path / "steps" if journal else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pp.PrivyPurseWarning)  # no ledger
            optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
            return pp.make_private(inner, optimizer, data(), planned(steps=4), journal=kept)

    model, optimizer, loader = made()
    begun = optimizer.state_dict()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    saved = optimizer.state_dict()
    optimizer.close()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        other = made()[1]
        other.load_state_dict(begun)  # of step 0: nothing is taken twice
        other.close()
    assert not [each for each in said if "journal" in str(each.message)]
    again = made()[1]
    with nullcontext() if journal else pytest.warns(pp.PrivyPurseWarning, match="of step 1, and there is no journal"):
        again.load_state_dict(saved)


def test_a_map_style_dataset_with_workers_keeps_its_numbers() -> None:
    class Squares(Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((6,), float(index), dtype=torch.float64), index % 3

    model, optimizer, loader = _made(planned(steps=3), Squares(), execution=pp.Execution(num_workers=2))
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        drawn = model._current_batch._batch.records
        if model._current_batch._batch.units.size:
            np.testing.assert_array_equal(x[:, 0].numpy(), drawn)
        optimizer.step()


def test_a_seeded_run_repeats_and_says_so() -> None:
    plan = planned(steps=3)
    with pytest.warns(pp.errors.PrivyPurseWarning, match="tests"):
        _made(plan, data(), seed=1)
    runs = [train(plan, data(), network(), seed=9)[1] for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": data(39)}, "39 records"),
        ({"loss_reduction": "max"}, "loss_reduction"),
        ({"execution": pp.Execution(capture=True)}, "capture=True"),
        ({"execution": {"num_workers": 2}}, "execution is"),
        ({"model": nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))}, "GroupNorm"),
        ({"model": nn.ReLU()}, "no trainable"),
    ],
)
def test_what_cannot_be_private_is_refused(change: dict, words: str) -> None:
    model = change.pop("model", network())
    dataset = change.pop("dataset", data())
    parameters = list(model.parameters()) or [nn.Parameter(torch.zeros(1))]
    with pytest.raises(pp.InvalidInput, match=words):
        pp.make_private(model, torch.optim.SGD(parameters, lr=1.0), dataset, planned(), **change)


def test_misuse_of_the_loop_is_refused() -> None:
    model, optimizer, loader = _made(planned(), data())
    with pytest.raises(pp.InvalidInput, match="not from the private loader"):
        model(torch.randn(3, 6, dtype=torch.float64))
    with pytest.raises(pp.InvalidInput, match="needs a batch"):
        optimizer.step()
    x, y = next(iter(loader))
    F.cross_entropy(model(x[:1]), y[:1]).backward()
    if x.shape[0] > 1:
        with pytest.raises(pp.InvalidInput, match="went through the model"):
            optimizer.step()
    with pytest.raises(pp.InvalidInput, match="before make_private"):
        optimizer.add_param_group({"params": []})


def test_fix_replaces_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.Sequential(nn.BatchNorm1d(7)))
    fixed = pp.fix(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert fixed[1].num_groups == 24
    assert fixed[2][0].num_groups == 7
    torch.testing.assert_close(fixed[1].weight, model[1].weight)


def test_a_private_model_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 6, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    budgets = pp.Budgets(np.where(np.arange(3000) % 2 == 0, 2.0, 4.0), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=150, batch_size=200, clip_norm=1.0, accountant="rdp")
    torch.manual_seed(0)
    inner = nn.Linear(6, 2)
    model, optimizer, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=1.0), TensorDataset(x, y), plan, seed=0
    )
    for some_x, some_y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(some_x), some_y).backward()
        optimizer.step()
    accuracy = float((inner(x).argmax(1) == y).float().mean())
    assert accuracy > 0.9


def test_forgetting_to_use_what_came_back_is_noticed() -> None:
    """Training the plain model with the plain optimizer on private batches would not be private at all."""
    inner = network()
    plain = torch.optim.SGD(inner.parameters(), lr=0.1)
    _, _, loader = pp.make_private(inner, plain, data(), planned())
    batches = iter(loader)
    x, y = next(batches)
    with pytest.raises(pp.InvalidInput, match="that make_private gave back"):
        F.cross_entropy(inner(x), y).backward()
    x, y = (torch.as_tensor(each.numpy()) for each in (x, y))  # past what is followed
    F.cross_entropy(inner(x), y).backward()
    plain.step()
    with pytest.raises(pp.InvalidInput, match="that make_private gave back"):
        next(batches)


def test_skipping_a_batch_is_refused_and_breaking_off_is_not() -> None:
    model, optimizer, loader = _made(planned(), data())
    for x, _ in loader:
        model(x)
        break
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    batches = iter(loader)
    next(batches)
    with pytest.raises(pp.InvalidInput, match="skipping one tells"):
        next(batches)


def _with_penalty(model: nn.Module, x: Tensor, y: Tensor) -> None:
    (F.cross_entropy(model(x), y) + sum(p.square().sum() for p in model.parameters())).backward()


def _through_the_inside(model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(model.inner(x), y).backward()


def _past_what_is_followed(model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    x, y = (torch.as_tensor(each.numpy()) for each in (x, y))
    F.cross_entropy(model.inner(x), y).backward()


def _clipped_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (_with_penalty, "weight_decay"),
        (_through_the_inside, "not the model's"),
        (_past_what_is_followed, "written by something else"),
        (_clipped_by_hand, "written by something else"),
    ],
)
def test_gradients_from_elsewhere_are_refused(backward: object, words: str) -> None:
    model, optimizer, loader = _made(planned(), data())
    batches = iter(loader)
    x, y = next(batches)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # leaves released gradients behind, which a second loop may keep
    x, y = next(batches)

    def rest() -> None:
        backward(model, x, y)
        optimizer.step()

    with pytest.raises(pp.InvalidInput, match=words):
        rest()


@pytest.mark.parametrize("habit", ["none", "to none", "to zero"])
def test_any_habit_of_zeroing_gradients_works(habit: str) -> None:
    model, optimizer, loader = _made(planned(), data())
    for x, y in loader:
        if habit != "none":
            optimizer.zero_grad(set_to_none=habit == "to none")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert optimizer.steps_taken == 5


def test_copies_and_pickles_are_of_the_plain_model(tmp_path) -> None:
    model, _, _ = _made(planned(), data())
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert type(other) is nn.Sequential
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert model[0] is model.inner[0]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)


def test_twice_private_and_things_that_are_no_dataset_are_refused() -> None:
    model, optimizer, _ = _made(planned(), data())
    with pytest.raises(pp.InvalidInput, match="private already"):
        pp.make_private(model, optimizer, data(), planned())
    inner = network()
    sgd = torch.optim.SGD(inner.parameters(), lr=0.1)
    for wrong in (torch.utils.data.DataLoader(data()), data().tensors):
        with pytest.raises(pp.InvalidInput, match="Dataset itself"):
            pp.make_private(inner, sgd, wrong, planned())


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(pp.InvalidInput, match="init_process_group"):
        _made(planned(), data())


@pytest.mark.parametrize("how", ["make_private", "train"])
def test_wide_sums_are_float64_in_both_loops(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small gradients beside large ones: in float32 the first record's absence shifts how they round."""
    quiet(monkeypatch)
    x = torch.full((20_000, 1), 0.51 * 2.0**-11)
    x[:4096] = 1.0
    without = x.clone()
    without[0] = 0.0
    plan = planned(20_000, steps=1, method="uniform", batch_size=10_000, clip_norm=1.0)

    def total(x: Tensor, wide: bool) -> float:
        model = nn.Linear(1, 1, bias=False)
        before = float(model.weight.detach())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        dataset = TensorDataset(x, x)
        if how == "train":
            pp.train(model, optimizer, dataset, plan, lambda output, _: output[:, 0], wide_sums=wide)
        else:
            private, stepping, loader = pp.make_private(
                model, optimizer, dataset, plan, loss_reduction="sum", wide_sums=wide
            )
            for some, _ in loader:
                private(some).sum().backward()
                stepping.step()
        return (before - float(model.weight.detach())) * 10_000

    for wide, least, most in ((True, 0.98, 1.01), (False, 1.5, 3.0)):
        assert least < total(x, wide) - total(without, wide) < most


def test_a_person_larger_than_the_physical_batch_is_said() -> None:
    plan = planned(person=np.repeat(np.arange(10), 4))
    with pytest.warns(pp.errors.PrivyPurseWarning, match="4 records"):
        _made(plan, data(), execution=pp.Execution(max_physical_batch=3))


def test_a_journal_can_be_let_go_of(tmp_path) -> None:
    _, optimizer, _ = _made(planned(), data(), journal=tmp_path / "steps")
    with pytest.raises(pp.InvalidInput, match=r"optimizer\.close"):
        _made(planned(), data(), journal=tmp_path / "steps")
    optimizer.close()
    _made(planned(), data(), journal=tmp_path / "steps")[1].close()


def test_a_journal_in_which_every_step_is_counted_is_named(tmp_path) -> None:
    model, optimizer, loader = _made(planned(steps=1), data(), journal=tmp_path / "steps")
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.close()
    again = _made(planned(steps=1), data(), journal=tmp_path / "steps")[2]
    with pytest.raises(pp.PlanExhausted, match=r"all 1 steps .* counted in .*steps, with those of a run before"):
        next(iter(again))


def test_a_person_without_records_does_not_hide_one_with_two() -> None:
    """Three persons, three records, but not one each: the pair must be clipped as one."""
    batch = Batch(np.arange(3), np.arange(3), np.array([1, 1, 2]))
    assert not batch.one_each
    assert Batch(np.arange(3), np.arange(3), np.arange(3)).padded(5).one_each


@pytest.mark.parametrize("records", [1, 3])
def test_large_persons_and_layers_go_in_pieces(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Where per-record gradients do not fit at once, whole persons are taken one after the other."""
    person = np.repeat(np.arange(40 // records), records)
    plan, dataset = planned(n=person.size, person=person, steps=1, batch_size=person[-1] + 1), data(person.size)
    quiet(monkeypatch)
    whole = train(plan, dataset, network())[1][-1]
    monkeypatch.setattr("privypurse.training.gradients.clipping._MATERIALISED", 100)
    pieces = train(plan, dataset, network())[1][-1]
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_closed_run_takes_no_step(tmp_path) -> None:
    model, optimizer, loader = _made(planned(), data(), journal=tmp_path / "steps")
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.close()
        with pytest.raises(pp.InvalidInput, match="was closed"):
            optimizer.step()
        break


def test_empty_draws_come_as_often_as_they_should() -> None:
    """Redrawing until somebody is there would raise every rate (rule 3)."""
    budgets = pp.Budgets(np.full(6, 1.0), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=3000, batch_size=1, accountant="rdp")
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.0)
    draws = Draws(PrivateRun(Setup(plan, inner, optimizer)), PlannedRecords(data(6), plan))
    empty = sum(draws.step(step)[0].units.size == 0 for step in range(3000))
    nobody = float(np.prod(1 - plan.rates))
    assert 0.1 < nobody < 0.9
    assert stats.binomtest(empty, 3000, nobody).pvalue > 1e-6
    assert stats.binomtest(0, 3000, nobody).pvalue < 1e-6


def test_coins_and_noise_come_from_the_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SecureRandomness()
    monkeypatch.setattr(source, "_bits", lambda count: torch.zeros(count, dtype=torch.int64))
    assert (source.uniform(5) == 2.0**-53).all()
    assert float(source.normal(4).max()) > 9


def test_zero_grad_may_come_between_forward_and_backward() -> None:
    model, optimizer, loader = _made(planned(), data())
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert optimizer.steps_taken == 5


def test_noise_is_not_shared_between_parameters_or_parts_of_one() -> None:
    """Equal noise on two weights could be taken off again by looking at their difference."""
    plan = planned(steps=1)
    inner = nn.Sequential(nn.Linear(6, 60_000), nn.Linear(60_000, 3)).double()  # more than one draw of noise
    model, optimizer, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=0.0), data(), plan, execution=pp.Execution(max_physical_batch=1)
    )
    for x, y in loader:
        (0.0 * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
    parts = torch.cat([p.grad.flatten() for p in inner.parameters()])
    assert parts.unique().numel() > 0.999 * parts.numel()
    rows = parts[: 600_000 // 1000 * 1000].reshape(-1, 1000).numpy()
    assert np.abs(np.corrcoef(rows) - np.eye(rows.shape[0])).max() < 7 / math.sqrt(1000)


def test_coins_have_53_bits() -> None:
    """Coins of fewer bits overshoot small rates (rule 3): all low bits must be in use."""
    whole = (SecureRandomness().uniform(4000) * 2.0**53).astype(np.uint64)
    for bit in range(53):
        ones = int(((whole >> np.uint64(bit)) & np.uint64(1)).sum())
        assert stats.binomtest(ones, 4000, 0.5).pvalue > 1e-8


def test_a_closure_is_run_once_for_a_step() -> None:
    """Lightning's way."""
    model, other = network(), network()
    train(planned(), data(), other, seed=1)
    private, optimizer, loader = pp.make_private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), data(), planned(), seed=1
    )
    runs = []

    def closure() -> Tensor:
        runs.append(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(private(batch[0]), batch[1])
        loss.backward()
        return loss

    for batch in loader:  # noqa: B007
        with torch.no_grad():
            assert optimizer.step(closure).shape == ()
    assert len(runs) == optimizer.steps_taken == 5
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_closure_without_a_backward_pass_takes_no_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private, optimizer, loader = pp.make_private(model, optimizer, data(), planned(), seed=1)
    x, _ = next(iter(loader))
    with pytest.raises(pp.InvalidInput, match="needs a batch"):
        optimizer.step(lambda: private(x))
    assert optimizer.steps_taken == 0


SLIPS = {
    "a schedule that changes seldom": lambda scheduler, model, optimizer: scheduler.step(),
    "weights": lambda scheduler, model, optimizer: torch._foreach_mul_(
        [each.detach() for each in model.parameters()], 0.99
    ),
    "momentum": lambda scheduler, model, optimizer: [
        state["momentum_buffer"].mul_(0.5) for state in optimizer.state.values()
    ],
    "settings joined": lambda scheduler, model, optimizer: optimizer.param_groups[0].__ior__({"lr": 0.1}),
    "the user's own optimizer": lambda scheduler, model, optimizer: optimizer.inner.param_groups[0].update(
        lr=optimizer.param_groups[0]["lr"] * 0.9
    ),
    "a number in its state": lambda scheduler, model, optimizer: [
        state.update(seen=state.get("seen", 0) + 1) for state in optimizer.state.values()
    ],
    "a setting": lambda scheduler, model, optimizer: optimizer.param_groups[0].update(lr=0.1),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=list(SLIPS))
def test_nothing_that_a_step_goes_by_changes_between_its_batches(slip: Callable[..., Any]) -> None:
    """A learning rate that falls after so many batches would tell how many were drawn, wherever it fell."""
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    execution = pp.Execution(max_physical_batch=2)
    model, optimizer, loader = pp.make_private(
        inner, optimizer, data(), planned(steps=4), execution=execution, seed=0
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def go() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.steps_taken or loader.ends_step:
                slip(scheduler, inner, optimizer)

    with pytest.raises(pp.InvalidInput, match="changed between two batches of one step"):
        go()
    assert optimizer.steps_taken == 1  # found in the first step of several batches, not when it first matters


def test_settings_are_those_of_the_users_own_groups() -> None:
    """Other optimizers may share them, and whoever held one before may go on writing to it."""
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    held = optimizer.param_groups[0]
    model, optimizer, loader = pp.make_private(inner, optimizer, data(), planned(steps=2), seed=0)
    before = copy.deepcopy(list(inner.parameters()))
    for x, y in loader:
        held["lr"] = 0.0
        assert optimizer.param_groups[0]["lr"] == 0.0
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert all(map(torch.equal, before, inner.parameters()))
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
    assert held["max_lr"] == 0.5


def test_whatever_else_an_optimizer_keeps_is_no_change() -> None:
    """Objects and arrays, which equal no copy of themselves."""
    inner = network()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    optimizer.param_groups[0].update(kept=object(), array=np.arange(3), several=[1, 2])
    optimizer.state[next(inner.parameters())] = {"kept": object(), "array": np.arange(3)}
    execution = pp.Execution(max_physical_batch=2)
    model, optimizer, loader = pp.make_private(
        inner, optimizer, data(), planned(steps=2), execution=execution, seed=0
    )
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert optimizer.steps_taken == 2

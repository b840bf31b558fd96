"""pp.train: the same steps as the ordinary loop; stopped, killed and resumed."""

import copy
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.training.journal import Journal
from training_tools import LOSS, same
from training_tools import dropout_network as network
from training_tools import few_records as data

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


@made_once
def planned(n: int = 60, steps: int = 30, person: object = None, method: str = "sample") -> pp.Plan:
    epsilon = np.where(np.arange(n) % 2 == 0, 1.0, 3.0) if person is None else np.full(n, 2.0)
    budgets = pp.Budgets(epsilon, delta=1e-5, person=person)
    plan = pp.plan(budgets, method, steps=steps, batch_size=10, accountant="rdp")
    return plan if person is None else plan.applied_to(person)


def made() -> tuple[nn.Module, torch.optim.Optimizer, object]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("person", [None, np.repeat(np.arange(20), 3)], ids=["records", "persons"])
@pytest.mark.parametrize("physical", [None, 4])
def test_takes_the_steps_of_the_ordinary_loop(person: object, physical: int | None) -> None:
    plan, dataset = planned(person=person, steps=12), data()
    model, optimizer, schedule = made()
    torch.manual_seed(9)
    report = pp.train(
        model,
        optimizer,
        dataset,
        plan,
        LOSS,
        scheduler=schedule,
        seed=4,
        execution=pp.Execution(max_physical_batch=physical),
    )
    assert (report.steps, report.how) == (12, "eager")
    inner, optimizer, schedule = made()
    private, optimizer, loader = pp.make_private(
        inner, optimizer, dataset, plan, seed=4, execution=pp.Execution(max_physical_batch=physical)
    )
    torch.manual_seed(9)
    for x, y in loader:
        before = optimizer.steps_taken
        optimizer.zero_grad()
        F.cross_entropy(private(x), y).backward()
        optimizer.step()
        if optimizer.steps_taken > before:
            schedule.step()
    for a, b in zip(model.parameters(), inner.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Pairs(Dataset):
    """Two inputs and a label, from plain Python."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        x = torch.full((3,), float(index) / 60)
        return x, -x, index % 2


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(torch.cat([a, b], dim=1))


def test_several_inputs_workers_and_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    model = Both()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = pp.train(
        model, optimizer, Pairs(), planned(steps=5), LOSS, execution=pp.Execution(num_workers=1, progress=True)
    )
    assert report.steps == 5
    shown = capsys.readouterr().out
    assert "5/5" in shown
    assert "loss" in shown
    assert "ε ≤" in shown


def test_the_bar_shows_at_least_what_was_spent() -> None:
    from privypurse.training.progress import _RichBar

    plan = planned(steps=33)
    bar = _RichBar(plan)
    for steps in (1, 2, 17, 32, 33):
        bar.update(steps)
        shown = [float(part.split("/")[0]) for part in bar._spent.removeprefix("ε ≤ ").split()]
        truth = plan.spent_by_level(steps)
        assert all(a >= b - 0.005 for a, b in zip(shown, truth, strict=True))
    assert shown == [round(float(value), 2) for value in plan.spent_by_level()]


def test_evaluation_mode_is_given_back_and_the_loader_is_not_needed() -> None:
    model, optimizer, _ = made()
    model.eval()
    pp.train(model, optimizer, data(), planned(steps=2), LOSS)
    assert not model.training


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.cross_entropy(out, y, reduction="none") / (y == 0).sum(),
        lambda out, y: F.cross_entropy(out - out.mean(dim=0), y, reduction="none"),
        lambda out, y: F.cross_entropy(out, y, reduction="none").cumsum(0).flip(0),
    ],
    ids=["divided by a count", "centred over the batch", "cumulated"],
)
def test_a_loss_that_mixes_records_is_refused(loss: object) -> None:
    model, optimizer, _ = made()
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        pp.train(model, optimizer, data(), planned(), loss)
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        pp.clipped_sum(network().eval(), loss, *data().tensors, 1.0)


def test_a_loss_of_its_own_is_not() -> None:
    x, y = data().tensors
    pp.clipped_sum(network().eval(), lambda out, y: (1 + y) * LOSS(out, y), x, y, 1.0)
    pp.clipped_sum(network().eval(), lambda out, pair: LOSS(out, pair["label"]), x, {"label": y}, 1.0)


def test_a_scalar_loss_is_refused() -> None:
    model, optimizer, _ = made()
    with pytest.raises(pp.InvalidInput, match="one loss for each"):
        pp.train(model, optimizer, data(), planned(), F.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 7, None])
def test_a_seeded_run_that_stopped_ends_as_if_it_had_not(tmp_path: Path, every: int | None) -> None:
    plan, dataset = planned(), data()
    whole, optimizer, schedule = made()
    torch.manual_seed(1)
    pp.train(whole, optimizer, dataset, plan, LOSS, scheduler=schedule, seed=3)
    options = {"seed": 3, "checkpoint": tmp_path / "run", "execution": pp.Execution(checkpoint_every=every)}
    for stop in (11, 12, 25, None):
        parts, optimizer, schedule = made()
        torch.manual_seed(1)
        report = pp.train(parts, optimizer, dataset, plan, LOSS, scheduler=schedule, steps=stop, **options)
        assert report.steps == (stop or plan.steps)
    assert same(whole, parts)


def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    """Ctrl-C between two steps loses none; a seeded run then ends as if nothing had happened."""
    plan, dataset = planned(), data()
    whole, optimizer, schedule = made()
    torch.manual_seed(1)
    pp.train(whole, optimizer, dataset, plan, LOSS, scheduler=schedule, seed=3)

    def interrupted(out: Tensor, y: Tensor) -> Tensor:
        if schedule.last_epoch == 13:
            raise KeyboardInterrupt
        return LOSS(out, y)

    model, optimizer, schedule = made()
    torch.manual_seed(1)
    options = {"seed": 3, "checkpoint": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        pp.train(model, optimizer, dataset, plan, interrupted, scheduler=schedule, **options)
    taken = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["run"]["steps_taken"]
    assert taken == 13
    model, optimizer, schedule = made()
    pp.train(model, optimizer, dataset, plan, LOSS, scheduler=schedule, **options)
    assert same(whole, model)


def test_a_finished_run_takes_no_further_step(tmp_path: Path) -> None:
    plan, dataset = planned(steps=4), data()
    model, optimizer, _ = made()
    pp.train(model, optimizer, dataset, plan, LOSS, checkpoint=tmp_path)
    before = copy.deepcopy(model)
    again, optimizer, _ = made()
    assert pp.train(again, optimizer, dataset, plan, LOSS, checkpoint=tmp_path).steps == 4
    assert same(before, again)


def test_an_unseeded_checkpoint_holds_no_generator(tmp_path: Path) -> None:
    for seed, folder in ((None, "secure"), (1, "seeded")):
        model, optimizer, _ = made()
        pp.train(model, optimizer, data(), planned(steps=3), LOSS, checkpoint=tmp_path / folder, seed=seed)
        state = torch.load(tmp_path / folder / "checkpoint.pt", weights_only=True)
        assert (state["generators"] is None) == (seed is None)
        assert state["run"]["seed"] == seed
        assert state["run"]["steps_taken"] == 3
        assert (tmp_path / folder / "checkpoint.pt").stat().st_mode & 0o077 == 0
    assert not any("noise" in key or "key" in key for key in state["run"])


def test_a_checkpoint_is_for_its_own_plan_and_seed(tmp_path: Path) -> None:
    model, optimizer, _ = made()
    pp.train(model, optimizer, data(), planned(steps=3), LOSS, checkpoint=tmp_path, seed=1)
    for options, message in (
        ({"plan": planned(steps=4), "seed": 1}, "another plan"),
        ({"plan": planned(steps=3), "seed": 2}, "seed=1"),
        ({"plan": planned(steps=3), "seed": None}, "seed=1"),
    ):
        plan = options.pop("plan")
        with pytest.raises(pp.InvalidInput, match=message):
            pp.train(*made()[:2], data(), plan, LOSS, checkpoint=tmp_path, **options)
    model, optimizer, schedule = made()
    with pytest.raises(pp.InvalidInput, match="scheduler"):
        pp.train(model, optimizer, data(), planned(steps=3), LOSS, checkpoint=tmp_path, seed=1, scheduler=schedule)


def test_a_checkpoint_is_for_its_own_data_model_and_optimizer(tmp_path: Path) -> None:
    """Rates belong to people: rows in another order would be drawn by each other's."""
    plan, dataset = planned(steps=6), data()
    model, optimizer, _ = made()
    pp.train(model, optimizer, dataset, plan, LOSS, checkpoint=tmp_path, steps=3)
    order = torch.arange(59, -1, -1)
    turned = TensorDataset(*(tensor[order] for tensor in dataset.tensors))
    with pytest.raises(pp.InvalidInput, match="another data set"):
        pp.train(*made()[:2], turned, plan, LOSS, checkpoint=tmp_path)
    other = made()[0]
    with pytest.raises(pp.InvalidInput, match="the run has a SGD"):
        pp.train(other, torch.optim.SGD(other.parameters(), lr=0.1), dataset, plan, LOSS, checkpoint=tmp_path)
    wide = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 2))
    with pytest.raises(pp.InvalidInput, match="another model"):
        pp.train(wide, torch.optim.Adam(wide.parameters()), dataset, plan, LOSS, checkpoint=tmp_path)
    assert pp.train(*made()[:2], dataset, plan, LOSS, checkpoint=tmp_path).resumed_from == 3  # and no step was lost


def test_the_ordinary_loop_resumes_too(tmp_path: Path) -> None:
    plan, dataset = planned(steps=20), data()

    def loop(stop: int, state: object = None) -> tuple[nn.Module, dict[str, object]]:
        inner = nn.Linear(6, 2)
        with torch.no_grad():
            inner.weight.fill_(0.1)
            inner.bias.fill_(0.0)
        model, optimizer, loader = pp.make_private(
            inner, torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9), dataset, plan, seed=8
        )
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.steps_taken == stop:
                break
        return inner, copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    whole, _ = loop(20)
    _, state = loop(9)
    assert state["optimizer"]["private"]["steps_taken"] == 9
    parts, _ = loop(20, state)
    assert same(whole, parts)


def test_without_a_seed_counted_steps_stay_counted(tmp_path: Path) -> None:
    """A checkpoint of step 5 loaded after step 9 does not give four steps back."""
    plan, dataset = planned(steps=12), data()
    inner = nn.Linear(6, 2)
    sgd = torch.optim.SGD(inner.parameters(), lr=0.1)
    model, optimizer, loader = pp.make_private(inner, sgd, dataset, plan, journal=tmp_path / "steps")
    states = {}
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        states[optimizer.steps_taken] = copy.deepcopy(optimizer.state_dict())
        if optimizer.steps_taken == 9:
            break
    optimizer.load_state_dict(states[5])
    assert optimizer.steps_taken == 9
    assert len(loader) == 3
    with pytest.raises(pp.InvalidInput, match="ordinary optimizer"):
        optimizer.load_state_dict(sgd.state_dict())


class Seen(torch.optim.SGD):
    """Leaves a mark on disk whenever it is handed a released gradient."""

    log: Path

    def step(self, closure: object = None) -> None:
        with self.log.open("a") as file:
            file.write("x")
        super().step()


def train_in_a_process(folder: Path, seed: int | None, broken: bool) -> None:
    if broken:  # a journal that is written with the checkpoints, not before the steps
        Journal.count = lambda self, steps: setattr(self, "counted", steps)
    Seen.log = folder / "released"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    options = {"checkpoint": folder / "run", "execution": pp.Execution(checkpoint_every=50), "seed": seed}
    pp.train(model, Seen(model.parameters(), lr=0.1), data(), pp.Plan.load(folder / "plan.json"), LOSS, **options)
    torch.save(model.state_dict(), folder / "model.pt")


def run_and_kill(folder: Path, plan: pp.Plan, seed: int | None, kills: int, broken: bool = False) -> int:
    """Start the training again and again, killing it ``kills`` times; how many steps were released in all."""
    folder.mkdir()
    plan.save(folder / "plan.json")
    log = folder / "released"
    log.touch()
    generator = np.random.default_rng(0)
    for attempt in range(kills + 1):
        enough = log.stat().st_size + int(generator.integers(60, 130))
        child = multiprocessing.get_context("fork").Process(target=train_in_a_process, args=(folder, seed, broken))
        child.start()
        while attempt < kills and child.is_alive():
            if log.stat().st_size >= enough:
                child.kill()
            time.sleep(0.001)
        child.join(timeout=900)
    assert child.exitcode == 0
    return log.stat().st_size


@pytest.mark.slow
def test_a_killed_run_never_releases_more_steps_than_the_plan_has(tmp_path: Path) -> None:
    plan = planned(steps=700)
    assert run_and_kill(tmp_path / "sound", plan, None, kills=3) <= 700
    # Counting only with the checkpoints lets every kill release steps anew.
    assert run_and_kill(tmp_path / "broken", plan, None, kills=3, broken=True) > 700


@pytest.mark.slow
def test_a_killed_seeded_run_ends_bit_identical(tmp_path: Path) -> None:
    plan = planned(steps=400)
    run_and_kill(tmp_path / "whole", plan, 5, kills=0)
    run_and_kill(tmp_path / "killed", plan, 5, kills=2)
    one, other = (torch.load(tmp_path / name / "model.pt") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not list((tmp_path / "killed" / "run").glob("*.new"))  # dotted names too


def test_empty_draws_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At tiny rates most steps draw nobody: noise alone, no NaN."""
    budgets = pp.Budgets(np.full(3, 1.0), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=50, batch_size=1, noise_multiplier=1.0, accountant="rdp")
    model, optimizer, _ = made()
    before = copy.deepcopy(model)
    assert pp.train(model, optimizer, data(3), plan, LOSS).steps == 50
    assert not same(before, model)
    assert all(math.isfinite(float(p.detach().abs().sum())) for p in model.parameters())


def test_capture_needs_a_gpu() -> None:
    with pytest.raises(pp.InvalidInput, match="GPU"):
        pp.train(*made()[:2], data(), planned(), LOSS, execution=pp.Execution(capture=True))

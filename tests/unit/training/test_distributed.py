"""Two processes over gloo: each draws from its share, noise once in total, the same model everywhere."""

import multiprocessing
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import KEY, charged, new_ledger, step_cost
from made_once import made_once
from privypurse.training.distributed import Processes
from privypurse.training.grid_noise import GridNoise
from privypurse.training.sampling import PoissonSampler
from training_tools import LOSS, steps_on_disk

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
STRICT = 1e-6


def _entered(
    rank: int, size: int, meeting: Path, work: Callable[..., Any], arguments: tuple[Any, ...], out: Path
) -> None:
    dist.init_process_group("gloo", meeting.as_uri(), rank=rank, world_size=size)
    torch.save(work(rank, *arguments), out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def together(tmp_path: Path, work: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
    """What ``work(rank, …)`` gives in each of several processes that know of each other."""
    meeting = Path(mkdtemp(dir=tmp_path)) / "meeting"  # in a file: a free port may be somebody's before it is used
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_entered, args=(rank, size, meeting, work, arguments, tmp_path))
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=900)
    assert [child.exitcode for child in children] == [0] * size
    return [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(size)]


def data(n: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@made_once
def planned(n: int, steps: int, batch_size: int, person: object = None) -> pp.Plan:
    epsilon = np.where(np.arange(n) % 2 == 0, 1.0, 3.0) if person is None else np.full(n, 2.0)
    plan = pp.plan(
        pp.Budgets(epsilon, delta=1e-5, person=person), "scale", steps=steps, batch_size=batch_size, accountant="rdp"
    )
    return plan if person is None else plan.applied_to(person)


def trained(rank: int, plan: pp.Plan, dataset: TensorDataset, first_seed: int = 0, **options: Any) -> list[Any]:
    model = network(first_seed + rank)  # every process starts elsewhere; all must go on from the first one's
    report = pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, plan, LOSS, **options)
    return [report.steps, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("person", [None, np.repeat(np.arange(10), 4)], ids=["records", "persons"])
@pytest.mark.parametrize("physical", [None, 7])
def test_two_processes_take_the_steps_of_one(tmp_path: Path, person: object, physical: int | None) -> None:
    """Everyone is drawn at every step, so only the sum's order differs; noise of the first process's seed.

    Each process rounds its part to the noise's grid, so that a step may differ by one of its steps.
    """
    n = 40
    plan, dataset = planned(n, 5, n if person is None else 10, person), data(n)
    assert plan.rates.min() == 1.0
    alone = trained(0, plan, dataset, seed=2, execution=pp.Execution(max_physical_batch=physical))
    first, second = together(
        tmp_path, partial(trained, seed=2, execution=pp.Execution(max_physical_batch=physical)), plan, dataset
    )
    grid = GridNoise(plan.noise_multiplier * plan.clip_norm, 1).step
    for one, other, expected in zip(first, second, alone, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(expected), rtol=1e-9, atol=5 * grid)


def loop(rank: int, plan: pp.Plan, dataset: TensorDataset, everyone_adds_noise: bool = False) -> dict[str, Any]:
    """The ordinary loop: released gradients and drawn records of each step."""
    if everyone_adds_noise:
        Processes.first = property(lambda self: True)
    width = dataset.tensors[0].shape[1]
    inner = nn.Linear(width, 2, bias=False).to(dataset.tensors[0].dtype)
    model, optimizer, loader = pp.make_private(inner, torch.optim.SGD(inner.parameters(), lr=0.0), dataset, plan)
    released, drawn = [], []
    for x, y in loader:
        batch = model._current_batch._batch
        drawn.append(batch.records[: batch.real])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        released.append(inner.weight.grad.flatten().clone())
    return {"released": torch.stack(released).double().numpy(), "drawn": drawn, "steps": optimizer.steps_taken}


def test_noise_is_added_once_in_total(tmp_path: Path) -> None:
    plan = planned(40, 60, 10)
    nothing = TensorDataset(torch.zeros(40, 250), torch.zeros(40, dtype=torch.int64))

    def standardised(results: list[Any]) -> np.ndarray:
        assert np.array_equal(results[0]["released"], results[1]["released"])
        return results[0]["released"].ravel() * plan.batch_size / (plan.noise_multiplier * plan.clip_norm)

    noise = standardised(together(tmp_path, loop, plan, nothing))
    assert stats.kstest(noise, "norm").pvalue > STRICT
    twice = standardised(together(tmp_path, loop, plan, nothing, True))
    assert stats.kstest(twice, "norm").pvalue < STRICT


@pytest.mark.slow
def test_shares_are_whole_persons_with_coins_of_their_own(tmp_path: Path) -> None:
    person = np.repeat(np.arange(200), 2)
    plan, dataset = planned(400, 300, 40, person), data(400)  # with 150 steps a wrong rate passes once in 6,000 runs
    results = together(tmp_path, loop, plan, dataset)
    owners = [person[np.concatenate(result["drawn"])] for result in results]
    assert not set(owners[0]) & set(owners[1])
    for result in results:
        assert result["steps"] == plan.steps
        for records in result["drawn"]:
            assert all(np.isin([2 * (r // 2), 2 * (r // 2) + 1], records).all() for r in records)
    counts = np.array([[len(set(person[records])) for records in result["drawn"]] for result in results])
    trials, rate = 200 * plan.steps, float(plan.rates[0])
    assert stats.binomtest(int(counts.sum()), trials, rate).pvalue > STRICT
    assert stats.binomtest(int(counts.sum()), trials, rate * 1.1).pvalue < STRICT
    assert abs(np.corrcoef(counts)[0, 1]) < 5.5 / np.sqrt(plan.steps)


@pytest.mark.slow
def test_one_process_counts_and_saves(tmp_path: Path) -> None:
    plan, dataset = planned(40, 12, 10), data(40)
    stopped = together(
        tmp_path,
        partial(trained, checkpoint=tmp_path / "run", steps=5, execution=pp.Execution(checkpoint_every=5)),
        plan,
        dataset,
    )
    assert [result[0] for result in stopped] == [5, 5]
    assert steps_on_disk(tmp_path / "run" / "steps") == 5
    ended = together(tmp_path, partial(trained, checkpoint=tmp_path / "run"), plan, dataset)
    assert [result[0] for result in ended] == [12, 12]
    assert all(torch.equal(a, b) for a, b in zip(ended[0][1:], ended[1][1:], strict=True))


def test_a_model_in_ddp_is_taken_out_of_it(tmp_path: Path) -> None:
    together(tmp_path, _wrapped)


def _wrapped(rank: int) -> None:
    dataset, plan = data(40), planned(40, 3, 10)
    inner = network(rank)
    model, optimizer, loader = pp.make_private(
        nn.parallel.DistributedDataParallel(inner), torch.optim.SGD(inner.parameters(), lr=0.1), dataset, plan
    )
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert optimizer.steps_taken == 3


class Output(OrderedDict):
    """Like a Hugging Face model's: a dictionary whose entries are attributes too."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.__dict__.update(entries)


class Wordy(nn.Module):
    """Takes its input by name and gives more than logits."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, labels: Any = None) -> Output:
        hidden = self.inner[1](self.inner[0](input_ids))
        return Output(loss=labels, logits=self.inner[2](hidden), hidden_states=(input_ids, hidden))


def _with_outputs(rank: int, wrapped: bool) -> list[torch.Tensor]:
    dataset, plan, inner = data(40), planned(40, 3, 40), Wordy(network(0))
    given = nn.parallel.DistributedDataParallel(inner) if wrapped else inner
    sgd = torch.optim.SGD(inner.parameters(), lr=0.5)
    model, optimizer, loader = pp.make_private(given, sgd, dataset, plan, seed=1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(input_ids=x).logits, y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in inner.parameters()]


def test_a_model_in_ddp_whose_output_is_an_object_takes_the_same_steps(tmp_path: Path) -> None:
    (first, second), (plain, _) = (together(tmp_path, _with_outputs, wrapped) for wrapped in (True, False))
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, first, plain))
    start = [parameter.detach() for parameter in network(0).parameters()]
    assert not any(map(torch.equal, first, start))


def followed(rank: int, plans: list[pp.Plan], dataset: TensorDataset) -> list[Any]:
    results = []
    for plan in plans:
        model = network(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # everywhere the same gradients, whoever was drawn
        report = pp.train(model, optimizer, dataset, plan, LOSS, individual=pp.Individual(every=3))
        results.append([report.steps, np.array(report.spending.meter.counts), report.spending.told])
    return results


@pytest.mark.slow
@pytest.mark.parametrize("person", [None, np.repeat(np.arange(10), 4)], ids=["records", "persons"])
def test_spending_is_followed_across_processes(tmp_path: Path, person: object) -> None:
    """Levels as in one process; and one answer to each question, not one of every process, which would cost again."""
    budgets = pp.Budgets(np.full(40, 3.0), delta=1e-5, person=person)
    stops = [
        pp.StopAtPlateau(noise=30.0, every=2, most=3, patience=9),
        pp.StopWhenFew(below=20, epsilon=0.05, every=1),
    ]
    shape: dict[str, Any] = {"steps": 6, "batch_size": 3, "extra_steps": 12, "clip_norm": 2.0, "accountant": "rdp"}
    plans, dataset = [pp.plan(budgets, "scale", stop=stop, **shape) for stop in stops], data(40)
    plans = plans if person is None else [plan.applied_to(person) for plan in plans]
    first, second = together(tmp_path, followed, plans, dataset)
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0]
        assert np.array_equal(one[1], other[1])
        assert one[2] == other[2]
    assert first[0][0] == 18
    assert len(first[0][2]) == 3
    (alone,) = followed(0, plans[:1], dataset)
    assert np.array_equal(alone[1], first[0][1])


def refused(rank: int, plan: pp.Plan, dataset: TensorDataset) -> None:
    with pytest.raises(pp.InvalidInput, match="runs in one process"):
        trained(rank, plan, dataset, individual=pp.Individual())


def test_full_batch_spending_is_followed_in_one_process_only(tmp_path: Path) -> None:
    together(tmp_path, refused, planned(40, 3, 40), data(40))


IDS = np.array([f"C{k:03d}" for k in range(40)])


def under_ledger(rank: int, url: str, plan: pp.Plan, leaving: str | None, **options: Any) -> list[Any]:
    """Every process opens the ledger; after two steps somebody withdraws. The drawn of each step too."""
    ledger, drawn, draw = pp.Ledger.open(url, key=KEY), [], PoissonSampler.draw

    class Leaving(torch.optim.lr_scheduler.LambdaLR):
        def step(self, epoch: Any = None) -> None:
            super().step()
            if leaving is not None and rank == 0 and self.last_epoch == 2:
                ledger.withdraw([leaving])

    def noting(self: PoissonSampler, source: Any) -> np.ndarray:
        drawn.append(draw(self, source))
        return drawn[-1]

    PoissonSampler.draw = noting  # in this process, which is one for this
    model = network(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options |= {"person": IDS, "ledger": ledger, "scheduler": Leaving(optimizer, lambda step: 1.0)}
    done = pp.train(model, optimizer, data(40), plan, LOSS, **options)
    return [done.steps, done.run_id, drawn, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.slow
def test_two_processes_reserve_once_and_leave_out_who_withdraws(tmp_path: Path) -> None:
    ledger, url = new_ledger(tmp_path), f"sqlite:///{tmp_path / 'purses.db'}"
    ledger.join(IDS, 2.0)
    budgets = pp.Budgets(np.full(40, 2.0), delta=1e-5, person=IDS)
    plan = pp.plan(budgets, "uniform", ledger=ledger, noise_multiplier=20.0, steps=8, batch_size=40, accountant="rdp")
    assert plan.rates.min() == 1.0
    work = partial(under_ledger, checkpoint=tmp_path / "run")
    first, second = together(tmp_path, partial(work, steps=5), url, plan, "C007")
    assert (first[0], second[0]) == (5, 5)
    present = [np.union1d(*both) for both in zip(first[2], second[2], strict=True)]
    assert [7 in people for people in present] == [True, True, False, False, False]
    assert all(people.size >= 39 for people in present)
    ended = together(tmp_path, work, url, plan, None)
    assert [result[0] for result in ended] == [8, 8]
    assert all(torch.equal(a, b) for a, b in zip(ended[0][3:], ended[1][3:], strict=True))
    (run,) = ledger.runs()
    assert run.run_id == first[1]
    assert run.settled is not None
    orders = np.array([rung.order for rung in ledger.rungs])
    cost = orders / (2 * 20.0**2)  # of a step that everybody is in (Mironov 2017, arXiv 1702.07476, Proposition 7)
    have, steps = charged(ledger, IDS), np.where(np.arange(40) == 7, 5, 8)[:, None]
    assert (have >= steps * cost * (1 - 1e-9)).all()
    assert (have <= steps * cost * (1 + 1e-6) + 1e-9).all()
    assert not ledger.verify().problems


def going_on(rank: int, url: str, plan: pp.Plan) -> list[Any]:
    model = network(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ledger, individual = pp.Ledger.open(url, key=KEY), pp.Individual(grid_size=5, every=2)
    done = pp.train(model, optimizer, data(40), plan, LOSS, person=IDS, ledger=ledger, individual=individual)
    return [done.steps, done.spending.meter.counts]


@pytest.mark.slow
def test_two_processes_go_on_within_what_one_has_reserved(tmp_path: Path) -> None:
    ledger, url = new_ledger(tmp_path), f"sqlite:///{tmp_path / 'purses.db'}"
    ledger.join(IDS, 2.0)
    shape = {"steps": 4, "extra_steps": 20, "batch_size": 10, "noise_multiplier": 4.0, "accountant": "rdp"}
    budgets = pp.Budgets(np.full(40, 2.0), delta=1e-5, person=IDS)
    plan = pp.plan(budgets, ledger=ledger, at_most=0.3, **shape)
    (steps, counts), (steps_there, counts_there) = together(tmp_path, going_on, url, plan)
    assert steps == steps_there == 24
    assert np.array_equal(counts, counts_there)
    assert (counts[:, 0] > 0).any()  # somebody's purse ended before the run did
    costs = [[0.0] * 3] + [
        [step_cost(plan.rates[0], 4.0 * 5 / share, rung.order) for rung in ledger.rungs] for share in range(1, 6)
    ]
    have, want = charged(ledger, IDS), counts @ np.array(costs)
    assert (have >= want * (1 - 1e-9)).all()
    assert (have <= want * (1 + 1e-6) + 1e-9).all()
    assert not ledger.verify().problems


class Counting(pp.Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step(self, figures: pp.Figures) -> None:
        self.steps.append(figures.step)


def validated(rank: int, plan: pp.Plan, dataset: TensorDataset) -> list[Any]:
    model, told = network(0), Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked = pp.Validation(lambda model: float(rank), every=2, measured="public")
    done = pp.train(model, optimizer, dataset, plan, LOSS, seed=3, validate=asked, callbacks=[told])
    return [list(model.parameters()), done.history, told.steps]


def test_one_process_validates_and_tells_and_all_have_its_history(tmp_path: Path) -> None:
    plan, dataset = planned(40, 5, 10), data(40)
    (one, history, told), (other, history_there, told_there) = together(tmp_path, validated, plan, dataset)
    assert all(map(torch.equal, one, other))
    assert history == history_there
    assert [(figures.step, figures.validation["score"]) for figures in history] == [(0, 0), (2, 0), (4, 0), (5, 0)]
    assert (told, told_there) == ([1, 2, 3, 4, 5], [])

"""pp.rounds.train: who is in a round, what the others add to it, and runs that were broken off."""

import dataclasses
import math
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from privypurse.plans.schedule import Round, Schedule
from privypurse.training import train_rounds as in_rounds
from privypurse.training.distributed import Processes
from privypurse.training.train_rounds import AveragedOutputs
from training_tools import LOSS, same
from training_tools import dropout_network as network
from training_tools import few_records as data

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
N = 60


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def one_step(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def by_hand(
    chances: list[list[float]],
    *,
    noise: float = 1.0,
    steps: int = 4,
    rate: float = 0.5,
    people: int = N,
    separate: bool = False,
    taus: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0),
    owner: object = None,
) -> Schedule:
    """A schedule with these chances: a list for each round, a number for each level; levels take turns."""
    levels = len(chances[0])
    return Schedule(
        method="by hand",
        accountant="rdp",
        rounds=tuple(
            Round(
                threshold=tau, noise_multiplier=noise, steps=steps, rate=rate, chance=np.array(chance), expected=10.0
            )
            for tau, chance in zip(taus, chances, strict=False)
        ),
        batch_size=10,
        clip_norm=1.0,
        epsilon_by_level=np.arange(1.0, levels + 1),
        delta_by_level=np.full(levels, 1e-5),
        level_of=np.arange(people) % levels,
        owner=owner,  # type: ignore[arg-type]
        separate=separate,
        promise=pp.Promise.PART,  # no promise of its own: the noise is as small as the test needs it
    )


def drawn_by(schedule: Schedule, monkeypatch: pytest.MonkeyPatch, **options: object) -> list[np.ndarray]:
    """Who a run of this schedule draws into each round; nothing is trained."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(in_rounds, "train", lambda model, optimizer, dataset, plan, *_, **__: seen.append(plan.rates))
    pp.rounds.train(network, adam, data(4), schedule, LOSS, **options)  # type: ignore[arg-type]
    return [rates > 0 for rates in seen]


# --- Who is in a round --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 5])
def test_draws_follow_the_chances(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are binomial with the chance of each level; one that is a hundredth off is told apart."""
    chances, each = [[0.1, 0.5, 1.0], [0.0, 0.02, 0.7]], 300_000
    drawn = drawn_by(by_hand(chances, people=3 * each), monkeypatch, seed=seed)
    assert len(drawn) == 2
    for who, expected in zip(drawn, chances, strict=True):
        for level, chance in enumerate(expected):
            count = int(who[level::3].sum())
            if chance in (0, 1):
                assert count == chance * each
                continue
            assert stats.binomtest(count, each, chance).pvalue > 1e-6
            assert stats.binomtest(count, each, chance + 0.01).pvalue < 1e-6
            assert stats.binomtest(count, each, chance - 0.01).pvalue < 1e-6


@pytest.mark.parametrize("seed", [None, 5])
def test_rounds_draw_independently(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    people = 40_000
    first, second, third = drawn_by(by_hand([[0.5]] * 3, people=people), monkeypatch, seed=seed)
    for one, other in ((first, second), (first, third), (second, third)):
        assert stats.binomtest(int((one & other).sum()), people, 0.25).pvalue > 1e-6
        assert stats.binomtest(int((one == other).sum()), people, 0.5).pvalue > 1e-6
    again = drawn_by(by_hand([[0.5]] * 3, people=people), monkeypatch, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip((first, second, third), again, strict=True)) == (seed is not None)


def test_a_round_draws_persons_with_all_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = np.repeat(np.arange(30), 2)
    (who,) = drawn_by(by_hand([[0.5]], people=30, owner=owner), monkeypatch)
    assert who.shape == (60,)
    np.testing.assert_array_equal(who[::2], who[1::2])
    assert 0 < who.sum() < 60


def test_steps_are_drawn_anew_from_those_in_the_round() -> None:
    """A round's coin and a step's coin are two, with a seed as well: a quarter of all people are in a step."""

    class Seen(Dataset):
        def __init__(self) -> None:
            self.counts = np.zeros(2000, dtype=int)

        def __len__(self) -> int:
            return 2000

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.counts[index] += 1
            return torch.zeros(6), 0

    seen = Seen()
    pp.rounds.train(network, adam, seen, by_hand([[0.5]], people=2000, steps=4), LOSS, seed=1)
    ever = int((seen.counts > 0).sum())
    assert stats.binomtest(ever, 2000, 0.5 * (1 - 0.5**4)).pvalue > 1e-6
    assert stats.binomtest(int(seen.counts.sum()), 8000, 0.25).pvalue > 1e-4


# --- What they contribute -----------------------------------------------------------------------------------------


def linear() -> nn.Module:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def test_who_is_not_drawn_contributes_nothing() -> None:
    """Level 0 pulls the first column, level 1 the second; a round of one level alone moves one column alone."""
    x = torch.zeros(N, 2)
    x[0::2, 0], x[1::2, 1] = 1e4, 1e4
    dataset = TensorDataset(x, torch.zeros(N, dtype=torch.long))
    for inside in (0, 1):
        chance = [0.0, 0.0]
        chance[inside] = 1.0
        schedule = by_hand([chance], noise=1e-7, rate=1.0, steps=1)
        weight = pp.rounds.train(linear, one_step, dataset, schedule, LOSS).model.weight.detach()
        # Thirty people with gradients of norm 1 in all, divided by the public 10, in opposite rows.
        np.testing.assert_allclose(weight[:, inside].abs(), 3 / math.sqrt(2), rtol=1e-4)
        assert weight[:, 1 - inside].abs().max() < 1e-5
    both = by_hand([[1.0, 0.0], [0.0, 1.0]], noise=1e-7, rate=1.0, steps=1)
    weight = pp.rounds.train(linear, one_step, dataset, both, LOSS).model.weight.detach()
    assert weight.abs().min() > 1


def test_a_round_that_draws_nobody_is_noise_alone() -> None:
    schedule = by_hand([[0.0]], noise=50.0, steps=1)
    dataset = TensorDataset(torch.ones(N, 2), torch.zeros(N, dtype=torch.long))
    weight = pp.rounds.train(linear, one_step, dataset, schedule, LOSS).model.weight.detach()
    assert (weight != 0).all()
    assert weight.abs().max() < 50 / 10 * 7


@pytest.mark.parametrize("seed", [None, 3])
def test_each_round_has_noise_of_its_own(seed: int | None) -> None:
    """With one seed for all rounds the noise would be the same twice, and could be taken off."""
    schedule = by_hand([[0.0], [0.0]], noise=1.0, steps=1, separate=True)
    dataset = TensorDataset(torch.ones(N, 2), torch.zeros(N, dtype=torch.long))
    first, second = pp.rounds.train(linear, one_step, dataset, schedule, LOSS, seed=seed).model.models
    one, other = first.weight.detach(), second.weight.detach()
    assert not np.isclose(one, other, rtol=1e-6).any()
    assert not np.isclose(one, other, rtol=1e-3).all()
    again = pp.rounds.train(linear, one_step, dataset, schedule, LOSS, seed=seed).model.models
    assert same(first, again[0]) == (seed is not None)


# --- One model or several -----------------------------------------------------------------------------------------


def test_averaged_outputs_are_the_weighted_mean_of_probabilities() -> None:
    torch.manual_seed(1)
    models, weights = [nn.Linear(6, 4) for _ in range(3)], np.array([0.5, 0.2, 0.3])
    averaged = AveragedOutputs(models, weights)
    x = torch.randn(7, 6)
    by_hand_ = sum(w * model(x).softmax(-1) for w, model in zip(weights.tolist(), models, strict=True))
    torch.testing.assert_close(averaged(x).exp(), by_hand_)
    torch.testing.assert_close(averaged(x).exp().sum(-1), torch.ones(7))
    logits = sum(w * model(x) for w, model in zip(weights.tolist(), models, strict=True)).softmax(-1)
    assert (averaged(x).exp() - logits).abs().max() > 1e-3  # not the mean of logits
    alone = AveragedOutputs(models, np.array([0.0, 1.0, 0.0]))
    torch.testing.assert_close(alone(x).exp(), models[1](x).softmax(-1))
    restored = AveragedOutputs([nn.Linear(6, 4) for _ in range(3)], np.ones(3) / 3)
    restored.load_state_dict(averaged.state_dict())
    torch.testing.assert_close(restored(x), averaged(x))


def test_far_from_likely_classes_do_not_vanish() -> None:
    """Logarithms of probabilities far below what a float holds stay finite."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[500.0], [-500.0]]))
    out = AveragedOutputs([model, model], np.array([0.5, 0.5]))(torch.ones(1, 1))
    torch.testing.assert_close(out, torch.tensor([[0.0, -1000.0]]))


@pytest.mark.slow
def test_models_of_their_own_are_weighted_by_the_schedule() -> None:
    schedule = by_hand([[0.5], [0.5], [0.5]], separate=True)
    report = pp.rounds.train(network, adam, data(), schedule, LOSS, seed=2)
    assert isinstance(report.model, AveragedOutputs)
    assert len(report.model.models) == 3
    assert report.steps == 12
    torch.testing.assert_close(report.model.weights, torch.tensor([1.0, 2.0, 3.0]) / 6)
    made = []
    one = pp.rounds.train(
        lambda: made.append(1) or network(), adam, data(), dataclasses.replace(schedule, separate=False), LOSS, seed=2
    )
    assert made == [1]
    assert isinstance(one.model, nn.Sequential)
    assert same(report.model.models[0], pp.rounds.train(network, adam, data(), by_hand([[0.5]]), LOSS, seed=2).model)
    assert not same(report.model.models[0], one.model)


def test_a_schedule_that_was_solved_trains() -> None:
    epsilon = np.repeat([1.0, 2.0, 3.0], [30, 20, 10])
    schedule = pp.rounds.schedule(pp.Budgets(epsilon), "groups", epochs=2, batch_size=10, accountant="rdp")
    report = pp.rounds.train(network, adam, data(), schedule, LOSS, seed=0)
    assert report.steps == schedule.steps
    assert not same(report.model, network())


# --- Broken off and taken up again --------------------------------------------------------------------------------


class Stop(Exception):
    pass


class BreaksOff:
    """The loss, until it has been asked so often."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        self.left -= torch.is_grad_enabled()  # looks at the loss do not count
        if self.left < 0:
            raise Stop
        return LOSS(output, label)


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True], ids=["one model", "a model a round"])
@pytest.mark.parametrize("seed", [7, None])
def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, seed: int | None, separate: bool) -> None:
    """Broken off at different places, round 2 among them: with a seed it ends as if it had not been.

    The loss is also called by checks.
    """
    schedule = by_hand([[0.6, 0.9], [0.5, 0.2], [0.3, 0.8]], steps=12, separate=separate)
    options = {"seed": seed, "checkpoint": tmp_path / "run", "execution": pp.Execution(checkpoint_every=2)}
    torch.manual_seed(3)
    whole = pp.rounds.train(network, adam, data(), schedule, LOSS, seed=seed, checkpoint=tmp_path / "whole")
    files: dict[str, bytes] = {}
    broken: list[list[str]] = []
    for loss in (BreaksOff(4), BreaksOff(26), BreaksOff(5), BreaksOff(10_000)):
        torch.manual_seed(3)
        try:
            report = pp.rounds.train(network, adam, data(), schedule, loss, **options)  # type: ignore[arg-type]
        except Stop:
            broken.append(sorted(path.name for path in (tmp_path / "run").iterdir()))
        for path in sorted((tmp_path / "run").glob("*/drawn.npz")):
            assert files.setdefault(path.parent.name, path.read_bytes()) == path.read_bytes()  # drawn once
    assert broken[:2] == [["round-1"], ["round-1", "round-2"]]
    assert len(broken) == 3
    assert sorted(files) == ["round-1", "round-2", "round-3"]
    assert report.steps == 36
    assert same(report.model, whole.model) == (seed is not None)
    # Called once more there is nothing left to do.
    done = pp.rounds.train(network, adam, data(), schedule, BreaksOff(0), **options)  # type: ignore[arg-type]
    assert same(done.model, report.model)


def test_people_of_a_round_stay_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a seed a second draw would be another one, and everybody would have to pay for both."""
    schedule = by_hand([[0.5], [0.5]], people=300)
    first = drawn_by(schedule, monkeypatch, checkpoint=tmp_path / "run")
    again = drawn_by(schedule, monkeypatch, checkpoint=tmp_path / "run")
    fresh = drawn_by(schedule, monkeypatch, checkpoint=tmp_path / "other")
    for one, two, three in zip(first, again, fresh, strict=True):
        np.testing.assert_array_equal(one, two)
        assert (one != three).any()


def test_another_schedule_in_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = by_hand([[0.5, 0.7], [0.5, 0.2]])
    drawn_by(schedule, monkeypatch, checkpoint=tmp_path)
    others = [
        by_hand([[0.5, 0.7000001], [0.5, 0.2]]),
        by_hand([[0.5, 0.7], [0.5, 0.3]]),
        by_hand([[0.5, 0.7], [0.5, 0.2]], noise=1.1),
        by_hand([[0.5, 0.7], [0.5, 0.2]], steps=5),
        by_hand([[0.5, 0.7], [0.5, 0.2]], rate=0.4),
        dataclasses.replace(schedule, level_of=1 - schedule.level_of),
        dataclasses.replace(schedule, batch_size=11),
        dataclasses.replace(schedule, clip_norm=2.0),
    ]
    for other in others:
        with pytest.raises(pp.InvalidInput, match="another schedule"):
            drawn_by(other, monkeypatch, checkpoint=tmp_path)
    drawn_by(by_hand([[0.5, 0.7], [0.5, 0.2]]), monkeypatch, checkpoint=tmp_path)


def test_only_the_owner_reads_who_was_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pp.rounds.train(network, adam, data(), by_hand([[0.5], [0.5]], steps=2), LOSS, checkpoint=tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"drawn.npz", "checkpoint.pt", "steps"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert capsys.readouterr().out == ""


def test_a_schedule_is_needed() -> None:
    plan = pp.plan(pp.Budgets(np.full(N, 2.0)), "uniform", steps=3, batch_size=10, accountant="rdp")
    with pytest.raises(pp.InvalidInput, match="must be a Schedule, not Plan"):
        pp.rounds.train(network, adam, data(), plan, LOSS)  # type: ignore[arg-type]
    with pytest.raises(pp.InvalidInput, match="61 records"):
        pp.rounds.train(network, adam, data(61), by_hand([[0.5]]), LOSS)


def test_rounds_are_trained_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several would draw different people, and a person drawn by two would contribute twice."""
    monkeypatch.setattr(Processes, "found", classmethod(lambda cls: cls(0, 2)))
    monkeypatch.setattr(in_rounds, "train", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(pp.InvalidInput, match="one process"):
        pp.rounds.train(network, adam, data(), by_hand([[0.5]]), LOSS)


def test_what_is_said_of_the_training_holds_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "max_records_per_person": 2,
        "execution": pp.Execution(
            max_physical_batch=7, num_workers=1, checkpoint_every=3, capture=False, progress=True
        ),
        "wide_sums": True,
    }
    heard: list[dict[str, object]] = []
    monkeypatch.setattr(in_rounds, "train", lambda *_, **options: heard.append(options))
    pp.rounds.train(network, adam, data(), by_hand([[0.5], [1.0]]), LOSS, **said)  # type: ignore[arg-type]
    assert len(heard) == 2
    assert all(each[name] == value for each in heard for name, value in said.items())


def test_a_person_contributes_a_few_records_where_few_are_asked_for() -> None:
    """And never more than a clip norm; with all of their records the sum is another."""
    owner = np.repeat(np.arange(N // 6), 6)
    always = by_hand([[1.0]], noise=1e-9, steps=1, rate=1.0, people=N // 6, owner=owner)

    def linear() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(6, 2)

    trained = [
        pp.rounds.train(linear, one_step, data(), always, LOSS, seed=2, max_records_per_person=most).model
        for most in (None, 6, 1)
    ]
    whole, all_six, one = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in trained)
    torch.testing.assert_close(whole, all_six, rtol=1e-5, atol=1e-6)  # they are shuffled
    assert not torch.allclose(whole, one, atol=1e-3)


def test_a_schedule_that_keeps_no_promise_is_not_trained_on_peoples_data() -> None:
    nothing = dataclasses.replace(by_hand([[1.0, 1.0]]), promise=pp.Promise.NONE)
    with pytest.raises(pp.InvalidInput, match="keeps no budget"):
        pp.rounds.train(network, adam, data(), nothing, LOSS)
    assert pp.rounds.train(network, adam, data(), nothing, LOSS, seed=0).steps == nothing.steps


def test_a_damaged_draw_is_an_error_that_says_so(tmp_path: Path) -> None:
    pp.rounds.train(network, adam, data(), by_hand([[0.5, 1.0]]), LOSS, seed=0, checkpoint=tmp_path)
    path = tmp_path / "round-1" / "drawn.npz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(pp.InvalidInput, match="damaged"):
        pp.rounds.train(network, adam, data(), by_hand([[0.5, 1.0]]), LOSS, seed=0, checkpoint=tmp_path)

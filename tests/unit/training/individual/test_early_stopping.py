"""Ending a run by private questions: when they are asked, what they tell, what they cost, and after a crash."""

import copy
import functools
import itertools
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.randomness import SecureRandomness
from privypurse.training.distributed import Processes
from privypurse.training.individual.early_stopping import EarlyStopping
from privypurse.training.individual.norm_passes import NormPasses
from privypurse.training.mechanism import PrivateRun
from training_tools import LOSS, count_on_disk

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
STRICT = 1e-6


def data(n: int = 40, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2).double()


@made_once
def planned(
    stop: Any, n: int = 40, steps: int = 6, extra_steps: int = 20, batch_size: int = 10, **options: Any
) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(n) % 2 == 0, 2.0, 4.0), delta=1e-5, **options)
    shape: dict[str, Any] = {"steps": steps, "extra_steps": extra_steps, "batch_size": batch_size}
    return pp.plan(budgets, "scale", clip_norm=2.0, stop=stop, accountant="rdp", **shape)


def trained(plan: pp.Plan, dataset: TensorDataset, **options: Any) -> tuple[nn.Module, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.5))
    return model, pp.train(model, optimizer, dataset, plan, LOSS, **options)


def alone(rule: Any, people: int = 10, first: int = 0, right: Any = None) -> EarlyStopping:
    """A rule at work, on a count that is given instead of data."""
    plan = SimpleNamespace(
        shape=SimpleNamespace(stop=rule),
        steps=first,
        levels=SimpleNamespace(rate=np.array([0.5])),
        level_of=np.zeros(people, dtype=np.int64),
    )
    setup = SimpleNamespace(
        plan=plan, source=SecureRandomness(), processes=Processes(), recorder=SimpleNamespace(model=nn.Linear(1, 1))
    )
    passes = SimpleNamespace(
        setup=setup, right=lambda step, units, how: np.full(people, 1.0) if right is None else right(units)
    )
    return EarlyStopping(passes, how_right)  # type: ignore[arg-type]


def how_right(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(dim=1) == y).to(torch.float64)


# Stopping at a plateau.


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [10, 40], ids=["drawn", "full batch"])
def test_questions_at_public_times_and_the_best_model_in_the_end(
    monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    seen: list[tuple[dict[str, Tensor], float]] = []
    honest = NormPasses.right

    def watched(self: NormPasses, step: int, units: np.ndarray, right: Any) -> np.ndarray:
        assert np.array_equal(units, np.arange(40))  # whoever takes part answers, with a full purse or an empty one
        found = honest(self, step, units, right)
        seen.append((copy.deepcopy(self.setup.recorder.model.state_dict()), float(found.sum())))
        return found

    monkeypatch.setattr(NormPasses, "right", watched)
    times = []
    for seed in range(4):
        seen.clear()
        rule = pp.StopAtPlateau(noise=20.0, every=3, most=5, patience=2)
        model, found = trained(planned(rule, batch_size=batch_size), data(), seed=seed)
        told = found.spending.told
        assert [step for step, _ in told] == list(range(6, 6 + 3 * len(told), 3))
        assert len(told) == len(seen) <= 5
        answers = [value for _, value in told]
        best = int(np.argmax(answers))
        since = len(answers) - 1 - best
        assert found.steps == (told[-1][0] if since >= 2 else 26)
        assert all(k - int(np.argmax(answers[: k + 1])) < 2 for k in range(len(answers) - 1))  # not before either
        assert all(torch.equal(value, seen[best][0][name]) for name, value in model.state_dict().items())
        for (state, right), (_, answer) in zip(seen, told, strict=True):
            by_hand = network()
            by_hand.load_state_dict(state)
            assert right == int((by_hand(data().tensors[0]).argmax(dim=1) == data().tensors[1]).sum())
            assert 0 < abs(answer - right) < 6.5 * 20
        times.append(found.steps)
    assert min(times) < 26  # some of them stopped


def test_the_noise_has_the_stated_deviation() -> None:
    rule = pp.StopAtPlateau(noise=7.5, every=1, most=3000, patience=3000)
    watch = alone(rule)
    for step in range(3000):
        assert watch.goes_on(step, lambda: np.ones(10, dtype=bool))
    assert watch.goes_on(3000, lambda: np.ones(10, dtype=bool))
    assert len(watch.told) == 3000  # as many as were paid for
    noise = (np.array([value for _, value in watch.told]) - 10) / 7.5
    assert stats.kstest(noise, "norm").pvalue > STRICT
    for wrong, likely in ((1.0, True), (0.85, False), (1.15, False)):
        tail = stats.chi2.cdf(((noise * wrong) ** 2).sum(), 3000)
        assert (2 * min(tail, 1 - tail) > STRICT) == likely
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 5.5 / math.sqrt(3000)


def test_the_last_digits_tell_nothing() -> None:
    """Noise of few digits added in double precision would tell the count: only one fits (Mironov 2012)."""

    def fitting(answer: float, noise: float) -> list[int]:
        """The counts that this answer could come from, if noise were a float32 times its deviation."""
        return [k for k in range(41) if k + noise * float(np.float32((answer - k) / noise)) == answer]

    noise = 30.7
    broken = [int(k) + noise * float(torch.randn(())) for k in np.arange(0, 41, 8)]
    assert [fitting(answer, noise) for answer in broken] == [[k] for k in range(0, 41, 8)]
    for deviation in (30.7, 0.3, 5e6):
        watch = alone(pp.StopAtPlateau(noise=deviation, every=1, most=200, patience=200), people=40)
        for step in range(200):
            watch.goes_on(step, lambda: np.ones(40, dtype=bool))
        answers = np.array([value for _, value in watch.told])
        # All on one grid of a public size: whatever the count was, the same answers were possible.
        grain = 2.0 ** (math.floor(math.log2(min(deviation, 1.0))) - 20)
        assert (np.round(answers / grain) * grain == answers).all()
        if deviation > 1:
            assert sum(40 in fitting(answer, deviation) for answer in answers) < 20


def test_a_person_counts_at_most_once() -> None:
    """With several records, with a measure that leaves [0, 1], with one that is no number."""
    person = np.repeat(np.arange(12), [1, 2, 3, 4, 1, 2, 3, 4, 5, 5, 5, 5])
    budgets = pp.Budgets(np.full(40, 2.0), delta=1e-5, person=person)
    shape: dict[str, Any] = {"steps": 1, "batch_size": 4, "extra_steps": 2, "accountant": "rdp"}
    plan = pp.plan(budgets, "scale", stop=pp.StopAtPlateau(noise=30.0), **shape).applied_to(person)
    model = network()
    _, optimizer, _ = pp.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data(), plan, loss_fn=LOSS, max_records_per_person=4
    )
    passes: NormPasses = optimizer._current_batch.run.accounting._passes  # type: ignore[union-attr]
    for wild, counted in ((3.0, 1.0), (math.inf, 1.0), (-3.0, 0.0), (math.nan, 0.0)):
        found = passes.right(0, np.arange(12), lambda out, y, wild=wild: torch.full((len(y),), wild))
        assert np.array_equal(found, np.full(12, counted))
    right = how_right(model(data().tensors[0]), data().tensors[1]).numpy()
    whole = [np.mean(right[person == k]) for k in range(12) if np.sum(person == k) <= 4]
    np.testing.assert_allclose(passes.right(0, np.arange(12), how_right)[:8], whole)
    for mixing in (
        lambda out, y: (out - out.mean(dim=0)).argmax(dim=1) == y,
        lambda out, y: torch.full((len(y),), float(len(y) > 3)),
    ):
        with pytest.raises(pp.InvalidInput, match="changes with the other records"):
            passes.right(0, np.arange(12), mixing)
    with pytest.raises(pp.InvalidInput, match="one number for each record"):
        passes.right(0, np.arange(12), lambda out, y: how_right(out, y).mean())


@pytest.mark.each_value_once
@pytest.mark.parametrize("batch_size", [10, 40], ids=["drawn", "full batch"])
@pytest.mark.parametrize(
    "stop", [pp.StopAtPlateau(noise=10.0, every=2, patience=10), pp.StopWhenFew(below=1, epsilon=0.2, every=2)]
)
def test_steps_never_use_what_questions_cost(monkeypatch: pytest.MonkeyPatch, stop: Any, batch_size: int) -> None:
    """Small gradients, so that purses and not the plan end people's steps; prices written out."""
    # Which would stop somewhere, by its noise.
    monkeypatch.setattr(EarlyStopping, "_compare", lambda *arguments: None)
    plan = planned(stop, batch_size=batch_size, extra_steps=60)
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    private, optimizer, loader = pp.make_private(model, sgd, data(), plan, loss_fn=LOSS, seed=1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(private(x), y).backward()
        optimizer.step()
    accounting: Any = optimizer._current_batch.run.accounting
    plateau = isinstance(stop, pp.StopAtPlateau)
    if batch_size == 40:
        spent = optimizer.spending().meter
        price = 10 / 10.0**2 if plateau else (2 * stats.norm.ppf(1 / (1 + math.exp(-0.2)))) ** 2
        held = np.array([_purse(e, 1e-5) for e in plan.epsilon])
        went_on = np.ones(40, dtype=bool)
    else:
        odometer = accounting.odometer
        odometer.settle()
        order = odometer.purses.order[plan.level_of]
        spent = odometer.purses.spent
        price = order * 10 / (2 * 10.0**2) if plateau else _pure(0.2, order)
        delta = plan.filter_delta[plan.level_of]
        held = plan.epsilon - np.log((order - 1) / order) + (np.log(delta) + np.log(order)) / (order - 1)
        went_on = odometer.counts[:, 1:].sum(axis=1) > 6  # of others the plan's own proof has the price in it
    assert went_on.sum() > 5
    assert (spent + price <= held * (1 + 1e-9))[went_on].all()
    assert (spent + price > 0.97 * held)[went_on].any()  # and not much less either, for those who used it up
    without = planned(None, batch_size=batch_size, extra_steps=60)
    assert (plan.noise_multiplier > without.noise_multiplier * 1.0001) or plan.rates.sum() < without.rates.sum()


def _pure(epsilon: float, order: np.ndarray) -> np.ndarray:
    """Rényi divergence of randomised response, which is the worst ε-DP mechanism."""
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    return np.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)


def _purse(epsilon: float, delta: float) -> float:
    """μ² of the Gaussian mechanism that is just (ε, δ)-DP."""
    low, high = 1e-3, 10.0
    for _ in range(200):
        mu = (low + high) / 2
        below, above = stats.norm.cdf([-epsilon / mu + mu / 2, -epsilon / mu - mu / 2])
        low, high = (low, mu) if below - math.exp(epsilon) * above > delta else (mu, high)
    return low**2


# Stopping when few are left: the sparse vector technique.


@functools.cache
def stop_times(counts: tuple[int, ...], below: int, epsilon: float, wide: float = 1.0) -> np.ndarray:
    """The probability to stop at each question, and never: by integration over the noisy threshold."""
    noise = np.linspace(-60 * wide / epsilon, 60 * wide / epsilon, 8_001)
    weight = stats.laplace.pdf(noise, scale=2 * wide / epsilon) * (noise[1] - noise[0])
    going, found = weight, []
    for count in counts:
        few = stats.laplace.cdf(below + noise - count, scale=4 * wide / epsilon)
        found.append(float((going * few).sum()))
        going = going * (1 - few)
    return np.array([*found, float(going.sum())])


def test_the_time_of_stopping_is_private() -> None:
    """One person more or less in any of three questions, up or down; with half the noise it would not be."""
    epsilon, worst, broken = 1.0, 0.0, 0.0
    for counts in itertools.product((4, 5), (2, 3, 4), (2, 3)):
        for change in itertools.product((-1, 0, 1), repeat=3):
            other = tuple(a + b for a, b in zip(counts, change, strict=True))
            for wide in (1.0, 0.5):
                one, two = (stop_times(each, 3, epsilon, wide) for each in (counts, other))
                loss = float(np.abs(np.log(one / two)).max())
                worst, broken = (max(worst, loss), broken) if wide == 1.0 else (worst, max(broken, loss))
    assert worst <= epsilon * (1 + 1e-3)
    assert broken > epsilon * 1.2


def test_comparisons_have_the_noise_of_the_theorem() -> None:
    """How often the rule at work stops at each question, against the integral; and against wrong scales."""
    counts, below, epsilon, runs = (9, 6, 4, 3, 1), 5, 0.8, 4000
    stopped = np.zeros(6)
    for _ in range(runs):
        watch = alone(pp.StopWhenFew(below=below, epsilon=epsilon, every=2))
        for number, count in enumerate(counts):
            assert watch.goes_on(2 * number, partial(np.less, np.arange(10), count)) != watch._over
            if watch._over:
                assert not watch.goes_on(2 * number + 1, lambda: np.ones(10, dtype=bool))
                break
            assert watch.goes_on(2 * number + 1, lambda: np.ones(10, dtype=bool))  # not a time to ask
        stopped[len(watch.told) - 1 if watch._over else 5] += 1
        assert [value for _, value in watch.told] == [0.0] * (len(watch.told) - 1) + [float(watch._over)]
    expected = stop_times(counts, below, epsilon) * runs
    assert stats.chisquare(stopped, expected * (runs / expected.sum())).pvalue > STRICT
    for wide in (0.7, 1.7):
        wrong = stop_times(counts, below, epsilon, wide) * runs
        assert stats.chisquare(stopped, wrong * (runs / wrong.sum())).pvalue < STRICT


@pytest.mark.parametrize("batch_size", [10, 40], ids=["drawn", "full batch"])
def test_it_stops_when_few_are_left(batch_size: int) -> None:
    """An empty purse is not active, nor is it looked at: whose gradient is never measured does not count as small."""
    rule = pp.StopWhenFew(below=20, epsilon=1.0, every=2)
    budgets = pp.Budgets(np.full(40, 20.0), delta=1e-5)
    shape: dict[str, Any] = {"steps": 10, "extra_steps": 200, "batch_size": batch_size, "clip_norm": 0.05}
    plan = pp.plan(budgets, "scale", stop=rule, accountant="rdp", **shape)
    _, found = trained(plan, data(), individual=pp.Individual(every=3), lr=0.0)
    assert 10 <= found.steps < 100
    assert found.spending.told[-1] == (found.steps, 1.0)
    assert [step for step, _ in found.spending.told] == list(range(10, found.steps + 1, 2))


# After a crash.


def killed_after(folder: Path, counted: int) -> None:
    count_on_disk(folder / "steps", counted)


@pytest.mark.parametrize(
    ("saved", "counted", "may_have_been_asked"), [(5, 5, 0), (5, 8, 1), (7, 8, 0), (7, 13, 2), (9, 9, 0), (9, 15, 3)]
)
def test_what_may_have_been_asked_is_not_asked_again(
    tmp_path: Path, saved: int, counted: int, may_have_been_asked: int
) -> None:
    """Questions at 6, 9, 12, …: at most as many in all as were paid for, counting those that nobody remembers."""
    plan = planned(pp.StopAtPlateau(noise=30.0, every=3, most=4, patience=9))
    _, before = trained(plan, data(), steps=saved, checkpoint=tmp_path)
    known = before.spending.told
    killed_after(tmp_path, counted)
    _, after = trained(plan, data(), checkpoint=tmp_path)
    told = after.spending.told
    assert told[: len(known)] == known
    assert len(told) == 4 - may_have_been_asked
    assert all(step >= counted for step, _ in told[len(known) :])
    assert len({step for step, _ in told}) == len(told)


def test_an_answer_is_saved_before_anything_follows_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed right after a question, before the step: it is known when the run goes on, and not asked again."""
    plan = planned(pp.StopAtPlateau(noise=30.0, every=3, most=4, patience=9))
    honest = PrivateRun.release

    def killed(self: PrivateRun) -> None:
        if self.steps_taken == 9:
            raise MemoryError
        honest(self)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "release", killed)
        with pytest.raises(MemoryError):
            trained(plan, data(), checkpoint=tmp_path)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["run"]["individual"]["stopping"]["told"]
    assert [step for step, _ in saved] == [6, 9]
    _, after = trained(plan, data(), checkpoint=tmp_path)
    assert after.spending.told[:2] == tuple(tuple(each) for each in saved)
    assert [step for step, _ in after.spending.told] == [6, 9, 12, 15]
    looked = [step for step, _ in after.spending.active]
    assert len(set(looked)) == len(looked)  # the look at 9 was made twice, and counts once


@pytest.mark.parametrize(("saved", "counted", "silent"), [(5, 5, False), (5, 8, True), (7, 8, False), (7, 10, True)])
def test_comparisons_are_silent_once_one_may_be_forgotten(
    tmp_path: Path, saved: int, counted: int, silent: bool
) -> None:
    """The noise of a forgotten one is gone, and a second one would cost again: below is out of reach, so it speaks
    at once where it may."""
    plan = planned(pp.StopWhenFew(below=1_000_000, epsilon=0.5, every=3))
    if saved >= 6:  # let it get there, as if the noise had said so
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "privypurse.training.individual.early_stopping._laplace", lambda scale, source: -1e9 / scale
            )
            _, before = trained(plan, data(), steps=saved, checkpoint=tmp_path)
        assert before.spending.told == ((6, 0.0),)
        threshold = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["run"]["individual"]["stopping"][
            "threshold"
        ]
        assert threshold < 0  # kept: a new one would be a second release
    else:
        trained(plan, data(), steps=saved, checkpoint=tmp_path)
    killed_after(tmp_path, counted)
    _, after = trained(plan, data(), checkpoint=tmp_path)
    asked = [step for step, _ in after.spending.told if step >= counted]
    assert (not asked) == silent
    assert after.steps == (26 if silent or saved >= 6 else 6)


def test_a_question_that_failed_is_paid_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C in the middle of one: it counts as asked, however the run goes on."""
    plan = planned(pp.StopAtPlateau(noise=30.0, every=3, most=4, patience=9))
    honest, left = NormPasses.right, 2

    def fails(self: NormPasses, step: int, units: np.ndarray, right: Any) -> np.ndarray:
        nonlocal left
        left -= 1
        found = honest(self, step, units, right)
        if left == 0:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(NormPasses, "right", fails)
    with pytest.raises(KeyboardInterrupt):
        trained(plan, data(), checkpoint=tmp_path)
    _, found = trained(plan, data(), checkpoint=tmp_path)
    assert found.resumed_from == 9
    assert len(found.spending.told) < 4


def test_the_same_question_is_asked_once() -> None:
    watch = alone(pp.StopAtPlateau(noise=5.0, every=1, most=9))
    for _ in range(5):
        assert watch.goes_on(0, lambda: np.ones(10, dtype=bool))
    assert len(watch.told) == 1


def test_a_finished_run_asks_nothing_more_and_keeps_its_best(tmp_path: Path) -> None:
    plan = planned(pp.StopAtPlateau(noise=30.0, every=1, most=6, patience=1))
    model, found = trained(plan, data(), checkpoint=tmp_path, seed=1)
    assert found.steps < 26
    again, second = trained(plan, data(), checkpoint=tmp_path, seed=1)
    assert second.spending.told == found.spending.told
    assert second.steps == found.steps
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


# Refusals.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pp.StopAtPlateau(noise=0.0), r"noise must be .*, not 0.0"),
        (lambda: pp.StopAtPlateau(noise=math.inf), r"noise must be .*, not inf"),
        (lambda: pp.StopAtPlateau(noise=True), r"noise must be .*, not True"),
        (lambda: pp.StopAtPlateau(noise=1.0, most=0), r"most must be .*, not 0"),
        (lambda: pp.StopAtPlateau(noise=1.0, every=True), r"every must be .*, not True"),
        (lambda: pp.StopAtPlateau(noise=1.0, patience=1.5), r"patience must be .*, not 1.5"),
        (lambda: pp.StopWhenFew(below=0, epsilon=1.0), r"below must be .*, not 0"),
        (lambda: pp.StopWhenFew(below=1, epsilon=-1.0), r"epsilon must be .*, not -1.0"),
        (lambda: pp.StopWhenFew(below=1, epsilon=math.nan), r"epsilon must be .*, not nan"),
        (lambda: planned(pp.StopWhenFew(below=1, epsilon=0.1), extra_steps=0), "extra_steps="),
        (lambda: planned(5), "stop is 5"),
        (
            lambda: trained(planned(pp.StopWhenFew(below=1, epsilon=1.0), batch_size=40), data()),
            "The stopping rule's questions are part of that",
        ),
        (lambda: planned(pp.StopAtPlateau(noise=0.5)), "questions"),
    ],
)
def test_rules_that_mean_nothing_are_refused(make: Any, words: str) -> None:
    with pytest.raises(pp.PrivyPurseError, match=words):
        make()


def test_a_run_goes_on_with_its_own_rule(tmp_path: Path) -> None:
    trained(planned(pp.StopAtPlateau(noise=30.0)), data(), steps=3, checkpoint=tmp_path)
    with pytest.raises(pp.InvalidInput, match="another plan"):
        trained(planned(pp.StopAtPlateau(noise=31.0)), data(), checkpoint=tmp_path)

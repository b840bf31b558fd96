"""Validation while a model trains: figures by brute force, of released weights; training knows nothing of it."""

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

import privypurse as pp
from training_tools import LOSS, few_records, same, steps_on_disk

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
STEPS = 12


class Network(nn.Module):
    """Dropout, a buffer that it multiplies with, and an attribute that it adds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.register_buffer("scale", torch.ones(()))
        self.shift = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale + self.shift


def others(n: int = 25) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


@functools.cache
def planned(**changes: Any) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(60) % 2 == 0, 1.0, 3.0), delta=1e-5)
    return pp.plan(budgets, **{"steps": STEPS, "batch_size": 10, "accountant": "rdp", **changes})


def trained(validate: Any = None, **options: Any) -> tuple[nn.Module, pp.Trained]:
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    plan = options.pop("plan", None) or planned()
    options = {"seed": 4, "scheduler": scheduler, **options}
    report = pp.train(
        model, optimizer, options.pop("dataset", few_records()), plan, LOSS, validate=validate, **options
    )
    return model, report


def draws(model: nn.Module) -> float:
    return float(torch.rand(3).sum()) + random.random() + float(np.random.rand())  # noqa: NPY002


def seeds(model: nn.Module) -> float:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    return 0.0


def trains(model: nn.Module) -> float:
    model.train()
    for module in model.modules():
        module.requires_grad_(True)
    with torch.enable_grad():
        LOSS(model(others().tensors[0]), others().tensors[1]).sum().backward()
    return 0.0


def writes_a_buffer(model: nn.Module) -> float:
    model.scale.mul_(3.0)
    return 0.0


def replaces_a_buffer(model: nn.Module) -> float:
    model.scale = torch.tensor(5.0)
    return 0.0


def sets_an_attribute(model: nn.Module) -> float:
    model.shift = torch.tensor([3.0, -3.0])
    return 0.0


def hooks(model: nn.Module) -> float:
    model.layers[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return 0.0


DISTURBING = [trains, writes_a_buffer, replaces_a_buffer, sets_an_attribute, hooks]


def reseed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002


def ambient() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002


@pytest.mark.parametrize(
    "validate", [others(), draws, seeds, *DISTURBING], ids=lambda v: getattr(v, "__name__", "data")
)
def test_training_goes_on_as_if_nobody_had_asked(validate: Any) -> None:
    reseed()
    alone, _ = trained()
    expected = ambient()
    reseed()
    asked, report = trained(pp.Validation(validate, every=2))
    assert len(report.history) == 7
    assert same(alone, asked)
    assert torch.equal(asked.scale, torch.tensor(1.0))
    assert [module.training for module in asked.modules()] == [module.training for module in alone.modules()]
    assert all(parameter.grad is None for parameter in asked.parameters())
    assert ambient() == expected


@contextlib.contextmanager
def only_evaluating(model: nn.Module, *_: Any) -> Any:
    """The broken twin: what an ordinary loop does around its validation."""
    model.eval()
    with torch.no_grad():
        yield
    model.train()


@pytest.mark.parametrize("validate", DISTURBING)
def test_an_ordinary_loop_would_be_disturbed(validate: Callable[..., float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privypurse.training.watch.undisturbed", only_evaluating)
    if validate is trains:
        model, _ = trained(pp.Validation(validate, every=STEPS))
        assert any(parameter.grad is not None for parameter in model.parameters())
        return
    model, _ = trained(pp.Validation(validate, every=2))
    assert not same(trained()[0], model)


def test_an_ordinary_loop_would_draw_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privypurse.training.watch.undisturbed", only_evaluating)
    torch.manual_seed(3)
    trained()
    expected = ambient()
    torch.manual_seed(3)
    trained(pp.Validation(draws, every=2))
    assert ambient() != expected


def test_what_is_validated_are_the_weights_that_were_released() -> None:
    seen: dict[int, list[Tensor]] = {}

    def keep(model: nn.Module) -> int:
        seen[len(seen)] = [value.detach().clone() for value in model.parameters()]
        return 0

    _, report = trained(pp.Validation(keep, every=5))
    assert [figures.step for figures in report.history] == [0, 5, 10, 12]
    for number, figures in enumerate(report.history):
        model = trained(steps=figures.step)[0] if figures.step else Network()
        assert all(map(torch.equal, seen[number], model.parameters()))


class Augmented(Dataset):
    """Not tensors: one record at a time, with a public random turn, in words of its own."""

    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = others()[index]
        return x + 0 * torch.rand(()), int(y)


@pytest.mark.each_value_once
@pytest.mark.parametrize("dataset", [others(), Augmented(), list(others())], ids=["tensors", "records", "list"])
@pytest.mark.parametrize("physical", [None, 4])
def test_figures_are_those_of_one_record_at_a_time(dataset: Any, physical: int | None) -> None:
    def by_hand(model: nn.Module) -> dict[str, float]:
        loss = right = 0.0
        for x, y in others():
            out = model(x[None])[0]
            loss -= float(out.log_softmax(0)[y])
            right += float(out[y] > out[1 - y])
        return {"loss": loss / 25, "accuracy": right / 25}

    execution = pp.Execution(max_physical_batch=physical)
    _, report = trained(pp.Validation(dataset, every=4), execution=execution)
    _, expected = trained(pp.Validation(by_hand, every=4), execution=execution)
    assert [figures.step for figures in report.history] == [0, 4, 8, 12]
    for one, other in zip(report.history, expected.history, strict=True):
        assert one.validation.keys() == other.validation.keys() == {"loss", "accuracy"}
        assert one.validation == pytest.approx(other.validation, rel=1e-5)
    assert report.history[0].validation["loss"] > report.history[-1].validation["loss"]


def test_where_there_are_no_classes_there_is_no_accuracy() -> None:
    x = torch.randn(60, 6)
    model = nn.Linear(6, 1)
    report = pp.train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(x, x[:, 0]),
        planned(steps=2),
        lambda out, y: (out[:, 0] - y) ** 2,
        validate=TensorDataset(x + 1, x[:, 0]),
    )
    assert report.history[-1].validation.keys() == {"loss"}


def test_history_says_step_rate_and_whose_records() -> None:
    _, report = trained(pp.Validation(others(), measured="public"))
    assert [figures.step for figures in report.history] == [0, *range(2, 13, 2)]  # tenths, rounded up to whole steps
    assert [figures.learning_rate for figures in report.history] == [
        pytest.approx(0.05 * 0.5 ** (figures.step // 5)) for figures in report.history
    ]
    assert {figures.measured for figures in report.history} == {"public"}
    _, report = trained()
    assert [(figures.step, figures.measured) for figures in report.history] == [
        (step, None) for step in range(2, 13, 2)
    ]


def test_history_goes_on_with_the_run(tmp_path: Path) -> None:
    whole, expected = trained(pp.Validation(others(), every=3))
    trained(pp.Validation(others(), every=3), steps=7, checkpoint=tmp_path)
    model, report = trained(pp.Validation(others(), every=3), checkpoint=tmp_path)
    assert [figures.step for figures in report.history] == [0, 3, 6, 7, 9, 12]
    assert [figures for figures in report.history if figures.step != 7] == list(expected.history)
    assert same(whole, model)
    _, again = trained(pp.Validation(others(), every=3), checkpoint=tmp_path)
    assert again.history == report.history


def test_a_validation_that_fails_fails_before_anybody_pays(tmp_path: Path) -> None:
    def fails(model: nn.Module) -> float:
        raise RuntimeError("no such column")

    with pytest.raises(RuntimeError, match="no such column"):
        trained(fails, checkpoint=tmp_path, seed=None)
    assert steps_on_disk(tmp_path / "steps") == 0


def test_what_was_paid_for_is_kept_if_one_fails_later(tmp_path: Path) -> None:
    calls = []

    def fails(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 3:
            raise ConnectionError("nobody answers")
        return 1.0

    with pytest.raises(ConnectionError):
        trained(pp.Validation(fails, every=4), checkpoint=tmp_path)
    model, report = trained(pp.Validation(fails, every=4), checkpoint=tmp_path)
    assert report.resumed_from == 8
    assert same(model, trained()[0])


def test_one_that_changes_weights_is_refused_and_not_saved(tmp_path: Path) -> None:
    def shrinks(model: nn.Module) -> float:
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
        return 0.0

    with pytest.raises(pp.InvalidInput, match=r"validation wrote into layers\.0\.weight"):
        trained(pp.Validation(shrinks, measured="charged", every=4), checkpoint=tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_questions_that_are_charged_are_not_tried_before() -> None:
    asked = []
    _, report = trained(pp.Validation(lambda model: asked.append(1) or 0.5, every=6, measured="charged"))
    assert len(asked) == 2
    assert [figures.step for figures in report.history] == [6, 12]
    assert report.history[-1].validation == {"score": 0.5}


def test_members_are_not_validated_on() -> None:
    members = few_records()
    both = TensorDataset(*(torch.cat(pair) for pair in zip(members.tensors, others().tensors, strict=True)))
    train, rest = random_split(both, [60, 25], torch.Generator().manual_seed(0))
    for dataset, validate in (
        (members, members),
        (members, Subset(members, [1, 2])),
        (train, Subset(both, range(40))),
        (listed := [*members], listed[7:9]),
        (members, TensorDataset(*members.tensors)),
        (members, TensorDataset(*(each[7:9] for each in members.tensors))),
        (members, Subset(TensorDataset(*members.tensors), [1, 2])),
    ):
        with pytest.raises(pp.InvalidInput, match="records that are trained on"):
            trained(validate, dataset=dataset)
    twice = [torch.cat([each, each])[:120] for each in both.tensors]
    every_second = (TensorDataset(*(each[begin::2] for each in twice)) for begin in (0, 1))
    for dataset, validate in ((train, rest), every_second):
        _, report = trained(validate, dataset=dataset)
        assert report.history[-1].validation


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": 3}, "give a data set"),
        ({"on": others(), "measured": "mine"}, "choose one of 'public', 'released', 'charged', 'people'"),
        ({"on": others(), "every": 0}, "every must be"),
        ({"on": others(), "measured": "charged"}, "for a function that asks questions"),
    ],
)
def test_what_is_no_validation_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(pp.InvalidInput, match=said):
        pp.Validation(**arguments)


@pytest.mark.parametrize("given", [None, "0.5", torch.ones(2), {"loss": []}])
def test_what_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(pp.InvalidInput, match="give a number"):
        trained(lambda model: given)


def test_a_data_set_without_records_is_refused() -> None:
    with pytest.raises(pp.InvalidInput, match="without records"):
        trained([])


def test_with_a_stopping_rule_the_last_figures_are_of_the_model_that_stays() -> None:
    """Which is an earlier one, if that was better."""
    seen: list[list[Tensor]] = []

    def keep(model: nn.Module) -> int:
        seen.append([value.detach().clone() for value in model.parameters()])
        return len(seen)

    stop = pp.StopAtPlateau(noise=40.0, every=2, most=6)
    plan = planned(steps=4, extra_steps=STEPS, stop=stop, noise_multiplier=8.0)
    model, report = trained(pp.Validation(keep, every=2), plan=plan)
    assert all(map(torch.equal, seen[-1], model.parameters()))
    assert report.history[-1].step == report.steps
    steps = [figures.step for figures in report.history]
    assert steps == sorted(set(steps))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 2)

    def forward(self, words: Tensor) -> Any:
        return self.table(words).mean(1)


def test_dictionaries_are_validated_on_as_they_are_trained_on() -> None:
    generator = torch.Generator().manual_seed(0)
    words, labels = torch.randint(0, 9, (85, 5), generator=generator), torch.arange(85) % 2
    records = [{"words": w, "labels": int(y)} for w, y in zip(words, labels, strict=True)]
    model = Named()
    report = pp.train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        records[:60],
        planned(steps=2),
        LOSS,
        validate=records[60:],
    )
    with torch.no_grad():
        out = model(words[60:])
    expected = {
        "loss": float(LOSS(out, labels[60:]).mean()),
        "accuracy": float((out.argmax(1) == labels[60:]).float().mean()),
    }
    assert report.history[-1].validation == pytest.approx(expected, rel=1e-5)

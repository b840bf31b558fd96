"""What callbacks are told: figures that may be shown, the same whoever is there; all else goes into a local file."""

import dataclasses
import json
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import new_ledger
from made_once import made_once
from training_tools import LOSS, few_records, quiet, same, steps_on_disk

torch.set_num_threads(1)
quietly = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
STEPS = 5


class Told(pp.Callback):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []

    def on_step(self, figures: pp.Figures) -> None:
        self.all.append(("step", figures))

    def on_validate(self, figures: pp.Figures) -> None:
        self.all.append(("validate", figures))

    def on_end(self, history: Sequence[pp.Figures]) -> None:
        self.all.append(("end", tuple(history)))


@made_once
def planned(epsilon: Any = (1.0, 3.0) * 30, **changes: Any) -> pp.Plan:
    shape = {"steps": STEPS, "batch_size": 10, "noise_multiplier": 3.0, "accountant": "rdp", "at_most": 4.0}
    return pp.plan(pp.Budgets(epsilon, delta=1e-5), **{**shape, **changes})


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def trained(*callbacks: pp.Callback, dataset: TensorDataset | None = None, **options: Any) -> tuple[nn.Module, Any]:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1), **options}
    plan = options.pop("plan", None) or planned()
    return model, pp.train(model, optimizer, dataset or few_records(), plan, LOSS, callbacks=callbacks, **options)


def test_they_are_told_step_public_epsilon_and_learning_rate() -> None:
    told = Told()
    trained(told, validate=pp.Validation(lambda model: 0.25, every=2, measured="public"))
    rates = [0.5, 0.5, 0.05, 0.05, 0.005, 0.005]
    now = [pp.Figures(step, STEPS, 4.0, pytest.approx(rate)) for step, rate in enumerate(rates)]
    found = {"validation": {"score": 0.25}, "measured": "public"}
    seen = {step: dataclasses.replace(now[step], **found) for step in (0, 2, 4, 5)}
    assert told.all == [
        ("validate", seen[0]),
        ("step", now[1]),
        ("step", now[2]),
        ("validate", seen[2]),
        ("step", now[3]),
        ("step", now[4]),
        ("validate", seen[4]),
        ("step", now[5]),
        ("validate", seen[5]),
        ("end", tuple(seen.values())),
    ]


def test_they_are_told_the_same_whoever_is_there() -> None:
    """One person fewer with the largest ε, others' labels turned round: nothing of that shows."""
    heard = []
    for epsilon in ((1.0, 3.0) * 30, (1.0,) * 60, (0.5,) * 59):
        data = few_records(len(epsilon))
        turned = TensorDataset(data.tensors[0], 1 - data.tensors[1]) if epsilon[0] == 0.5 else data
        told = Told()
        trained(told, dataset=turned, plan=planned(epsilon))
        heard.append(told.all)
    assert heard[0] == heard[1] == heard[2]


@quietly
def test_a_seeded_run_and_a_plan_without_a_cap_tell_no_epsilon() -> None:
    for options in ({"seed": 1}, {"plan": planned(at_most=None)}):
        told = Told()
        _, report = trained(told, **options)
        assert {figures.epsilon for kind, figures in told.all if kind == "step"} == {None}
        assert {figures.epsilon for figures in report.history} == {None}


def test_under_a_ledger_it_is_the_public_cap(tmp_path: Path) -> None:
    ledger, ids, told = new_ledger(tmp_path), [f"C{number}" for number in range(60)], Told()
    ledger.join(ids, 2.0)
    shape = {"steps": STEPS, "batch_size": 10, "noise_multiplier": 4.0, "accountant": "rdp"}
    plan = pp.plan(pp.Budgets([0.05] * 60, delta=1e-5, person=ids), ledger=ledger, at_most=0.1, **shape)
    trained(told, plan=plan, person=ids, ledger=ledger)
    assert {figures.epsilon for kind, figures in told.all if kind == "step"} == {0.1}


def test_figures_of_people_who_are_not_charged_are_not_told() -> None:
    told = Told()
    with pytest.warns(pp.PrivyPurseWarning, match=r"not private for the people.*measured=\"public\""):
        _, report = trained(told, validate=lambda model: 0.25)
    assert report.history[-1].validation == {"score": 0.25}
    assert report.history[-1].measured == "people"
    assert "validate" not in [kind for kind, _ in told.all]
    kind, history = told.all[-1]
    assert kind == "end"
    assert [(figures.validation, figures.measured) for figures in history] == [({}, None)] * len(report.history)
    assert "0.25" not in repr(told.all)


def test_what_is_not_told_has_no_place_in_the_figures() -> None:
    names = [field.name for field in dataclasses.fields(pp.Figures)]
    assert names == ["step", "steps", "epsilon", "learning_rate", "validation", "measured"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_local_log_has_public_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    trained(pp.LocalLog(path, every=2), validate=pp.Validation(lambda model: 0.25, every=5, measured="released"))
    found = {"validation": {"score": 0.25}, "measured": "released"}
    assert lines(path) == [
        {"step": 0, "epsilon_at_most": 4.0, "learning_rate": 0.5, **found},
        {"step": 2, "epsilon_at_most": 4.0, "learning_rate": pytest.approx(0.05)},
        {"step": 4, "epsilon_at_most": 4.0, "learning_rate": pytest.approx(0.005)},
        {"step": 5, "epsilon_at_most": 4.0, "learning_rate": pytest.approx(0.005), **found},
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@quietly
def test_training_loss_is_in_an_internal_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody is drawn and there is no noise: the first step's loss is that of all records, before it."""
    quiet(monkeypatch)
    log, told = pp.LocalLog(tmp_path / "internal.jsonl", internal=True), Told()
    (tmp_path / "internal.jsonl").touch(0o644)
    x, y = few_records().tensors
    _, report = trained(log, told, validate=lambda model: 0.25)
    first = float(LOSS(linear()(x), y).mean().detach())
    found = lines(tmp_path / "internal.jsonl")
    losses = [line["internal"]["training_loss"] for line in found if "training_loss" in line["internal"]]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(first, rel=1e-5)
    assert losses[-1] < losses[0]
    assert [line["internal"]["validation"] for line in found if "validation" in line["internal"]] == [
        {"score": 0.25}
    ] * len(report.history)
    assert not any("validation" in line for line in found)
    assert "training_loss" not in repr(told.all) + repr(report.history)
    assert stat.S_IMODE((tmp_path / "internal.jsonl").stat().st_mode) == 0o600


def test_an_internal_log_needs_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(pp.LocalLog(tmp_path / "internal.jsonl", internal=True), validate=lambda model: 0.25)


@quietly
def test_callbacks_change_nothing() -> None:
    assert same(trained(Told(), seed=2)[0], trained(seed=2)[0])


@quietly
def test_what_was_paid_for_is_kept_if_a_logger_cannot_be_reached(tmp_path: Path) -> None:
    class Remote(pp.Callback):
        def on_step(self, figures: pp.Figures) -> None:
            if figures.step == 3:
                raise ConnectionError("nobody answers")

    with pytest.raises(ConnectionError):
        trained(Remote(), seed=2, checkpoint=tmp_path)
    assert steps_on_disk(tmp_path / "steps") == 3
    model, report = trained(seed=2, checkpoint=tmp_path)
    assert report.resumed_from == 3
    assert same(model, trained(seed=2)[0])


@pytest.mark.parametrize("given", [print, "log.txt", Told])
def test_what_is_no_callback_is_refused(given: Any) -> None:
    with pytest.raises(pp.InvalidInput, match=r"pp\.Callback"):
        trained(given)


def test_a_local_log_is_local() -> None:
    with pytest.raises(pp.InvalidInput, match="a file on this machine"):
        pp.LocalLog("https://example.org/log")
    with pytest.raises(pp.InvalidInput, match="every must be"):
        pp.LocalLog("log", every=0)


def test_the_learning_rate_of_an_optimizer_on_a_device_is_a_number() -> None:
    model, told = linear(), Told()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    pp.train(model, optimizer, few_records(), planned(), LOSS, callbacks=[told])
    assert [figures.learning_rate for kind, figures in told.all if kind == "step"] == [0.5] * STEPS
    assert np.isscalar(told.all[0][1].learning_rate)
